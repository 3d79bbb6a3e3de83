"""What a run needs of each device, before one is paid for.

    python -m experiments.benchmarks.memory_plan --model qwen2_5_7b --topology v5e:4x4 --mesh.fsdp 16
    python -m experiments.benchmarks.memory_plan --all --json plan.json     # the table; goes on where it stopped

Each program of the run is compiled ahead of time for devices that need not be there, and nothing is allocated. TPU
slices (v5e, v5p, v6e) go through the TPU's own compiler, which refuses what doesn't fit; the extra ``tpu-plan``
installs it. ``gpu80:8``, eight GPUs of 80 GB, is compiled for virtual CPU devices: bytes of arguments are exact, the
peak is an upper estimate, since bfloat16 is widened there and little is fused.

Shapes are the run's largest: every step fills a row. The total is a program's own peak and what lies beside it
meanwhile: the frozen reference, and the optimizer's moments while replies are drawn.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import plans, slices
from experiments.benchmarks.plans import GIB, Plan
from experiments.benchmarks.programs import ProgramName
from experiments.configs import config_to_json
from experiments.records import replace_text
from hgpo_jax.config import MeshConfig
from hgpo_jax.sharding import make_mesh


@dataclasses.dataclass(frozen=True)
class Command:
    """The command line: one plan, or the table."""

    plan: Annotated[Plan, tyro.conf.arg(name="")]
    programs: tuple[ProgramName, ...] = ("update", "logprobs", "prefill", "decode")
    all: bool = False  # the plans of TABLE instead
    search: bool = False  # also for the most rows that fit: a few more compilations each
    json: Path | None = None  # keeps what was measured; a row that it holds is not compiled again
    optimization: Literal["O1", "full"] = "O1"  # O1 compiles faster; its peaks differ by a tenth


def _table() -> tuple[Plan, ...]:
    small = [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5e:2x2", 4), ("v5e:2x4", 8), ("gpu80:4", 4)]
    large = [("v5e:4x4", 16), ("v5e:8x8", 64), ("v5e:16x16", 256), ("v5p:2x2x1", 4), ("v6e:2x4", 8), ("gpu80:8", 8)]
    full = [Plan("qwen2_5_1_5b", topology, MeshConfig(fsdp=count)) for topology, count in small]
    full += [Plan("qwen2_5_7b", topology, MeshConfig(fsdp=count)) for topology, count in large]
    lora = [
        Plan("qwen2_5_1_5b", topology, MeshConfig(), lora_rank=32, param_dtype="bfloat16", rows_at_a_time=16)
        for topology in ("v5e:1x1", "gpu24:1")
    ]
    return (*full, *lora)


TABLE = _table()


def measure_row(plan: Plan, program: ProgramName, search: bool) -> dict[str, Any]:
    """One row of the table, as it is kept."""
    config = plans.run_config(plan)
    mesh = make_mesh(plan.mesh, slices.devices_of(plan.topology))
    rows, multiple = plans.default_rows(program, config, mesh), plans.row_multiple(program, config, mesh)
    measured = plans.measure(program, config, plan.topology, mesh, rows)
    known = {rows: measured.fits}

    def fits(rows: int) -> bool:
        if rows not in known:
            known[rows] = plans.measure(program, config, plan.topology, mesh, rows).fits
        return known[rows]

    row: dict[str, Any] = {
        "model": plan.model,
        "topology": plan.topology,
        "mesh": "x".join(map(str, mesh.devices.shape)),
        "program": program,
        **dataclasses.asdict(measured),
        "fits": measured.fits,
        "advice": plans.advice(program, config, measured, multiple),
    }
    if search and program != "estimator":
        row["largest_rows"] = plans.largest_rows(fits, multiple, most=max(rows * 8, config.learner.minibatch_steps))
    return row


def cached_row(command: Command, plan: Plan, program: ProgramName) -> dict[str, Any]:
    """``measure_row``, or what the file holds of an earlier one with the same config, jax and settings."""
    settings = [config_to_json(plans.run_config(plan)), dataclasses.asdict(plan), program, command.optimization]
    text = json.dumps([*settings, command.search, jax.__version__], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept = json.loads(command.json.read_text()) if command.json and command.json.exists() else {}
    if key not in kept:
        kept[key] = measure_row(plan, program, command.search)
        if command.json:
            replace_text(command.json, json.dumps(kept, indent=1))
    return kept[key]


def table_of(rows: list[dict[str, Any]]) -> Table:
    """GiB of one device."""
    table = Table(
        *("model", "topology", "mesh", "program", "rows", "arguments", "beside", "peak", "usable", "fits", "most rows"),
        *("PFLOP", "GFLOP / token", "compile s", "collectives", "kernels"),
    )
    for row in rows:
        gib = (f"{row[name] / GIB:.2f}" for name in ("arguments", "beside"))
        peak = "refused" if row["peak"] is None else f"{row['peak'] / GIB:.2f}"
        bound = "" if slices.is_tpu(row["topology"]) or row["peak"] is None else "≤ "
        work = (
            (f"{row['flops'] / 1e15:.3g}", f"{row['flops'] / row['tokens'] / 1e9:.3g}") if row["tokens"] else ("", "")
        )
        collectives = " ".join(f"{count} {name}" for name, count in sorted(row["collectives"].items()))
        table.add_row(
            *(row[name] for name in ("model", "topology", "mesh", "program")),
            *(str(row["rows"]), *gib, bound + peak, f"{row['limit'] / GIB:.2f}", "yes" if row["fits"] else "no"),
            *(str(row.get("largest_rows", "")), *work, f"{row['seconds']:.0f}", collectives, str(row["kernels"] or "")),
        )
    return table


def print_plan(command: Command) -> None:
    """Prints the table, and below it what to change where a program doesn't fit."""
    chosen = TABLE if command.all else (command.plan,)
    console = Console()
    rows = []
    for plan in chosen:
        for program in command.programs:
            with console.status(f"{plan.model} on {plan.topology}: {program}"):
                rows.append(cached_row(command, plan, program))
    console.width = max(console.width, 200)
    console.print(table_of(rows))
    for row in rows:
        if not row["fits"]:
            console.print(f"{row['model']} on {row['topology']}, {row['program']}: {row['advice']}", soft_wrap=True)


def _prepare(command: Command) -> None:
    """Before JAX is used: the CPU as its backend, with a device for each GPU, and libtpu as a compiler alone."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
    os.environ.setdefault("TPU_LOG_DIR", tempfile.gettempdir())
    jax.config.update("jax_platforms", "cpu")
    chosen = TABLE if command.all else (command.plan,)
    jax.config.update("jax_num_cpu_devices", max(1, *(slices.num_gpus(plan.topology) for plan in chosen)))
    if command.optimization != "full":
        jax.config.update("jax_optimization_level", command.optimization)


def main(command: Command) -> None:
    """In a process of its own, where JAX has not been used."""
    _prepare(command)
    try:
        print_plan(command)
    except ValueError as error:
        raise SystemExit(f"memory_plan: {error}") from error


if __name__ == "__main__":
    main(tyro.cli(Command, description=__doc__))
