"""The policies that can be evaluated, each by the name that a command line gives it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from envs.core import Panel, environment_class
from experiments.assembly import make_sampling_copy, mesh_for, resolve, restore_params
from experiments.configs import RunConfig, config_from_json, load_config
from experiments.endpoint import Endpoint, EndpointConfig
from experiments.scripted import TextPolicy, expert_policy, random_policy, scripted_act
from hgpo_jax.config import MeshConfig
from hgpo_jax.policy.hf_config import is_hub_id, read_json, resolve_checkpoint
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.policy.weights import load_params
from hgpo_jax.rollout.collector import Act
from hgpo_jax.sharding import param_shardings

ENDPOINT, RANDOM, EXPERT = "endpoint", "random", "expert"
DEFAULT_CONFIG = "frozen_lake"
NO_LIMIT = 1 << 30  # tokens: prompts in bytes are not to be cut
NO_ENDPOINT = EndpointConfig()
_STAND_IN = ByteTokenizer()


@dataclasses.dataclass(frozen=True)
class Settings:
    """In place of what the config says."""

    env: str | None = None  # a gymnasium id, such as hgpo/ALFWorld-v0; the config's options then don't count
    env_options: dict[str, int | bool | str] = dataclasses.field(default_factory=dict)  # added to the config's
    data: str | None = None  # folder of the environment's original data
    history_length: int | None = None  # past (observation, action) pairs in the prompt
    max_steps: int | None = None  # of an episode
    max_response_length: int | None = None  # tokens
    temperature: float | None = None
    mesh: tuple[int, int, int] | None = None  # devices along data, fsdp and tensor, for other machines than the run's

    def apply(self, config: RunConfig) -> RunConfig:
        """The config with these settings.

        Raises:
          ValueError: one that is not possible.
        """
        for name, least in {"history_length": 0, "max_steps": 1, "max_response_length": 1, "temperature": 0}.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"--{name.replace('_', '-')} is {value}, but has to be at least {least}")
        if self.env is not None and self.env != config.env:
            config = dataclasses.replace(config, env=self.env, env_options={}, data="")
        given = ("history_length", "max_steps", "max_response_length")
        limits = {name: getattr(self, name) for name in given if getattr(self, name) is not None}
        rollout = dataclasses.replace(config.rollout, **limits)
        if self.temperature is not None:
            sampling = dataclasses.replace(rollout.eval_sampling, temperature=self.temperature)
            rollout = dataclasses.replace(rollout, eval_sampling=sampling)
        return dataclasses.replace(
            config,
            env_options=config.env_options | self.env_options,
            data=config.data if self.data is None else self.data,
            rollout=rollout,
            mesh=config.mesh if self.mesh is None else MeshConfig(*self.mesh),
        )


@dataclasses.dataclass(frozen=True)
class Policy:
    """Something to evaluate, and what it is evaluated with."""

    name: str  # in the table and in folders' names
    config: RunConfig
    folder: Path  # where the results go unless told otherwise
    params: Any = None
    # For one pass over a panel, by the seed of its draws; None where the model of the parameters acts.
    act: Callable[[Panel, int], Act] | None = None
    endpoint: Endpoint | None = None


def config_of(name: str, config: str | None, settings: Settings) -> RunConfig:
    """What a policy is evaluated with.

    Args:
      name: of the policy.
      config: name of a config; None where the policy is a run, which has its own.
      settings: in place of what the config says.

    Raises:
      ValueError: no such config, a run with another, a model with none, or an environment or option that there is not.
    """
    is_run = _is_run(Path(name))
    if is_run and config is not None:
        raise ValueError(f"{name} is a run, which has its own config: leave out --config, override single settings")
    if _is_model(Path(name)) and config is None and settings.env is None:
        raise ValueError(f"{name} is a model, which has no environment of its own: name a config with --config")
    base = config_from_json(Path(name) / "config.json") if is_run else load_config(config or DEFAULT_CONFIG)
    base = settings.apply(base)
    environment_class(base.env, **base.env_settings)
    return base


@contextlib.contextmanager
def open_policy(
    name: str,
    config: RunConfig,
    *,
    which: Literal["best", "latest"] = "latest",
    tokenizer: str = "",
    endpoint: EndpointConfig = NO_ENDPOINT,
    output: Path | None = None,
) -> Iterator[Policy]:
    """The policy of a name, ready to act.

    Args:
      name: a run's folder, a Hugging Face folder or hub id, "expert", an expert's own name, "random" or "endpoint".
      config: from `config_of`.
      which: of a run's checkpoints.
      tokenizer: of a Hugging Face model, in place of its own.
      endpoint: of the policy "endpoint".
      output: folder for the results.

    Raises:
      ValueError: nothing of this name, or it cannot be loaded.
    """
    folder, experts = Path(name), environment_class(config.env).experts
    if _is_run(folder):
        yield _of_run(folder, config, which, output)
    elif name == ENDPOINT:
        where = output or _default_folder(endpoint.model, config)
        with _open_endpoint(endpoint, config, where) as server:
            yield Policy(endpoint.model, _with_stand_in(config), where, act=server.act, endpoint=server)
    elif name in (RANDOM, EXPERT, *experts):
        yield _scripted(experts[0] if name == EXPERT else name, config, output)
    elif _is_model(folder):
        yield _of_model(name, config, tokenizer, output)
    else:
        names = ", ".join(dict.fromkeys([ENDPOINT, RANDOM, EXPERT, *experts]))
        what = "is neither a run's folder (checkpoints, config.json) nor" if folder.is_dir() else "is no run, not"
        raise ValueError(
            f"no policy {name!r}: it {what} a Hugging Face model's folder or hub id (OWNER/NAME), and none of "
            f"{names} (experts of {config.env})"
        )


def _is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir()


def _is_model(folder: Path) -> bool:
    path = folder / "config.json"
    if path.is_file():
        return "model_type" in read_json(path)
    return is_hub_id(folder) and not folder.parent.is_dir()  # else a path in which something is misspelt


def _of_run(run: Path, config: RunConfig, which: Literal["best", "latest"], output: Path | None) -> Policy:
    copy = make_sampling_copy(config, mesh_for(config))
    return Policy(f"{run}, {which} checkpoint", config, output or run, copy(restore_params(config, run, which)))


def _of_model(name: str, config: RunConfig, tokenizer: str, output: Path | None) -> Policy:
    whole = dataclasses.replace(config.model, lora_rank=0)
    config = resolve(dataclasses.replace(config, init=name, tokenizer=tokenizer, model=whole))
    mesh = mesh_for(config)
    shardings = None if mesh is None else param_shardings(abstract_params(config.model), mesh)
    params = load_params(resolve_checkpoint(name), config.model, shardings)
    where = output or _default_folder(name, config)
    return Policy(name, config, where, make_sampling_copy(config, mesh)(params))


def _scripted(name: str, config: RunConfig, output: Path | None) -> Policy:
    def make(split: str) -> TextPolicy:
        if name == RANDOM:
            return random_policy(config.env, 0)  # draws by each request's key, which the pass's seed decides
        return expert_policy(config.env, name, split, **config.env_settings)

    def act(panel: Panel, seed: int) -> Act:
        del seed
        return scripted_act(make(panel.split), _STAND_IN)

    return Policy(name, _with_stand_in(config), output or _default_folder(name, config), act=act)


def _open_endpoint(server: EndpointConfig, config: RunConfig, where: Path) -> Endpoint:
    rollout = config.rollout
    return Endpoint(server, rollout.eval_sampling, rollout.max_response_length, _STAND_IN, where / "answers.jsonl")


def _with_stand_in(config: RunConfig) -> RunConfig:
    """Without the model's vocabulary and devices, and its limit on prompts, whose tokens are bytes here."""
    rollout = dataclasses.replace(config.rollout, max_prompt_length=NO_LIMIT, tensor=1)
    model = dataclasses.replace(config.model, vocab_size=_STAND_IN.vocab_size)
    return dataclasses.replace(config, model=model, rollout=rollout, mesh=MeshConfig())


def _default_folder(name: str, config: RunConfig) -> Path:
    env = config.env_name
    return Path("runs") / f"evaluate-{'-'.join(Path(name).parts[-2:]).strip('/')}-{env}"
