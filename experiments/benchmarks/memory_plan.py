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
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import tyro
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from experiments.benchmarks import flops, programs, slices
from experiments.benchmarks.programs import ProgramName
from experiments.configs import RunConfig, config_to_json, load_config
from hgpo_jax.config import MeshConfig
from hgpo_jax.sharding import batch_multiple, make_mesh

GIB = slices.GIB
_COLLECTIVE = re.compile(r"= .*? (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_KERNEL = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run on one slice."""

    model: str = "qwen2_5_7b"  # a config of experiments/configs
    topology: str = "v5e:4x4"  # v5e:RxC, v6e:RxC, v5p:XxYxZ, or for GPUs gpuGB:COUNT
    mesh: MeshConfig = MeshConfig(fsdp=-1)
    # None leaves the config's own:
    rows_per_device: int | None = None  # that are learned from at a time
    param_dtype: Literal["float32", "bfloat16"] | None = None
    remat: Literal["none", "layer", "products"] | None = None
    attention: Literal["auto", "plain", "blockwise", "splash"] | None = None
    num_layers: int | None = None
    lora_rank: int | None = None
    rows_at_a_time: int | None = None  # of the sampler
    sampling_tensor: int | None = None  # rollout.tensor: devices that share the sampler's copy of the weights


@dataclasses.dataclass(frozen=True)
class Measured:
    """One compilation. Bytes are those of one device."""

    rows: int  # of a part of a mini-batch, or sampled together
    arguments: int
    beside: int  # held meanwhile by what the program does not take
    limit: float
    peak: int | None  # None: refused
    seconds: float
    flops: float  # of a mini-batch, or of all replies
    tokens: int  # that these are for
    refusal: str = ""
    collectives: dict[str, int] = dataclasses.field(default_factory=dict)  # in the program's text: a loop counts once
    kernels: int = 0

    @property
    def fits(self) -> bool:
        """The compiler took it, and what lies beside it has room too."""
        return self.peak is not None and self.peak + self.beside <= self.limit


def run_config(plan: Plan) -> RunConfig:
    """The config that the plan names, with its overrides.

    Raises:
      ValueError: no config of that name.
    """
    config = load_config(plan.model)
    chosen = {name: getattr(plan, name) for name in ("param_dtype", "remat", "attention", "num_layers", "lora_rank")}
    given = {name: value for name, value in chosen.items() if value is not None}
    rollout, learner = config.rollout, config.learner
    if plan.sampling_tensor is not None:
        rollout = dataclasses.replace(rollout, tensor=plan.sampling_tensor)
    if plan.rows_at_a_time is not None:
        rollout = dataclasses.replace(rollout, rows_at_a_time=plan.rows_at_a_time)
    if plan.rows_per_device is not None:
        learner = dataclasses.replace(learner, rows_per_device=plan.rows_per_device)
    model = dataclasses.replace(config.model, **given)
    return dataclasses.replace(config, model=model, rollout=rollout, learner=learner)


def row_multiple(program: ProgramName, config: RunConfig, mesh: Mesh) -> int:
    """Devices that share the rows: of the whole mesh, or of the process that samples."""
    return batch_multiple(programs.sampling_mesh(config, mesh) if program in programs.SAMPLING else mesh)


def default_rows(program: ProgramName, config: RunConfig, mesh: Mesh) -> int:
    """Rows of a part of a mini-batch, or a process's episodes, which are sampled together."""
    multiple = row_multiple(program, config, mesh)
    if program in programs.SAMPLING:
        processes = len({device.process_index for device in mesh.devices.flat})
        episodes = math.ceil(config.rollout.tasks / processes) * config.rollout.group_size
        return math.ceil(min(episodes, config.rollout.rows_at_a_time or episodes) / multiple) * multiple
    return multiple * (config.learner.rows_per_device or math.ceil(config.learner.minibatch_steps / multiple))


def bytes_beside(program: ProgramName, config: RunConfig, mesh: Mesh) -> int:
    """What a device holds that the program does not take: the reference; but in the update, the moments too."""
    if program == "estimator":
        return 0
    state = programs.abstract_state(config, mesh)
    params, moments = programs.bytes_per_device(state.params), programs.bytes_per_device(state.opt_state)
    reference = programs.bytes_per_device(programs.reference_params(config, mesh))
    if program == "update":
        return reference
    # The copy that is sampled from is an argument, the state's own parameters are not.
    copied = program in programs.SAMPLING and mesh.size > 1
    return reference + moments + (params if copied else 0)


def work(program: ProgramName, config: RunConfig) -> tuple[float, int]:
    """FLOPs of a mini-batch or of all replies, counted by hand, and the tokens that they are for."""
    model, rollout, steps = config.model, config.rollout, config.learner.minibatch_steps
    episodes, prompt, response = (
        rollout.tasks * rollout.group_size,
        rollout.max_prompt_length,
        rollout.max_response_length,
    )
    if program == "estimator":
        return 0.0, 0
    if program == "prefill":
        return flops.row_flops(model, episodes, prompt, 1).forward, episodes * prompt
    if program == "decode":
        return flops.decode_flops(model, episodes, prompt, response).forward, episodes * response
    count = flops.row_flops(model, steps, prompt + response, response)
    total = count.training(frozen=model.lora_rank > 0) if program == "update" else count.forward
    return total, steps * (prompt + response)


def measure(program: ProgramName, config: RunConfig, topology: str, mesh: Mesh, rows: int) -> Measured:
    """Compiles one program for devices that need not be there, and reads what it needs."""
    prepared = programs.prepare(program, config, mesh, rows)
    count, tokens = work(program, config)
    known: dict[str, Any] = {
        "rows": rows,
        "arguments": programs.bytes_per_device(prepared.arguments),
        "beside": bytes_beside(program, config, mesh),
        "limit": slices.usable_bytes(topology),
        "flops": count,
        "tokens": tokens,
    }
    start = time.perf_counter()
    lowered = prepared.lower(*prepared.arguments)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Measured(**known, peak=None, seconds=time.perf_counter() - start, refusal=str(error).splitlines()[0])
    seconds = time.perf_counter() - start
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None, "this backend does not say what a program needs"
    assert text is not None, "this backend does not show its programs"
    peak = memory.peak_memory_in_bytes
    if not slices.is_tpu(topology):  # the CPU's peak leaves temporaries out
        outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
        peak = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
    collectives = dict(Counter(_COLLECTIVE.findall(text)))
    return Measured(**known, peak=peak, seconds=seconds, collectives=collectives, kernels=text.count(_KERNEL))


def largest_rows(fits: Callable[[int], bool], multiple: int, most: int) -> int:
    """The most rows that fit, among the sizes that rows are padded to: four to the octave, times ``multiple``.

    Args:
      fits: whether that many rows do; asked about 2 + log2(answer / multiple) times.
      multiple: of which rows are one.
      most: more are not tried.

    Returns:
      0 when not even ``multiple`` rows fit.
    """

    def units_fit(units: int) -> bool:
        return units * multiple <= most and fits(units * multiple)

    low = 0
    while units_fit(2 * low or 1):
        low = 2 * low or 1
    high = 2 * low
    for _ in range(2):
        middle = (low + high) // 2
        if middle == low:
            break
        low, high = (middle, high) if units_fit(middle) else (low, middle)
    return low * multiple


def advice(program: ProgramName, config: RunConfig, measured: Measured, sharing: int) -> str:
    """Which settings to change, the cheapest first, where a program doesn't fit; empty where it does.

    Args:
      program, config: what was compiled. measured: what it needs.
      sharing: devices over which its rows are divided.
    """
    if measured.fits:
        return ""
    model, settings = config.model, []
    state = measured.arguments + measured.beside
    more = "more devices along mesh.fsdp or mesh.tensor"
    narrow = ["model.param_dtype='bfloat16'"] if model.param_dtype == "float32" else []
    if program in programs.SAMPLING:
        settings.append("lower rollout.rows_at_a_time")
    if state > measured.limit:
        held = f"what it holds is {state / GIB:.1f} of {measured.limit / GIB:.1f} GiB"
        adapters = ["adapters, model.lora_rank=32"] if program == "update" and not model.lora_rank else []
        return f"{held}: {' or '.join([more, *narrow, *adapters, *settings])}"
    if program in programs.SAMPLING:
        settings = ["raise rollout.tensor", *settings] if sharing > 1 else settings
    elif measured.rows > sharing:
        settings.append("lower learner.rows_per_device")
    if program != "decode" and model.attention == "plain":
        settings.append("model.attention='auto'")
    if program == "update" and model.remat != "layer":
        settings.append("model.remat='layer'")
    return " or ".join([*settings, more, *narrow])


@dataclasses.dataclass(frozen=True)
class Command:
    """The command line: one plan, or the table."""

    plan: Annotated[Plan, tyro.conf.arg(name="")]
    programs: tuple[ProgramName, ...] = ("update", "logprobs", "prefill", "decode")
    all: bool = False  # the plans of TABLE instead, and the estimator's kernel
    search: bool = False  # also for the most rows that fit: a few more compilations each
    json: Path | None = None  # keeps what was measured; a row that it holds is not compiled again
    optimization: Literal["O1", "full"] = "O1"  # O1 compiles faster; its peaks differ by a tenth


def _table() -> tuple[Plan, ...]:
    small = [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5e:2x2", 4), ("v5e:2x4", 8), ("gpu80:4", 4)]
    large = [("v5e:4x4", 16), ("v5e:8x8", 64), ("v5e:16x16", 256), ("v5p:2x2x1", 4), ("v6e:2x4", 8), ("gpu80:8", 8)]
    plans = [Plan("qwen2_5_1_5b", topology, MeshConfig(fsdp=count)) for topology, count in small]
    plans += [Plan("qwen2_5_7b", topology, MeshConfig(fsdp=count)) for topology, count in large]
    lora = [
        Plan("qwen2_5_1_5b", topology, MeshConfig(), lora_rank=32, param_dtype="bfloat16", rows_at_a_time=16)
        for topology in ("v5e:1x1", "gpu24:1")
    ]
    return (*plans, *lora)


TABLE = _table()


def measure_row(plan: Plan, program: ProgramName, search: bool) -> dict[str, Any]:
    """One row of the table, as it is kept."""
    config = run_config(plan)
    mesh = make_mesh(plan.mesh, slices.devices_of(plan.topology))
    rows, multiple = default_rows(program, config, mesh), row_multiple(program, config, mesh)
    measured = measure(program, config, plan.topology, mesh, rows)
    known = {rows: measured.fits}

    def fits(rows: int) -> bool:
        if rows not in known:
            known[rows] = measure(program, config, plan.topology, mesh, rows).fits
        return known[rows]

    row: dict[str, Any] = {
        "model": plan.model,
        "topology": plan.topology,
        "mesh": "x".join(map(str, mesh.devices.shape)),
        "program": program,
        **dataclasses.asdict(measured),
        "fits": measured.fits,
        "advice": advice(program, config, measured, multiple),
    }
    if search and program != "estimator":
        row["largest_rows"] = largest_rows(fits, multiple, most=max(rows * 8, config.learner.minibatch_steps))
    return row


def cached_row(command: Command, plan: Plan, program: ProgramName) -> dict[str, Any]:
    """``measure_row``, or what the file holds of an earlier one with the same config, jax and settings."""
    settings = [config_to_json(run_config(plan)), dataclasses.asdict(plan), program, command.optimization]
    text = json.dumps([*settings, command.search, jax.__version__], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept = json.loads(command.json.read_text()) if command.json and command.json.exists() else {}
    if key not in kept:
        kept[key] = measure_row(plan, program, command.search)
        if command.json:
            replacement = command.json.with_suffix(".partial")  # an interruption leaves the old file whole
            replacement.write_text(json.dumps(kept, indent=1))
            replacement.replace(command.json)
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
    plans = TABLE if command.all else (command.plan,)
    console = Console()
    rows = []
    for plan in plans:
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
    plans = TABLE if command.all else (command.plan,)
    jax.config.update("jax_num_cpu_devices", max(1, *(slices.num_gpus(plan.topology) for plan in plans)))
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
