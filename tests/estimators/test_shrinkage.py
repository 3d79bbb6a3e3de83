"""Nested shrinkage: by hand, the loop oracle, its model's own data, identities, vmap, sharding, bad input."""

import re
from typing import Any

import batches
import chex
import jax
import numpy as np
import pytest
import reference
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hgpo_jax.config import HGPOConfig, ShrinkageConfig
from hgpo_jax.estimators.advantages import compute_advantages, make_estimator
from hgpo_jax.estimators.shrinkage import shrinkage_advantages

SIZE = 192
TWO_LEVELS = ShrinkageConfig(0, root="prompt", leave_one_out=False)


def by_hand(config, states: Any = "xxyy", returns: Any = (0, 4, 8, 12), **options):
    """Advantages of single-step rollouts of one task with given returns."""
    number = len(returns)
    return compute_advantages(
        list(states), [0] * number, range(number), np.zeros(number), step_return=returns, estimator=config, **options
    )


# Root: mean 6; x: mean 2, y: mean 10. sigma^2 = 16 / (4 - 2), tau^2 = (64 - 1 * 8) / (4 - 8 / 4) = 28.
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (TWO_LEVELS, [-2.5, 1.5, -1.5, 2.5]),  # s = 56 / 64, so b = 6 / 8 + 14 / 8 and 6 / 8 + 70 / 8
        # s = 28 / 36; the first's others have mean 8 and 4: b = 16 / 9 + 28 / 9; the second's 20 / 3 and 0
        (ShrinkageConfig(0, root="prompt"), [-44 / 9, 68 / 27, -68 / 27, 44 / 9]),
        (ShrinkageConfig(0, root="prompt", leave_one_out=False, prior_size=2.0), [-4, 0, 0, 4]),  # s = 1 / 2
        (ShrinkageConfig(0, root="prompt", leave_one_out=False, prior_size=0.0), [-2, 2, -2, 2]),
        (
            ShrinkageConfig(0, root="prompt", leave_one_out=False, normalize_std=True),
            np.array([-2.5, 1.5, -1.5, 2.5]) / 20**0.5,  # of 0, 4, 8, 12
        ),
        (ShrinkageConfig(0), [-4, 4, -4, 4]),  # one level: the return minus the other's
    ],
)
def test_by_hand(config, expected):
    np.testing.assert_allclose(by_hand(config), expected, rtol=1e-5)


def test_steps_without_a_finer_group_take_no_part_in_its_spread():
    # z raises the root's mean to 8 and nothing else: b_x = 8 / 8 + 14 / 8; its own baseline is the root's
    advantages = by_hand(TWO_LEVELS, "xxyyz", (0, 4, 8, 12, 16))
    np.testing.assert_allclose(advantages, [-2.75, 1.25, -1.75, 2.25, 8], rtol=1e-5)
    assert by_hand(ShrinkageConfig(0), "xxz", (0, 4, 16))[2] == 0  # no group at all


def test_diagnostics():
    _, found = by_hand(TWO_LEVELS, "xxyyz", (0, 4, 8, 12, 16), return_diagnostics=True)
    np.testing.assert_allclose(found["shrinkage_factor"], [1, 7 / 8], rtol=1e-6)
    np.testing.assert_allclose(found["baseline"], [[8] * 5, [2.75, 2.75, 9.75, 9.75, 0]], rtol=1e-6)
    np.testing.assert_allclose(found["effective_weight"], [(4 / 8 + 1) / 5, 4 * 7 / 8 / 5], rtol=1e-6)
    np.testing.assert_allclose(found["used_share"], [1, 4 / 5])
    np.testing.assert_allclose([found["no_signal"], *found["coverage"]], [0, 1, 4 / 5])


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_equal_returns_give_exactly_zero(leave_one_out):
    config = ShrinkageConfig(0, root="prompt", leave_one_out=leave_one_out)
    assert not by_hand(config, "xxxyyy", [np.float32(10 * 0.95**7)] * 6).any()
    # No spread within, some between: the finer groups are trusted wholly. The other way round not at all.
    assert not by_hand(config, "xxyy", (1, 1, 9, 9)).any()
    alone = by_hand(config, "xxyy", (1, 9, 1, 9))
    np.testing.assert_allclose(alone, by_hand(ShrinkageConfig(0, leave_one_out=leave_one_out), "xxxx", (1, 9, 1, 9)))


