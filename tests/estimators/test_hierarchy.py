"""The HGPO kernel: by hand, the loop oracle over every option, identities, sharding, bad input."""

import itertools
import re
from typing import Literal

import batches
import chex
import jax
import numpy as np
import pytest
import reference
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hgpo_jax.config import HGPOConfig
from hgpo_jax.estimators.advantages import compute_advantages, make_estimator
from hgpo_jax.estimators.hierarchy import hierarchy_advantages

ROOTS: list[Literal["state", "prompt"]] = ["state", "prompt"]
SIZE = 192  # one padded size for the batches here: each set of options is compiled once


def by_hand(config, states="xxy", returns=(6, 0, 0)):
    """Advantages of single-step rollouts of one task with given returns."""
    number = len(returns)
    return compute_advantages(
        list(states), [0] * number, range(number), np.zeros(number), step_return=returns, estimator=config
    )


def expected(batch, signals, config):
    return reference.hierarchy(
        *batch.for_loops(signals),
        context_length=config.context_length,
        alpha=config.alpha,
        normalize_std=config.normalize_std,
        weight_offset=config.weight_offset,
        episode_level=config.episode_level,
        skip_zero_levels=config.skip_zero_levels,
        root=config.root,
    )


def test_prompt_root_by_hand():
    # root: mean 2; state x: mean 3. A(a) = (1 * 4 + 2 * 3) / 3, A(b) = (-2 - 6) / 3, y is alone: A(c) = -2
    advantages = by_hand(HGPOConfig(0, alpha=1.0, normalize_std=False, root="prompt"))
    np.testing.assert_allclose(advantages, [10 / 3, -8 / 3, -2], rtol=1e-6)


@pytest.mark.parametrize(
    ("alpha", "offset", "weights"),
    [(0.0, 1, (1, 1)), (1.0, 2, (2, 3)), (2.0, 1, (1, 4)), (200.0, 1, (0, 1)), (float("inf"), 1, (0, 1))],
)
def test_weights_by_hand(alpha, offset, weights):
    config = HGPOConfig(0, alpha=alpha, normalize_std=False, weight_offset=offset, root="prompt")
    mixed = np.average([[4, 3], [-2, -3]], axis=1, weights=weights)
    np.testing.assert_allclose(by_hand(config), [*mixed, -2], rtol=1e-6)  # c: the root is its finest level


@pytest.mark.parametrize("normalize_std", [False, True])
def test_a_member_on_the_mean_skips_the_level(normalize_std):
    # of {9, 10, 11} the middle one has no advantage in state x: only the root's is left, at full weight
    config = HGPOConfig(0, normalize_std=normalize_std, root="prompt")
    advantages = by_hand(config, "xxxy", (9, 10, 11, 0))
    root = 2.5 / (np.std([9, 10, 11, 0]) + 1e-6 if normalize_std else 1)
    np.testing.assert_allclose(advantages[1], root, rtol=1e-5)
    counted = by_hand(
        HGPOConfig(0, normalize_std=normalize_std, root="prompt", skip_zero_levels=False),
        "xxxy",
        (9, 10, 11, 0),
    )
    np.testing.assert_allclose(counted[1], root / 3, rtol=1e-5)


def test_leave_one_out_by_hand():
    # root: a is 6 above the others' 0, b and c 3 below theirs; state x: a is 6 above b, b 6 below a
    config = HGPOConfig(0, normalize_std=False, root="prompt", leave_one_out=True)
    np.testing.assert_allclose(by_hand(config), [(6 + 2 * 6) / 3, (-3 - 2 * 6) / 3, -3], rtol=1e-6)
    # over the std of the whole group, own step included: 3 for the pair
    pair = HGPOConfig(0, leave_one_out=True)
    np.testing.assert_allclose(by_hand(pair), [2, -2, 0], rtol=1e-5)


