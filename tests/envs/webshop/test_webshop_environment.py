"""WebShop as a text environment: protocol, splits, panels, the original's folder, whole episodes."""

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.core import environment_class, make_panel, make_vector
from envs.webshop.environment import WebShop
from envs.webshop.generator import write_catalogue
from envs.webshop.protocol import PromptStyle, query_words
from envs.webshop.source import Source, open_stock, source_of

ENV = "hgpo/WebShop-v0"
TINY: dict[str, Any] = {"products": 60}
BRIEF: dict[str, Any] = {"products": 60, "prompt": "brief", "think": False, "actions": "none"}


@pytest.fixture(autouse=True)
def _no_original_data(monkeypatch, tmp_path):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A generated catalogue in the original's files."""
    folder = tmp_path_factory.mktemp("data")
    write_catalogue(folder, 80, seed=5)
    return folder


def play(expert, task, split="test", **options):
    """The rewards, the infos and the observations of an episode."""
    env = WebShop(**options)
    observation, info = env.reset(options={"task": task, "split": split})
    policy = WebShop.make_expert(expert, task, split, **options)
    seen, rewards, infos, terminated = [observation], [], [info], False
    while not terminated and len(rewards) < 15:
        observation, reward, terminated, truncated, info = env.step(policy(observation, info))
        assert not truncated
        seen.append(observation)
        rewards.append(reward)
        infos.append(info)
    return rewards, infos, seen


def reply(action):
    return f"<think></think><action>{action}</action>"


@pytest.mark.parametrize("options", [TINY, BRIEF, {"products": 60, "mode": "text_rich", "human": False}])
def test_gymnasium_finds_nothing_to_complain_of(options):
    check_env(WebShop(**options), skip_render_check=True)


def test_pages_of_the_world_are_in_the_observation_space():
    space = WebShop(**TINY).observation_space
    assert "Pâté – 鍋 ★" in space
    assert 5 not in space
    assert "" not in space


@pytest.mark.parametrize("task", range(4))
def test_the_planner_wins_ten_points_at_the_end(task):
    rewards, infos, _ = play("planner", task, **TINY)
    assert rewards == [0.0] * (len(rewards) - 1) + [10.0]
    assert (infos[-1]["won"], infos[-1]["score"], infos[-1]["step"]) == (True, 1.0, len(rewards))


@pytest.mark.parametrize("paying", [{}, {"reward": "score"}])
def test_a_poor_purchase_has_a_score_and_no_reward_unless_asked_for(paying):
    env = WebShop(**TINY, human=False, **paying)
    _, info = env.reset(options={"task": 0})
    _, _, _, _, info = env.step(reply(f"search[{info['goal']}]"))
    _, _, _, _, info = env.step(reply(info["available_actions"][-1]))
    assert info["score"] == 0
    observation, reward, terminated, truncated, info = env.step(reply("click[buy now]"))
    assert (reward, terminated, truncated) == (10 * info["score"] if paying else 0.0, True, False)
    assert 0 < info["score"] < 1
    assert not info["won"]
    assert f"[SEP] {info['score']} [SEP] Reward Details" in observation
    assert info["anchor_state"] == observation, "the task is no part of the last page"
    assert env.step(reply("click[buy now]"))[1:3] == (0.0, True)


def test_what_a_step_tells():
    env = WebShop(**TINY, think=False)
    intro, info = env.reset(options={"task": 3, "split": "eval"})
    assert intro == f"WebShop [SEP] Instruction: [SEP] {info['goal']} [SEP] Search"
    assert env.render() == intro
    assert info["anchor_state"] == "'Search'"
    assert info["available_actions"] == ("search[<your query>]", "click[search]")
    assert (info["action"], info["action_valid"], info["won"], info["score"], info["step"]) == ("", True, False, 0, 0)
    assert info["style"] == PromptStyle(think=False)
    seen, reward, terminated, truncated, info = env.step("<action>Search[Stool]</action>")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["action"], info["action_valid"], info["step"]) == ("search[stool]", True, 1)
    assert info["anchor_state"].startswith("'Back to Search' [SEP] 'Page 1 (Total results: ")
    assert info["available_actions"][:2] == ("click[back to search]", "click[next >]")
    again, _, _, _, info = env.step("<action>fly</action>")
    assert (again, info["action"], info["action_valid"], info["step"]) == (seen, "fly", True, 2)
    # An invalid reply's action is carried out.
    seen, _, _, _, info = env.step("click[back to search]")
    assert (info["action"], info["action_valid"], seen) == ("lick[back to search]", False, again)
    seen, _, _, _, info = env.step("search[oak]")
    assert (info["action"], info["action_valid"]) == ("search[oak]", False)
    assert "Page 1" in seen


def test_the_rich_mode_keeps_its_page_as_anchor_state():
    env = WebShop(**TINY, mode="text_rich")
    seen, info = env.reset(options={"task": 0})
    assert "[button] Search [button_]" in seen
    assert info["anchor_state"] == seen