def expected(batch, signals, config):
    """The definition in plain loops, float64, every prompt group and level by level."""
    state, group, trajectory, returns, _ = batch.for_loops(signals)
    returns = returns.astype(float)
    depths = [None] * (config.root == "prompt") + list(range(config.context_length + 1))
    levels = [reference.groups(state, group, trajectory, depth) for depth in depths]
    baseline, reached = np.zeros(len(returns)), np.zeros(len(returns), bool)
    for level, groups in enumerate(levels):
        coarser = baseline.copy()
        for members in groups:
            parents = next((p for p in levels[level - 1] if members[0] in p), None) if level else None
            for i in members:
                others = [j for j in members if j != i or not config.leave_one_out]
                if parents is None:
                    factor = 1.0
                elif config.prior_size is not None:
                    factor = len(others) / (len(others) + config.prior_size)
                else:
                    pool = [g for g in groups if config.pool == "batch" or group[g[0]] == group[i]]
                    within, between = variances(returns, pool, levels[level - 1])
                    signal = len(others) * between
                    factor = signal / (signal + within) if signal else 0.0
                baseline[i] = (1 - factor) * coarser[i] + factor * returns[others].mean()
                reached[i] = True
    return np.where(reached, returns - baseline, 0)


def variances(returns, groups, parents):
    within = sum(((returns[g] - returns[g].mean()) ** 2).sum() for g in groups)
    within /= sum(len(g) - 1 for g in groups)
    between, room, families = 0.0, 0.0, len(groups)
    for parent in parents:
        children = [g for g in groups if set(g) <= set(parent)]
        if children:
            members = [i for g in children for i in g]
            centre = returns[members].mean()
            between += sum(len(g) * (returns[g].mean() - centre) ** 2 for g in children)
            room += len(members) - sum(len(g) ** 2 for g in children) / len(members)
            families -= 1
    return within, max(between - families * within, 0) / room if room > 0 else 0.0


@pytest.mark.parametrize(
    "config",
    [
        ShrinkageConfig(1),
        ShrinkageConfig(2, leave_one_out=False),
        ShrinkageConfig(2, root="prompt", pool="prompt"),
        ShrinkageConfig(3, prior_size=1.5),
        ShrinkageConfig(1, root="prompt", leave_one_out=False, pool="prompt"),
    ],
    ids=str,
)
def test_agrees_with_the_loops(config):
    for seed in range(4):
        batch = batches.random_batch(seed, dense=seed % 2 == 0, max_steps=14)
        signals = batch.signals(config, size=SIZE)
        advantages, _ = shrinkage_advantages(signals, config)
        chex.assert_shape(advantages, (SIZE,))
        np.testing.assert_allclose(advantages[: len(batch.reward)], expected(batch, signals, config), atol=2e-5)
        assert not advantages[len(batch.reward) :].any()


@pytest.mark.parametrize("pool", ["batch", "prompt"])
def test_the_variances_of_the_model_are_found(pool):
    """600 states of four steps, tau = 1 around the task, sigma = 2 within: s = 4 / (4 + 4)."""
    rng = np.random.default_rng(0)
    state = np.repeat(np.arange(600), 4)
    means = rng.normal(50, 1, 600)
    returns = means[state] + rng.normal(0, 2, len(state))
    config = ShrinkageConfig(0, root="prompt", leave_one_out=False, pool=pool)
    advantages, found = by_hand(config, state, returns, return_diagnostics=True)
    np.testing.assert_allclose(found["shrinkage_factor"][1], 0.5, atol=0.05)
    errors = {
        "shrunk": returns - advantages - means[state],
        "task": returns.mean() - means[state],
        "state": means[state] - np.bincount(state, returns)[state] / 4,
    }
    error = {name: np.mean(values**2) for name, values in errors.items()}
    # 1 / (1 / tau^2 + n / sigma^2) = 0.5 against tau^2 = 1 and sigma^2 / n = 1
    np.testing.assert_allclose([error["shrunk"], error["task"], error["state"]], [0.5, 1, 1], rtol=0.15)


CONFIG = ShrinkageConfig(2, root="prompt")


def advantages_of(batch, config=CONFIG, size=SIZE, **changes):
    signals = batch.signals(config, size=size)._replace(**changes)
    return np.asarray(shrinkage_advantages(signals, config)[0])[: len(batch.reward)]