def test_leave_one_out_is_the_plain_deviation_over_the_share_of_the_others():
    batch = batches.random_batch(5, dense=True)
    plain, alone = (HGPOConfig(0, normalize_std=False, leave_one_out=leave) for leave in (False, True))
    ids = batch.signals(plain).group_ids[0]
    sizes = np.where(ids >= 0, np.bincount(ids + 1)[ids + 1], 2)
    np.testing.assert_allclose(
        advantages_of(batch, alone), advantages_of(batch, plain) * sizes / (sizes - 1), atol=1e-5
    )
    _, found = compute_advantages(*batch, estimator=alone, return_diagnostics=True)
    returns = batch.signals(alone).step_return
    grouped = ids >= 0
    np.testing.assert_allclose(
        (returns - found["baseline"][0])[grouped], advantages_of(batch, alone)[grouped], atol=1e-5
    )


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("normalize_std", [False, True])
def test_equal_returns_give_exactly_zero(normalize_std, skip, leave_one_out):
    """750 groups: sizes 2 to 16, returns 10 * 0.95^j, where a rounded mean would leave a residue."""
    sizes, powers = np.meshgrid(np.arange(2, 17), np.arange(50))
    state = np.repeat(np.arange(sizes.size), sizes.ravel())
    returns = np.float32(10) * np.float32(0.95) ** powers.ravel().astype(np.float32)
    config = HGPOConfig(0, normalize_std=normalize_std, skip_zero_levels=skip, leave_one_out=leave_one_out)
    advantages, diagnostics = compute_advantages(
        state, np.zeros_like(state), np.arange(len(state)), np.zeros(len(state)),
        step_return=np.repeat(returns, sizes.ravel()), estimator=config, return_diagnostics=True,
    )  # fmt: skip
    assert sizes.size == 750
    assert (advantages == 0).all()
    assert diagnostics["coverage"] == 1
    assert diagnostics["no_signal"] == (1 if skip else 0)


@pytest.mark.slow
@pytest.mark.parametrize("context_length", range(9))
def test_agrees_with_the_loops(context_length):
    """Every option at every K, all their combinations at K = 2; alpha is traced and varies with the batch."""
    switches = list(itertools.product([False, True], repeat=3))
    if context_length != 2:  # each pair of switches in all four positions
        switches = [(a, b, c) for a, b, c in switches if (a + b + c) % 2 == 0]
    options = itertools.product(switches, [1, 2], ROOTS)
    for number, ((normalize, episode, skip), offset, root) in enumerate(options):
        batch = batches.random_batch(number, dense=number % 3 == 0, max_steps=14)
        config = HGPOConfig(context_length, (0.0, 1.0, 2.5)[number % 3], normalize, offset, episode, skip, root)
        signals = batch.signals(config, size=SIZE)
        advantages, _ = hierarchy_advantages(signals, config)
        chex.assert_shape(advantages, (SIZE,))
        np.testing.assert_allclose(
            advantages[: len(batch.reward)], expected(batch, signals, config), atol=1e-5, err_msg=str(config)
        )
        assert not advantages[len(batch.reward) :].any()


CONFIG = HGPOConfig(2, alpha=1.5, episode_level=True)
PLAIN = HGPOConfig(2, alpha=1.5, normalize_std=False)


def advantages_of(batch, config, size=SIZE, **changes):
    signals = batch.signals(config, size=size)._replace(**changes)
    return np.asarray(hierarchy_advantages(signals, config)[0])[: len(batch.reward)]


def test_padding_does_not_matter():
    batch = batches.random_batch(0)
    same = advantages_of(batch, CONFIG, size=SIZE), advantages_of(batch, CONFIG, size=2 * SIZE)
    np.testing.assert_array_equal(*same)


def test_order_between_trajectories_and_labels_do_not_matter():
    batch = batches.random_batch(1, dense=True)
    order = np.argsort(batch.trajectory, kind="stable")
    sorted_batch = batch.take(order)
    renamed = batch._replace(trajectory=-3 * batch.trajectory, prompt_group=[f"g{g}" for g in batch.prompt_group])
    plain = advantages_of(batch, CONFIG)
    np.testing.assert_allclose(advantages_of(sorted_batch, CONFIG), plain[order], atol=2e-6)
    np.testing.assert_array_equal(advantages_of(renamed, CONFIG), plain)


