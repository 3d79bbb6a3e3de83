"""Steps a second of environments in this process, in its threads, and in worker processes.

python -m experiments.benchmarks.environments --env hgpo/ALFWorld-v0 --repeats 15

128 environments in groups of 8, replies by lot, medians of 15; two cores of an AMD EPYC that had other work too (an
indication; four sittings agreed on the order):

| | lakes: a step of all | steps a second | ALFWorld, generated full scenes: a step of all | steps a second |
|---|---|---|---|---|
| this process | 2.9 ms | 19,500 | 4.8 ms | 26,900 |
| 1 worker | 5.0 ms | 11,900 | 13.8 ms | 9,300 |
| 2 workers | 5.2 ms | 11,100 | 15.5 ms | 8,200 |
| 4 workers | 4.0 ms | 14,600 | 11.6 ms | 11,000 |
| 2 threads | 6.5 ms | 9,200 | 5.4 ms | 23,600 |

Most lakes have ended by the last step, which costs little. To start 16 new games takes 0.14 s here and 0.2 s in
workers, one group after another.

The default is this process (``rollout.env_workers`` 0): sending a step and its infos to a worker and back costs more
than these environments' own 20 to 50 microseconds, and a turn of all is a few milliseconds, beside the seconds that a
model takes to reply. Workers pay where a step takes much longer, or where an environment can crash or hang: they bring
its episodes back. Threads share one interpreter lock and win nothing.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.core import TextVectorEnv, environment_class, make_vector

Step = Callable[[tuple[str, ...]], Any]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    env: str = "hgpo/FrozenLakeText-v0"
    env_options: dict[str, int | bool | str] = dataclasses.field(default_factory=dict)
    num_envs: int = 128
    group_size: int = 8  # episodes of a task, started together
    steps: int = 20  # of each episode
    workers: tuple[int, ...] = (1, 2, 4)
    threads: tuple[int, ...] = (2,)
    repeats: int = 7  # each on new tasks; the median is shown


@contextmanager
def places(benchmark: Benchmark) -> Iterator[dict[str, tuple[TextVectorEnv, Step]]]:
    """Where the environments can run: the vector, and what makes a step of all. Threads don't merge the answers."""
    made: dict[str, tuple[TextVectorEnv, Step]] = {}
    options = dict[str, Any](benchmark.env_options)
    for count in (0, *benchmark.workers):
        vector = make_vector(benchmark.env, benchmark.num_envs, count, **options)
        made[f"{count} worker{'s' * (count > 1)}" if count else "this process"] = vector, vector.step
    pools = [ThreadPoolExecutor(count) for count in benchmark.threads]
    for count, pool in zip(benchmark.threads, pools, strict=True):
        vector = make_vector(benchmark.env, benchmark.num_envs, **options)

        def step(replies: tuple[str, ...], vector: TextVectorEnv = vector, pool: ThreadPoolExecutor = pool) -> Any:
            return list(pool.map(lambda env, reply: env.step(reply), vector.envs, replies))

        made[f"{count} threads"] = vector, step
    yield made
    for vector, _ in made.values():
        vector.close()
    for pool in pools:
        pool.shutdown()


def start(benchmark: Benchmark, vector: TextVectorEnv, first_task: int) -> None:
    """Starts a task in each group, as a rollout does."""
    for group in range(-(-benchmark.num_envs // benchmark.group_size)):
        mask = np.arange(benchmark.num_envs) // benchmark.group_size == group
        seeds: list[int | None] = [0] * benchmark.num_envs
        vector.reset(seed=seeds, options={"task": first_task + group, "reset_mask": mask})


def script(benchmark: Benchmark, first_task: int) -> tuple[list[tuple[str, ...]], int]:
    """Replies by lot, made before anything is timed, and how many of them meet a running episode."""
    env, options, n = environment_class(benchmark.env), dict[str, Any](benchmark.env_options), benchmark.num_envs
    vector, rng = make_vector(benchmark.env, n, **options), np.random.default_rng(first_task)
    start(benchmark, vector, first_task)
    replies, taken = [tuple([""] * n)], n  # nothing happens, but the infos come
    while len(replies) <= benchmark.steps:
        _, _, terminated, truncated, infos = vector.step(replies[-1])
        taken += int((~(terminated | truncated)).sum())
        each = [{name: infos[name][i] for name in infos if f"_{name}" in infos} for i in range(n)]
        replies.append(tuple(env.random_reply(rng, info) for info in each))
    return replies, taken


def run(step: Step, replies: list[tuple[str, ...]]) -> None:
    """The whole script."""
    for each in replies:
        step(each)


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """How long a call takes."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main(benchmark: Benchmark) -> None:
    """Print the table."""
    times: dict[str, list[tuple[float, ...]]] = {}
    with places(benchmark) as made:
        for repeat in range(benchmark.repeats):
            replies, taken = script(benchmark, repeat * benchmark.num_envs)
            for place, (name, (vector, step)) in enumerate(made.items(), 1):
                # On tasks that nobody has seen: what is kept of a task makes the next start of it cheap.
                fresh = 10_000 * place + repeat * benchmark.num_envs
                starting = seconds(start, benchmark, vector, fresh)
                start(benchmark, vector, repeat * benchmark.num_envs)
                stepping = seconds(run, step, replies)
                times.setdefault(name, []).append((1e3 * starting, 1e3 * stepping / len(replies), taken / stepping))
    table = Table("where", "ms to start all", "ms a step of all", "steps a second", title=benchmark.env)
    for name, rows in times.items():
        starting, stepping, rate = (statistics.median(column) for column in zip(*rows, strict=True))
        table.add_row(name, f"{starting:.1f}", f"{stepping:.2f}", f"{rate:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
