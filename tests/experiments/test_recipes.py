"""Recipes: the fields they set, what stays the user's, and names that are none."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import compare, train
from experiments.assembly import Learner, signals_of
from experiments.compare import CompareCommand
from experiments.configs import RunConfig, changed_fields, load_config
from experiments.recipes import RECIPES, apply_recipe, take_recipe
from experiments.train import TrainCommand
from hgpo_jax.config import LossConfig, ReturnsConfig
from hgpo_jax.learner.losses import clipped_surrogate
from hgpo_jax.types import StepBatch, Trajectories

PUBLISHED = load_config("alfworld_qwen2_5_1_5b_hgpo_k2")
PLAIN = {"loss.dual_clip": None, "loss.kl_coef": 0.0, "loss.entropy_coef": 0.0}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            "dapo",
            {
                "loss.clip_high": 0.28,
                "returns.overlong_share": 0.2,
                "rollout.dynamic_sampling_rounds": 10,
            },
        ),
        (
            "dr_grpo",
            {
                "loss.aggregation": "constant",
                "hgpo.normalize_std": False,
                "hgpo_shrinkage.normalize_std": False,
                "gigpo.normalize_std": False,
                "grpo.normalize_std": False,
                "gae.normalize_std": False,
            },
        ),
        (
            "gspo",
            {
                "loss.clip_low": 3e-4,
                "loss.clip_high": 4e-4,
                "loss.ratio": "sequence",
                "loss.aggregation": "sequence_mean",
            },
        ),
    ],
)
def test_the_fields_that_a_recipe_changes(recipe: str, expected: dict) -> None:
    """From the published settings, whose token loss is a mean over tokens with clip 0.2."""
    changed = changed_fields(PUBLISHED, apply_recipe(PUBLISHED, recipe))
    assert {name: new for name, (_, new) in changed.items()} == PLAIN | expected


def test_the_constant_length_is_the_limit_of_replies() -> None:
    config = load_config("frozen_lake")
    assert config.rollout.max_response_length == 8
    assert apply_recipe(config, "dr_grpo").loss.constant_length == 8


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_twice_is_a_recipe_once(recipe: str) -> None:
    once = apply_recipe(PUBLISHED, recipe)
    assert apply_recipe(once, recipe) == once
    assert once.estimator == PUBLISHED.estimator
    assert apply_recipe(PUBLISHED, "") is PUBLISHED


def test_the_sequence_clip_acts_where_the_token_clip_would_not() -> None:
    """A > 0: a ratio of 1.001 is beyond 1 + 4e-4, and earns no more than there."""
    loss = apply_recipe(PUBLISHED, "gspo").loss
    ratio, advantage = jnp.float32(1.001), jnp.float32(2)
    np.testing.assert_allclose(clipped_surrogate(ratio, advantage, loss), -2.0008, rtol=1e-6)
    np.testing.assert_allclose(clipped_surrogate(ratio, advantage, LossConfig()), -2.002, rtol=1e-6)


def test_taken_out_of_the_arguments() -> None:
    assert take_recipe(["--seed", "1", "--recipe", "dapo", "--loss.kl-coef", "-1"]) == (
        "dapo",
        ["--seed", "1", "--loss.kl-coef", "-1"],
    )
    assert take_recipe(["--recipe=gspo"]) == ("gspo", [])
    assert take_recipe(["--rec", "dapo"]) == ("", ["--rec", "dapo"])


def trained_with(args: list[str], monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    commands: list[TrainCommand] = []
    monkeypatch.setattr(train, "train", commands.append)
    train.main(args)
    return commands[0].run


def test_what_the_user_sets_wins_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["--loss.clip-high", "0.3", "--rollout.dynamic-sampling-rounds", "2"]
    recipe = ["--recipe", "dapo", "--estimator", "gigpo"]
    for args in ([*own, *recipe], [*recipe, *own], ["frozen_lake", *recipe, *own]):
        run = trained_with(args, monkeypatch)
        assert (run.loss.clip_high, run.rollout.dynamic_sampling_rounds, run.estimator) == (0.3, 2, "gigpo")
        assert (run.loss.kl_coef, run.loss.dual_clip, run.returns.overlong_share) == (0.0, None, 0.2)
    assert trained_with(["--estimator", "gigpo"], monkeypatch).loss == load_config("frozen_lake").loss


def test_a_comparison_gives_it_to_every_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[CompareCommand] = []
    monkeypatch.setattr(compare, "compare", commands.append)
    compare.main(["frozen_lake", "--recipe", "dr_grpo", "--estimators", "hgpo", "grpo", "--loss.constant-length", "5"])
    assert (commands[0].run.loss.aggregation, commands[0].run.loss.constant_length) == ("constant", 5)
    assert commands[0].estimators == ("hgpo", "grpo")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--recipe", "drgrpo"], "no recipe 'drgrpo'; there are: dapo, dr_grpo, gspo"),
        (["--recipe"], "--recipe needs a name; there are: dapo, dr_grpo, gspo"),
        (["--loss.clip-low", "1.5"], "loss.clip_low is 1.5, expected 0 to 1"),
        (["--loss.value-coef", "-1"], "loss.value_coef is -1.0, but has to be at least 0"),
        (["--loss.value-clip", "0"], "loss.value_clip is 0.0, but has to be above 0, or None to turn it off"),
        (["--loss.clip-high", "-0.1"], "loss.clip_high is -0.1, but has to be at least 0"),
        (["--loss.dual-clip", "1"], "loss.dual_clip is 1.0, but has to be above 1, or None to turn it off"),
        (["--loss.constant-length", "0"], "loss.constant_length is 0, but has to be at least 1"),
        (["--returns.overlong-share", "1.1"], "returns.overlong_share is 1.1, expected 0 (off) to 1"),
        (["--returns.overlong-penalty", "-1"], "returns.overlong_penalty is -1.0, but has to be 0 or more"),
        (["--rollout.dynamic-sampling-rounds", "-1"], "rollout.dynamic_sampling_rounds is -1, but has to be 0 (off)"),
    ],
)
def test_bad_recipes_and_values(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        train.main(args)
    assert stop.value.code == 2
    assert words in " ".join(capsys.readouterr().out.split())


def batch(lengths: list[int], cut: list[bool]) -> Trajectories:
    """Two episodes of two steps each in one group; the first wins 10 with its second step."""
    n = len(lengths)
    return Trajectories(
        anchor_state=np.array(["a", "b", "a", "b"], object),
        prompt_group=np.zeros(n, np.int32),
        trajectory=np.array([0, 0, 1, 1]),
        step=np.array([0, 1, 0, 1]),
        reward=np.array([0, 10, 0, 0], np.float32),
        terminated=np.array([False, True, False, True]),
        truncated=np.zeros(n, bool),
        action_valid=np.array([True, True, True, False]),
        prompt_tokens=[np.array([3], np.int32)] * n,
        response_tokens=[np.full(length, 5, np.int32) for length in lengths],
        behavior_logprob=[np.full(length, -1.0, np.float32) for length in lengths],
        response_cut=np.array(cut),
    )


def test_long_replies_cost_their_own_step() -> None:
    """Limit 8, of which the last 4 are the cache: 6 tokens cost half, 8 all; c = 0.1 for the invalid one."""
    config = load_config("frozen_lake")
    steps = batch([6, 4, 1, 8], [False, False, False, True])
    plain = signals_of(config, steps)
    np.testing.assert_allclose(plain.step_return, [9.5, 10, 0, -0.1])
    config = dataclasses.replace(config, returns=ReturnsConfig(overlong_share=0.5, overlong_penalty=2.0))
    shaped = signals_of(config, steps)
    np.testing.assert_allclose(shaped.step_return, [8.5, 10, 0, -2.1])
    np.testing.assert_allclose(shaped.score, [9, 10, 0, -2.1])
    np.testing.assert_array_equal(shaped.group_ids, plain.group_ids)


def test_cut_replies_can_be_left_out_of_the_loss() -> None:
    config = load_config("frozen_lake")
    learner = Learner(dataclasses.replace(config, loss=LossConfig(kl_coef=0.0)))
    steps = batch([6, 4, 1, 8], [False, False, False, True])
    whole = learner.pack(steps, (0, 0))
    learner.config = dataclasses.replace(config, loss=LossConfig(kl_coef=0.0, mask_cut=True))
    masked = learner.pack(steps, (0, 0))

    def loss_tokens(packed: StepBatch) -> list[int]:
        return [int(np.asarray(packed.loss_mask)[np.asarray(packed.step_index) == i].sum()) for i in range(4)]

    assert loss_tokens(whole) == [6, 4, 1, 8]
    assert loss_tokens(masked) == [6, 4, 1, 0]
    assert np.asarray(masked.old_logprob).sum() == -11
    np.testing.assert_array_equal(masked.tokens, whole.tokens)
    np.testing.assert_array_equal(masked.steps.valid, whole.steps.valid)
