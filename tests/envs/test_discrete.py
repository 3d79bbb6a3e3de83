"""gymnasium's numbered games in words: what is told, who wins, splits and panels, rollouts, a small training."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from envs.core import environment_class, make_panel, make_vector
from envs.discrete import DiscreteText, parse_reply, seed_of
from envs.discrete_games import KNOWN, kept_game, plan_of, wording_of
from envs.replies import format_reply
from experiments import train
from experiments.scripted import expert_policy, random_policy, scripted_act
from hgpo_jax.config import RolloutConfig, SamplingConfig
from hgpo_jax.policy.tokenization import ByteTokenizer, train_tokenizer
from hgpo_jax.rollout.collector import Rollout, collect

ENV = "hgpo/Discrete-v0"
STEADY_LAKE: dict[str, Any] = {"game": "FrozenLake", "settings": '{"is_slippery": false}'}


class Lights(gymnasium.Env[Any, Any]):
    """Two actions, numbered 5 and 6; 6 ends the game with the reward it was made with."""

    def __init__(self, space=None, observation=0, reward=1.0, actions=None, mask=None):
        self.observation_space = space or Discrete(3)
        self.action_space = actions or Discrete(2, start=5)
        self.seen, self.reward, self.info = observation, reward, {} if mask is None else {"action_mask": mask}
        self.taken: list[int] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, dict(self.info)

    def step(self, action):
        self.taken.append(int(action))
        return self.seen, self.reward, action == 6, False, dict(self.info)


@pytest.fixture
def register():
    """Registers a `Lights` made with these arguments and returns its id."""
    ids: list[str] = []

    def make(**kwargs: Any) -> str:
        ids.append(f"test/Lights{len(ids)}-v0")
        gymnasium.register(ids[-1], entry_point=lambda **_: Lights(**kwargs))
        return ids[-1]

    yield make
    for name in ids:
        del gymnasium.registry[name]
    kept_game.cache_clear()


def roll(policy, tasks=range(4), group_size=1, split="train", max_steps=30, workers=0, **options) -> Rollout:
    tokenizer, config = ByteTokenizer(), RolloutConfig(max_steps=max_steps, history_length=2, max_prompt_length=2048)
    vector = make_vector(ENV, len(tasks) * group_size, workers, **options)
    rollout = collect(
        scripted_act(policy, tokenizer),
        {},
        vector,
        tasks,
        group_size,
        config,
        jax.random.key(0),
        split=split,
        sampling=SamplingConfig(),
        format_prompt=environment_class(ENV).format_prompt,
        tokenizer=tokenizer,
    )
    vector.close()
    return rollout


@pytest.mark.parametrize("game", ["Taxi", "CliffWalking", "Blackjack", "FrozenLake", "CartPole"])
def test_gymnasium_checks_the_environment(game):
    check_env(gymnasium.make(ENV, game=game).unwrapped)


@pytest.mark.parametrize(
    ("game", "observation", "words"),
    [
        # ((3 * 5 + 1) * 5 + 2) * 4 + 0
        (
            "Taxi",
            328,
            "taxi at row 3 column 1, passenger at yellow (row 4 column 0), destination red (row 0 column 0)",
        ),
        ("Taxi", 19, "taxi at row 0 column 0, passenger in the taxi, destination blue (row 4 column 3)"),
        ("CliffWalking", 36, "row 3 column 0"),
        ("CliffWalking", 23, "row 1 column 11"),
        ("FrozenLake", 7, "row 1 column 3"),
        ("Blackjack", (14, 10, 0), "your sum 14, dealer shows 10, no usable ace"),
        ("Blackjack", (21, 1, 1), "your sum 21, dealer shows 1, a usable ace"),
    ],
)
def test_known_games_are_told_in_words(game, observation, words):
    env = kept_game(game, "")
    assert wording_of(env).tell(env.unwrapped, observation) == words


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (Discrete(400), np.int64(328), "state 328"),
        (MultiDiscrete([3, 4]), np.array([2, 0]), "numbers 2 0"),
        (TupleSpace([Discrete(32), Discrete(11)]), (20, 7), "numbers 20 7"),
        (Box(-9, 9, (2, 2)), np.array([[0.256, -0.001], [-1.5, 3.0]], np.float32), "numbers 0.26 0 -1.5 3"),
        (Text(20), "you see a lamp", "you see a lamp"),
    ],
)
def test_other_games_are_told_in_numbers(register, space, observation, words):
    env = DiscreteText(register(space=space, observation=observation))
    seen, info = env.reset(seed=0)
    assert seen == words
    assert seen in env.observation_space
    assert info == {
        "anchor_state": words,
        "action_valid": True,
        "action": "",
        "won": False,
        "title": "Lights0",
        "goal": "Collect as much reward as you can.",
        "admissible": ("action 5", "action 6"),
    }


def test_numbers_in_the_same_bins_are_the_same_state(register):
    """Widths 0.2 and 1: the bins are centred on 0; what is told stays exact."""
    space = Box(-9, 9, (2,))
    for observation, state in [([0.09, -0.4], "bins 0 0"), ([0.11, 0.5], "bins 1 1"), ([-0.31, 8.6], "bins -2 9")]:
        env = DiscreteText(register(space=space, observation=np.array(observation, np.float32)), bins="0.2, 1")
        seen, info = env.reset(seed=0)
        assert info["anchor_state"] == state
        assert seen == f"numbers {observation[0]:g} {observation[1]:g}"


@pytest.mark.parametrize(("game", "bins"), [("CartPole", "0.2,0.4,0.05,0.5"), ("Acrobot", "0.2,0.2,0.2,0.2,0.5,1")])
def test_bins_make_groups_where_no_state_comes_twice(game, bins):
    exact, binned = (
        roll(random_policy(ENV, 0), range(2), 8, game=game, max_steps=20, **options).batch
        for options in ({}, {"bins": bins})
    )
    np.testing.assert_array_equal(exact.reward, binned.reward)
    later = exact.step > 0  # a group starts alike
    first, second = (len(set(batch.anchor_state[later].tolist())) for batch in (exact, binned))
    assert second < first / 2


@pytest.mark.parametrize(
    ("game", "bins", "message"),
    [
        ("Taxi", "1", "Taxi-v4 observes .*, which repeats exactly: leave bins out"),
        ("CartPole", "1,1", "expected 4 widths above 0, one for each number of CartPole-v1"),
        ("CartPole", "1,1,0,1", "expected 4 widths above 0"),
        ("CartPole", "wide", "bins is 'wide', expected numbers, comma-separated"),
    ],
)
def test_bad_bins(game, bins, message):
    with pytest.raises(ValueError, match=message):
        DiscreteText(game, bins=bins)


def test_a_step_in_taxi():
    """Task 0 starts at gymnasium's state for seed 0; a move into a wall is not admissible, and costs its step."""
    env, own = DiscreteText(), kept_game("Taxi", "")
    seen, info = env.reset(options={"task": 0})
    state, own_info = own.reset(seed=0)
    names = KNOWN["Taxi"].actions
    assert info["admissible"] == tuple(name for name, bit in zip(names, own_info["action_mask"], strict=True) if bit)
    assert "drop off" not in info["admissible"]
    assert seen == wording_of(own).tell(own.unwrapped, state)
    again, reward, terminated, truncated, info = env.step("First of all, <action> Drop  off </action>")
    assert (again, reward, terminated, truncated) == (seen, -10.0, False, False)
    assert (info["action"], info["action_valid"], info["won"]) == ("drop off", True, False)
    assert env.render() == seen
    env.close()