def test_a_constant_changes_nothing_and_a_factor_scales():
    batch = batches.random_batch(2, dense=True)
    returns = np.round(batch.signals(PLAIN, size=SIZE).step_return * 64) / np.float32(64)  # exact when shifted
    plain = advantages_of(batch, PLAIN, step_return=returns)
    np.testing.assert_allclose(advantages_of(batch, PLAIN, step_return=returns + 4096), plain, atol=1e-5)
    np.testing.assert_allclose(advantages_of(batch, PLAIN, step_return=returns * 7), 7 * plain, atol=2e-5)
    shifted = advantages_of(batch, HGPOConfig(2), step_return=returns + 4096)
    np.testing.assert_allclose(shifted, advantages_of(batch, HGPOConfig(2), step_return=returns), atol=2e-5)


def test_mean_norm_advantages_of_one_level_sum_to_zero():
    batch = batches.random_batch(3, dense=True)
    config = HGPOConfig(0, normalize_std=False, root="state", skip_zero_levels=False)
    advantages = advantages_of(batch, config)
    ids = batch.signals(config).group_ids[0]
    np.testing.assert_allclose(np.bincount(ids + 1, weights=advantages), 0, atol=1e-5)


def test_sharding_over_eight_devices():
    """The same advantages and layout, and one all-reduce each for extremes, sums and squares."""
    signals = batches.random_batch(4, dense=True).signals(CONFIG, size=SIZE)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shardings = jax.tree.map(lambda x: NamedSharding(mesh, P(None, "data") if x.ndim == 2 else P("data")), signals)
    run = jax.jit(lambda s: hierarchy_advantages(s, CONFIG)[0], in_shardings=(shardings,),
                  out_shardings=NamedSharding(mesh, P("data")))  # fmt: skip
    sharded = run(jax.device_put(signals, shardings))
    assert sharded.sharding.spec == P("data")
    np.testing.assert_allclose(sharded, hierarchy_advantages(signals, CONFIG)[0], atol=2e-6)
    program = run.lower(signals).compile().as_text() or ""
    assert len(re.findall(r"= \S+ all-reduce(?:-start)?\(|\) all-reduce(?:-start)?\(", program)) <= 3
    assert "all-gather(" not in program


def test_diagnostics():
    #  rollouts x y | x y | x z of one task, returns on the last step only
    config = HGPOConfig(1, normalize_std=False, episode_level=True)
    advantages, found = compute_advantages(
        list("xyxyxz"), [0] * 6, [0, 0, 1, 1, 2, 2], [0, 4, 0, 8, 0, 0], gamma=1.0, estimator=config,
        return_diagnostics=True,
    )  # fmt: skip
    chex.assert_shape([found["coverage"], found["mean_group_size"], found["used_share"]], (2,))
    chex.assert_shape(found["baseline"], (2, 6))
    np.testing.assert_allclose(found["coverage"], [5 / 6, 2 / 6])
    np.testing.assert_allclose(found["mean_group_size"], [2.5, 2])
    np.testing.assert_allclose(found["used_share"], [4 / 6, 2 / 6])  # the first x sits on the mean 4
    np.testing.assert_allclose(found["baseline"], [[4, 6, 4, 6, 4, 0], [0, 6, 0, 6, 0, 0]])
    np.testing.assert_allclose(found["effective_weight"].sum() + found["episode_weight"], 1, rtol=1e-6)
    np.testing.assert_allclose(found["no_signal"], 1 / 6, rtol=1e-6)
    assert (advantages == 0).tolist() == [True] + [False] * 5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (HGPOConfig(alpha=-1.0), "alpha must be 0 or more, got -1"),
        (HGPOConfig(alpha=float("nan")), "alpha must be 0 or more"),
        (HGPOConfig(context_length=-2), "context_length must be 0 or more, got -2"),
        (HGPOConfig(weight_offset=0), "weight_offset must be 1 or more, got 0"),
        (HGPOConfig(root="task"), "root must be"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_out_of_range_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_estimator(config)


def test_group_ids_of_another_depth_are_refused():
    signals = batches.random_batch(0).signals(HGPOConfig(2))
    with pytest.raises(ValueError, match=r"shape \(3, \d+\), expected \[5, N\] for context_length=4"):
        hierarchy_advantages(signals, HGPOConfig(4))
