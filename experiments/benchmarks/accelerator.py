"""Everything that only an accelerator can show, in one sitting of under ten minutes on one device:

    python -m experiments.benchmarks.accelerator --json accelerator.json

- parity: the recorded checkpoints of ``tests/golden/qwen``, in float32 with full products (1e-4, greedy tokens equal);
- attention: each implementation that the device has beside "plain", output and gradient, and its time;
- the estimator's kernel: its time, and the bytes that it has to move in that time;
- sampling and update of a random decoder of Qwen2.5-0.5B's shape in bfloat16: tokens a second, FLOP/s;
- memory: the update's peak as the compiler plans it, and as the device counts it.

``--tiny`` runs the same code on small shapes, on a CPU too. Not yet run on a GPU or TPU: none was at hand.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import flops
from experiments.benchmarks.peers import median_seconds
from experiments.replay_checkpoint import replay
from hgpo_jax.config import HGPOConfig, LearnerConfig, LossConfig, ModelConfig, OptimizerConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.update import init_state, make_optimizer, make_update
from hgpo_jax.policy.attention import attend, choose_attention
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import make_sampler
from hgpo_jax.policy.transformer import init_params
from hgpo_jax.types import StepSignals

GOLDEN = Path(__file__).parents[2] / "tests/golden/qwen"
QWEN = ModelConfig(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4_864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    dtype="bfloat16",
    remat="layer",
)
TINY = dataclasses.replace(
    QWEN, vocab_size=512, hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4, head_dim=8
)


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is run."""

    tiny: bool = False
    repeats: int = 5  # the median is shown
    json: Path | None = None  # also write the figures there

    @property
    def model(self) -> ModelConfig:
        """The decoder's shape."""
        return TINY if self.tiny else QWEN


def parity(_: Benchmark) -> list[dict[str, Any]]:
    """Each recorded checkpoint's worst logit and greedy tokens."""
    rows = []
    for folder in sorted(path.parent for path in GOLDEN.glob("*/expected.npz")):
        results = replay(folder)
        matched, greedy = (sum(getattr(r, name) for r in results) for name in ("matched", "greedy"))
        worst, ok = float(np.max([r.worst for r in results])), all(r.ok for r in results)
        rows.append({"checkpoint": folder.name, "worst logit": worst, "greedy": f"{matched} of {greedy}", "ok": ok})
    return rows


