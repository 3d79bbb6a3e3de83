"""Recorded batches of several processes are one again when they are read."""

from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.rollout_files import join, load_rollouts, save_rollouts
from hgpo_jax.types import Trajectories


def batch(groups: list[int], trajectories: list[int], reward: float) -> Trajectories:
    n = len(groups)
    return Trajectories(
        anchor_state=np.array([f"state {i}" for i in range(n)], object),
        prompt_group=np.array(groups),
        trajectory=np.array(trajectories),
        step=np.zeros(n, np.int32),
        reward=np.full(n, reward, np.float32),
        terminated=np.ones(n, bool),
        truncated=np.zeros(n, bool),
        action_valid=np.ones(n, bool),
        prompt_tokens=[np.arange(1, 2 + i) for i in range(n)],
        response_tokens=[np.array([7])] * n,
        behavior_logprob=[np.array([-0.5])] * n,
    )


def test_group_0_of_two_parts_stays_two_groups() -> None:
    whole = join([batch([0, 0, 1], [0, 1, 2], 1.0), batch([0, 0], [0, 1], 2.0), batch([0], [0], 3.0)])
    np.testing.assert_array_equal(whole.prompt_group, [0, 0, 1, 2, 2, 3])
    np.testing.assert_array_equal(whole.trajectory, [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(whole.reward, [1, 1, 1, 2, 2, 3])
    assert [len(prompt) for prompt in whole.prompt_tokens] == [1, 2, 3, 1, 2, 1]
    assert whole.value is None


def test_parts_of_two_processes_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_rollouts(batch([0], [0], 9.0), tmp_path, 3)  # one process; then two that resumed before
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for process in (1, 0):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        save_rollouts(batch([0, 0], [0, 1], process), tmp_path, 3)
    np.testing.assert_array_equal(load_rollouts(tmp_path, 3).reward, [0, 0, 1, 1])
    (tmp_path / "rollouts" / "00003-1of2.npz").unlink()
    with pytest.raises(ValueError, match=r"batch of iteration 3 in .* lacks 00003-1of2.npz"):
        load_rollouts(tmp_path, 3)
    with pytest.raises(ValueError, match=r"no batch of iteration 4 in .*; batches kept: 3"):
        load_rollouts(tmp_path, 4)
