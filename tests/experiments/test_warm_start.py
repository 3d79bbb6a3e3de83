"""After imitating random valid replies a policy replies validly, at random, and in several lengths."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.assembly import Learner
from experiments.configs import WarmStartConfig, load_config
from experiments.rollouts import Rollouts
from experiments.warm_start import warm_start


@pytest.mark.slow
def test_first_rollouts_are_a_random_walk_in_valid_replies() -> None:
    config = dataclasses.replace(load_config("frozen_lake"), warm_start=WarmStartConfig(batches=2))
    learner, rollouts = Learner(config), Rollouts(config)
    losses = warm_start(learner, rollouts, 0)
    # An optional "i", a verb of four, a direction of four, the end: ln 2 + ln 4 + ln 4 nats in 4.5 tokens is 0.77.
    assert losses[0] > 1.2 * losses[-1]
    assert 0.75 < losses[-1] < 0.9
    batch, metrics, _ = rollouts.train(learner.state.params, 0, jax.random.key(0))  # at temperature 1
    assert metrics["valid_action_share"] > 0.9
    assert len({len(reply) for reply in batch.response_tokens}) >= 2
    replies = [rollouts.tokenizer.decode(reply).split() for reply in batch.response_tokens]
    counts = np.array([sum(d in reply for reply in replies) for d in ("left", "down", "right", "up")])
    assert counts.min() > 0.05 * counts.sum(), counts
