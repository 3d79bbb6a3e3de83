"""The one call: golden outputs, buckets, compilations counted, functions of the user's own, bad input."""

import functools
from pathlib import Path

import batches
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.replay_advantages import replay_directory
from hgpo_jax.config import GiGPOConfig, GRPOConfig, HGPOConfig, ReinforceConfig, ShrinkageConfig
from hgpo_jax.estimators.advantages import (
    Grouping,
    compute_advantages,
    grouping_for,
    make_estimator,
    size_bucket,
    step_signals,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "advantages"
CONFIGS = [
    HGPOConfig(1),
    HGPOConfig(2, root="prompt"),
    ShrinkageConfig(1, root="prompt"),
    GRPOConfig(),
    GiGPOConfig(),
    ReinforceConfig(),
]


@pytest.fixture(scope="module")
def golden():
    return {report.name: report for report in replay_directory(GOLDEN)}


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.npz")), ids=lambda path: path.stem)
def test_golden_outputs_of_the_released_code(golden, path):
    report = golden[path.name]
    assert not report.problems
    assert not report.notes  # none of the deliberate differences occurs in these
    assert report.outputs == 90  # 80 HGPO, 4 GiGPO, 4 episode-level, and the two returns
    assert report.worst < 1e-5


def test_the_released_code_in_one_call():
    with np.load(GOLDEN / "interleaved_dense.npz") as recorded:
        advantages = compute_advantages(
            recorded["state"], recorded["group"], recorded["trajectory"], recorded["reward"],
            recorded["action_valid"], estimator=HGPOConfig(context_length=2, weight_offset=2),
        )  # fmt: skip
        assert isinstance(advantages, np.ndarray)
        chex.assert_type(advantages, np.float32)
        np.testing.assert_allclose(advantages, recorded["hgpo/K=2/alpha=1.0/mean_std_norm/base=False"], atol=2e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_shapes(config):
    batch = batches.random_batch(0)
    steps, levels = (
        len(batch.reward),
        grouping_for(config).context_length + 1 + (getattr(config, "root", "") == "prompt"),
    )
    signals = batch.signals(config, size=200)
    chex.assert_shape([signals.step_return, signals.score, signals.prompt_group, signals.valid], (200,))
    chex.assert_shape(signals.group_ids, (levels, 200))
    assert (signals.group_ids[:, steps:] == -1).all()
    assert (signals.trajectory[steps:] == -1).all()
    assert signals.valid.sum() == steps
    advantages, diagnostics = compute_advantages(*batch, estimator=config, return_diagnostics=True)
    chex.assert_shape(advantages, (steps,))
    chex.assert_tree_all_finite(advantages)
    assert diagnostics["baseline"].shape[-1] == steps
    assert np.shape(diagnostics["no_signal"]) == ()


def test_estimators_compile_once_for_all_batches_of_a_bucket():
    chex.clear_trace_counter()
    run = jax.jit(chex.assert_max_traces(make_estimator(HGPOConfig(1)), n=1))
    for seed in range(4):
        batch = batches.random_batch(seed)
        advantages, _ = run(batch.signals(HGPOConfig(1), size=size_bucket(100)))
        chex.assert_shape(advantages, (112,))


def test_compute_advantages_compiles_once_for_a_bucket():
    traces = []

    def counted(signals):
        traces.append(signals.valid.shape)
        return signals.step_return

    for steps in (65, 70, 80, 66):
        compute_advantages(["x"] * steps, [0] * steps, np.arange(steps) % 2, [0.0] * steps, estimator=counted)
    assert traces == [(80,)]


def test_buckets_grow_in_quarter_octaves():
    sizes = sorted({size_bucket(n) for n in range(1, 1025)})
    assert sizes == [64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024]
    assert all(size_bucket(n) >= n for n in range(1, 5000))


def test_a_function_of_the_users_own():
    def centred_in_state(signals):
        ids = signals.group_ids[1]
        return signals.score * (ids >= 0), {"reached": (ids >= 0).sum()}

    batch = batches.random_batch(1)
    advantages, found = compute_advantages(
        *batch, estimator=centred_in_state, grouping=Grouping(1, "state"), return_diagnostics=True
    )
    chex.assert_shape(advantages, batch.reward.shape)
    assert found["reached"] == (batch.signals(HGPOConfig(1)).group_ids[1] >= 0).sum()


def test_returns_of_the_users_own():
    batch = batches.random_batch(2)
    given = np.arange(len(batch.reward), dtype=np.float32)
    advantages = compute_advantages(*batch, estimator=ReinforceConfig(), step_return=given)
    np.testing.assert_allclose(advantages, given - given.mean(), atol=1e-5)


def too_short(signals):
    return signals.score[1:]


def not_finite(signals):
    return signals.score / 0.0


def three_things(signals):
    return signals.score, {}, {}


def pair_of_arrays(signals):
    return signals.score, signals.score


def nothing(signals):
    del signals


def as_list(signals):
    return list(signals.score)


def imaginary(signals):
    return signals.score * 1j


def batch_of(**changes):
    fields = batches.random_batch(0)._asdict()
    settings = {"estimator": HGPOConfig(1), "gamma": 0.9, "invalid_action_penalty": 0.1}
    return fields | settings | changes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_estimator(HGPOConfig), "instance of HGPOConfig"),  # pyright: ignore
        (lambda: make_estimator("hgpo"), "got 'hgpo'"),  # pyright: ignore
        (
            lambda: compute_advantages(**batch_of(estimator=too_short)),
            r"too_short returned .* \[95\], expected \[96\]: one for each step, padding included",
        ),
        (
            lambda: compute_advantages(**batch_of(estimator=functools.partial(too_short))),
            r"estimator too_short returned",
        ),
        (lambda: compute_advantages(**batch_of(estimator=three_things)), "three_things returned a tuple of 3"),
        (lambda: compute_advantages(**batch_of(estimator=pair_of_arrays)), "pair_of_arrays .* alone or with a dict"),
        (lambda: compute_advantages(**batch_of(estimator=nothing)), r"nothing returned a NoneType, .* \[96\]"),
        (lambda: compute_advantages(**batch_of(estimator=as_list)), "as_list returned a list, expected advantages"),
        (lambda: compute_advantages(**batch_of(estimator=imaginary)), "imaginary returned complex advantages"),
        (lambda: compute_advantages(**batch_of(reward=[0.0])), "reward 1"),
        (lambda: compute_advantages(**batch_of(action_valid=[True])), "action_valid 1"),
        (lambda: compute_advantages(**batch_of(step_return=jnp.full(75, jnp.nan))), "step_return"),
        (
            lambda: compute_advantages(**batch_of(estimator=not_finite)),
            r"estimator not_finite gave step 0 the advantage .*not finite.* division",
        ),
        (lambda: compute_advantages(**batch_of(action_valid=np.ones((87, 1)))), r"action_valid has shape \[87, 1\]"),
        (lambda: compute_advantages(**batch_of(step_return=np.ones((87, 1)))), r"step_return has shape \[87, 1\]"),
        (
            lambda: compute_advantages(**batch_of(reward=np.where(np.arange(87) == 7, 2e38, 0))),
            r"the return of step \d+ is .*e\+38, too large for float32: scale the rewards down",
        ),
        (lambda: compute_advantages(**batch_of(estimator=HGPOConfig(weight_offset=float("nan")))), "weight_offset"),  # pyright: ignore
        (
            lambda: compute_advantages(**batch_of(estimator=GiGPOConfig(), grouping=Grouping(0, "prompt"))),
            'grouping must have root "state"',
        ),
        (lambda: step_signals(**batch_of(size=3)), "size 3 is less than the"),
        (lambda: compute_advantages([], [], [], []), "batch is empty"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
