"""ALFWorld as a text environment: protocol, splits, panels, the original's folder, whole episodes."""

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.alfworld.environment import ALFWorld
from envs.alfworld.generator import write_game
from envs.alfworld.protocol import PromptStyle
from envs.core import environment_class, make_panel, make_vector

ENV = "hgpo/ALFWorld-v0"
TINY: dict[str, Any] = {"receptacles": 5}


@pytest.fixture(autouse=True)
def no_original_data(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Generated games in the layout of the original's: 7 train, 3 seen, 4 unseen."""
    folder = tmp_path_factory.mktemp("data") / "json_2.1.1"
    for split, count in (("train", 7), ("seen", 3), ("unseen", 4)):
        for number in range(count):
            write_game(folder, split, number, receptacles=6)
    return folder


def play(expert, task, split="unseen", **options):
    """The rewards, the last info and the observations of an episode."""
    env = ALFWorld(**options)
    observation, info = env.reset(options={"task": task, "split": split})
    policy = ALFWorld.make_expert(expert, task, split, **options)
    seen, rewards, terminated = [observation], [], False
    while not terminated and len(rewards) < 50:
        observation, reward, terminated, truncated, info = env.step(policy(observation, info))
        assert not truncated
        seen.append(observation)
        rewards.append(reward)
    return rewards, info, seen


def test_gymnasium_finds_nothing_to_complain_of():
    check_env(ALFWorld(receptacles=4), skip_render_check=True)


@pytest.mark.parametrize("expert", ALFWorld.experts)
@pytest.mark.parametrize("task", range(6))
def test_experts_win_ten_points_at_the_end(expert, task):
    rewards, info, _ = play(expert, task, **TINY)
    assert rewards == [0.0] * (len(rewards) - 1) + [10.0]
    assert info["won"]
    assert info["step"] == len(rewards)
    assert info["task_type"] == ALFWorld.task_types[task]


def test_the_hesitant_expert_wastes_half_of_its_steps_and_wins_all_the_same():
    wasted, steps = 0, 0
    for task in range(60):
        policy, env = ALFWorld.make_expert("hesitant", task, "train", **TINY), ALFWorld(**TINY)
        observation, info = env.reset(options={"task": task})
        replies = []
        while not info["won"]:
            replies.append(policy(observation, info))
            observation, _, _, _, info = env.step(replies[-1])
            wasted += info["action"] == "look"
        steps += len(replies)
        again = ALFWorld.make_expert("hesitant", task, "train", **TINY)
        assert again(*ALFWorld(**TINY).reset(options={"task": task})) == replies[0]
    assert 0.45 < wasted / steps < 0.55  # of some 700 steps, whose share has a standard deviation of 0.02


def test_what_a_step_tells():
    env = ALFWorld(**TINY, think=False, actions="short")
    intro, info = env.reset(options={"task": 3, "split": "seen"})
    assert intro.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    assert intro.endswith(f"\n\nYour task is to: {info['goal']}")
    assert info["anchor_state"] == intro
    assert (info["action"], info["action_valid"], info["won"], info["step"]) == ("", True, False, 0)
    assert info["style"] == PromptStyle(think=False, actions="short")
    assert info["admissible_commands"] == tuple(sorted(info["admissible_commands"]))
    assert "help" in info["admissible_commands"]
    nothing, reward, terminated, truncated, info = env.step("<action>fly</action>")
    assert (nothing, reward, terminated, truncated) == ("Nothing happens.", 0.0, False, False)
    assert (info["action"], info["action_valid"], info["step"]) == ("fly", True, 1)
    assert info["anchor_state"] == "Nothing happens."
    _, _, _, _, info = env.step("inventory")
    assert (info["action"], info["action_valid"], info["step"]) == ("inventory", False, 2)
    assert env.render() == "You are not carrying anything.", "an invalid reply's action is carried out"


def test_a_strict_environment_wants_possible_actions():
    env = ALFWorld(**TINY, strict=True)
    _, info = env.reset(options={"task": 3})
    for command in (*info["admissible_commands"][:3], "fly", ""):
        _, _, _, _, after = env.step(f"<think></think><action>{command}</action>")
        assert after["action_valid"] == (command in info["admissible_commands"])
        info = after
    assert not env.step("look")[4]["action_valid"], "without tags as ever"


def test_the_same_task_starts_the_same_and_groups_do_not_touch_each_other():
    vector = make_vector(ENV, 2, **TINY)
    (one, other), infos = vector.reset(seed=[0, 0], options={"task": 1, "reset_mask": np.ones(2, bool)})
    assert one == other
    command = next(c for c in infos["admissible_commands"][0] if c.startswith("go to"))
    seen, _, _, _, infos = vector.step((f"<think></think><action>{command}</action>", "hello"))
    assert seen[0] != seen[1] == "Nothing happens."
    np.testing.assert_array_equal(infos["action_valid"], [True, False])


def test_a_random_reply_is_admissible():
    env = ALFWorld(**TINY)
    _, info = env.reset(options={"task": 0})
    rng = np.random.default_rng(0)
    drawn = {ALFWorld.random_reply(rng, info) for _ in range(300)}
    commands = [command for command in info["admissible_commands"] if command != "help"]
    assert drawn == {f"<think></think><action>{command}</action>" for command in commands}


def test_generated_panels_hold_different_games_and_every_type():
    panel = make_panel(ENV, "unseen", 24, 0, **TINY)
    assert panel == make_panel(ENV, "unseen", 24, 0, receptacles=5, think=False), "the style is no part of a game"
    assert len({ALFWorld.fingerprint(task, "unseen", **TINY) for task in panel.tasks}) == 24
    hashes = {panel.hash} | {
        make_panel(ENV, split, 24, seed, **TINY).hash for split, seed in (("seen", 0), ("unseen", 1))
    }
    assert len(hashes) == 3
    assert make_panel(ENV, "", 6, 0, **TINY).split == "seen"
    with pytest.raises(ValueError, match="generated games have no end"):
        make_panel(ENV, "seen", 0, 0)


def test_the_originals_folder(folder, monkeypatch):
    options: dict[str, Any] = {"data": str(folder)}
    assert "the original games in" in ALFWorld.about(**options)
    everything = make_panel(ENV, "unseen", 0, 0, **options)
    assert len({ALFWorld.fingerprint(task, "unseen", **options) for task in everything.tasks}) == 4
    assert sorted(everything.tasks) == list(everything.tasks) == [0, 1, 2, 3]
    # A larger panel goes on where the smaller ends, then games come again, in another order.
    games = [
        ALFWorld.fingerprint(task, "train", **options) for task in make_panel(ENV, "train", 70, 0, **options).tasks
    ]
    turns = [games[i : i + 7] for i in range(0, 70, 7)]
    assert all(set(turn) == set(turns[0]) for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert make_panel(ENV, "train", 7, 1, **options).tasks == tuple(range(7, 14))
    rewards, info, _ = play("searcher", 0, "seen", **options)
    assert rewards[-1] == 10
    assert info["won"]
    # The variable does the same, and so does the folder above; what was played before it was set is no matter.
    generated = ALFWorld().reset(options={"task": 0})[0]
    assert make_panel(ENV, "seen", 3).hash != make_panel(ENV, "seen", 3, 0, **options).hash
    monkeypatch.setenv("ALFWORLD_DATA", str(folder.parent))
    assert ALFWorld().reset(options={"task": 0})[0] == ALFWorld(**options).reset(options={"task": 0})[0] != generated
    assert make_panel(ENV, "seen", 3).hash == make_panel(ENV, "seen", 3, 0, **options).hash
    assert make_panel(ENV, "seen", 0).hash == make_panel(ENV, "seen", 0, 0, **options).hash


def test_a_part_of_the_original_will_do(folder, tmp_path):
    """Who only evaluates needs no training games."""
    (tmp_path / "valid_seen").symlink_to(folder / "valid_seen")
    rewards, _, _ = play("searcher", 1, "seen", data=str(tmp_path))
    assert rewards[-1] == 10
    with pytest.raises(ValueError, match=r"no folder .*/train"):
        ALFWorld(data=str(tmp_path)).reset(options={"task": 0})


def test_without_data_it_says_what_is_played_and_how_to_get_the_original():
    said = ALFWorld.about(receptacles=5, task_types="look_at_obj_in_light")
    assert said.startswith("ALFWorld: generated games, scenes of 5 receptacles, look_at_obj_in_light.")
    assert "alfworld-download" in said
    assert "ALFWORLD_DATA" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": "some"}, "the option actions is 'some'"),
        ({"prompt": "short"}, "the option prompt is 'short'"),
        ({"receptacles": 2}, "receptacles must be 0 for a full scene"),
        ({"task_types": "dance"}, "task_types must be some of"),
        ({"data": "nowhere"}, "nowhere"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ALFWorld(**options)


def test_bad_tasks_splits_and_names(folder, monkeypatch):
    env = ALFWorld(**TINY)
    with pytest.raises(ValueError, match="task must be at least 0, got -1"):
        env.reset(options={"task": -1})
    with pytest.raises(ValueError, match="no split 'test'; there are: train, seen, unseen"):
        env.reset(options={"task": 0, "split": "test"})
    with pytest.raises(ValueError, match="no expert 'oracle' in ALFWorld; there are: planner, searcher"):
        ALFWorld.make_expert("oracle", 0, "seen")
    with pytest.raises(ValueError, match=r"generated games, data \(.*\) the original ones: .* or leave data out"):
        ALFWorld(data=str(folder), receptacles=5)
    monkeypatch.setenv("ALFWORLD_DATA", str(folder))
    with pytest.raises(ValueError, match=r"the variable ALFWORLD_DATA .* or leave ALFWORLD_DATA unset"):
        ALFWorld(task_types="look_at_obj_in_light")
    with pytest.raises(ValueError, match=r"has no option size; there are: data, receptacles, task_types, think"):
        environment_class(ENV, size=4)
