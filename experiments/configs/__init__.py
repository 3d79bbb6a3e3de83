"""Named experiments: one file each, whose docstring holds the claim, the command, the figures and the cost."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import pydantic
from flax.traverse_util import flatten_dict

from hgpo_jax.config import (
    GAEConfig,
    GiGPOConfig,
    GRPOConfig,
    HGPOConfig,
    LearnerConfig,
    LossConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ReinforceConfig,
    ReturnsConfig,
    RolloutConfig,
    ShrinkageConfig,
    StateKeysConfig,
)
from hgpo_jax.estimators import Grouping, grouping_for
from hgpo_jax.estimators.advantages import Estimator

EstimatorName = Literal["hgpo", "hgpo_shrinkage", "gigpo", "grpo", "rloo", "reinforce", "gae"]


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """The fixed panel of held-out tasks."""

    every: int = 5  # iterations between evaluations during training
    split: str = ""  # of the environment; "" is its first that is held out
    tasks: int = 128  # size of the panel; 0 takes each task of the split once, where they have an end
    panel_seed: int = 0  # of the choice of tasks
    seed: int = 123  # of the replies' draws


@dataclasses.dataclass(frozen=True)
class WarmStartConfig:
    """Imitation of random valid replies before the first iteration, where the model starts from random weights."""

    batches: int = 0  # of ``rollout.tasks`` x ``rollout.group_size`` random episodes; 0 turns it off
    learning_rate: float = 3e-3


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result."""

    model: ModelConfig
    tokenizer: str  # a shipped tokenizer's name, a path, a Hugging Face folder or hub id; "" takes that of init
    # The folder or hub id of a Hugging Face model to start from, whose shape replaces the model's; "" draws weights.
    init: str = ""
    env: str = "hgpo/FrozenLakeText-v0"  # a gymnasium id
    env_options: dict[str, int | bool | str] = dataclasses.field(default_factory=dict)  # of the environment's own
    data: str = ""  # folder of the environment's original data, where it reads some; "" leaves it to the environment
    iterations: int = 160
    seed: int = 0
    # Which of the settings below is used; or module:function, one of your own that reads the levels of hgpo.
    estimator: EstimatorName | str = "hgpo"
    hgpo: HGPOConfig = HGPOConfig()
    hgpo_shrinkage: ShrinkageConfig = ShrinkageConfig()
    gigpo: GiGPOConfig = GiGPOConfig()
    grpo: GRPOConfig = GRPOConfig()
    rloo: GRPOConfig = GRPOConfig(normalize_std=False, leave_one_out=True)
    reinforce: ReinforceConfig = ReinforceConfig()
    gae: GAEConfig = GAEConfig()  # PPO: the policy gets a value head
    state_keys: StateKeysConfig = StateKeysConfig()
    returns: ReturnsConfig = ReturnsConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    learner: LearnerConfig = LearnerConfig()
    mesh: MeshConfig = MeshConfig()
    rollout: RolloutConfig = RolloutConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    checkpoint_every: int = 10  # iterations

    @property
    def env_name(self) -> str:
        """Its short name, for folders: "ALFWorld" of "hgpo/ALFWorld-v0"."""
        return self.env.split("/")[-1].split("-")[0]

    @property
    def env_settings(self) -> dict[str, int | bool | str]:
        """The environment's options, the data folder among them where one is given."""
        return self.env_options | ({"data": self.data} if self.data else {})

    @property
    def estimator_name(self) -> str:
        """Its short name, for folders and tables."""
        return short_name(self.estimator)

    @property
    def estimator_field(self) -> str:
        """The field with its settings, levels among them; that of HGPO for a function."""
        return "hgpo" if ":" in self.estimator else self.estimator

    @property
    def estimator_config(self) -> Estimator:
        """The settings of the estimator that ``estimator`` names, or the function.

        Raises:
          ValueError: no such module, or no such function in it.
        """
        return _load_function(self.estimator) if ":" in self.estimator else getattr(self, self.estimator)

    @property
    def grouping(self) -> Grouping:
        """The levels that the estimator reads."""
        return grouping_for(getattr(self, self.estimator_field))

    @property
    def reads_values(self) -> bool:
        """Whether the estimator reads a critic's values: GAE does, and a function where the model has a value head."""
        return self.estimator == "gae" or (":" in self.estimator and self.model.value_head)

    def __post_init__(self) -> None:
        names = get_args(EstimatorName)
        if self.estimator not in names and not re.fullmatch(r"\w+(\.\w+)*:\w+", self.estimator):
            raise ValueError(
                f"estimator is {self.estimator!r}, expected one of {', '.join(names)}, or module:function, one of "
                "your own"
            )
        positive = {
            "iterations": self.iterations,
            "checkpoint_every": self.checkpoint_every,
            "evaluation.every": self.evaluation.every,
            "rollout.tasks": self.rollout.tasks,
            "rollout.group_size": self.rollout.group_size,
        }
        for name, value in positive.items():
            if value < 1:
                raise ValueError(f"{name} is {value}, but has to be at least 1")
        evaluation = self.evaluation
        at_least_0 = {"tasks": evaluation.tasks, "panel_seed": evaluation.panel_seed, "seed": evaluation.seed}
        for name, value in {"seed": self.seed, **{f"evaluation.{k}": v for k, v in at_least_0.items()}}.items():
            if value < 0:
                raise ValueError(f"{name} is {value}, but has to be at least 0")
        if not self.tokenizer and not self.init:
            raise ValueError("tokenizer is empty: name one, or a Hugging Face model in init")
        if self.warm_start.batches and self.model.lora_rank and not self.init:
            raise ValueError(
                "warm_start trains all parameters, model.lora_rank only adapters: start from a trained model (init), "
                "or set model.lora_rank to 0"
            )
        if self.rollout.train_sampling.temperature <= 0:
            raise ValueError("rollout.train_sampling.temperature must be above 0: greedy replies give no gradient")
        similarity = self.state_keys.similarity
        if similarity is not None and not 0 < similarity <= 1:
            raise ValueError(f"state_keys.similarity is {similarity}, expected above 0 to 1, or None to turn it off")
        self._check_loss()
        self._check_sampling()

    def _check_loss(self) -> None:
        loss = self.loss
        if not 0 <= loss.clip_low <= 1:
            raise ValueError(f"loss.clip_low is {loss.clip_low}, expected 0 to 1: the ratio is kept above 1 - clip_low")
        if not loss.clip_high >= 0:
            raise ValueError(f"loss.clip_high is {loss.clip_high}, but has to be at least 0")
        if loss.dual_clip is not None and not loss.dual_clip > 1:
            raise ValueError(f"loss.dual_clip is {loss.dual_clip}, but has to be above 1, or None to turn it off")
        if not 0 <= loss.value_coef < float("inf"):
            raise ValueError(f"loss.value_coef is {loss.value_coef}, but has to be at least 0")
        if loss.value_clip is not None and not loss.value_clip > 0:
            raise ValueError(f"loss.value_clip is {loss.value_clip}, but has to be above 0, or None to turn it off")
        if loss.constant_length < 1:
            raise ValueError(f"loss.constant_length is {loss.constant_length}, but has to be at least 1")

    def _check_sampling(self) -> None:
        returns, rollout = self.returns, self.rollout
        if not 0 <= returns.overlong_share <= 1:
            raise ValueError(f"returns.overlong_share is {returns.overlong_share}, expected 0 (off) to 1")
        if not 0 <= returns.overlong_penalty < float("inf"):
            raise ValueError(f"returns.overlong_penalty is {returns.overlong_penalty}, but has to be 0 or more")
        if rollout.dynamic_sampling_rounds < 0:
            raise ValueError(
                f"rollout.dynamic_sampling_rounds is {rollout.dynamic_sampling_rounds}, but has to be 0 (off) or more"
            )


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning: what is learned from whom. All else is the run's config, its optimizer included."""

    expert: str = ""  # the environment's expert of this name; "" is its best
    episodes: int = 512  # that it plays
    only_won: bool = True  # leave out those that it does not win
    max_steps: int | None = None  # of each; the run's rollout.max_steps unless given
    # Share of the steps at which another reply than the expert's is carried out. They are not learned; how it goes on
    # from there is. For an expert that looks, such as ALFWorld's "searcher", and not one that plays by heart.
    slips: float = 0.0
    epochs: int = 3  # passes over what is not held out
    # At its highest; left out, 1e-5 for all parameters of a loaded model, 1e-4 for adapters, 1e-3 for random weights.
    learning_rate: float | None = None
    minibatch_steps: int | None = None  # steps to an optimizer step; the run's learner.minibatch_steps unless given
    # Of a prompt's token in the loss, where a reply's has 1. Above 0 a model from random weights also learns to read.
    prompt_weight: float = 0.0
    held_out: float = 0.05  # share of the episodes kept on which the loss is only measured

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise ValueError(f"episodes is {self.episodes}, but has to be at least 1")
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}, but has to be at least 1")
        if self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}, but has to be at least 1")
        if self.minibatch_steps is not None and self.minibatch_steps < 1:
            raise ValueError(f"minibatch_steps is {self.minibatch_steps}, but has to be at least 1")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate is {self.learning_rate}, but has to be above 0")
        if not 0 <= self.prompt_weight < float("inf"):
            raise ValueError(f"prompt_weight is {self.prompt_weight}, but has to be 0 or more")
        for name, share in (("slips", self.slips), ("held_out", self.held_out)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} is {share}, expected a share from 0 to below 1")


