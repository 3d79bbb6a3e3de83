"""A run that starts from a Hugging Face model takes its shape and tokenizer, and goes back to such a folder."""

import dataclasses
import json
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from experiments.assembly import Learner, resolve
from experiments.configs import load_config
from experiments.export import export
from experiments.train import TrainCommand, train
from hgpo_jax import adapters
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.policy.weights import model_config_of

CHECKPOINT = Path(__file__).parents[1] / "golden/qwen/qwen2_tied"


def config_from(folder: Path, **changes):
    """The published settings' config, its model and rollout cut down to the checkpoint in ``folder``."""
    config = load_config("qwen2_5_1_5b")
    small = dataclasses.replace(config.rollout, tasks=2, group_size=4, max_steps=2, max_prompt_length=300)
    return dataclasses.replace(
        config,
        init=str(folder),
        iterations=1,
        rollout=dataclasses.replace(small, max_response_length=4),
        learner=dataclasses.replace(config.learner, row_length=320),
        evaluation=dataclasses.replace(config.evaluation, tasks=2),
        model=dataclasses.replace(config.model, dtype="float32", **changes),
    )


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return {name: x for file in sorted(folder.glob("*.safetensors")) for name, x in load_file(file).items()}


def test_shape_is_read_from_the_model_and_the_rest_kept():
    config = resolve(config_from(CHECKPOINT, lora_rank=2))
    shape = json.loads((CHECKPOINT / "config.json").read_text())
    assert config.model.hidden_size == shape["hidden_size"]
    assert config.model.vocab_size == shape["vocab_size"]
    assert (config.model.lora_rank, config.model.remat, config.model.dtype) == (2, "layer", "float32")
    assert resolve(load_config("frozen_lake")) == load_config("frozen_lake")


def test_a_loaded_model_gets_a_fresh_critic():
    """Also beside adapters and on a mesh; the weights are the checkpoint's."""
    for changes, mesh in (({}, {}), ({"lora_rank": 2}, {}), ({}, {"mesh": MeshConfig(fsdp=2)})):
        plain = dataclasses.replace(config_from(CHECKPOINT, **changes), **mesh)
        critic = resolve(dataclasses.replace(plain, estimator="gae"))
        params, wanted = (jax.device_get(Learner(resolve(run)).state.params) for run in (critic, plain))
        head = params.pop("value_head")
        assert not any(leaf.any() for leaf in jax.tree.leaves(head))
        chex.assert_trees_all_equal(params, wanted)


def test_every_field_is_the_checkpoints_or_the_runs():
    own = {
        "dtype": "bfloat16",
        "param_dtype": "bfloat16",
        "lora_rank": 3,
        "lora_alpha": 7.0,
        "attention": "plain",
        "remat": "none",
        "unroll": 2,
        "value_head": True,
    }
    sizes = {"vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"}
    kinds = {"rope_theta", "rms_norm_eps", "tie_word_embeddings", "qkv_bias", "qk_norm"}
    assert {field.name for field in dataclasses.fields(ModelConfig)} == {*own, *sizes, *kinds}
    config = load_config("qwen2_5_1_5b")
    config = dataclasses.replace(config, init=str(CHECKPOINT), model=dataclasses.replace(config.model, **own))
    assert resolve(config).model == dataclasses.replace(model_config_of(CHECKPOINT), **own)


@pytest.mark.slow
def test_the_reference_of_adapters_costs_nothing():
    learner = Learner(resolve(config_from(CHECKPOINT, lora_rank=2)))
    trained, frozen = adapters.split(learner.state.params)
    assert not any(x.any() for x in adapters.split(learner.reference)[0]["layers"]["mlp"]["up"].values())
    assert any(x.any() for x in trained["layers"]["mlp"]["up"].values())
    assert adapters.split(learner.reference)[1]["embed"] is frozen["embed"]


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_from_a_folder_to_a_folder(tmp_path, lora_rank):
    """Random weights reply at random: no advantage, no step. What is exported is then what was loaded, bit for bit."""
    config = config_from(CHECKPOINT, lora_rank=lora_rank)
    run = train(TrainCommand(run=config, directory=tmp_path / "run"))
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["update/optimizer_steps"] == 0
    assert row["train/response_cut_share"] > 0.5
    export(run, tmp_path / "exported")
    before, after = tensors(CHECKPOINT), tensors(tmp_path / "exported")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)
    assert (tmp_path / "exported/tokenizer.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "", "init": ""}, "tokenizer is empty: name one, or a Hugging Face model in init"),
        ({"model": {"lora_rank": 2}}, "warm_start trains all parameters, model.lora_rank only adapters"),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    config = load_config("frozen_lake")
    if "model" in changes:
        changes = {"model": dataclasses.replace(config.model, **changes["model"])}
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changes)


def test_a_missing_model_names_the_command():
    with pytest.raises(ValueError, match=r"hf download .* --local-dir"):
        resolve(config_from(Path("nowhere/model")))
