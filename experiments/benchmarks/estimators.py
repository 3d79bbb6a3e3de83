"""Time of grouping and kernel beside plain loops: ``python -m experiments.benchmarks.estimators``.

Medians on two cores of an AMD EPYC (jax 0.10, CPU, nothing else running), states of 400 characters, hashes not cached:
6,400 steps at K = 4 take 3.6 ms, of which the kernel 0.9 (the plain loops of the tests' oracle 224 ms); a million steps
0.73 s, of which the kernel 0.26. Peak memory at a million steps, in a run of its own: 0.42 GiB above the inputs.
"""

from __future__ import annotations

import dataclasses
import importlib
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from hgpo_jax.config import HGPOConfig
from hgpo_jax.estimators.advantages import make_estimator
from hgpo_jax.estimators.grouping import compact_ids, group_steps
from hgpo_jax.estimators.returns import episode_scores, step_returns
from hgpo_jax.types import StepSignals


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    steps: tuple[int, ...] = (1_000, 6_400, 32_000, 100_000, 1_000_000)
    context_lengths: tuple[int, ...] = (0, 1, 2, 4, 8)
    repeats: int = 9  # the median is shown; from 100,000 steps on a third of them
    loop_steps: int = 6_400  # the plain loops are timed up to this many steps
    group_size: int = 8
    episode_length: int = 50
    state_characters: int = 400


def rollout_batch(benchmark: Benchmark, steps: int, seed: int = 0) -> dict[str, Any]:
    """Rollouts in whole trajectories, through 12 states a task of which a few are common to most rollouts."""
    rng = np.random.default_rng(seed)
    trajectory = np.arange(steps) // benchmark.episode_length
    group = trajectory // benchmark.group_size
    room = np.minimum(rng.geometric(0.35, steps), 12)
    last = np.append(np.diff(trajectory) > 0, True)
    return {
        "labels": [f"task {g}: you are in room {r}. " for g, r in zip(group, room, strict=True)],
        "prompt_group": group.astype(np.int32),
        "trajectory": trajectory.astype(np.int32),
        "reward": np.where(last & (rng.random(steps) < 0.5), 10.0, 0.0),
        "action_valid": rng.random(steps) < 0.9,
    }


def fresh_states(benchmark: Benchmark, labels: list[str]) -> list[str]:
    """New strings: none has its hash cached, as when they arrive from the environments."""
    return [label.ljust(benchmark.state_characters, "x") for label in labels]


def median_ms(function: Callable[..., Any], make: Callable[[], tuple], repeats: int) -> float:
    """Median over the repeats, after one to warm up; what ``make`` does is not timed."""
    times = []
    for _ in range(repeats + 1):
        arguments = make()
        start = time.perf_counter()
        function(*arguments)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def time_row(benchmark: Benchmark, steps: int, context_length: int, loops: Any) -> tuple[float, float, float | None]:
    """Milliseconds of grouping, kernel and (up to ``loop_steps``) the loops that do both."""
    batch = rollout_batch(benchmark, steps)
    config = HGPOConfig(context_length=context_length)
    ids = batch["prompt_group"], batch["trajectory"]
    repeats = benchmark.repeats if steps < 100_000 else max(1, benchmark.repeats // 3)

    def states() -> tuple[list[str]]:
        return (fresh_states(benchmark, batch["labels"]),)

    def group(states: list[str]) -> np.ndarray:
        return group_steps(states, *ids, context_length=context_length)

    outcome = batch["reward"], batch["trajectory"], batch["action_valid"]
    signals = StepSignals(
        step_return=step_returns(*outcome, gamma=0.95, invalid_action_penalty=0.1),
        score=episode_scores(*outcome, invalid_action_penalty=0.1),
        prompt_group=compact_ids(ids[0]),
        trajectory=compact_ids(ids[1]),
        valid=np.ones(steps, bool),
        group_ids=group(*states()),
    )
    kernel = jax.jit(make_estimator(config))
    grouping_ms = median_ms(group, states, repeats)
    kernel_ms = median_ms(lambda s: jax.block_until_ready(kernel(s)), lambda: (signals,), repeats)
    if steps > benchmark.loop_steps:
        return grouping_ms, kernel_ms, None

    def loop(states: list[str]) -> None:
        loops.hierarchy(
            states, *ids, signals.step_return, signals.score,
            context_length=context_length, alpha=config.alpha, normalize_std=config.normalize_std,
        )  # fmt: skip

    return grouping_ms, kernel_ms, median_ms(loop, states, 1)


def main(benchmark: Benchmark) -> None:
    """Print the table, and the peak of the memory above what the largest batch itself takes."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    loops = importlib.import_module("reference")  # the tests' oracle: plain loops over steps
    table = Table("steps N", "K", "grouping ms", "kernel ms", "together ms", "plain loops ms", "times")
    for steps in benchmark.steps:
        for context_length in benchmark.context_lengths:
            grouping, kernel, loop = time_row(benchmark, steps, context_length, loops)
            both = grouping + kernel
            compared = ("", "") if loop is None else (f"{loop:.0f}", f"{loop / both:.0f}")
            times = (f"{t:.2f}" for t in (grouping, kernel, both))
            table.add_row(f"{steps:,}", str(context_length), *times, *compared)
    Console().print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    Console().print(f"peak resident memory of the whole run, inputs and compiler included: {peak:.2f} GiB")


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
