"""States told with noise: they never repeat exactly, and the keys find the views again."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.arms import ARMS
from experiments.studies.keys import STATE_KEYS, as_numbers, as_texts
from experiments.studies.measure import Measured, Setting, measure
from experiments.studies.worlds import graph_world, random_policy
from hgpo_jax.estimators import compact_ids, quantised_states, similar_states

OBSERVATION = np.random.default_rng(0).integers(3, size=400)
GROUP = np.arange(400) // 40


def partition(keys: object) -> np.ndarray:
    """Which steps share a key within their group."""
    ids = compact_ids([str(key) for key in np.asarray(keys).tolist()])
    return (ids[:, None] == ids) & (GROUP[:, None] == GROUP)


def test_no_state_comes_twice() -> None:
    assert len(set(as_texts(OBSERVATION, np.random.default_rng(1)))) == 400
    assert len(set(as_numbers(OBSERVATION, np.random.default_rng(1)).tolist())) == 400


@pytest.mark.parametrize("rule", ["released", "subsequence"])
def test_texts_of_a_view_are_alike(rule: str) -> None:
    texts = as_texts(OBSERVATION, np.random.default_rng(1))
    found = partition(similar_states(texts, GROUP, 0.95, rule=rule))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(found, partition(OBSERVATION))
    coarse = partition(similar_states(texts, GROUP, 0.6, rule=rule))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(coarse, GROUP[:, None] == GROUP)


def test_bins_of_a_views_distance_nearly_find_it() -> None:
    """Normal noise of 0.2 leaves a bin of width 1 in 1.2 % of all cases."""
    numbers = as_numbers(OBSERVATION, np.random.default_rng(1))
    assert 0.97 < (quantised_states(numbers, 1.0)[:, 0] == OBSERVATION).mean() < 1
    assert partition(quantised_states(numbers, 0.25)).sum() < partition(OBSERVATION).sum()


def measured(keys: str | None) -> dict[str, Measured]:
    world = graph_world(0, horizon=4)
    how = None if keys is None else STATE_KEYS[keys]
    setting = Setting(world, random_policy(world, 1, seed=0), 4, max_steps=4096, state_keys=how)
    return dict(measure(setting, {name: ARMS[name] for name in ("level 0", "HGPO K=2", "exact history", "GRPO")}))


def test_what_is_measured_hangs_on_the_keys() -> None:
    as_seen, exact, similar = measured(None), measured("text, exact"), measured("text, 95 % alike")
    for name in ("level 0", "HGPO K=2"):
        assert exact[name].answered == 0
        assert exact[name].gradient["cosine"].value == 0  # it says 0 throughout
        assert similar[name].steps["all"] == as_seen[name].steps["all"]
        assert similar[name].gradient == as_seen[name].gradient
    for name in ("exact history", "GRPO"):  # they don't compare states
        assert exact[name].steps["all"] == as_seen[name].steps["all"]
