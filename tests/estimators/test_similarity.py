"""Keys of similar texts and of numbers in bins: by hand, against difflib asked every time, real rollouts, bad input."""

from difflib import SequenceMatcher
from typing import Any

import gymnasium
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from hgpo_jax.estimators.grouping import group_steps
from hgpo_jax.estimators.similarity import quantised_states, similar_states


def asked_every_time(texts, groups, threshold):
    """The released rule in its plainest form."""
    founders, places = {}, []
    for text, group in zip(texts, groups, strict=True):
        own = founders.setdefault(group, [])
        for number, founder in enumerate(own):
            if SequenceMatcher(None, text, founder).ratio() >= threshold:
                places.append((group, number))
                break
        else:
            places.append((group, len(own)))
            own.append(text)
    numbers = {place: i for i, place in enumerate(dict.fromkeys(places))}
    return [numbers[place] for place in places]


@pytest.mark.filterwarnings("ignore:.*single rollout")
def test_texts_by_hand():
    # 20 characters, one changed: 2 * 19 / 40 = 0.95; two changed: 0.9
    base, one, two = "abcdefghijklmnopqrst", "abcdefghijklmnopqrs!", "abcdefghijklmnopqr!!"
    texts, groups = [base, one, two, base, base], [0, 0, 0, 0, 1]
    assert similar_states(texts, groups).tolist() == [0, 0, 1, 0, 2]  # two is near one, but one founds nothing
    assert similar_states(texts, groups, 0.9).tolist() == [0, 0, 0, 0, 1]
    assert similar_states(texts, groups, 1.0).tolist() == [0, 1, 2, 0, 3]
    assert similar_states(["aa", "aaa"], [0, 0], 0.8).tolist() == [0, 0]  # 4 / 5, right at the threshold
    # The order of appearance decides: a text in the middle founds a cluster for both sides.
    assert similar_states([one, two, base], [0] * 3).tolist() == [0, 0, 0]
    ids = group_steps(similar_states(texts, groups), groups, range(5), context_length=0)  # the last is alone
    assert ids.tolist() == [[0, 0, -1, 0, -1]]


def test_rules_differ_where_difflib_passes_over_frequent_characters():
    """From 200 characters on; each piece between two edits is taken for different where it has no rare character."""
    base = "ab" * 150
    edited = base[:100] + "x" + base[100:200] + "x" + base[200:]
    assert similar_states([base, edited], [0, 0]).tolist() == [0, 1]
    assert similar_states([base, edited], [0, 0], rule="subsequence").tolist() == [0, 0]


LETTERS = st.text("ab ", min_size=0, max_size=30)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(LETTERS, st.integers(0, 1)), min_size=1, max_size=12),
    st.sampled_from([0.3, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95, 1.0]),
)
def test_the_partition_is_that_of_asking_every_time(pairs, threshold):
    texts, groups = zip(*pairs, strict=True)
    assert similar_states(texts, groups, threshold).tolist() == asked_every_time(texts, groups, threshold)


@pytest.mark.parametrize("threshold", [0.95, 0.8])
def test_long_texts_too(threshold):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(3, 9))) for _ in range(80)]
    pages = [[words[i] for i in rng.integers(80, size=45)] for _ in range(3)]
    texts = []
    for _ in range(40):
        page = list(pages[rng.integers(3)])
        for _ in range(rng.integers(0, 4)):  # at the end, as counters are, or anywhere
            page[-1 if rng.random() < 0.5 else rng.integers(len(page))] = words[rng.integers(80)]
        texts.append(" ".join(page))
    groups = rng.integers(2, size=len(texts)).tolist()
    found = similar_states(texts, groups, threshold)
    assert found.tolist() == asked_every_time(texts, groups, threshold)
    assert found.max() + 1 < len(set(zip(texts, groups, strict=True)))
    # What the released rule merges with a founder the other finds similar to it too.
    assert similar_states(texts, groups, threshold, rule="subsequence").max() <= found.max()


def test_bins_by_hand():
    bins = quantised_states([[0.04, -0.06], [-0.04, 0.06], [0.26, 0.0]], [0.1, 0.05])
    assert bins.tolist() == [[0, -1], [0, 1], [3, 0]]
    assert quantised_states([0.4, 0.6, -0.6], 1.0).tolist() == [[0], [1], [-1]]


def rollouts(name, seeds, steps):
    """Observations and trajectories of random play; each episode starts somewhere else."""
    observations, trajectory = [], []
    env: Any = gymnasium.make(name)
    for number, seed in enumerate(seeds):
        rng, (observation, _) = np.random.default_rng(seed), env.reset(seed=seed)
        for _ in range(steps):
            observations.append(observation)
            trajectory.append(number)
            observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
            if terminated or truncated:
                break
    env.close()
    return np.array(observations), np.array(trajectory)


@pytest.mark.parametrize(
    ("name", "width", "least"),
    [("CartPole-v1", [0.2, 0.4, 0.05, 0.5], 0.5), ("Acrobot-v1", [0.2] * 4 + [0.5, 1.0], 0.5)],
)
def test_bins_group_what_never_repeats(name, width, least):
    """Eight rollouts of one task: no state comes twice, most bins do; and they nest as all groups do."""
    observations, trajectory = rollouts(name, range(8), 60)
    group = np.zeros(len(trajectory), int)
    exact = group_steps(observations, group, trajectory, context_length=0)
    assert (exact == -1).all()
    ids = group_steps(quantised_states(observations, width), group, trajectory, context_length=2)
    shares = (ids >= 0).mean(1)
    assert shares[0] > least
    assert shares[0] >= shares[1] >= shares[2] > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similar_states(["a", 3], [0, 0]), "step 1 is a int, but only texts .* quantised_states"),  # pyright: ignore
        (lambda: similar_states(["a"], [0, 0]), "anchor_state 1, prompt_group 2"),
        (lambda: similar_states(["a"], [0], 0.0), "threshold must be above 0 and at most 1, got 0.0"),
        (lambda: similar_states(["a"], [0], float("nan")), "threshold must be"),
        (lambda: similar_states(["a"], [0], rule="exact"), "rule must be one of released, subsequence, got 'exact'"),  # pyright: ignore
        (lambda: quantised_states([[0.0], [np.nan]], 1.0), "observation of step 1 is not finite"),
        (lambda: quantised_states([[0.0, 1.0]], [1.0]), r"step_size has shape \[1\]"),
        (lambda: quantised_states([[0.0]], 0.0), "step_size must be above 0 and finite, got 0.0"),
        (lambda: quantised_states([[1e30]], 1e-3), "step 0 is too many bins from 0: raise step_size"),
        (lambda: quantised_states(np.zeros((2, 2, 2)), 1.0), r"must be \[N, D\], got shape \[2, 2, 2\]"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
