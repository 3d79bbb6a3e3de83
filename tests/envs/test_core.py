"""The protocol: registration, vectors of environments, episodes that end at different times."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import envs
from envs.core import ENTRY_POINTS, make_vector, prompt_format, register_environments

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
    text = prompt_format(LAKE)("up ice", [("up hole", "go to the left")], {})
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