def test_the_same_task_starts_the_same_and_groups_do_not_touch_each_other():
    vector = make_vector(ENV, 2, **TINY)
    (one, other), _ = vector.reset(seed=[0, 0], options={"task": 1, "reset_mask": np.ones(2, bool)})
    assert one == other
    seen, _, _, _, infos = vector.step((reply("search[<r>]"), reply("search[<r>]")))
    assert seen[0] == seen[1], "by lot, but by the task's own"
    seen, _, _, _, infos = vector.step((reply("click[back to search]"), "hello"))
    assert seen[0] == one != seen[1]
    np.testing.assert_array_equal(infos["action_valid"], [True, False])
    np.testing.assert_array_equal(infos["score"], [0, 0])


def test_a_pickled_environment_goes_on_where_it_stood():
    env = WebShop(**TINY)
    assert pickle.loads(pickle.dumps(env)).reset(options={"task": 2})[0] == env.reset(options={"task": 2})[0]
    policy = WebShop.make_expert("planner", 2, "train", **TINY)
    observation, info = env.reset(options={"task": 2})
    for _ in range(2):
        observation, _, _, _, info = env.step(policy(observation, info))
    data = pickle.dumps(env)
    assert len(data) < 20_000, "without the shop"
    twins = [pickle.loads(data), copy.deepcopy(env)]
    terminated = False
    while not terminated:
        said = policy(observation, info)
        result = env.step(said)
        assert all(twin.step(said) == result for twin in twins)
        observation, _, terminated, _, info = result
    assert info["won"]


def test_environments_share_one_shop():
    first, second = WebShop(**TINY), WebShop(**TINY, think=False)
    assert first._stock is second._stock is open_stock(source_of(**TINY))
    assert first._stock.shop is not WebShop(products=61)._stock.shop


def test_the_options_defaults_are_the_sources():
    assert WebShop()._source == Source()


@pytest.mark.parametrize("options", [TINY, BRIEF])
def test_a_random_reply_clicks_on_anything_or_searches_for_the_goals_words(options):
    env = WebShop(**options)
    _, info = env.reset(options={"task": 0})
    rng = np.random.default_rng(0)
    on_index = {WebShop.random_reply(rng, info) for _ in range(100)}
    assert len(on_index) > 10
    words = set(query_words(info["goal"]))
    assert all(set(said.split("search[")[1].split("]")[0].split()) <= words for said in on_index)
    _, _, _, _, info = env.step(WebShop.random_reply(rng, info))
    drawn = {WebShop.random_reply(rng, info).split("<action>")[1] for _ in range(400)}
    names = [action.removeprefix("click[") for action in info["available_actions"]]
    if options is BRIEF:
        names = [*names[:2], *(f"{i}]" for i in range(1, len(names) - 1))]
    assert {said for said in drawn if said.startswith("click")} == {f"click[{name}</action>" for name in names}
    assert any(said.startswith("search[") for said in drawn)
    for _ in range(200):
        before = info["step"]
        _, _, terminated, _, info = env.step(WebShop.random_reply(rng, info))
        assert info["action_valid"]
        assert info["step"] == before + 1
        if terminated:
            _, info = env.reset(options={"task": int(rng.integers(9))})


def test_splits_share_no_product_and_panels_go_through_all_goals():
    options: dict[str, Any] = TINY | {"human": False}
    stock = open_stock(source_of(**options))
    goals = {split: make_panel(ENV, split, 0, 0, **options) for split in WebShop.splits}
    products = {}
    for split, panel in goals.items():
        contents = [WebShop.fingerprint(task, split, **options) for task in panel.tasks]
        assert len(set(contents)) == len(contents) == len(stock.splits[split])
        products[split] = {content.split("asin='")[1][:10] for content in contents}
    assert not products["train"] & products["eval"]
    assert not products["eval"] & products["test"]
    assert not products["train"] & products["test"]
    size = len(stock.splits["test"])
    assert make_panel(ENV, "test", 5, 0, **options).tasks == goals["test"].tasks[:5]
    assert make_panel(ENV, "test", 5, 1, **options).tasks == tuple(range(size, size + 5))
    turns = [[WebShop.fingerprint(task, "test", **options) for task in range(n * size, (n + 1) * size)] for n in (0, 1)]
    assert sorted(turns[0]) == sorted(turns[1])
    assert turns[0] != turns[1]
    assert make_panel(ENV, "", 3, 0, **options).split == "eval"


def test_a_panels_hash_is_of_goals_and_catalogue():
    options = (TINY, BRIEF, {"products": 61}, {"products": 60, "human": False})
    hashes = [make_panel(ENV, "eval", 4, 0, **kwargs).hash for kwargs in options]
    assert hashes[0] == hashes[1], "the style is no part of a task"
    assert len(set(hashes)) == 3


