"""From a config to what is played: environments and actor, training's rollouts and the evaluation of a panel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from envs.core import Panel, environment_class, make_panel, make_vector
from experiments.configs import RunConfig
from experiments.rollout_files import join
from hgpo_jax.policy.tokenization import AnyTokenizer, load_tokenizer
from hgpo_jax.policy.weights import resolve_checkpoint
from hgpo_jax.processes import gather, own_share
from hgpo_jax.rollout.collector import Act, Rollout, collect, make_actor, merge_metrics
from hgpo_jax.rollout.dynamic_sampling import first_of, informative_groups, without_signal
from hgpo_jax.types import Trajectories


class Rollouts:
    """Environments and actor of a run, made once; ``train`` and ``evaluate`` collect with them.

    Several processes share the tasks: each returns the batch of its own, and all the same metrics, of all of them.

    Args:
      config: of the run.
      tokenizer: in place of the config's, where no model of it acts.
    """

    def __init__(self, config: RunConfig, tokenizer: AnyTokenizer | None = None):
        self.config = config
        name = config.tokenizer or (str(resolve_checkpoint(config.init)) if tokenizer is None else "")
        self.tokenizer: AnyTokenizer = tokenizer or load_tokenizer(name)
        if self.tokenizer.vocab_size > config.model.vocab_size:
            raise ValueError(
                f"tokenizer {name!r} has {self.tokenizer.vocab_size} tokens, but model.vocab_size is "
                f"{config.model.vocab_size}: set model.vocab_size to at least the former"
            )
        tasks, processes = config.rollout.tasks, jax.process_count()
        if tasks % processes:
            raise ValueError(
                f"rollout.tasks is {tasks}, which {processes} processes cannot share: take a multiple of it"
            )
        self._act = make_actor(config.model, self.tokenizer, config.rollout)
        num_envs = tasks // processes * config.rollout.group_size
        self._envs = make_vector(config.env, num_envs, config.rollout.env_workers, **config.env_settings)

    def train(
        self, params: Any, first_task: int, key: jax.Array, each_round: Callable[[], None] = lambda: None
    ) -> Rollout:
        """``rollout.tasks`` new tasks, ``rollout.group_size`` rollouts of each.

        With ``rollout.dynamic_sampling_rounds`` (DAPO, arXiv 2503.14476) so many rounds of as many tasks at most: the
        batch holds the first ``rollout.tasks`` prompt groups whose rewards differ, or as many as there are. Metrics
        and outcomes are those of all that was rolled out, plus ``rounds``, ``groups_dropped`` (their rewards all
        equal), ``groups_surplus`` (beyond ``rollout.tasks``) and ``groups_kept_share``. The processes agree on what
        stays; the part of one left without a group is a step of a dropped one, set against itself.

        Args:
          params: of the sampler. first_task: the first number of those not yet played. key: typed PRNG key [].
          each_round: called before each round.

        Raises:
          ValueError: dynamic sampling in groups of one.
        """
        rollout = self.config.rollout
        if rollout.dynamic_sampling_rounds and rollout.group_size < 2:
            raise ValueError(
                "rollout.dynamic_sampling_rounds drops groups of equal rewards, which each group of one is: raise "
                "rollout.group_size, or set it to 0"
            )

        def play(number: int) -> Rollout:
            each_round()
            first = number * rollout.tasks
            tasks = range(first_task + first, first_task + first + rollout.tasks)
            return self.collect(self._act, params, tasks, key, first * rollout.group_size)

        if not rollout.dynamic_sampling_rounds:
            return play(0)
        rounds: list[Rollout] = []
        parts: list[Trajectories] = []
        informative = 0
        while len(rounds) < rollout.dynamic_sampling_rounds and informative < rollout.tasks:
            rounds.append(play(len(rounds)))
            part, found = self._informative(rounds[-1], rollout.tasks - informative)
            parts += part
            informative += found
        played, kept = len(rounds) * rollout.tasks, min(informative, rollout.tasks)
        metrics = _merge_rounds([done.metrics for done in rounds]) | {
            "rounds": len(rounds),
            "groups_dropped": played - informative,
            "groups_surplus": informative - kept,
            "groups_kept_share": kept / played,
        }
        batch = join(parts or [without_signal(rounds[-1].batch)])
        return Rollout(batch, metrics, [outcome for done in rounds for outcome in done.outcomes])

    def _informative(self, done: Rollout, room: int) -> tuple[list[Trajectories], int]:
        """This process's steps of a round's first ``room`` informative groups, if any; how many groups all found."""
        returns = [outcome.episode_return for outcome in done.outcomes]
        flags_PG = gather(informative_groups(returns, self.config.rollout.group_size))
        own = np.flatnonzero(first_of(flags_PG, room)[jax.process_index()])
        steps = np.flatnonzero(np.isin(done.batch.prompt_group, own))
        return [done.batch.take(steps)] if len(steps) else [], int(flags_PG.sum())

    def collect(self, act: Act, params: Any, tasks: Sequence[int], key: jax.Array, first_episode: int = 0) -> Rollout:
        """``rollout.group_size`` rollouts of each training task by any ``act``, numbered from ``first_episode``."""
        rollout, split = self.config.rollout, environment_class(self.config.env).splits[0]
        return self._collect(act, params, tasks, rollout.group_size, key, split, rollout.train_sampling, first_episode)

    @property
    def about(self) -> str:
        """Which tasks are played."""
        return environment_class(self.config.env).about(**self.config.env_settings)

    @functools.cached_property
    def panel(self) -> Panel:
        """The held-out tasks of the config."""
        config = self.config.evaluation
        return make_panel(self.config.env, config.split, config.tasks, config.panel_seed, **self.config.env_settings)

    def evaluate(
        self,
        params: Any,
        *,
        panel: Panel | None = None,
        seed: int | None = None,
        act: Act | None = None,
        group_size: int = 1,
    ) -> Rollout:
        """``group_size`` rollouts of each task; panel, seed of the draws and policy are the run's unless given."""
        panel = panel or self.panel
        key = jax.random.key(self.config.evaluation.seed if seed is None else seed)
        sampling = self.config.rollout.eval_sampling
        return self._collect(act or self._act, params, panel.tasks, group_size, key, panel.split, sampling)

    def evaluation_row(self, params: Any) -> dict[str, Any]:
        """``eval/*``: the metrics on the run's panel, its name, and of each of its tasks ``won`` and ``score``."""
        rollout = self.evaluate(params)
        per_task = {"won_by_task": [float(outcome.won) for outcome in rollout.outcomes]}
        if "score" in rollout.metrics:
            per_task["score_by_task"] = [outcome.score or 0.0 for outcome in rollout.outcomes]
        row = rollout.metrics | {name: self._of_all(values) for name, values in per_task.items()}
        return {f"eval/{k}": v for k, v in row.items()} | {"eval/panel": str(self.panel)}

    def _of_all(self, own_values: Sequence[float]) -> np.ndarray:
        """f64 [tasks of the panel], where each process knows those of its own tasks."""
        values, own = np.zeros(len(self.panel.tasks)), own_share(len(self.panel.tasks))
        values[own.start : own.stop] = own_values
        return gather(values).sum(0)

    def _collect(
        self,
        act: Act,
        params: Any,
        tasks: Sequence[int],
        group_size: int,
        key: jax.Array,
        split: str,
        sampling: Any,
        first_episode: int = 0,
    ) -> Rollout:
        if len(tasks) < jax.process_count():
            raise ValueError(
                f"{jax.process_count()} processes cannot share {len(tasks)} tasks: each needs one at least"
            )
        own, env = own_share(len(tasks)), environment_class(self.config.env)
        rollout = collect(
            act,
            params,
            self._envs,
            tasks[own.start : own.stop],
            group_size,
            self.config.rollout,
            key,
            split=split,
            sampling=sampling,
            format_prompt=env.format_prompt,
            tokenizer=self.tokenizer,
            first_episode=first_episode + own.start * group_size,
            task_types=env.task_types,
        )
        parts = gather(list(rollout.metrics.values()))
        metrics = merge_metrics([dict(zip(rollout.metrics, part, strict=True)) for part in parts])
        absent = [name for name in metrics if name.startswith("success/") and np.isnan(metrics[name])]
        return rollout._replace(metrics={name: value for name, value in metrics.items() if name not in absent})


def _merge_rounds(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of rounds that ran one after the other; a type of task that none of a round had is missing there."""
    names = dict.fromkeys(name for part in parts for name in part)
    merged = merge_metrics([{name: part.get(name, np.nan) for name in names} for part in parts])
    seconds = sum(part["seconds"] for part in parts)
    return merged | {"seconds": seconds, "tokens_per_second": merged["tokens"] / seconds}