def test_strict_asks_for_admissible_actions():
    env = DiscreteText(strict=True)
    env.reset(options={"task": 0})
    _, reward, _, _, info = env.step("<action>drop off</action>")
    assert (reward, info["action_valid"]) == (-10.0, False)
    assert env.step(f"<action>{info['admissible'][0]}</action>")[4]["action_valid"]


def test_a_reply_without_an_action_changes_nothing(register):
    env = DiscreteText(register())
    seen, before = env.reset(seed=0)
    again, reward, terminated, truncated, info = env.step("action 6")
    assert (again, reward, terminated, truncated) == (seen, 0.0, False, False)
    assert info == before | {"action": "invalid", "action_valid": False}
    assert env._env.unwrapped.taken == []


@pytest.mark.parametrize(
    ("reply", "name"),
    [
        ("<action>south</action>", "south"),
        ("<think>north?</think> <ACTION> Pick\n up </Action>.", "pick up"),
        ("<action>south</action><action>south</action>", None),  # two, even the same
        ("<action>fly</action>", None),
        ("<action></action>", None),
        ("<action>south", None),
        ("south", None),
        ("", None),
    ],
)
def test_a_reply_needs_exactly_one_action(reply, name):
    assert parse_reply(reply, KNOWN["Taxi"].actions) == name


