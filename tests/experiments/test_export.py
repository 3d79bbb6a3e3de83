"""A run's policy as a Hugging Face folder."""

import dataclasses
import json
from pathlib import Path

import chex
import jax
import pytest

from experiments import export
from experiments.configs import config_to_json, load_config
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.learner.update import init_state, make_optimizer
from hgpo_jax.policy.tokenization import load_tokenizer
from hgpo_jax.policy.weights import load_params, model_config_of

MODEL = ModelConfig(64, 16, 32, 1, 2, 2, 8)


@pytest.fixture
def run(tmp_path):
    """A run's folder with two checkpoints, the earlier one the better, and their parameters."""
    config = load_config("frozen_lake")
    model = dataclasses.replace(MODEL, vocab_size=config.model.vocab_size)
    config = dataclasses.replace(config, model=model, mesh=MeshConfig(fsdp=2, tensor=2))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_to_json(config)))
    optimizer = make_optimizer(config.optimizer)
    states = [init_state(model, optimizer, jax.random.key(seed), None) for seed in range(2)]
    with Checkpoints(folder / "checkpoints") as checkpoints:
        for iteration, state in enumerate(states):
            checkpoints.save(iteration, state, metrics={"success": 1.0 - iteration})
    return folder, config, [state.params for state in states]


def test_a_run_is_exported_and_loads_again(run, tmp_path, capsys):
    folder, config, (best, latest) = run
    export.main([str(folder), str(tmp_path / "out")])
    assert f"latest checkpoint of {folder} written to" in " ".join(capsys.readouterr().out.split())
    assert model_config_of(tmp_path / "out") == config.model
    chex.assert_trees_all_equal(load_params(tmp_path / "out", config.model), latest)
    export.main([str(folder), str(tmp_path / "out"), "--which", "best", "--overwrite"])
    chex.assert_trees_all_equal(load_params(tmp_path / "out", config.model), best)
    ours, theirs = load_tokenizer(config.tokenizer), load_tokenizer(tmp_path / "out" / "tokenizer.json")
    assert theirs.encode("go up .") == ours.encode("go up .")
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": list(ours.eos_ids), "pad_token_id": ours.pad_id}


def test_bad_input_is_named(run, tmp_path, capsys):
    folder = run[0]

    def error_of(*args):
        with pytest.raises(SystemExit) as stop:
            export.main([str(x) for x in args])
        assert stop.value.code == 2
        return " ".join(capsys.readouterr().out.split())

    assert "config.json is missing: name the folder of a run" in error_of(tmp_path, tmp_path / "out")
    assert "is the run itself; name another folder" in error_of(folder, folder)
    (tmp_path / "full").mkdir()
    Path(tmp_path / "full" / "file").touch()
    assert "is not empty; name a new folder" in error_of(folder, tmp_path / "full")
