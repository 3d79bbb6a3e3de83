"""Context inconsistency: by hand, a loop oracle, parts added up, bad input."""

from collections import defaultdict

import batches
import numpy as np
import pytest

from hgpo_jax.estimators.context import context_diagnostics, context_sums


def test_by_hand():
    # Rollouts a x y | b x y | a x z of one task. State groups: a (2), x (3), y (2).
    states, trajectory = list("axybxyaxz"), [0, 0, 0, 1, 1, 1, 2, 2, 2]
    returns = [1, 2, 4, 0, 8, 6, 3, 2, 9]
    found = context_diagnostics(context_sums(states, [0] * 9, trajectory, returns, context_length=2))
    # One state back: both a have none, x came from a, b, a; both y from x. Two back: y from a x and b x.
    np.testing.assert_allclose(found["inconsistent_groups"], [1 / 3, 2 / 3])
    np.testing.assert_allclose(found["inconsistent_steps"], [3 / 7, 5 / 7])
    # Finer groups of two: the a's and y's are their state group; (a x) twice has mean 2, x has 4.
    np.testing.assert_allclose(found["baseline_spread"], [np.sqrt(2 * 4 / 6), np.sqrt(2 * 4 / 4)])


def test_first_steps_share_their_empty_past():
    found = context_diagnostics(context_sums(["s"] * 4, [0] * 4, range(4), [0, 1, 2, 3], context_length=3))
    assert found["inconsistent_groups"].tolist() == [0, 0, 0]
    assert found["baseline_spread"].tolist() == [0, 0, 0]


def test_nothing_to_compare_gives_zeros():
    found = context_diagnostics(context_sums(list("abc"), [0] * 3, range(3), [0, 1, 2], context_length=2))
    assert all(values.tolist() == [0, 0] for values in found.values())


def by_loops(batch, returns, k):
    past, history = [], defaultdict(list)
    for state, trajectory in zip(batch.anchor_state, batch.trajectory, strict=True):
        past.append(tuple(history[trajectory][-k:]))
        history[trajectory].append(state)
    groups = defaultdict(list)
    for i, (group, state) in enumerate(zip(batch.prompt_group, batch.anchor_state, strict=True)):
        groups[group, state].append(i)
    shared = [members for members in groups.values() if len(members) > 1]
    differing = [members for members in shared if len({past[i] for i in members}) > 1]
    squares = []
    for members in shared:
        for history_of in {past[i] for i in members}:
            finer = [i for i in members if past[i] == history_of]
            if len(finer) > 1:
                squares += [(returns[finer].mean() - returns[members].mean()) ** 2] * len(finer)
    steps = sum(map(len, differing)), sum(map(len, shared))
    return len(differing) / len(shared), steps[0] / steps[1], np.sqrt(np.mean(squares)) if squares else 0


def test_agrees_with_the_loops_in_any_order():
    for seed in range(5):
        batch = batches.random_batch(seed, states=4, max_steps=10)
        returns = np.random.default_rng(seed).normal(size=len(batch.reward))
        sums = context_sums(*batch[:3], returns, context_length=4)
        found = context_diagnostics(sums)
        for k in range(1, 5):
            told = [found[name][k - 1] for name in ("inconsistent_groups", "inconsistent_steps", "baseline_spread")]
            np.testing.assert_allclose(told, by_loops(batch, returns, k), rtol=1e-9)
        # The order inside each trajectory, told by numbers instead of by appearance.
        step = np.zeros(len(returns), int)
        for label in set(batch.trajectory):
            step[batch.trajectory == label] = np.arange((batch.trajectory == label).sum())
        order = np.random.default_rng(seed).permutation(len(returns))
        shuffled = context_sums(*batch.take(order)[:3], returns[order], context_length=4, step=step[order])
        np.testing.assert_allclose(shuffled, sums, rtol=1e-9)
        assert (np.diff(found["inconsistent_groups"]) >= 0).all()


def test_parts_of_a_batch_add_up():
    batch = batches.random_batch(7)
    returns = np.arange(len(batch.reward), dtype=float)
    whole = context_sums(*batch[:3], returns, context_length=2)
    own = batch.prompt_group == 7
    parts = [context_sums(*batch.take(part)[:3], returns[part], context_length=2) for part in (own, ~own)]
    np.testing.assert_allclose(parts[0] + parts[1], whole)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="context_length must be 1 or more, got 0"):
        context_sums(["a"], [0], [0], [1.0], context_length=0)
    with pytest.raises(ValueError, match="step_return 2"):
        context_sums(["a"], [0], [0], [1.0, 2.0], context_length=1)