@given(st.sampled_from(KNOWN["Taxi"].actions), st.text(alphabet="abc <>/n", max_size=20))
def test_a_written_reply_is_read_again_whatever_was_thought_before(name, thought):
    assert parse_reply(thought + format_reply(name), KNOWN["Taxi"].actions) == name


def test_named_actions_are_the_games_own_numbers(register):
    env = DiscreteText(register(), actions="Wait a  while, light up", goal="Light it.")
    _, info = env.reset(seed=0)
    assert info["admissible"] == ("wait a while", "light up")
    assert info["goal"] == "Light it."
    for name in info["admissible"]:
        env.step(format_reply(name))
    assert env._env.unwrapped.taken == [5, 6]


def test_a_mask_that_allows_nothing_allows_all(register):
    masks = {mask: register(mask=np.array(mask)) for mask in ((0, 1), (0, 0))}
    names = [DiscreteText(name).reset(seed=0)[1]["admissible"] for name in masks.values()]
    assert names == [("action 6",), ("action 5", "action 6")]


@pytest.mark.parametrize(
    ("reward", "win_above", "won"),
    [(1.0, 0, True), (0.0, 0, False), (-1.0, 0, False), (-1.0, -2, True), (1.0, 1, False)],
)
def test_won_is_a_last_reward_above_a_threshold(register, reward, win_above, won):
    env = DiscreteText(register(reward=reward), win_above=win_above)
    env.reset(seed=0)
    _, _, terminated, _, info = env.step(format_reply("action 5"))
    assert (terminated, info["won"]) == (False, False), "a reward on the way is no victory"
    _, _, terminated, _, info = env.step(format_reply("action 6"))
    assert (terminated, info["won"]) == (True, won)


def test_blackjack_is_won_by_the_last_reward():
    results = []
    for task in range(60):
        env = DiscreteText("Blackjack")
        env.reset(options={"task": task})
        _, reward, terminated, _, info = env.step("<action>stick</action>")
        assert terminated
        assert info["won"] == (reward > 0)
        results.append(reward)
    assert set(results) == {-1.0, 0.0, 1.0} or set(results) == {-1.0, 1.0}


def test_falling_from_the_cliff_costs_a_hundred_and_starts_again():
    env = DiscreteText("CliffWalking")
    start, _ = env.reset(options={"task": 0})
    seen, reward, terminated, _, info = env.step("<action>right</action>")
    assert (seen, reward, terminated, info["won"]) == (start, -100.0, False, False)


