"""A run on a slice of devices that need not be there: what its programs need of each, and what to change about it."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from experiments.benchmarks import flops, programs, slices
from experiments.benchmarks.programs import ProgramName
from experiments.configs import RunConfig, load_config
from hgpo_jax.config import MeshConfig
from hgpo_jax.sharding import batch_multiple

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
