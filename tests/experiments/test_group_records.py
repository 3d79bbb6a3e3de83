"""What a run records of its groups: state keys, context metrics, the names of levels, the figure, whose NaN it was."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from experiments.assembly import Learner, context_metrics, level_names, signals_of, state_keys_of
from experiments.configs import load_config
from experiments.records import draw_groups
from hgpo_jax.config import (
    GAEConfig,
    GiGPOConfig,
    GRPOConfig,
    HGPOConfig,
    ReinforceConfig,
    ShrinkageConfig,
    StateKeysConfig,
)
from hgpo_jax.types import Trajectories

CONFIG = load_config("frozen_lake")
# Rollouts hall kitchen | hall kitchen. | garden kitchen of one task; the second kitchen is told a little differently.
STATES = ["hall", "you are in the kitchen", "hall", "you are in the kitchen.", "garden", "you are in the kitchen"]


def recorded() -> Trajectories:
    tokens: Any = [np.array([1], np.int32)] * 6
    return Trajectories(
        anchor_state=np.array(STATES, object),
        prompt_group=np.zeros(6, np.int32),
        trajectory=np.array([0, 0, 1, 1, 2, 2]),
        step=np.array([0, 1] * 3),
        reward=np.array([0, 10, 0, 0, 0, 0]),
        terminated=np.array([False, True] * 3),
        truncated=np.zeros(6, bool),
        action_valid=np.ones(6, bool),
        prompt_tokens=tokens,
        response_tokens=tokens,
        behavior_logprob=[np.zeros(1, np.float32)] * 6,
    )


def test_similar_states_are_one_where_the_config_says_so() -> None:
    batch = recorded()
    assert state_keys_of(CONFIG, batch).tolist() == STATES
    assert np.asarray(signals_of(CONFIG, batch).group_ids)[0].tolist() == [0, 1, 0, -1, -1, 1]
    similar = dataclasses.replace(CONFIG, state_keys=StateKeysConfig(similarity=0.95))
    assert np.asarray(signals_of(similar, batch).group_ids)[0].tolist() == [0, 1, 0, 1, -1, 1]
    assert np.asarray(signals_of(similar, batch).group_ids)[1].tolist() == [-1, 0, -1, 0, -1, -1]
    with pytest.raises(ValueError, match=r"state_keys.similarity is 1.5, expected above 0 to 1"):
        dataclasses.replace(CONFIG, state_keys=StateKeysConfig(similarity=1.5))


def test_context_metrics_of_every_estimator() -> None:
    batch = recorded()
    returns = np.array([9.5, 10, 0, 0, 0, 0], np.float32)
    for name in ("hgpo", "gigpo"):
        config = dataclasses.replace(CONFIG, estimator=name)
        assert (config.hgpo.context_length, config.rollout.history_length) == (2, 2)
        found = context_metrics(config, batch, state_keys_of(config, batch), returns)
        # The two kitchens of the same words came from the hall and the garden; the halls began alike.
        np.testing.assert_allclose(found["context/inconsistent_groups"], [1 / 2, 1 / 2])
        np.testing.assert_allclose(found["context/inconsistent_steps"], [2 / 4, 2 / 4])
        np.testing.assert_allclose(found["context/baseline_spread"], [0, 0])
    blind = dataclasses.replace(CONFIG, estimator="grpo", rollout=dataclasses.replace(CONFIG.rollout, history_length=0))
    assert context_metrics(blind, batch, state_keys_of(blind, batch), returns) == {}


def test_levels_have_names() -> None:
    assert level_names(HGPOConfig(2)) == ["same state", "+ last state", "+ last 2 states"]
    assert level_names(ShrinkageConfig(0, root="prompt")) == ["same task", "same state"]
    assert level_names(GiGPOConfig()) == ["same task", "same state"]
    assert level_names(GRPOConfig()) == ["same task"]
    assert level_names(ReinforceConfig()) == ["whole batch"]


def test_the_figure_has_a_panel_for_each_record(tmp_path: Path) -> None:
    by_level = ("estimator/mean_group_size", "estimator/coverage", "estimator/effective_weight")
    row = {name: [0.5, 0.3] for name in by_level} | {"estimator/no_signal": 0.1}
    context = {"context/inconsistent_steps": [0.5], "context/baseline_spread": [0.2]}
    rows = [{"iteration": 0}] + [{"iteration": i} | row | context for i in (1, 2)]
    draw_groups(rows, level_names(HGPOConfig(1)), "all", tmp_path / "all.png")
    # An older run goes on: what it did not record then is drawn from where it begins.
    rows = [{"iteration": 1} | row, rows[-1]]
    draw_groups(rows, level_names(HGPOConfig(1)), "resumed", tmp_path / "resumed.png")
    draw_groups([{"iteration": 1} | row], level_names(HGPOConfig(1)), "without", tmp_path / "without.png")
    draw_groups([{"iteration": 1, "update/loss": 0.1}], level_names(GAEConfig()), "nothing", tmp_path / "nothing.png")
    assert not (tmp_path / "nothing.png").exists()
    # Another estimator goes on: only what has its levels is drawn.
    draw_groups(
        [{"iteration": 1} | row, {"iteration": 2, "estimator/no_signal": 0.1}],
        ["a", "b", "c"],
        "",
        tmp_path / "other.png",
    )
    other = [{"iteration": 1} | row | {"context/inconsistent_steps": [0.5, 0.2]}, rows[-1]]
    draw_groups(other, level_names(HGPOConfig(1)), "deeper before", tmp_path / "deeper.png")
    assert imread(tmp_path / "other.png").shape[0] == 450
    heights = [imread(tmp_path / f"{name}.png").shape[0] for name in ("all", "resumed", "without")]
    assert heights == [1350, 1350, 900]  # three, three and two rows of panels


def test_an_advantage_that_is_not_finite_names_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batch = Learner.__new__(Learner), recorded()
    learner.config = dataclasses.replace(
        CONFIG,
        learner=dataclasses.replace(CONFIG.learner, old_logprob="behavior"),
        loss=dataclasses.replace(CONFIG.loss, kl_coef=0.0),
    )
    learner.mesh = learner.state = learner._reference = None  # pyright: ignore[reportAttributeAccessIssue]
    metrics = {"nonfinite_step": 3, "advantage_mean": np.nan}
    monkeypatch.setattr(learner, "_update", lambda state, packed: (state, metrics), raising=False)
    with pytest.raises(FloatingPointError, match=r"estimator hgpo gave step 3 \(trajectory 1, step 1\) an advantage"):
        learner.learn(batch, 7)
    metrics["advantage_mean"] = 0.0
    with pytest.raises(FloatingPointError, match=r"step 3 .* gave a value that is not finite"):
        learner.learn(batch, 7)
