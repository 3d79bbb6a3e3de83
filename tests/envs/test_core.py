"""The protocol: registration, vectors of environments, episodes that end at different times."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import envs
from envs.core import ENTRY_POINTS, environment_class, make_panel, make_vector, register_environments

LAKE = "hgpo/FrozenLakeText-v0"


def reset(vector, slots, **options):
    mask = np.isin(np.arange(vector.num_envs), slots)
    return vector.reset(seed=[0] * vector.num_envs, options=options | {"reset_mask": mask})


def test_importing_the_package_registers_every_id_once():
    assert envs.__doc__
    register_environments()  # again: harmless
    for env_id in ENTRY_POINTS:
        assert gymnasium.spec(env_id).id == env_id
        gymnasium.make(env_id).close()


def test_the_prompt_format_needs_no_instance():
    text = environment_class(LAKE).format_prompt("up ice", [("up hole", "go to the left")], {})
    assert text.endswith("before up hole\nyou go to the left\nnow up ice\nyou")


def test_a_vector_resets_by_mask_and_returns_one_entry_per_slot():
    vector = make_vector(LAKE, 3)
    assert isinstance(vector, SyncVectorEnv)
    first, _ = reset(vector, [0, 1], task=0, split="train")
    observations, infos = reset(vector, [2], task=1, split="test")
    assert observations[:2] == first[:2]
    np.testing.assert_array_equal(infos["_anchor_state"], [False, False, True])
    observations, rewards, terminated, truncated, infos = vector.step(("go down", "nothing", "go to the right"))
    assert len(observations) == 3
    assert rewards.shape == terminated.shape == truncated.shape == infos["action_valid"].shape == (3,)
    np.testing.assert_array_equal(infos["action_valid"], [True, False, True])


def test_finished_and_unused_slots_idle_while_the_others_go_on():
    vector = make_vector(LAKE, 2)  # task 0: SFFF HHFF FHHF HFFG
    reset(vector, [0], task=0)
    _, _, terminated, _, _ = vector.step(("go down", "go down"))  # slot 0 falls, slot 1 was never reset
    np.testing.assert_array_equal(terminated, [True, False])
    seen, rewards, terminated, _, infos = vector.step(("go up", "go up"))
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(rewards, [0.0, 0.0])
    assert infos["action"][0] == "go down"  # the last step, repeated
    assert seen[1] == ""
    reset(vector, [0], task=0)
    _, _, terminated, _, infos = vector.step(("go to the right", ""))
    assert not terminated[0]
    assert infos["action"][0] == "go to the right"


def test_a_finished_environment_is_not_touched(monkeypatch):
    vector = make_vector(LAKE, 1)
    reset(vector, [0], task=0)
    vector.step(("go down",))
    monkeypatch.setattr(vector.envs[0].unwrapped, "step", lambda action: pytest.fail("stepped after the end"))
    _, rewards, terminated, _, infos = vector.step(("go up",))
    assert terminated[0]
    assert rewards[0] == 0
    assert infos["action"][0] == "go down"  # what was seen last


def test_a_vector_needs_an_environment():
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_vector(LAKE, 0)


def test_a_panel_is_the_same_list_with_a_hash_of_its_contents():
    panel = make_panel(LAKE, "test", 8)
    assert make_panel(LAKE, "", 8) == panel, "the first split that is held out"
    assert panel.tasks == make_panel(LAKE, "test", 20).tasks[:8]
    assert str(panel) == f"test-8-seed0-{panel.hash}"
    others = [make_panel(LAKE, "train", 8), make_panel(LAKE, "test", 8, 1), make_panel(LAKE, "test", 8, size=5)]
    assert len({panel.hash, *(other.hash for other in others)}) == 4
    assert min(others[1].tasks) >= 1_000_000
    env = environment_class(LAKE)
    assert len({env.fingerprint(task, "test") for task in panel.tasks}) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("exam", 8), "has no split 'exam'; there are: train, test"),
        (("test", -1), "at least 0, got size -1 and seed 0"),
        (("test", 0), "size of at least 1"),
        (("test", 8, -2), "got size 8 and seed -2"),
    ],
)
def test_bad_panels(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_panel(LAKE, *arguments)


def test_an_unknown_environment_is_named():
    with pytest.raises(ValueError, match=r"the text environments here are hgpo/FrozenLakeText-v0"):
        environment_class("hgpo/Nowhere-v0")


@pytest.mark.parametrize(
    ("env_id", "options", "expected"),
    [
        ("hgpo/ALFWorld-v0", {"think": "no"}, "think is 'no', expected True or False"),
        ("hgpo/ALFWorld-v0", {"think": 0}, "think is 0, expected True or False"),
        ("hgpo/ALFWorld-v0", {"receptacles": "five"}, "receptacles is 'five', expected a whole number"),
        ("hgpo/ALFWorld-v0", {"receptacles": True}, "receptacles is True, expected a whole number"),
        ("hgpo/ALFWorld-v0", {"task_types": 5}, "task_types is 5, expected text"),
        ("hgpo/WebShop-v0", {"human": "no"}, "human is 'no', expected True or False"),
        (LAKE, {"size": "5"}, "size is '5', expected a whole number"),
    ],
)
def test_options_of_another_type(env_id, options, expected):
    """A command line gives text where it finds no number and no truth value."""
    for ask in (environment_class, lambda env_id, **options: make_panel(env_id, "", 3, 0, **options)):
        with pytest.raises(ValueError, match=f"{env_id}: the option {expected}"):
            ask(env_id, **options)
    with pytest.raises(ValueError, match=f"{env_id}: the option {expected}"):
        make_vector(env_id, 1, **options)


def test_the_expert_solves_its_task():
    env = environment_class(LAKE)
    for task in make_panel(LAKE, "test", 5).tasks:
        vector, expert = make_vector(LAKE, 1), env.make_expert("planner", task, "test")
        (seen,), infos = reset(vector, [0], task=task, split="test")
        terminated = [False]
        while not terminated[0]:
            (seen,), _, terminated, _, infos = vector.step((expert(seen, {}),))
        assert infos["won"][0]
    with pytest.raises(ValueError, match="no expert 'genius' on frozen lakes; there is: planner"):
        env.make_expert("genius", 0, "test")


def test_an_environment_of_ones_own_is_named_with_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_lakes.py").write_text(
        "import gymnasium\ngymnasium.register('my/Lake-v0', entry_point='envs.frozen_lake:FrozenLakeText')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env_id = "my_lakes:my/Lake-v0"
    assert environment_class(env_id).task_types == ()
    assert make_panel(env_id, "", 3).hash == make_panel(LAKE, "", 3).hash
    for workers in (0, 1):
        vector = make_vector(env_id, 2, workers)
        assert reset(vector, [0, 1], task=0)[0] == reset(make_vector(LAKE, 2), [0, 1], task=0)[0]
        vector.close()
    with pytest.raises(ValueError, match="no_lakes:my/Lake-v0: No module named 'no_lakes'"):
        environment_class("no_lakes:my/Lake-v0")
