"""The WebShop experiments have the published settings, and their command lines name themselves."""

import importlib

import pytest

from envs.core import environment_class
from experiments.configs import load_config, load_sft_config

RUNS = [
    (f"webshop_qwen2_5_{size}_{name}", estimator, history)
    for size in ("1_5b", "7b")
    for name, estimator, history in (
        ("hgpo_k2", "hgpo", 2),
        ("hgpo_k4", "hgpo", 4),
        ("gigpo_k2", "gigpo", 2),
        ("grpo", "grpo", 2),
    )
]


@pytest.mark.parametrize(("name", "estimator", "history"), RUNS)
def test_the_published_settings(name, estimator, history):
    config = load_config(name)
    assert (config.env, config.estimator, config.iterations) == ("hgpo/WebShop-v0", estimator, 160)
    rollout = config.rollout
    assert (rollout.tasks, rollout.group_size, rollout.max_steps, rollout.history_length) == (16, 8, 30, history)
    assert (rollout.max_prompt_length, rollout.max_response_length) == (4096, 512)
    assert config.hgpo.context_length == history
    assert not getattr(config, estimator).normalize_std
    assert config.learner.minibatch_steps == 64
    assert (config.evaluation.every, config.evaluation.tasks, config.evaluation.split) == (5, 128, "eval")
    assert config.init.endswith("-1.5B-Instruct" if "1_5b" in name else "-7B-Instruct")
    docstring = importlib.import_module(f"experiments.configs.{name}").__doc__ or ""
    assert f"experiments.train {name} --data FOLDER" in docstring
    assert f"runs/{estimator}-WebShop-seed0 --splits test" in docstring


def test_the_small_experiments_options_exist():
    config = load_config("webshop_tiny")
    env = environment_class(config.env, **config.env_settings)
    assert load_sft_config("webshop_tiny").expert in env.experts
    assert config.evaluation.split in env.splits
