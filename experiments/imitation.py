"""The learner's side of supervised fine-tuning: optimizer steps on recorded replies, predictions of others."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from experiments.assembly import Learner
from experiments.configs import RunConfig
from hgpo_jax.config import SamplingConfig
from hgpo_jax.learner.packing import unpack_tokens
from hgpo_jax.learner.supervised import imitation_metrics, make_supervised_update, minibatches, pack_replies
from hgpo_jax.learner.update import make_logprobs
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.sharding import batch_multiple, batch_shardings, state_shardings
from hgpo_jax.types import StepBatch, Trajectories

WARMUP = 0.05  # of all steps, while the rate rises; then it falls to a tenth
COLD = 1e-3  # a temperature so near 0 that the likeliest token has all of the probability


def num_minibatches(batch: Trajectories, run: RunConfig) -> int:
    """Optimizer steps in a pass over the batch."""
    return -(-batch.num_steps // run.learner.minibatch_steps)


class Imitation:
    """The learner's side: an optimizer step on a mini-batch, and how well the held-out replies are predicted.

    Args:
      run: its model, optimizer, mesh, seed and packing.
      learning_rate: at its highest; None chooses one by what is trained.
      steps: optimizer steps in all, over which the rate rises and falls.
      held_out: steps that are only measured; None for none.
      prompt_weight: of a prompt's token in the loss.
    """

    def __init__(
        self,
        run: RunConfig,
        learning_rate: float | None,
        steps: int,
        held_out: Trajectories | None,
        prompt_weight: float = 0.0,
    ):
        rate = learning_rate or (1e-4 if run.model.lora_rank else 1e-5 if run.init else 1e-3)
        warmup = round(WARMUP * steps)
        optimizer = dataclasses.replace(
            run.optimizer, learning_rate=rate, warmup_steps=warmup, decay_steps=max(steps - warmup, 1)
        )
        config = dataclasses.replace(
            run,
            optimizer=optimizer,
            loss=dataclasses.replace(run.loss, kl_coef=0.0),  # no reference
            rollout=dataclasses.replace(run.rollout, train_sampling=SamplingConfig()),  # the likelihood's temperature
        )
        self.learner = Learner(config)
        mesh, optimizer = self.learner.mesh, self.learner.optimizer
        places = None if mesh is None else state_shardings(abstract_params(config.model), optimizer, mesh)
        self._update = make_supervised_update(
            self.learner.logprob_fn, optimizer, prompt_weight=prompt_weight, shardings=places
        )
        cold = functools.partial(self.learner.logprob_fn, temperature=COLD)
        self._logprobs = [make_logprobs(fn, mesh=mesh) for fn in (self.learner.logprob_fn, cold)]
        self._held_out = None if held_out is None else self.pack(held_out, (run.seed,))

    def pack(self, batch: Trajectories, seed: tuple[int, ...]) -> StepBatch:
        """Rows of tokens, on the host."""
        return pack_replies(
            batch.prompt_tokens,
            batch.response_tokens,
            config=self.learner.config.learner,
            seed=seed,
            row_multiple=batch_multiple(self.learner.mesh),
        )

    def minibatches(self, batch: Trajectories, done: int) -> Iterator[StepBatch]:
        """What follows the first ``done``, without end. An epoch's order depends on its number and the seed alone."""
        per_epoch = num_minibatches(batch, self.learner.config)
        for epoch in itertools.count(done // per_epoch):
            packed = self.pack(batch, (self.learner.config.seed, epoch))
            yield from itertools.islice(minibatches(packed), max(done - epoch * per_epoch, 0), None)

    def learn(self, minibatch: StepBatch, number: int) -> dict[str, Any]:
        """One optimizer step, the ``number``-th.

        Raises:
          FloatingPointError: the loss or its gradient is not finite.
        """
        start, state = time.perf_counter(), self.learner.state
        params, opt_state, loss = self._update(state.params, state.opt_state, self._place(minibatch))
        new = {"params": params, "opt_state": opt_state, "step": state.step + 1}
        self.learner.state = state.replace(**new)  # pyright: ignore[reportAttributeAccessIssue]
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"the loss of step {number} or its gradient is not finite: lower --learning-rate; --resume goes on "
                "from the last checkpoint"
            )
        tokens = int((np.asarray(minibatch.segment_ids) > 0).sum())
        return {"train/loss": float(loss), "train/tokens_per_second": tokens / (time.perf_counter() - start)}

    def held_out(self) -> dict[str, float]:
        """``held_out/*`` of `imitation_metrics`; nothing where nothing is held out."""
        batch = self._held_out
        if batch is None:
            return {}
        placed = self._place(batch)
        per_reply = [unpack_tokens(fn(self.learner.state.params, placed), batch) for fn in self._logprobs]
        return {f"held_out/{name}": value for name, value in imitation_metrics(*per_reply).items()}

    def _place(self, batch: StepBatch) -> StepBatch:
        mesh = self.learner.mesh
        return batch if mesh is None else jax.device_put(batch, batch_shardings(batch, mesh))