def test_the_originals_folder(folder, monkeypatch, tmp_path):
    options: dict[str, Any] = {"data": str(folder)}
    about = WebShop.about(**options)
    assert f"the original data in {folder}, 80 products, human goals (" in about
    assert str(tmp_path / "cache" / "hgpo_jax" / "webshop") in about
    rewards, _, _ = play("planner", 0, **options)
    assert rewards[-1] == 10
    # The variable does the same; what was played before it was set is no matter, nor is the folder above.
    generated, panel = WebShop().reset(options={"task": 0})[0], make_panel(ENV, "test", 3)
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    assert WebShop().reset(options={"task": 0})[0] == WebShop(**options).reset(options={"task": 0})[0] != generated
    assert make_panel(ENV, "test", 3).hash == make_panel(ENV, "test", 3, 0, **options).hash != panel.hash
    assert WebShop.about() == WebShop.about(**options)
    monkeypatch.delenv("WEBSHOP_DATA")
    assert make_panel(ENV, "test", 3) == panel
    # A folder of the same name somewhere else is another one.
    write_catalogue(tmp_path / "here" / "data", 50, seed=1)
    monkeypatch.chdir(tmp_path / "here")
    assert WebShop.about(data="data") != WebShop.about(**options)
    monkeypatch.chdir(folder.parent)
    assert WebShop.about(data=folder.name) == WebShop.about(**options)


def test_the_index_of_original_data_is_kept_and_found_again(tmp_path):
    folder = tmp_path / "data"
    write_catalogue(folder, 50, seed=3)
    WebShop(data=str(folder))
    (kept,) = (tmp_path / "cache" / "hgpo_jax" / "webshop").iterdir()
    assert kept.name.startswith("search-")
    assert WebShop(data=str(folder))._stock.shop.index.path == kept
    assert WebShop(**TINY)._stock.shop.index.path is None


def test_an_index_that_cannot_be_kept_is_told_with_the_remedy(folder, tmp_path, monkeypatch):
    write_catalogue(tmp_path / "data", 50, seed=2)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"can't be kept in .*: set XDG_CACHE_HOME"):
        WebShop(data=str(tmp_path / "data"))


def test_nouns_from_a_file(folder, tmp_path):
    products = open_stock(source_of(data=str(folder))).shop.catalogue.products
    path = tmp_path / "nouns.json"
    path.write_text(json.dumps({product.asin: ["thing"] for product in products}))
    options = {"data": str(folder), "nouns": str(path)}
    assert "nouns cached nouns.json" in WebShop.about(**options)
    assert play("planner", 1, **options)[0][-1] == 10
    path.with_name("few.json").write_text(json.dumps({products[0].asin: ["thing"]}))
    with pytest.raises(ValueError, match=f"few.json: no nouns of asin {products[1].asin}"):
        WebShop(data=str(folder), nouns=str(tmp_path / "few.json"))


def test_without_data_it_says_what_is_played_and_how_to_get_the_original():
    said = WebShop.about(**TINY, strict=True)
    assert said.startswith("WebShop: a generated catalogue, 60 products, human goals (")
    assert "; held_out), nouns heuristic, strict rewards. For the original data: setup.sh of WebShop" in said
    assert "WEBSHOP_DATA" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": "short"}, "the option actions is 'short'"),
        ({"prompt": "short"}, "the option prompt is 'short'"),
        ({"mode": "html"}, "the option mode is 'html', expected one of text, text_rich"),
        ({"mode": "text_rich", "prompt": "brief"}, "prompt brief needs the mode text"),
        ({"reward": "dense"}, "the option reward is 'dense', expected one of won, score"),
        ({"goal_split": "own"}, "the option goal_split is 'own', expected one of held_out, products, leaky"),
        ({"goal_split": "leaky", "products": 60}, "needs more than 500 goals"),
        ({"products": -1}, "products must be between 1 and"),
        ({"max_options": 3}, "max_options must be between 0 and 2"),
        ({"nouns": "space"}, "the option nouns is .*space', expected heuristic, spacy or a JSON file"),
        ({"data": "nowhere"}, "no folder .*nowhere with WebShop's data"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        WebShop(**options)


def test_bad_tasks_splits_names_and_folders(folder, monkeypatch, tmp_path):
    env = WebShop(**TINY)
    with pytest.raises(Exception, match="call reset before step"):
        env.step("search[x]")
    with pytest.raises(ValueError, match="task must be at least 0, got -1"):
        env.reset(options={"task": -1})
    with pytest.raises(ValueError, match="no split 'valid'; there are: train, eval, test"):
        env.reset(options={"task": 0, "split": "valid"})
    with pytest.raises(ValueError, match="no expert 'oracle' in WebShop; there are: planner, shopper, hasty"):
        WebShop.make_expert("oracle", 0, "test")
    with pytest.raises(ValueError, match=r"no file .*items_shuffle_1000.json; setup.sh"):
        WebShop(data=str(folder), small=True)
    with pytest.raises(ValueError, match=r"products and max_options .* data \(.*\) names .* or leave data out"):
        WebShop(data=str(folder), products=60)
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    with pytest.raises(ValueError, match=r"the variable WEBSHOP_DATA .* or leave WEBSHOP_DATA unset"):
        WebShop(max_options=0)
    with pytest.raises(ValueError, match=r"has no option size; there are: data, small, products, max_options, mode"):
        environment_class(ENV, size=4)