def short_name(estimator: str) -> str:
    """ "mine" of "my_estimators:mine"; others stay as they are."""
    return estimator.split(":")[-1]


def _load_function(name: str) -> Callable[..., Any]:
    """What stands behind "module:function"."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # one that the module imports itself
        raise ValueError(
            f"estimator is {name!r}, but there is no module {module!r}: start from the folder it is in, or put that "
            "folder into PYTHONPATH"
        ) from error
    if not callable(function):
        raise ValueError(f"estimator is {name!r}, but module {module!r} has no function {attribute!r}")
    return function


def load_config(name: str) -> RunConfig:
    """``CONFIG`` of ``experiments/configs/<name>.py``.

    Raises:
      ValueError: no such file; the message lists those of a similar name, or all where there are none.
    """
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    if name not in names:
        similar = difflib.get_close_matches(name, names, n=5)
        there_are = f"similar names: {', '.join(similar)}" if similar else f"there are: {', '.join(names)}"
        raise ValueError(f"no config named {name!r} in experiments/configs; {there_are}")
    return importlib.import_module(f"{__name__}.{name}").CONFIG


def load_sft_config(name: str) -> SFTConfig:
    """``SFT`` of the same file, where it has one."""
    load_config(name)
    return getattr(importlib.import_module(f"{__name__}.{name}"), "SFT", SFTConfig())


def config_to_json(config: RunConfig) -> dict[str, Any]:
    """A plain dict that ``config_from_json`` reads back."""
    return dataclasses.asdict(config)


def changed_fields(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """``{"rollout.tasks": (16, 32)}``: the fields in which two configs differ."""
    before, after = (flatten_dict(config_to_json(config), sep=".") for config in (old, new))
    names = {**before, **after}
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def config_from_json(path: Path) -> RunConfig:
    """The resolved config that a run has saved.

    Raises:
      ValueError: the file is missing, or is not a config of this version; the message names the field.
    """
    if not path.exists():
        raise ValueError(f"{path} is missing: name the folder of a run that train.py has made")
    try:
        # Strict in JSON's sense: 1 stays an int, and an unknown field is an error rather than ignored.
        return pydantic.TypeAdapter(RunConfig).validate_python(json.loads(path.read_text()), extra="forbid")
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}): name the folder of a run that train.py has made") from error
    except pydantic.ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ValueError(
            f"{path} is not a run's config of this version ({'; '.join(faults[:3])}{more}): name the folder of a run "
            "that this version's train.py has made"
        ) from error
