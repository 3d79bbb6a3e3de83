"""Policies without a model: experts, replies drawn by lot, and whatever else turns a request into text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envs.core import Expert, environment_class
from hgpo_jax.config import SamplingConfig
from hgpo_jax.policy.tokenization import AnyTokenizer
from hgpo_jax.rollout.collector import Act, Reply, Request

TextPolicy = Callable[[Request], str]


def scripted_act(policy: TextPolicy, tokenizer: AnyTokenizer) -> Act:
    """The policy as `collect` takes it. Its replies have log-probability 0 and end with the end token."""

    def act(_params: object, requests: Sequence[Request], _: SamplingConfig) -> list[Reply]:
        texts = [policy(request) for request in requests]
        replies = [np.array([*tokenizer.encode(text), tokenizer.eos_ids[0]], np.int32) for text in texts]
        return [Reply(reply, np.zeros(len(reply), np.float32), cut=False) for reply in replies]

    return act


def random_policy(env_id: str, seed: int) -> TextPolicy:
    """Valid replies by lot, by each request's own key: they do not depend on who else is asked."""
    env = environment_class(env_id)
    return lambda request: env.random_reply(np.random.default_rng([seed, *request.key]), request.info)


def with_slips(policy: TextPolicy, env_id: str, share: float) -> tuple[TextPolicy, set[tuple[int, int]]]:
    """A policy that slips now and then, so that it is seen to recover too; and when: (episode, turn), a set that grows.

    A slip is a valid reply by lot, half of the time one for another request's state, which is mostly impossible here.
    The policy is still asked, and has to go on from where the slip leads.
    """
    env = environment_class(env_id)
    slips: set[tuple[int, int]] = set()
    others: list[Mapping[str, Any]] = []

    def slipping(request: Request) -> str:
        reply = policy(request)
        rng = np.random.default_rng([2, *request.key])
        slip, elsewhere = rng.random() < share, rng.random() < 0.5
        info = others.pop() if others and elsewhere else request.info
        others[:] = [request.info]
        if not slip:
            return reply
        slips.add((request.episode, request.turn))
        return env.random_reply(rng, info)

    return slipping, slips


def expert_policy(env_id: str, name: str, split: str, **options: Any) -> TextPolicy:
    """The environment's expert of this name ("" is its best), a new one for every episode.

    Raises:
      ValueError: the environment has none of this name.
    """
    env = environment_class(env_id)
    name = name or env.experts[0]
    if name not in env.experts:
        raise ValueError(f"{env_id} has no expert {name!r}; there are: {', '.join(env.experts)}")
    experts: dict[int, Expert] = {}

    def policy(request: Request) -> str:
        if request.turn == 0:
            experts[request.episode] = env.make_expert(name, request.task, split, **options)
        return experts[request.episode](request.observation, request.info)

    return policy