@pytest.mark.parametrize(
    ("options", "longest", "total"),
    [
        ({"game": "Taxi"}, 18, None),
        ({"game": "CliffWalking"}, 13, -13.0),  # up, eleven to the right, down
        (STEADY_LAKE, 6, 1.0),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_planner_wins_every_game_without_chance(options, longest, total, split):
    rollout = roll(expert_policy(ENV, "planner", split, **options), range(24), split=split, **options)
    assert all(outcome.won for outcome in rollout.outcomes)
    assert rollout.metrics["valid_action_share"] == 1.0
    for outcome in rollout.outcomes:
        assert outcome.steps <= longest
        # In Taxi 1 off for each step, and 20 for the last one.
        assert outcome.episode_return == (21.0 - outcome.steps if total is None else total)


def test_the_plan_takes_the_likelier_way_over_slippery_ice():
    """The best policy on gymnasium's slippery 4x4 lake crosses it with probability 14/17."""
    options: dict[str, Any] = {"game": "FrozenLake", "settings": '{"is_slippery": true}'}
    won = roll(expert_policy(ENV, "planner", "train", **options), range(200), max_steps=300, **options).outcomes
    assert abs(np.mean([outcome.won for outcome in won]) - 14 / 17) < 0.1


def test_the_plan_is_the_same_for_other_names_of_actions():
    names = "s, n, e, w, take, give"
    expert = DiscreteText.make_expert("planner", 0, "train", actions=names)
    usual = DiscreteText.make_expert("planner", 0, "train")
    translated = dict(zip(KNOWN["Taxi"].actions, names.split(", "), strict=True))
    for observation in list(plan_of("Taxi"))[::50]:
        action = parse_reply(usual(observation, {}), KNOWN["Taxi"].actions)
        assert expert(observation, {}) == format_reply(translated[action or ""], think=False)


@pytest.mark.parametrize("options", [{"game": "Taxi"}, {"game": "Blackjack"}, {"game": "CliffWalking"}])
def test_the_same_seed_gives_the_same_rollout(options):
    first, again = (roll(random_policy(ENV, 3), range(4), 2, **options) for _ in range(2))
    assert first.outcomes == again.outcomes
    assert first.batch.anchor_state.tolist() == again.batch.anchor_state.tolist()
    assert first.metrics["valid_action_share"] == 1.0
    starts = first.batch.anchor_state[first.batch.step == 0]
    assert starts[0::2].tolist() == starts[1::2].tolist(), "a group starts alike"
    assert len(set(starts.tolist())) == (1 if options["game"] == "CliffWalking" else 4)
    other = roll(random_policy(ENV, 4), range(4), 2, **options)
    assert first.batch.anchor_state.tolist() != other.batch.anchor_state.tolist()


def test_random_replies_are_admissible_and_reach_every_action():
    env = DiscreteText()
    _, info = env.reset(options={"task": 0})
    rng = np.random.default_rng(0)
    said = {parse_reply(env.random_reply(rng, info), KNOWN["Taxi"].actions) for _ in range(200)}
    assert said == set(info["admissible"])


def test_the_games_own_step_cap_truncates():
    env = DiscreteText()
    env.reset(options={"task": 0})
    steps = [env.step("<action>north</action>") for _ in range(200)]
    assert [step[3] for step in steps] == [False] * 199 + [True]
    assert not steps[-1][4]["won"]


def test_worker_processes_play_the_same():
    here, there = (roll(random_policy(ENV, 0), range(2), 2, game="Blackjack", workers=n) for n in (0, 1))
    assert here.batch.anchor_state.tolist() == there.batch.anchor_state.tolist()
    assert here.outcomes == there.outcomes


def test_the_splits_share_no_seed():
    assert seed_of(0, "train") == 0
    assert seed_of(2**30 - 1, "train") + 1 == seed_of(0, "test")
    train, test = (DiscreteText().reset(options={"task": 0, "split": split})[0] for split in DiscreteText.splits)
    assert train != test  # of these two seeds


def test_a_panel_holds_different_starts_as_long_as_there_are_some():
    taxi = make_panel(ENV, "test", 400)
    starts = [DiscreteText.fingerprint(task, "test") for task in taxi.tasks]
    assert len(set(starts[:300])) == 300, "25 places, 4 for the passenger, 3 to go to"
    assert starts[300:] == starts[:100]
    assert make_panel(ENV, "test", 40).tasks == taxi.tasks[:40]
    assert len(make_panel(ENV, "test", 0).tasks) == 300
    cliff = make_panel(ENV, "test", 3, 1, game="CliffWalking")
    assert cliff.tasks == (1_000_000,) * 3
    assert make_panel(ENV, "test", 5, game="Blackjack").tasks == (0, 1, 2, 3, 4)
    rainy = '{"is_rainy": true}'
    assert make_panel(ENV, "test", 400, settings=rainy).tasks == tuple(range(400)), "chance: each seed is another task"
    assert make_panel(ENV, "test", 9, settings=rainy).hash != make_panel(ENV, "test", 9).hash
    with pytest.raises(ValueError, match="games of chance have no end"):
        make_panel(ENV, "test", 0, game="Blackjack")


def test_a_fickle_passenger_is_chance():
    fickle = '{"fickle_passenger": true}'
    tasks = make_panel(ENV, "test", 320, settings=fickle).tasks
    assert tasks == tuple(range(320))


def test_the_prompt():
    info = {"title": "Taxi", "goal": "Fetch the passenger.", "admissible": ("south", "pick up")}
    assert DiscreteText.format_prompt("row 2", [("row 0", "invalid"), ("row 1", "south")], info) == (
        "You play Taxi. Fetch the passenger.\n"
        "Before: row 0\n"
        "You chose: invalid\n"
        "Before: row 1\n"
        "You chose: south\n"
        "Now: row 2\n"
        "You can choose: south, pick up\n"
        "Give one of them inside <action> </action> tags."
    )
    assert DiscreteText.about().endswith("in words: south, north, east, west, pick up, drop off")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"game": "Taxy"}, "game 'Taxy' does not open: .*Did you mean"),
        ({"game": ""}, "game '' does not open: Malformed environment ID"),
        (
            {"game": "nowhere:my/Game-v0"},
            "game 'nowhere:my/Game-v0' does not open: .*name a gymnasium id, or module:id",
        ),
        ({"game": "Pendulum"}, r"game Pendulum: its actions are Box\(.*expected Discrete"),
        ({"game": ENV}, r"(?s)its actions are Text\(.*expected Discrete"),
        ({"settings": "is_rainy"}, "settings is 'is_rainy', which is not JSON"),
        ({"settings": "[1]"}, r"settings is '\[1\]', expected a JSON object"),
        ({"settings": '{"sunny": true}'}, "game 'Taxi' does not open with settings {'sunny': True}"),
        ({"game": "FrozenLake", "settings": '{"map_name": "9x9"}'}, "does not open with settings .*9x9"),
        ({"actions": "up, down"}, "actions is 'up, down', expected 6 different names of Taxi-v"),
        ({"actions": "a,a,b,c,d,e"}, "expected 6 different names"),
        ({"actions": "a,,b,c,d,e"}, "expected 6 different names"),
        ({"colour": "red"}, "has no option colour; there are: game, settings, actions, goal, win_above, strict"),
        ({"win_above": "much"}, "the option win_above is 'much', expected a whole number"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_vector(ENV, 1, **options)


def test_what_cannot_be_told_is_refused(register):
    name = register(space=Box(0, 255, (8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"its observations are Box\(.*Text, or a Box of at most 16 numbers"):
        DiscreteText(name)


def test_bad_calls():
    env = DiscreteText()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
        env.step("<action>south</action>")
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'valid'"):
        env.reset(options={"task": 0, "split": "valid"})
    for task in (-1, 2**30):
        with pytest.raises(ValueError, match=f"task must be at least 0 and below 1073741824, got {task}"):
            env.reset(options={"task": task})
    with pytest.raises(ValueError, match="no expert 'driver' of Taxi; there is: planner"):
        env.make_expert("driver", 0, "train")
    with pytest.raises(ValueError, match=r"the planner needs numbered states .* Blackjack has none"):
        env.make_expert("planner", 0, "train", game="Blackjack")


@pytest.mark.slow
def test_two_iterations_of_training_from_the_command_line(tmp_path: Path):
    """A tokenizer of the game's words, a small decoder, and what the README says to write."""
    env = DiscreteText("Blackjack")
    seen, info = env.reset(seed=0)
    texts = [env.format_prompt(seen, [("", "invalid")], info), " ".join(map(str, range(32))), "a"]
    tokenizer = tmp_path / "blackjack.json"
    train_tokenizer(texts, ("<action>", "</action>")).save(str(tokenizer))
    arguments = [
        *("--env", ENV, "--env-options", "game", "Blackjack", "--tokenizer", str(tokenizer)),
        *("--model.vocab-size", "96", "--model.hidden-size", "16", "--model.intermediate-size", "32"),
        *("--model.num-layers", "1", "--model.num-heads", "2", "--model.num-kv-heads", "1", "--model.head-dim", "8"),
        *("--rollout.tasks", "2", "--rollout.group-size", "4", "--rollout.max-steps", "4"),
        *("--rollout.max-prompt-length", "128", "--learner.row-length", "160", "--learner.minibatch-steps", "16"),
        *(
            "--returns.invalid-action-penalty",
            "2",
            "--evaluation.every",
            "2",
            "--evaluation.tasks",
            "4",
            "--warm-start.batches",
            "1",
            "--iterations",
            "2",
        ),
    ]
    train.main([*arguments, "--directory", str(tmp_path / "run")])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert rows[-1]["eval/panel"].startswith("test-4-seed0-")
    assert np.isfinite(rows[-1]["eval/episode_return"])
    assert all(0 <= row["train/success"] <= 1 for row in rows[1:])
