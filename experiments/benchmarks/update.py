"""Speed of the update beside its peers', and what packing is worth: ``python -m experiments.benchmarks.update``.

``--peers DIR --hf PYTHON --tunix PYTHON`` runs DIR/bench_hf.py and DIR/bench_train.py with these interpreters in the
same sitting. Only ratios of one sitting mean anything, and only on a machine that does nothing else.

One decoder of 5 million parameters in float32 (4 layers, width 256, 4 query and 2 key/value heads, vocabulary 4,096).
The train step: 8 rows of 128 prompt and 128 response tokens, clipped surrogate, backward pass, AdamW. The padded batch
holds one step to a row, as long as the two bounds together; the packed one is what training uses. Both hold the same
steps, whose lengths are drawn log-uniformly or uniformly between the bounds, and give the same gradient. Padding costs
a trainer without packing as much as any token; with our attention, which leaves out blocks that are padding, somewhat
less: the table has both.

Set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 on Linux: large pages make both sides faster.

Two cores of an AMD EPYC, jax 0.10, large pages, nothing else running, medians of ten: a train step in 507 ms, torch
493, tunix 814; with pages of 4 KiB 545, torch 510. 32 steps in 22,400 packed tokens (20,907 real) in 6.5 s, in 44,800
padded ones in 14.6 s, or 10.7 s where attention skips padding; of uniform lengths 28,000 (26,584 real) in 8.5, 14.6 and
11.8 s.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import peers
from experiments.console import count_compilations
from hgpo_jax.config import LearnerConfig, LossConfig, OptimizerConfig, ReinforceConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.update import init_state, make_optimizer, make_update
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.types import StepBatch, StepSignals

MODEL = dataclasses.replace(peers.MODEL, unroll=peers.MODEL.num_layers)
PEERS = {"hf": ("bench_hf.py", "--batches", "1", "--train"), "tunix": ("bench_train.py",)}


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    repeats: int = 10  # the median is shown
    steps: int = 32  # of the batch that is packed
    prompt_lengths: tuple[int, int] = (200, 1200)
    response_lengths: tuple[int, int] = (10, 200)
    row_length: int = 2800  # of a packed row
    rows_per_device: int = 1  # in a part: what is padded and what is packed both run row by row
    peers: Path | None = None  # folder of the peers' scripts
    hf: Path | None = None  # a Python with torch and transformers
    tunix: Path | None = None  # a Python with google-tunix
    json: Path | None = None  # also write the figures there


def draw_steps(lengths: list[tuple[int, int]], seed: int = 0) -> dict[str, Any]:
    """Arguments of ``pack_steps``: random tokens, (prompt, response) tokens long."""
    rng = np.random.default_rng(seed)
    n = len(lengths)
    score, ids = rng.normal(size=n).astype(np.float32), np.arange(n, dtype=np.int32)
    return {
        "prompt_tokens": [rng.integers(3, MODEL.vocab_size, prompt) for prompt, _ in lengths],
        "response_tokens": [rng.integers(3, MODEL.vocab_size, response) for _, response in lengths],
        "behavior_logprob": [np.full(response, -np.log(MODEL.vocab_size), np.float32) for _, response in lengths],
        "signals": StepSignals(score, score, ids // 8, ids, np.ones(n, bool), np.full((1, n), -1, np.int32)),
    }


def spread_lengths(benchmark: Benchmark, spread: str, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths between the bounds: every one alike ("uniform"), or every order of magnitude ("log-uniform")."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> np.ndarray:
        if spread == "uniform":
            return rng.integers(low, high + 1, benchmark.steps)
        return np.exp(rng.uniform(np.log(low), np.log(high), benchmark.steps)).round().astype(int)

    return list(zip(draw(*benchmark.prompt_lengths), draw(*benchmark.response_lengths), strict=True))


def padded(steps: dict[str, Any], config: LearnerConfig, length: int, *, skip: bool) -> StepBatch:
    """One step to a row of the longest's length, what a trainer without packing computes.

    Attention leaves padding out only where it is told (``skip``); elsewhere padding follows its step like more of it,
    and no token of the step sees what follows.
    """
    batches = [
        pack_steps(
            **{name: values[i : i + 1] for name, values in steps.items() if name != "signals"},
            signals=_signals_of(steps["signals"], i),
            config=dataclasses.replace(config, row_length=length),
            seed=0,
        )
        for i in range(len(steps["prompt_tokens"]))
    ]
    room = max(batch.response_index.shape[-1] for batch in batches)
    n = len(batches)
    rows: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(StepBatch) if field.name != "steps"):
        parts = [np.asarray(getattr(batch, name)) for batch in batches]
        if name == "response_index":
            parts = [np.pad(x, [(0, 0)] * 3 + [(0, room - x.shape[-1])], constant_values=-1) for x in parts]
        if name == "step_index":
            parts = [np.where(x >= 0, i, -1) for i, x in enumerate(parts)]
        if name == "segment_ids" and not skip:
            parts = [np.ones_like(x) for x in parts]
        per_part = config.rows_per_device or n
        rows[name] = np.concatenate(parts, axis=2).reshape(1, n // per_part, per_part, -1)
    return StepBatch(**rows, steps=steps["signals"])


def _signals_of(signals: StepSignals, i: int) -> StepSignals:
    one: Any = (None if x is None else x[..., i : i + 1] for x in signals)
    return StepSignals(*one)


def timed_update(batch: StepBatch, repeats: int) -> dict[str, float]:
    """Seconds of one update of the batch, warmed up, median; and of the first call."""
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-4))
    logprob_fn = functools.partial(response_logprobs, MODEL)
    estimator = make_estimator(ReinforceConfig())
    update = make_update(logprob_fn, estimator, optimizer, LossConfig(kl_coef=0.0, entropy_coef=0.0))
    state = init_state(MODEL, optimizer, jax.random.key(0))
    placed = jax.device_put(batch)
    compiled = len(_COMPILATIONS)
    seconds, metrics = [], {}
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state, metrics = update(state, placed)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - start)
    return {
        "first": seconds[0],
        "median": statistics.median(seconds[1:]),
        "best": min(seconds[1:]),
        "grad_norm": float(metrics["grad_norm"]),
        "compilations": len(_COMPILATIONS) - compiled,
    }


def run_peer(benchmark: Benchmark, name: str) -> dict[str, float]:
    """Tokens a second of a peer's own script, in its own environment."""
    assert benchmark.peers is not None
    script, *arguments = PEERS[name]
    options = "--reps", str(benchmark.repeats), *arguments
    result = peers.run_script(getattr(benchmark, name), benchmark.peers, script, *options)
    train = result.get("train", result)
    first = train.get("first_s", train.get("first_step_s"))
    return {"median": train["step"]["median_s"], "best": train["step"]["min_s"], "first": first}


