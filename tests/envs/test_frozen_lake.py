"""FrozenLake in words: maps, observations, the grammar of replies, the protocol."""

import subprocess
import sys

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.frozen_lake import (
    DIRECTIONS,
    MOVES,
    VERBS,
    FrozenLakeText,
    describe,
    distinct_tasks,
    lake_map,
    parse_reply,
    shortest_path,
    split_of,
)

LAKE = "hgpo/FrozenLakeText-v0"
MAP = ("SFFF", "HHFF", "FHHF", "HFFG")


@pytest.mark.parametrize("size", [4, 8])
def test_gymnasium_checks_the_environment(size):
    check_env(gymnasium.make(LAKE, size=size).unwrapped)


def test_maps_are_the_same_on_every_machine():
    assert lake_map(0) == MAP
    assert lake_map(0, "test") == ("SFFF", "FFFH", "FFFF", "FFFG")
    assert lake_map(0, "train", 8)[:2] == ("SFFFHHFF", "FHHFHFFF")


def test_train_and_test_share_no_layout():
    train = {lake_map(task, "train") for task in range(500)}
    test = {lake_map(task, "test") for task in range(500)}
    assert not train & test
    assert all(split_of(layout) == "test" for layout in test)


def test_a_panel_holds_as_many_maps_as_it_says():
    panel = distinct_tasks(200)
    assert panel == sorted(panel)
    assert len({lake_map(task, "test") for task in panel}) == 200
    with pytest.raises(ValueError, match="50 different test maps of size 3 asked for"):
        distinct_tasks(50, "test", 3)


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        (0, 0, "up wall down hole left wall right ice goal down right"),
        (0, 3, "up wall down ice left ice right wall goal down"),
        (3, 2, "up hole down wall left ice right goal goal right"),
        (2, 3, "up ice down goal left hole right wall goal down"),
        (3, 3, "up ice down wall left ice right wall goal here"),
    ],
)
def test_what_is_seen(row, column, words):
    assert describe(MAP, row, column) == words


@pytest.mark.parametrize(
    ("reply", "direction"),
    [
        ("go to the left", "left"),
        ("the hole is up so i walk  DOWN now", "down"),
        ("Move to the Right.", "right"),
        ("go to the left go to the left", None),  # two commands, even the same
        ("left", None),
        ("go", None),
        ("go left", None),
        ("go to left", None),
        ("ergo up", None),
        ("go upwards", None),
        ("", None),
    ],
)
def test_a_reply_needs_exactly_one_command(reply, direction):
    assert parse_reply(reply) == direction


@given(
    st.sampled_from(VERBS),
    st.sampled_from(sorted(DIRECTIONS)),
    st.lists(st.sampled_from(["i", "see", "hole", "up", "go so", "left"]), max_size=4),
)
def test_thinking_aloud_changes_nothing(verb, direction, thought):
    assert parse_reply(" ".join([*thought, "so", verb, MOVES[direction]])) == direction


def test_the_expert_wins_every_map_within_the_cap():
    env = FrozenLakeText()
    for split in ("train", "test"):
        for task in range(100):
            env.reset(seed=0, options={"task": task, "split": split})
            path = shortest_path(env.layout)
            steps = [env.step(f"go {MOVES[direction]}") for direction in path]
            assert len(path) <= 15
            assert [step[1] for step in steps] == [0.0] * (len(path) - 1) + [10.0]
            assert [step[2] for step in steps] == [False] * (len(path) - 1) + [True]
            assert [step[4]["won"] for step in steps] == [False] * (len(path) - 1) + [True]


def test_a_hole_ends_the_episode_without_reward():
    env = FrozenLakeText()
    env.reset(options={"task": 0})
    _, reward, terminated, truncated, info = env.step("go down")
    assert (reward, terminated, truncated, info["won"]) == (0.0, True, False, False)


def test_an_invalid_reply_changes_nothing():
    env = FrozenLakeText()
    seen, info = env.reset(options={"task": 0})
    assert info == {"anchor_state": seen, "action_valid": True, "action": "", "won": False}
    again, reward, terminated, truncated, info = env.step("go to the left or go to the right")
    assert (again, reward, terminated, truncated) == (seen, 0.0, False, False)
    assert info == {"anchor_state": seen, "action_valid": False, "action": "invalid", "won": False}


def test_walking_into_a_wall_is_valid():
    env = FrozenLakeText()
    seen, _ = env.reset(options={"task": 0})
    again, *_, info = env.step("step up")
    assert again == seen
    assert info["action_valid"]
    assert info["action"] == "go up"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 300), st.integers(3, 6), st.lists(st.sampled_from(sorted(DIRECTIONS)), max_size=12))
def test_observations_stay_inside_the_space(task, size, path):
    env = FrozenLakeText(size=size)
    seen, _ = env.reset(seed=task)
    assert seen in env.observation_space
    for direction in path:
        reply = f"go {MOVES[direction]}"
        assert reply in env.action_space
        seen, _, terminated, _, info = env.step(reply)
        assert seen in env.observation_space
        assert info["anchor_state"] == seen
        if terminated:
            break


def test_gymnasium_can_cap_the_steps():
    env = gymnasium.make(LAKE, max_episode_steps=2)
    env.reset(seed=0, options={"task": 0})
    assert env.step("go up")[3] is False
    assert env.step("go up")[3] is True


def test_the_prompt_ends_where_the_reply_begins():
    text = FrozenLakeText.format_prompt("up ice", [("up hole", "go to the left"), ("up wall", "invalid")], {})
    assert text == (
        "cross the frozen lake to the goal\n"
        "reply with one move like go up or go to the left\n"
        "before up hole\n"
        "you go to the left\n"
        "before up wall\n"
        "you invalid\n"
        "now up ice\n"
        "you"
    )


def test_rendering_shows_the_lake():
    env = gymnasium.make(LAKE, render_mode="ansi")
    env.reset(options={"task": 0})
    assert "FFF" in str(env.render())


def test_envs_stand_alone():
    code = "import sys, envs.frozen_lake; sys.exit(bool({'hgpo_jax', 'jax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": -1}, "task must be at least 0, got -1"),
        ({"task": 0, "split": "valid"}, "split must be 'train' or 'test', got 'valid'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        FrozenLakeText().reset(options=options)


def test_bad_calls():
    with pytest.raises(ValueError, match="size must be at least 3"):
        FrozenLakeText(size=2)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
        FrozenLakeText().step("go to the left")
    with pytest.raises(ValueError, match="has no way from"):
        shortest_path(("SH", "HG"))
