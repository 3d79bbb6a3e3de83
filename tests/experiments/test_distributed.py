"""Training in several processes on the loopback interface: equal to one, and never left hanging by one that is gone.

Each keeps its own part of the tasks, so their episodes end after different numbers of turns throughout.
"""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from several import Processes, start_several
from tiny import SETTINGS, rows

from experiments.assembly import Learner
from experiments.configs import config_from_json
from experiments.rollout_files import load_rollouts
from hgpo_jax.config import MeshConfig
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import TrainState, Trajectories

pytestmark = pytest.mark.slow

ITERATIONS = 2
TRAIN = (
    *("-m", "experiments.train", *SETTINGS, "--iterations", str(ITERATIONS), "--dump-rollouts"),
    *("--rollout.tasks", "4", "--rollout.group-size", "2", "--rollout.max-steps", "30", "--evaluation.tasks", "5"),
    # Most replies are valid from the first rollout on, so that episodes end early in a hole.
    *("--warm-start.learning-rate", "0.05"),
    # Two mini-batches an iteration; few shapes, since compiling is what takes the time.
    *("--learner.minibatch-steps", "64", "--learner.row-length", "640", "--rollout.max-prompt-length", "32"),
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The whole run by one process on one device."""
    directory = tmp_path_factory.mktemp("runs") / "alone"
    with start(1, 1, cache, *TRAIN, "--directory", str(directory)) as processes:
        assert processes.wait(400) == [0], processes.outputs()
    return directory


def start(count: int, devices: int, cache: Path, *command: str) -> Processes:
    return start_several(count, devices, *command, cache=cache)


def wait_for(condition: Callable[[], bool], processes: Processes, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in processes.popen), processes.outputs()
        assert time.monotonic() < deadline, f"the run takes too long:\n{processes.outputs()}"
        time.sleep(0.02)


def saved(directory: Path, iteration: int) -> Callable[[], bool]:
    """Whether a checkpoint of this iteration, or of a later one, is whole."""
    folder = directory / "checkpoints"
    return lambda: any(int(path.name) >= iteration for path in folder.glob("[0-9]*") if path.name.isdecimal())


def final_state(directory: Path) -> TrainState:
    """On one device, whatever it was saved from."""
    config = config_from_json(directory / "config.json")
    learner = Learner(dataclasses.replace(config, mesh=MeshConfig()))
    with Checkpoints(directory / "checkpoints") as checkpoints:
        assert checkpoints.iterations()[-1] == ITERATIONS
        return checkpoints.restore(learner.state)[0]


def assert_same_run(directory: Path, expected: Path) -> None:
    state, other = final_state(directory), final_state(expected)
    chex.assert_trees_all_close(jax.device_get(state.params), jax.device_get(other.params), atol=1e-5)
    chex.assert_trees_all_equal(jax.random.key_data(state.key), jax.random.key_data(other.key))
    for row, wanted in zip(rows(directory), rows(expected), strict=True):
        assert row.keys() == wanted.keys()
        assert row.get("eval/panel") == wanted.get("eval/panel")
        for name in [name for name in row if not name.endswith(("seconds", "tokens_per_second", "panel"))]:
            message = f"{name} of iteration {row['iteration']}"
            np.testing.assert_allclose(row[name], wanted[name], rtol=1e-3, atol=1e-5, err_msg=message)


def assert_same_replies(directory: Path, expected: Path, iteration: int) -> None:
    batch, wanted = load_rollouts(directory, iteration), load_rollouts(expected, iteration)
    for one, other in zip(batch.response_tokens, wanted.response_tokens, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(batch.prompt_group, wanted.prompt_group)


def turns(directory: Path, iteration: int, count: int) -> list[int]:
    """The longest episode of each process."""
    files = [directory / "rollouts" / f"{iteration:05d}-{i + 1}of{count}.npz" for i in range(count)]
    return [int(Trajectories.load(file).step.max()) + 1 for file in files]


def test_two_processes_stalled_killed_and_resumed_give_what_one_gives(alone: Path, tmp_path: Path, cache: Path) -> None:
    directory = tmp_path / "two"
    with start(2, 2, cache, *TRAIN, "--directory", str(directory), "--mesh.fsdp", "-1") as processes:
        wait_for(saved(directory, 1), processes)
        processes.popen[1].send_signal(signal.SIGSTOP)
        assert processes.wait(60, 0) != [0]
        assert "another task died" in processes.said(0) or "another process has ended" in processes.said(0)
        processes.popen[1].send_signal(signal.SIGCONT)
        assert processes.wait(60, 1) != [0]
    last = (directory / "environment.json").stat().st_mtime
    with start(2, 2, cache, "-m", "experiments.train", "--resume", str(directory), "--dump-rollouts") as processes:
        wait_for(lambda: (directory / "environment.json").stat().st_mtime > last, processes)  # in iteration 2
        processes.popen[0].send_signal(signal.SIGKILL)
        assert processes.wait(60, 1) != [0]
        assert "another task died" in processes.said(1) or "another process has ended" in processes.said(1)
    with start(2, 2, cache, "-m", "experiments.train", "--resume", str(directory), "--dump-rollouts") as processes:
        assert processes.wait(400) == [0, 0], processes.outputs()
        assert "held-out tasks" in processes.said(0)
        assert "held-out tasks" not in processes.said(1), "one process writes"
    assert_same_run(directory, alone)
    assert_same_replies(directory, alone, 1)
    assert_same_replies(directory, alone, ITERATIONS)
    for iteration in range(1, ITERATIONS + 1):
        assert len(set(turns(directory, iteration, 2))) == 2, "the processes were to take different numbers of turns"


def test_a_preemption_of_one_of_four_stops_all_and_one_goes_on(alone: Path, tmp_path: Path, cache: Path) -> None:
    directory = tmp_path / "four"
    mesh = ("--mesh.data", "2", "--mesh.fsdp", "2")
    with start(4, 1, cache, *TRAIN, "--directory", str(directory), *mesh) as processes:
        wait_for(saved(directory, 0), processes)
        processes.popen[2].send_signal(signal.SIGTERM)
        assert processes.wait(120) == [0] * 4, processes.outputs()
        assert f"--resume {directory}" in processes.said(0)
        assert rows(directory)[-1]["iteration"] == 1, "the iteration under way is the last"
        assert saved(directory, 1)()
    command = ("-m", "experiments.train", "--resume", str(directory), "--mesh.data", "1", "--mesh.fsdp", "1")
    with start(1, 1, cache, *command, "--dump-rollouts") as processes:
        assert processes.wait(400) == [0], processes.outputs()
        assert "resuming with mesh.data = 1 (was 2)" in processes.said(0)
    assert_same_run(directory, alone)