def attention(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Packed rows in bfloat16: time of output and gradient, and how far both are from "plain" in float32."""
    model, platform = benchmark.model, jax.default_backend()
    rows, length = (1, 256) if benchmark.tiny else (4, 4096)
    keys = jax.random.split(jax.random.key(0), 4)
    heads = [model.num_heads, model.num_kv_heads, model.num_kv_heads, model.num_heads]
    *qkv, weight = (
        jax.random.normal(key, (rows, length, h, model.head_dim)) for key, h in zip(keys, heads, strict=True)
    )
    segments = jnp.broadcast_to(1 + jnp.arange(length) // (length // 3), (rows, length))

    def gradient_of(implementation: str, dtype: str) -> Callable[[], Any]:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            q, k, v = (x.astype(dtype) for x in (q, k, v))
            out = attend(q, k, v, segments, segments, implementation=implementation)
            return (out.astype(jnp.float32) * weight).sum()

        return functools.partial(jax.jit(jax.value_and_grad(loss, (0, 1, 2))), *qkv)

    with jax.default_matmul_precision("highest"):
        exact = gradient_of("plain", "float32")()
    own = {"gpu": "cudnn", "tpu": "splash"}.get(platform)
    found = []
    for name in ("plain", "blockwise", *([own] if own else [])):
        gradient = gradient_of(name, "bfloat16")
        got = gradient()
        errors = [
            float(jnp.abs(a - b).max() / jnp.abs(b).max())
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True)
        ]
        auto = choose_attention("auto", platform, length, "bfloat16")
        milliseconds = 1e3 * median_seconds(gradient, benchmark.repeats)
        found.append(
            {"attention": name, "auto": name == auto, "ms": milliseconds, "largest relative error": max(errors)}
        )
    return found


def estimator(benchmark: Benchmark) -> list[dict[str, Any]]:
    """HGPO's kernel at K = 4, and the bytes of its inputs and output over its time."""
    advantages = jax.jit(make_estimator(HGPOConfig(context_length=4)))
    found = []
    for steps in (6_400, 100_000 if benchmark.tiny else 1_000_000):
        signals = jax.device_put(random_signals(steps, levels=5))
        seconds = median_seconds(lambda signals=signals: advantages(signals)[0], benchmark.repeats)
        moved = sum(x.nbytes for x in jax.tree.leaves(signals)) + 4 * steps
        found.append({"steps": steps, "ms": 1e3 * seconds, "MB": moved / 1e6, "GB / s": moved / seconds / 1e9})
    return found


def random_signals(steps: int, levels: int) -> StepSignals:
    """Returns by lot, groups of about eight steps at every level."""
    rng = np.random.default_rng(0)
    values, ids = rng.normal(size=steps).astype(np.float32), np.arange(steps, dtype=np.int32)
    groups = rng.integers(0, max(steps // 8, 1), (levels, steps)).astype(np.int32)
    return StepSignals(values, values, ids // 400, ids // 50, np.ones(steps, bool), groups)


def sampling(benchmark: Benchmark) -> list[dict[str, Any]]:
    """Replies of full length to prompts of one length."""
    model = benchmark.model
    prompt, new = (32, 8) if benchmark.tiny else (512, 128)
    # Weights that a trained model would have in memory: bfloat16 throughout.
    params = init_params(dataclasses.replace(model, param_dtype="bfloat16"), jax.random.key(0))
    sampler, rng, found = make_sampler(model, [model.vocab_size - 1], 0), np.random.default_rng(0), []
    for rows in (8,) if benchmark.tiny else (8, 32, 128):
        tokens = rng.integers(3, model.vocab_size - 1, (rows, prompt)).astype(np.int32)
        lengths, keys = np.full(rows, prompt, np.int32), jax.random.split(jax.random.key(1), rows)
        generate = functools.partial(sampler, params, tokens, lengths, keys, 1.0, 1.0, 0, new, capacity=new)
        drawn = int(np.sum(generate().lengths))
        seconds = median_seconds(lambda generate=generate: generate().tokens, benchmark.repeats)
        found.append({"batch": rows, "prompt": prompt, "drawn": drawn, "s": seconds, "tokens / s": drawn / seconds})
    return found


def update(benchmark: Benchmark) -> list[dict[str, Any]]:
    """One optimizer step on full rows: speed, and its memory as planned and as counted."""
    model = benchmark.model
    rows, length, response = (2, 64, 16) if benchmark.tiny else (8, 2048, 256)
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, model.vocab_size, (rows, length)).astype(np.int32)
    replies = [row[length - response :] for row in tokens]
    old = [np.full(response, -np.log(model.vocab_size), np.float32)] * rows
    config = LearnerConfig(minibatch_steps=rows, row_length=length)
    signals = random_signals(rows, levels=3)
    batch = pack_steps([row[: length - response] for row in tokens], replies, old, signals, config=config, seed=0)
    optimizer = make_optimizer(OptimizerConfig())
    logprob_fn = functools.partial(response_logprobs, model)
    step: Any = make_update(logprob_fn, make_estimator(HGPOConfig()), optimizer, LossConfig(kl_coef=0.0))
    state, placed = init_state(model, optimizer, jax.random.key(0)), jax.device_put(batch)
    memory: Any = step.lower(state, placed).compile().memory_analysis()
    planned = memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes
    planned = (planned - memory.alias_size_in_bytes) / 2**30
    holder = [state]

    def once() -> Any:
        holder[0], metrics = step(holder[0], placed)
        return metrics

    seconds = median_seconds(once, benchmark.repeats)
    counted = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    work = flops.row_flops(model, rows, length, response).training()
    return [
        {
            "rows": f"{rows} x {length}",
            "s": seconds,
            "tokens / s": rows * length / seconds,
            "TFLOP / s": work / seconds / 1e12,
            "GiB planned": planned,
            "GiB peak of the process": counted / 2**30 if counted else "not counted here",
        }
    ]


def main(benchmark: Benchmark) -> None:
    """Runs and prints every part; one that fails says so, and the others go on."""
    console, device = Console(width=120), jax.devices()[0]
    console.print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}")
    figures: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__}
    failed = []
    # The update first: the device counts the peak of the whole process.
    for part in (update, sampling, attention, estimator, parity):
        start = time.perf_counter()
        try:
            rows = part(benchmark)
        except (ValueError, jax.errors.JaxRuntimeError) as error:  # on a machine that is lent, the rest still counts
            failed.append(part.__name__)
            console.print(f"{part.__name__} FAILED: {error}", markup=False)
            continue
        figures[part.__name__] = rows
        table = Table(*rows[0], title=f"{part.__name__} ({time.perf_counter() - start:.0f} s with compilation)")
        for row in rows:
            table.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()))
        console.print(table)
        if benchmark.json:
            benchmark.json.write_text(json.dumps(figures, indent=1))
    if failed or not all(row["ok"] for row in figures["parity"]):
        raise SystemExit(f"failed: {', '.join(failed) or 'parity'}")


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