def test_padding_order_and_labels_do_not_matter():
    batch = batches.random_batch(1, dense=True)
    order = np.argsort(batch.trajectory, kind="stable")
    renamed = batch._replace(trajectory=-3 * batch.trajectory, prompt_group=[f"g{g}" for g in batch.prompt_group])
    plain = advantages_of(batch)
    np.testing.assert_allclose(advantages_of(batch, size=2 * SIZE), plain, atol=2e-6)
    np.testing.assert_allclose(advantages_of(batch.take(order)), plain[order], atol=5e-6)
    np.testing.assert_allclose(advantages_of(renamed), plain, atol=2e-6)


def test_a_constant_changes_nothing_and_a_factor_scales():
    batch = batches.random_batch(2, dense=True)
    returns = np.round(batch.signals(CONFIG, size=SIZE).step_return * 64) / np.float32(64)  # exact when shifted
    plain = advantages_of(batch, step_return=returns)
    np.testing.assert_allclose(advantages_of(batch, step_return=returns + 4096), plain, atol=1e-4)
    np.testing.assert_allclose(advantages_of(batch, step_return=returns * 7), 7 * plain, atol=5e-5)


def test_the_own_return_is_not_in_the_baseline():
    """With the weights given, a step's baseline stays as it is when its own return changes."""
    batch = batches.random_batch(3, dense=True)
    config = ShrinkageConfig(2, root="prompt", prior_size=3.0)
    returns = np.array(batch.signals(config, size=SIZE).step_return)
    changed = returns.copy()
    changed[5] += 2
    before, after = (advantages_of(batch, config, step_return=values) for values in (returns, changed))
    np.testing.assert_allclose(after[5] - before[5], 2, rtol=1e-5)


def test_under_vmap():
    signals = [batches.random_batch(seed, dense=True).signals(CONFIG, size=SIZE) for seed in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *signals)
    together = jax.vmap(lambda s: shrinkage_advantages(s, CONFIG)[0])(stacked)
    chex.assert_shape(together, (3, SIZE))
    for row, one in zip(together, signals, strict=True):
        np.testing.assert_allclose(row, shrinkage_advantages(one, CONFIG)[0], atol=2e-6)


@pytest.mark.parametrize(("config", "reductions"), [(CONFIG, 4), (ShrinkageConfig(2, prior_size=1.0), 3)])
def test_sharding_over_eight_devices(config, reductions):
    """The same advantages and layout; one all-reduce more than HGPO, of the spreads' five sums."""
    signals = batches.random_batch(4, dense=True).signals(config, size=SIZE)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shardings = jax.tree.map(lambda x: NamedSharding(mesh, P(None, "data") if x.ndim == 2 else P("data")), signals)
    run = jax.jit(lambda s: shrinkage_advantages(s, config)[0], in_shardings=(shardings,),
                  out_shardings=NamedSharding(mesh, P("data")))  # fmt: skip
    sharded = run(jax.device_put(signals, shardings))
    assert sharded.sharding.spec == P("data")
    np.testing.assert_allclose(sharded, shrinkage_advantages(signals, config)[0], atol=2e-6)
    program = run.lower(signals).compile().as_text() or ""
    assert len(re.findall(r"= \S+ all-reduce(?:-start)?\(|\) all-reduce(?:-start)?\(", program)) <= reductions
    assert "all-gather(" not in program


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ShrinkageConfig(-1), "context_length must be 0 or more, got -1"),
        (ShrinkageConfig(prior_size=-0.5), "prior_size must be 0 or more, or None, got -0.5"),
        (ShrinkageConfig(prior_size=float("nan")), "prior_size must be 0 or more, or None, got nan"),
        (ShrinkageConfig(root="task"), "root must be"),  # pyright: ignore[reportArgumentType]
        (ShrinkageConfig(pool="task"), "pool must be"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_settings_out_of_range_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_estimator(config)


def test_group_ids_of_another_depth_are_refused():
    signals = batches.random_batch(0).signals(HGPOConfig(2))
    with pytest.raises(ValueError, match=r"shape \(3, \d+\), expected \[5, N\] for context_length=4"):
        shrinkage_advantages(signals, ShrinkageConfig(4))