def train_step(benchmark: Benchmark, console: Console) -> dict[str, Any]:
    """8 x 256 tokens, ours and the peers'."""
    config = LearnerConfig(minibatch_steps=8, row_length=256)
    ours: Callable[[], dict[str, float]] = functools.partial(
        timed_update, pack_steps(**draw_steps([(128, 128)] * 8), config=config, seed=0), benchmark.repeats
    )
    figures: dict[str, Any] = {"hgpo_jax": ours()}
    for name in (name for name in PEERS if benchmark.peers and getattr(benchmark, name)):
        figures[name] = run_peer(benchmark, name)
    # Once more at the end: the two say how quiet the machine was.
    figures["hgpo_jax, again"] = ours()
    table = Table(
        "train step, 8 x 256", "median ms", "best ms", "tokens / s", "ours is faster by", "first call s", title=""
    )
    fastest = figures["hgpo_jax"]["median"]
    for name, row in figures.items():
        ratio = f"{row['median'] / fastest:.2f}"
        table.add_row(
            name,
            *(f"{1e3 * row[kind]:.0f}" for kind in ("median", "best")),
            f"{8 * 256 / row['median']:.0f}",
            ratio,
            f"{row['first']:.1f}",
        )
    console.print(table)
    return figures


def packing(benchmark: Benchmark, console: Console) -> dict[str, Any]:
    """The same steps padded and packed."""
    config = LearnerConfig(
        minibatch_steps=benchmark.steps,
        rows_per_device=benchmark.rows_per_device,
        row_length=benchmark.row_length,
    )
    longest = benchmark.prompt_lengths[1] + benchmark.response_lengths[1]
    columns = "padded to", "packed into", "padded s", "skipping s", "packed s", "packing is faster by", "than skipping"
    table = Table("lengths", "tokens", *columns)
    figures: dict[str, Any] = {}
    for spread in ("log-uniform", "uniform"):
        steps = draw_steps(spread_lengths(benchmark, spread))
        packed = pack_steps(**steps, config=config, seed=0)
        batches = {
            "padded": padded(steps, config, longest, skip=False),
            "skipping": padded(steps, config, longest, skip=True),
            "packed": packed,
        }
        repeats = max(benchmark.repeats // 3, 3)
        timed = {name: timed_update(batch, repeats) for name, batch in batches.items()}
        norms = [row["grad_norm"] for row in timed.values()]
        if not np.allclose(norms, norms[-1], rtol=1e-3):
            raise RuntimeError(f"packing changed the gradient: norms of {', '.join(timed)} are {norms}")
        ratios = {name: timed[name]["median"] / timed["packed"]["median"] for name in ("padded", "skipping")}
        figures[spread] = timed | {"ratios": ratios}
        used = packed.loss_mask.any(-1).sum() * config.row_length  # a part without steps is not run
        table.add_row(
            spread,
            *(f"{count}" for count in ((packed.segment_ids > 0).sum(), batches["padded"].tokens.size, used)),
            *(f"{row['median']:.2f}" for row in timed.values()),
            *(f"{ratio:.2f}" for ratio in ratios.values()),
        )
    console.print(table)
    return figures


_COMPILATIONS = count_compilations()


def main(benchmark: Benchmark) -> None:
    """Prints both tables."""
    console = Console(width=120)
    figures = {"train_step": train_step(benchmark, console), "packing": packing(benchmark, console)}
    if benchmark.json:
        benchmark.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
