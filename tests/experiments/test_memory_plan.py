"""The memory plan: FLOPs by hand, slices, the search, the advice, and real compilations of a tiny model."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from experiments.benchmarks import flops, memory_plan, plans, programs, slices
from experiments.benchmarks.memory_plan import Command
from experiments.benchmarks.plans import Measured, Plan
from experiments.configs import WarmStartConfig, load_config
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.sharding import make_mesh

ROOT = Path(__file__).parents[2]
GIB = 2**30
TINY = ModelConfig(
    vocab_size=10, hidden_size=4, intermediate_size=6, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=6
)
PLAN = Plan("frozen_lake", "gpu80:4", MeshConfig(data=2, fsdp=2))


def measured(**changes):
    """A program of 8 GiB beside 2, on a device of 16."""
    sizes = {"arguments": 4 * GIB, "beside": 2 * GIB, "limit": 16.0 * GIB, "peak": 8 * GIB}
    return Measured(**({"rows": 16, "seconds": 1.0, "flops": 1e15, "tokens": 1000} | sizes | changes))


def test_flops_by_hand():
    # q 4x12, k and v 4x6, o 12x4: 144; gate, up, down 4x6: 72.
    assert flops.layer_weights(TINY) == 216
    count = flops.forward_flops(TINY, tokens=5, seen=3, predicted=2)
    assert count == flops.Flops(weights=2 * 2 * 216 * 5, attention=2 * 2 * (2 * 6) * 2 * 3 * 5, logits=2 * 4 * 10 * 2)
    assert count.forward == 4320 + 1440 + 160
    assert count.training() == 3 * 5920
    assert count.training(frozen=True) == 2 * 5920 + 1440  # no gradient of a weight
    assert count.executed("none") == 3 * 5920 + 160  # logits are made twice
    assert count.executed("products") == 3 * 5920 + 160 + 1440
    assert count.executed("layer") == 3 * 5920 + 160 + 1440 + 4320


def test_flops_of_rows_and_replies_add_up_over_tokens():
    visible = sum(range(1, 6))  # token t of a causal row sees t
    assert flops.row_flops(TINY, 3, 5, 2).attention == 3 * flops.forward_flops(TINY, visible, 1, 0).attention
    # A reply of R tokens reads the prompt and R - 1 drawn tokens, and makes R rows of logits.
    prefill, decode = flops.row_flops(TINY, 3, 7, 1), flops.decode_flops(TINY, 3, 7, 4)
    whole = flops.row_flops(TINY, 3, 7 + 4 - 1, 4)
    for part in ("weights", "attention", "logits"):
        assert getattr(prefill, part) + getattr(decode, part) == pytest.approx(getattr(whole, part))


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "qkv_bias": False}, {"tie_word_embeddings": False}])
def test_parameters_are_counted(changes):
    model = dataclasses.replace(TINY, **changes)
    assert flops.num_parameters(model) == sum(x.size for x in jax.tree.leaves(nn.unbox(abstract_params(model))))


def test_what_a_chip_holds():
    assert slices.usable_bytes("v5e:16x16") == 15.75 * GIB
    assert slices.usable_bytes("v5p:2x2x1") == 95.74 * GIB
    assert slices.usable_bytes("v6e:2x4") == 31.25 * GIB
    assert slices.usable_bytes("gpu80:8") == pytest.approx(0.92 * 80e9)
    assert len(slices.devices_of("gpu24:8")) == 8
    assert (slices.is_tpu("v5e:4x4"), slices.is_tpu("gpu80:8")) == (True, False)


@pytest.mark.parametrize("topology", ["v5e", "v5e:4", "v9:4x4", "h100:8", "gpu:8", "v5e:4x4 "])
def test_unknown_topology(topology):
    with pytest.raises(ValueError, match="is unknown: write a slice, v5e:4x4"):
        slices.devices_of(topology)


def test_devices_that_are_missing(monkeypatch):
    with pytest.raises(ValueError, match="needs 9 virtual CPU devices, but this process has 8"):
        slices.devices_of("gpu80:9")
    with pytest.raises(ValueError, match="needs 16 devices, but there are 4"):
        memory_plan.measure_row(dataclasses.replace(PLAN, mesh=MeshConfig(fsdp=16)), "update", search=False)

    def absent(*_, **__):
        raise RuntimeError("JAX TPU support not installed")

    monkeypatch.setattr(slices.topologies, "get_topology_desc", absent)
    with pytest.raises(ValueError, match=r"pip install -e '.\[tpu-plan\]'"):
        slices.devices_of("v5e:4x4")


def test_unknown_model():
    with pytest.raises(ValueError, match="no config named 'qwen9'"):
        plans.run_config(Plan("qwen9"))


def test_rows_of_a_part():
    mesh = make_mesh(PLAN.mesh, slices.devices_of(PLAN.topology))

    def rows(rows_per_device):
        config = plans.run_config(dataclasses.replace(PLAN, rows_per_device=rows_per_device))
        return plans.default_rows("update", config, mesh)

    assert [rows(2), rows(3), rows(None)] == [8, 12, 64]  # the config's None: all of a mini-batch of 64


@pytest.mark.parametrize("multiple", [1, 16])
def test_search_finds_the_largest_size_of_four_to_the_octave(multiple):
    sizes = [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32]
    for limit in range(34):
        asked = []

        def fits(rows, limit=limit, asked=asked):
            asked.append(rows)
            return rows <= limit * multiple

        found = plans.largest_rows(fits, multiple, most=32 * multiple)
        assert found == multiple * max([0, *(size for size in sizes if size <= limit)])
        assert len(asked) == len(set(asked)) <= 8
        assert max(asked) <= 32 * multiple


def test_fits_counts_what_lies_beside():
    assert measured().fits
    assert not measured(peak=15 * GIB).fits
    assert not measured(peak=None).fits


@pytest.mark.parametrize(
    ("program", "model", "changes", "sharing", "said", "unsaid"),
    [
        ("update", {}, {}, 4, "", "lower"),
        ("update", {}, {"peak": None}, 4, "lower learner.rows_per_device or model.remat='layer' or more", "plain"),
        ("update", {"remat": "layer"}, {"peak": None}, 16, "more devices along mesh.fsdp", "rows_per_device"),
        ("logprobs", {"attention": "plain"}, {"peak": 15 * GIB}, 16, "model.attention='auto'", "remat"),
        ("decode", {}, {"peak": None}, 2, "raise rollout.tensor or lower rollout.rows_at_a_time", "rows_per_device"),
        ("decode", {}, {"peak": None}, 1, "lower rollout.rows_at_a_time", "raise rollout.tensor"),
        ("decode", {}, {"peak": None, "arguments": 15 * GIB}, 1, "what it holds is 17.0 of 16.0 GiB", "lora"),
        ("update", {}, {"peak": None, "arguments": 15 * GIB}, 4, "or adapters, model.lora_rank=32", "rows_per_device"),
        ("update", {"param_dtype": "bfloat16"}, {"peak": None}, 4, "more devices", "param_dtype"),
    ],
)
def test_advice(program, model, changes, sharing, said, unsaid):
    config = dataclasses.replace(load_config("frozen_lake"), model=dataclasses.replace(TINY, **model))
    text = plans.advice(program, config, measured(**changes), sharing)
    assert said in text
    assert unsaid not in text
    assert bool(text) == (not measured(**changes).fits)


@pytest.mark.parametrize("program", ["update", "logprobs", "prefill", "decode", "estimator"])
def test_arguments_are_exact(program):
    config = plans.run_config(PLAN)
    mesh = make_mesh(PLAN.mesh, slices.devices_of(PLAN.topology))
    prepared = programs.prepare(program, config, mesh, rows=4)
    assert len(prepared.lower(*prepared.arguments).as_text()) > 1000
    given = jax.jit(lambda *_: 0, keep_unused=True).lower(*prepared.arguments).compile().memory_analysis()
    assert given is not None
    assert given.argument_size_in_bytes == programs.bytes_per_device(prepared.arguments)


def test_a_device_holds_its_part():
    config = plans.run_config(PLAN)
    mesh = make_mesh(PLAN.mesh, slices.devices_of(PLAN.topology))
    params = programs.bytes_per_device(programs.abstract_state(config, mesh).params)
    assert plans.bytes_beside("update", config, mesh) == params  # the reference
    moments = plans.bytes_beside("logprobs", config, mesh) - params
    assert plans.bytes_beside("decode", config, mesh) == 2 * params + moments
    assert moments == pytest.approx(2 * params, rel=1e-4)
    assert 2 < params / flops.num_parameters(config.model) < 2.1  # f32 over fsdp = 2; norms are whole
    model = dataclasses.replace(config.model, lora_rank=2)
    adapted = dataclasses.replace(config, model=model, warm_start=WarmStartConfig(batches=0))
    assert plans.bytes_beside("update", adapted, mesh) == 0  # adapters switched off are the reference
    batch: Any = programs.abstract_batch(config, mesh, rows=8)
    assert programs.num_steps(config) == 16 * 8 * 15  # 30 mini-batches of 64, made 32
    assert batch.tokens.shape == (32, 8, 8, 104)
    assert batch.response_index.shape == (32, 8, 8, 8)
    assert batch.steps.group_ids.shape == (3, 32 * 64)
    assert batch.tokens.sharding.shard_shape(batch.tokens.shape) == (32, 8, 2, 104)


def test_a_process_samples_from_its_own_copy_in_the_dtype_of_the_computation():
    config = plans.run_config(dataclasses.replace(PLAN, sampling_tensor=2))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="bfloat16"))
    mesh = make_mesh(PLAN.mesh, slices.devices_of(PLAN.topology))
    assert dict(programs.sampling_mesh(config, mesh).shape) == {"data": 2, "fsdp": 1, "tensor": 2}
    copy = programs.bytes_per_device(programs.sampling_params(config, mesh))
    assert copy == pytest.approx(flops.num_parameters(config.model), rel=0.05)  # 2 bytes over tensor = 2
    assert plans.default_rows("prefill", config, mesh) == 128  # one process has all of 16 x 8 episodes
    alone = make_mesh(MeshConfig(), jax.devices()[:1])
    assert {x.dtype for x in jax.tree.leaves(programs.sampling_params(config, alone))} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_rows_are_kept_and_not_compiled_again(tmp_path, monkeypatch, capsys):
    kept = tmp_path / "plan.json"
    command = Command(PLAN, programs=("update", "estimator"), json=kept)
    memory_plan.print_plan(command)
    first = capsys.readouterr().out
    assert "≤ 0.0" in first  # an upper estimate, in GiB
    update, estimator = json.loads(kept.read_text()).values()
    assert (update["program"], estimator["program"]) == ("update", "estimator")
    assert update["fits"]
    assert update["peak"] > update["arguments"] > 2**20
    assert update["collectives"]["all-gather"] > 0
    assert estimator["collectives"]["all-reduce"] > 0
    monkeypatch.setattr(memory_plan, "measure_row", lambda *_: pytest.fail("compiled again"))
    memory_plan.print_plan(command)
    assert capsys.readouterr().out == first
    with pytest.raises(pytest.fail.Exception):
        memory_plan.print_plan(dataclasses.replace(command, plan=dataclasses.replace(PLAN, num_layers=2)))
    assert len(json.loads(kept.read_text())) == 2


def test_the_table_covers_the_published_models():
    sizes = {(plan.model, plan.topology) for plan in memory_plan.TABLE}
    assert {("qwen2_5_1_5b", "v5e:1x1"), ("qwen2_5_1_5b", "v5e:2x2"), ("qwen2_5_1_5b", "v5e:2x4")} <= sizes
    assert {("qwen2_5_7b", name) for name in ("v5e:4x4", "v5e:8x8", "v5e:16x16", "v5p:2x2x1")} <= sizes


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the extra tpu-plan is not installed")
def test_the_tpu_compiler(tmp_path):
    def plan(*arguments):
        command = [sys.executable, "-m", "experiments.benchmarks.memory_plan", "--model", "frozen_lake", *arguments]
        settings = ["--topology", "v5e:2x2", "--mesh.fsdp", "4", "--attention", "splash", "--rows-per-device", "1"]
        environment = os.environ | {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LOG_DIR": str(tmp_path)}
        run = subprocess.run([*command, *settings], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout

    kept = tmp_path / "plan.json"
    plan("--programs", "update", "estimator", "--json", str(kept))
    update, estimator = json.loads(kept.read_text()).values()
    assert update["fits"]
    assert update["arguments"] < update["peak"] < 2**26
    assert update["kernels"] >= 3  # forward, and the two of the backward pass
    assert estimator["collectives"]["all-reduce"] >= 1
    refused = plan("--programs", "update", "--num-layers", "400000")
    assert "refused" in refused
    assert "what it holds is" in refused
