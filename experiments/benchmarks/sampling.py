"""Speed of sampling, what compiles anew, and what is saved: ``python -m experiments.benchmarks.sampling``.

The model is that of the peers' scripts: 4 layers, hidden 256, 4 heads over 2 key/value heads, MLP 1024, vocabulary
4096, float32, random; prompts of 128 tokens, 64 new ones. The peers run in the same sitting, in turns with ours, with

    --peers DIR --hf DIR/hf/bin/python --tunix DIR/tunix/bin/python

where DIR holds bench_hf.py and bench_sampler.py, which print JSON, and two virtual environments: one with torch and
transformers, one with google-tunix. Only ratios of one sitting mean anything, on a machine that does nothing else.

Two cores of an AMD EPYC, jax 0.10, nothing else running, medians of two rounds: 2,291 tokens a second at batch 8 (torch
903, tunix 1,348: 1.70 times the better), 2,854 at batch 32 (1,668 and 1,643: 1.71). Reading the prompts of groups of 8
once 8.9 times as fast; half of the episodes over, 1.78 times; 6 programs compiled for a batch of 8 in 2.3 s.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.table import Table

from experiments.benchmarks.peers import MODEL, median_seconds, run_script
from experiments.console import CONSOLE, count_compilations
from hgpo_jax.config import RolloutConfig, SamplingConfig
from hgpo_jax.policy.sampling import Sampler, make_sampler
from hgpo_jax.policy.tokenization import load_tokenizer
from hgpo_jax.policy.transformer import init_params
from hgpo_jax.rollout.collector import Request, bucket_rows, make_actor

SCRIPTS = {"hf": "bench_hf.py", "tunix": "bench_sampler.py"}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    batches: tuple[int, ...] = (8, 32)
    prompt: int = 128
    new: int = 64
    rounds: int = 3  # of ours and the peers in turn; the medians over them are shown
    repeats: int = 5  # calls a round, of which the median counts
    group_size: int = 8  # rows that share a prompt, for what reading it once saves
    peers: Path | None = None  # folder of the peers' scripts
    hf: Path | None = None  # a Python with torch and transformers
    tunix: Path | None = None  # a Python with google-tunix


def inputs(benchmark: Benchmark, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, jax.Array]:
    """Prompts of random tokens, all of one length, and a key each."""
    shape = rows, benchmark.prompt
    tokens = np.random.default_rng(seed).integers(3, MODEL.vocab_size, shape).astype(np.int32)
    return tokens, np.full(rows, benchmark.prompt, np.int32), jax.random.split(jax.random.key(seed), rows)


def endless(params: Any) -> tuple[Any, int]:
    """Parameters that never draw the last token, to be named as the one that ends a reply; and that token."""
    last = MODEL.vocab_size - 1
    # The final norm's entry 0 is made the same for all states, and its logit against that token low.
    kernels = {("attention", "o"), ("mlp", "down")}
    layers = {
        part: {
            name: {"kernel": leaf["kernel"].at[..., 0].set(0.0)} if (part, name) in kernels else leaf
            for name, leaf in maps.items()
        }
        for part, maps in params["layers"].items()
    }
    scale = params["final_norm"]["scale"].at[0].set(30.0)
    embed = params["embed"].at[:, 0].set(1.0).at[last, 0].set(-1.0)
    return params | {"layers": layers, "final_norm": {"scale": scale}, "embed": embed}, last


class Ours:
    """Sampler and parameters, made once."""

    def __init__(self, benchmark: Benchmark):
        self.benchmark = benchmark
        self.params, self.never = endless(init_params(MODEL, jax.random.key(0)))
        self.sampler: Sampler = make_sampler(MODEL, [self.never], pad_id=0)

    def generate(self, rows: int, **changes: Any) -> Any:
        """One call, as the peers are asked: temperature 1, no truncation."""
        settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": self.benchmark.new} | changes
        out = self.sampler(self.params, *inputs(self.benchmark, rows), **settings, capacity=self.benchmark.new)
        assert (out.lengths == settings["max_new_tokens"]).all(), "a reply ended early"
        return out

    def speed(self, rows: int) -> float:
        """Tokens a second."""
        seconds = median_seconds(lambda: self.generate(rows), self.benchmark.repeats)
        return rows * self.benchmark.new / seconds


def peer_speeds(benchmark: Benchmark, name: str) -> dict[int, float]:
    """Tokens a second of one peer per batch size, as its script prints them."""
    assert benchmark.peers is not None
    batches = ",".join(map(str, benchmark.batches))
    arguments = SCRIPTS[name], "--reps", str(benchmark.repeats), "--batches", batches
    result = run_script(getattr(benchmark, name), benchmark.peers, *arguments)
    return {int(rows): figures["tok_per_s"] for rows, figures in result["batches"].items()}


def speed_table(benchmark: Benchmark, ours: Ours, compiled: list[float]) -> Table:
    """Tokens a second of ours and of the peers, in turns."""
    peers = [name for name in SCRIPTS if benchmark.peers is not None and getattr(benchmark, name) is not None]
    first: dict[int, tuple[int, float, float]] = {}
    for rows in benchmark.batches:
        count, seconds, start = len(compiled), sum(compiled), time.perf_counter()
        ours.generate(rows)
        first[rows] = len(compiled) - count, sum(compiled) - seconds, time.perf_counter() - start
    rounds: list[dict[str, dict[int, float]]] = []
    for _ in range(benchmark.rounds):
        own = {rows: ours.speed(rows) for rows in benchmark.batches}
        rounds.append({"ours": own} | {name: peer_speeds(benchmark, name) for name in peers})
    table = Table(title=f"generate: prompts of {benchmark.prompt} tokens, {benchmark.new} new, tokens a second")
    ratio = ["ours / better peer"] if peers else []
    for heading in ("batch", "ours", *peers, *ratio, "programs compiled", "compiling s", "first call s"):
        table.add_column(heading, justify="right")
    for rows in benchmark.batches:
        speeds = {name: statistics.median(r[name][rows] for r in rounds) for name in ("ours", *peers)}
        better = [f"{speeds['ours'] / max(speeds[name] for name in peers):.2f}"] if peers else []
        count, seconds, call = first[rows]
        shown = [f"{speed:,.0f}" for speed in speeds.values()]
        table.add_row(str(rows), *shown, *better, str(count), f"{seconds:.1f}", f"{call:.1f}")
    return table


def compilation_table(benchmark: Benchmark, ours: Ours, compiled: list[float]) -> Table:
    """Programs compiled by a change of what is traced, all of them after a first call."""
    rows = max(benchmark.batches)
    config = RolloutConfig(max_response_length=8)
    tokenizer = load_tokenizer("frozen_lake")
    model = dataclasses.replace(MODEL, vocab_size=tokenizer.vocab_size)
    params, act = init_params(model, jax.random.key(0)), make_actor(model, tokenizer, config)

    def reply(count: int) -> Any:
        key = np.zeros(2, np.uint32)
        return act(params, [Request(np.full(20, 3 + i % 30, np.int32), key) for i in range(count)], SamplingConfig())

    full = bucket_rows(rows)
    changes: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "temperature 0.7": (lambda: ours.generate(rows), lambda: ours.generate(rows, temperature=0.7)),
        "top-p 0.9": (lambda: ours.generate(rows), lambda: ours.generate(rows, top_p=0.9)),
        "top-k 50": (lambda: ours.generate(rows), lambda: ours.generate(rows, top_k=50)),
        "one new token fewer": (
            lambda: ours.generate(rows),
            lambda: ours.generate(rows, max_new_tokens=benchmark.new - 1),
        ),
        f"{full - 1} rows after {full}": (lambda: reply(full), lambda: reply(full - 1)),
    }
    table = Table("change", "programs compiled", title="what compiles anew")
    for name, (before, after) in changes.items():
        before()
        count = len(compiled)
        after()
        table.add_row(name, str(len(compiled) - count))
    return table


def saving_table(benchmark: Benchmark, ours: Ours) -> Table:
    """Reading a group's prompt once, episodes that are over, and rows that end before the others."""
    rows, groups = max(benchmark.batches), -(-max(benchmark.batches) // benchmark.group_size)
    # Every 16th token ends a reply: most are over in a few turns, the longest goes on for all.
    ending = make_sampler(MODEL, range(0, MODEL.vocab_size, 16), pad_id=0)
    table = Table(title=f"what is saved, {rows} rows; tokens are those that the model reads, padding included")
    for heading in ("what", "ms without", "ms with", "times", "tokens without", "tokens with"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, (without, saved) in {
        f"prompts of groups of {benchmark.group_size} read once": (
            (time_prefill(benchmark, ours, rows), rows * benchmark.prompt),
            (time_prefill(benchmark, ours, groups), groups * benchmark.prompt),
        ),
        "half of the episodes are over": tuple(
            time_decode(benchmark, ours, n, ours.sampler) for n in (rows, rows // 2)
        ),
        "rows that end leave a call's batch": tuple(
            time_decode(benchmark, ours, rows, ending, bucket) for bucket in (None, bucket_rows)
        ),
    }.items():
        times = f"{without[0] / saved[0]:.2f}"
        table.add_row(
            what, f"{1e3 * without[0]:.0f}", f"{1e3 * saved[0]:.0f}", times, f"{without[1]:,}", f"{saved[1]:,}"
        )
    return table


def time_prefill(benchmark: Benchmark, ours: Ours, rows: int) -> float:
    """Seconds of reading so many prompts."""
    prompts = inputs(benchmark, rows)[:2]
    read = functools.partial(ours.sampler.read, ours.params, *prompts, capacity=benchmark.new, layout=None)
    return median_seconds(read, benchmark.repeats)


def time_decode(
    benchmark: Benchmark, ours: Ours, rows: int, sampler: Sampler, bucket: Callable[[int], int] | None = None
) -> tuple[float, int]:
    """Seconds of a call less those of one that draws a single token, and rows times turns of what was decoded."""
    read = []

    def decode(params: Any, replies: Any, *args: Any, **kwargs: Any) -> Any:
        size, before = replies.token.shape[0], int(replies.output.turns)
        out = sampler.decode(params, replies, *args, **kwargs)
        read.append(size * (int(out.output.turns) - before))
        return out

    counting = dataclasses.replace(sampler, decode=decode)

    def call(new: int) -> Any:
        read.clear()
        settings = *inputs(benchmark, rows), 1.0, 1.0, 0, new
        return counting(ours.params, *settings, capacity=benchmark.new, bucket=bucket)

    first, whole = (median_seconds(functools.partial(call, new), benchmark.repeats) for new in (1, benchmark.new))
    return whole - first, sum(read)


def main(benchmark: Benchmark) -> None:
    """Print the tables."""
    if benchmark.peers is None and (benchmark.hf or benchmark.tunix):
        raise SystemExit("--hf and --tunix need --peers, the folder of the peers' scripts")
    compiled, ours = count_compilations(), Ours(benchmark)
    CONSOLE.print(speed_table(benchmark, ours, compiled))
    CONSOLE.print(compilation_table(benchmark, ours, compiled))
    CONSOLE.print(saving_table(benchmark, ours))


if __name__ == "__main__":
    main(tyro.cli(Benchmark))
