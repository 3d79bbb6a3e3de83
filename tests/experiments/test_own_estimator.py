"""An estimator of one's own by its name, ``--estimator module:function``: trained, resumed, replayed, compared."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import chex
import numpy as np
import pytest
from tiny import SETTINGS, rows

from experiments import replay, train
from experiments.assembly import Learner
from experiments.compare import main as compare
from experiments.configs import config_from_json, load_config
from experiments.rollout_files import load_rollouts
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import TrainState

SOURCE = """
import jax.numpy as jnp

def task_mean(signals):
    centred = signals.step_return - signals.step_return.mean(where=signals.valid)
    depth = jnp.asarray(len(signals.group_ids))
    return centred, {"levels": depth, "per_step": centred, "table": jnp.ones((2, 3))}

def one_step(signals):
    assert signals.next_value is not None
    target = signals.reward + signals.discount * signals.next_value
    return target - signals.value, {"value_target": target}

def spread_of_nothing(signals):
    return (signals.step_return - signals.step_return) / 0

def too_short(signals):
    return signals.step_return[:-1]

settings = {"alpha": 1}
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "my_estimators.py").write_text(SOURCE)
    (folder / "my_broken.py").write_text("import a_module_that_is_missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield
    sys.modules.pop("my_estimators", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations, batches kept."""
    where = tmp_path_factory.mktemp("own") / "whole"
    own = ["--estimator", "my_estimators:task_mean", "--hgpo.context-length", "3"]
    train.main([*SETTINGS, *own, "--iterations", "2", "--dump-rollouts", "--directory", str(where)])
    return where


def final_state(run: Path) -> TrainState:
    with Checkpoints(run / "checkpoints") as checkpoints:
        return checkpoints.restore(Learner(config_from_json(run / "config.json")).state)[0]


def error_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        train.main(args)
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_it_trains_and_reads_the_levels_of_hgpo(finished: Path) -> None:
    row = rows(finished)[-1]
    assert row["estimator/levels"] == 4
    assert not {"estimator/per_step", "estimator/table"} & row.keys()
    assert row["update/signal_share"] > 0
    assert row["update/optimizer_steps"] >= 1
    assert (finished / "groups.png").is_file()


@pytest.mark.slow
def test_a_resumed_run_of_it_ends_the_same(finished: Path, tmp_path: Path) -> None:
    own = ["--estimator", "my_estimators:task_mean", "--hgpo.context-length", "3"]
    train.main([*SETTINGS, *own, "--iterations", "1", "--directory", str(tmp_path / "half")])
    train.main(["--resume", str(tmp_path / "half"), "--iterations", "2"])
    chex.assert_trees_all_equal(final_state(tmp_path / "half").params, final_state(finished).params)


@pytest.mark.slow
def test_it_is_replayed_beside_the_others(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, batch = config_from_json(finished / "config.json"), load_rollouts(finished, 1)
    own = replay.advantages_of(config, batch)
    np.testing.assert_allclose(own.std(), rows(finished)[1]["update/advantage_std"], rtol=1e-4)
    replay.replay(finished, 1)
    assert "task_mean" in capsys.readouterr().out


@pytest.mark.slow
def test_one_with_a_critic(tmp_path: Path) -> None:
    own = ["--estimator", "my_estimators:one_step", "--model.value-head"]
    own += ["--optimizer.value-learning-rate", "0.05", "--returns.invalid-action-penalty", "0"]
    train.main([*SETTINGS, *own, "--iterations", "2", "--directory", str(tmp_path)])
    assert [row["update/value_loss"] >= 0 for row in rows(tmp_path)[1:]] == [True, True]


@pytest.mark.slow
def test_it_is_compared_with_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "compared"
    command = ["frozen_lake", *SETTINGS, "--rollout.max-steps", "8", "--sft.episodes", "12", "--sft.epochs", "1"]
    command += ["--iterations", "1", "--seeds", "1", "--directory", str(where)]
    command += ["--estimators", "my_estimators:task_mean", "gigpo"]
    compare(command)
    assert {path.name for path in where.iterdir() if path.is_dir()} == {"warm_start", "task_mean-seed0", "gigpo-seed0"}
    assert rows(where / "task_mean-seed0")[1]["estimator/levels"] == 3
    capsys.readouterr()
    compare(command)
    assert capsys.readouterr().out.count("finished before") == 2
    with pytest.raises(SystemExit):  # its levels are those of hgpo
        compare([*command, "--hgpo.context-length", "4"])
    assert "hgpo.context_length = 2, not 4" in " ".join(capsys.readouterr().out.split())


def test_its_folder_has_its_short_name() -> None:
    config = load_config("frozen_lake")
    own = dataclasses.replace(config, estimator="my_estimators:task_mean")
    assert train._default_directory(own) == Path("runs/task_mean-FrozenLakeText-seed0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("spread_of_nothing", "estimator my_estimators:spread_of_nothing gave step"),
        ("too_short", "estimator too_short returned advantages of shape"),
    ],
)
def test_what_it_gives_wrong_is_named(
    function: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--estimator", f"my_estimators:{function}", "--directory", str(tmp_path)]
    assert words in error_of([*SETTINGS, *own], capsys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hgppo", "expected one of hgpo, hgpo_shrinkage, gigpo, grpo, rloo, reinforce, gae, or module:function"),
        ("my_estimators.task_mean", "or module:function, one of your own"),
        (":task_mean", "or module:function, one of your own"),
        ("my_estimators:", "or module:function, one of your own"),
        ("my_own:task_mean", "there is no module 'my_own': start from the folder it is in"),
        ("my_estimators.deeper:task_mean", "there is no module 'my_estimators.deeper'"),
        ("my_estimators:median", "module 'my_estimators' has no function 'median'"),
        ("my_estimators:settings", "module 'my_estimators' has no function 'settings'"),
    ],
)
def test_a_name_that_leads_nowhere(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in error_of(["--estimator", name], capsys)


def test_what_its_module_lacks_is_told_as_python_does() -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        train.main(["--estimator", "my_broken:task_mean"])


def test_levels_of_a_run() -> None:
    config = load_config("frozen_lake")
    for name in ("hgpo", "my_estimators:task_mean"):
        assert dataclasses.replace(config, estimator=name).grouping == (config.hgpo.context_length, "state")
    assert dataclasses.replace(config, estimator="grpo").grouping == (0, "state")
