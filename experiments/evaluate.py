"""Evaluate any policy on fixed panels of tasks, over several seeds of the replies' draws.

    python -m experiments.evaluate runs/NAME                       a run's checkpoint, with its own config
    python -m experiments.evaluate DIR --config NAME               a Hugging Face folder, or a hub id (OWNER/NAME)
    python -m experiments.evaluate expert                          the environment's best expert; or one by its name
    python -m experiments.evaluate random                          valid actions by lot
    python -m experiments.evaluate endpoint --base-url URL --model M   any server that speaks OpenAI's chat completions

Prints success for each split and type of task, mean ± standard deviation over seeds in per cent, and the panels. The
figures of every seed and episode go to evaluation.json, in the run's folder or in --output (else runs/evaluate-..).
What an endpoint answers is kept in answers.jsonl there: the same command goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import chex
import tyro

from envs.core import Panel, environment_class, make_panel
from experiments.configs import RunConfig
from experiments.console import CONSOLE, run_command
from experiments.endpoint import BudgetSpent, EndpointConfig
from experiments.evaluation_report import Pass, describe_endpoint, further_table, splits_to_json, success_table
from experiments.policies import Policy, Settings, config_of, open_policy
from experiments.records import environment, replace_text
from experiments.render import annotate, render_html
from experiments.rollouts import Rollouts
from experiments.transcripts import Episode, Log, episodes_of, recorded, write_transcripts
from hgpo_jax.config import SamplingConfig
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import Act, Reply, Request, Rollout, make_actor

MOST_ENVIRONMENTS = 512  # side by side, where no model's memory limits them
LARGEST_SEED = 2**31 - 1
IN_TOKENS = ("response_length", "tokens", "tokens_per_second", "prompt_cut_share", "response_cut_share")


@dataclasses.dataclass(frozen=True)
class EvaluateCommand:
    """What is evaluated, and how."""

    # A run's folder, a Hugging Face folder or hub id, "expert", an expert's own name, "random" or "endpoint".
    policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY")]
    config: str | None = None  # environment and settings, by a config's name (frozen_lake unless given); runs have own
    which: Literal["best", "latest"] = "latest"  # checkpoint of a run; best on its own panel, so its figure flatters
    tokenizer: str = ""  # of a Hugging Face model, in place of its own: a name, file or folder
    splits: tuple[str, ...] = ()  # of the environment; all that are held out unless given
    tasks: int | None = None  # size of each panel; 0: every task of the split once; the config's unless given
    panel_seed: int | None = None  # of the choice of tasks; the config's unless given
    seeds: tuple[int, ...] = (123, 456, 789)  # of the draws: one pass over the panel each
    group_size: int = 1  # episodes of each task in a pass
    output: Path | None = None  # folder of the results
    transcripts: bool = False  # write transcripts.jsonl, an episode a line; of endpoints always
    render: Path | None = None  # an HTML page of the first seed's episodes
    settings: Settings = Settings()
    endpoint: EndpointConfig = EndpointConfig()

    def check(self) -> None:
        """Raises a ValueError for what is not possible."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"--seeds needs at least one seed, each once, got {self.seeds}")
        if not 0 <= min(self.seeds) <= max(self.seeds) <= LARGEST_SEED:
            raise ValueError(f"--seeds are {self.seeds}, but have to lie between 0 and {LARGEST_SEED}")
        if self.group_size < 1:
            raise ValueError(f"--group-size is {self.group_size}, but has to be at least 1")


def evaluate(command: EvaluateCommand) -> dict[str, Any]:
    """Evaluates as the command says; returns what it writes to evaluation.json.

    Raises:
      ValueError: no such policy, config, split or expert, or an endpoint that does not answer.
    """
    command.check()
    config = config_of(command.policy, command.config, command.settings)
    panels = make_panels(command, config)
    policy = open_policy(
        command.policy,
        config,
        which=command.which,
        tokenizer=command.tokenizer,
        endpoint=command.endpoint,
        output=command.output,
    )
    with policy as opened:
        return _evaluate(command, opened, panels)


def make_panels(command: EvaluateCommand, config: RunConfig) -> list[Panel]:
    """The tasks of each split asked for.

    Raises:
      ValueError: no such split, or a size or seed that is not possible.
    """
    splits = dict.fromkeys(command.splits or environment_class(config.env).splits[1:])
    tasks = config.evaluation.tasks if command.tasks is None else command.tasks
    seed = config.evaluation.panel_seed if command.panel_seed is None else command.panel_seed
    return [make_panel(config.env, split, tasks, seed, **config.env_settings) for split in splits]


def _evaluate(command: EvaluateCommand, policy: Policy, panels: Sequence[Panel]) -> dict[str, Any]:
    for folder in (policy.folder, *([command.render.parent] if command.render else [])):
        folder.mkdir(parents=True, exist_ok=True)
    player = _Player(command, policy, max(len(panel.tasks) for panel in panels))
    passes, spent = [], False
    try:
        for panel, seed in itertools.product(panels, command.seeds):
            passes.append(player.play(panel, seed))
    except BudgetSpent:
        spent = True
    record = _record(command, policy, passes, complete=not spent)
    replace_text(policy.folder / "evaluation.json", json.dumps(record, indent=2))
    if player.recording:
        write_transcripts(policy.folder / "transcripts.jsonl", player.episodes)
    if command.render is not None:
        render_html(policy.name, [e for e in player.episodes if e.seed == command.seeds[0]], command.render)
        _tell(f"Page: {command.render}")
    _show(policy, passes)
    if spent:
        _tell(
            f"Stopped, for the budget of {command.endpoint.budget_calls} answered calls is spent; "
            f"{len(passes)} of {len(panels) * len(command.seeds)} passes are whole. The answers are kept: the same "
            "command with a larger --budget-calls goes on"
        )
    return record


class _Player:
    """Plays passes over panels, and notes what is said where that is wanted."""

    def __init__(self, command: EvaluateCommand, policy: Policy, tasks: int):
        self.command, self.policy = command, policy
        self.recording = command.transcripts or policy.endpoint is not None
        self.episodes: list[Episode] = []
        config = policy.config
        if policy.act is None:
            self._rollouts = Rollouts(config)
            self._act = make_actor(config.model, self._rollouts.tokenizer, config.rollout)
        else:
            side_by_side = min(tasks * command.group_size, MOST_ENVIRONMENTS)
            wide = dataclasses.replace(config.rollout, tasks=side_by_side, group_size=1)
            self._rollouts = Rollouts(dataclasses.replace(config, rollout=wide), ByteTokenizer())
        _tell(self._rollouts.about)

    def play(self, panel: Panel, seed: int) -> Pass:
        """One pass over a panel."""
        policy, log = self.policy, Log()
        act = self._act if policy.act is None else policy.act(panel, seed)
        noting = self.recording or self.command.render is not None
        if noting:
            act = recorded(act, self._rollouts.tokenizer, log)
        with CONSOLE.status(f"{panel}, seed {seed}") as status:
            act = _shown(act, lambda turn, left: status.update(f"{panel}, seed {seed}: turn {turn}, {left} episodes"))
            rollout = self._rollouts.evaluate(
                policy.params, panel=panel, seed=seed, act=act, group_size=self.command.group_size
            )
        metrics = _metrics(policy, panel, seed, rollout)
        _tell(f"{panel}, seed {seed}: success {metrics['success']:.1%} of {metrics['episodes']:.0f} episodes")
        if noting:
            self._note(rollout, log, panel, seed)
        return Pass(panel, seed, metrics, rollout.outcomes)

    def _note(self, rollout: Rollout, log: Log, panel: Panel, seed: int) -> None:
        episodes = episodes_of(rollout, log, panel.split, seed)
        if self.command.render is not None:
            episodes = annotate(self.policy.config, rollout.batch, episodes)
        self.episodes += episodes


def _shown(act: Act, show: Callable[[int, int], None]) -> Act:
    def wrapped(params: chex.ArrayTree, requests: Sequence[Request], sampling: SamplingConfig) -> list[Reply]:
        show(requests[0].turn, len(requests))
        return act(params, requests, sampling)

    return wrapped


def _metrics(policy: Policy, panel: Panel, seed: int, rollout: Rollout) -> dict[str, float]:
    """Those of the rollout, as far as they mean something: a stand-in's tokens are bytes."""
    if policy.act is None:
        return rollout.metrics
    metrics = {name: value for name, value in rollout.metrics.items() if name not in IN_TOKENS}
    if policy.endpoint is not None:
        metrics |= policy.endpoint.metrics(panel, seed) | {"response_cut_share": rollout.metrics["response_cut_share"]}
        if metrics["endpoint/completion_tokens"]:
            metrics["response_length"] = metrics["endpoint/completion_tokens"] / metrics["endpoint/answers"]
    return metrics


def _record(command: EvaluateCommand, policy: Policy, passes: Sequence[Pass], complete: bool) -> dict[str, Any]:
    config = policy.config
    return {
        "policy": policy.name,
        "complete": complete,
        "command": json.loads(json.dumps(dataclasses.asdict(command), default=str)),
        "env": config.env,
        "env_options": config.env_settings,
        "rollout": {
            name: getattr(config.rollout, name) for name in ("history_length", "max_steps", "max_response_length")
        },
        "sampling": dataclasses.asdict(config.rollout.eval_sampling),
        "splits": splits_to_json(passes),
        "endpoint": None if policy.endpoint is None else policy.endpoint.summary(),
        "environment": environment(),
    }


def _show(policy: Policy, passes: Sequence[Pass]) -> None:
    if passes:
        _tell(f"{policy.name}: success in per cent, mean and standard deviation over the seeds")
        CONSOLE.print(success_table(passes, environment_class(policy.config.env).task_types))
        CONSOLE.print(further_table(passes))
    for panel in dict.fromkeys(one.panel for one in passes):
        seeds = " ".join(str(one.seed) for one in passes if one.panel == panel)
        _tell(f"panel {panel}: {len(panel.tasks)} tasks, seeds {seeds}")
    if policy.endpoint is not None:
        _tell(describe_endpoint(policy.endpoint.summary()))
    _tell(f"Written to {policy.folder / 'evaluation.json'}")


def _tell(line: str) -> None:
    CONSOLE.print(line, soft_wrap=True, highlight=False, markup=False)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    try:
        run_command(_command, argv, __doc__)
    except KeyboardInterrupt:
        _tell("Stopped. What an endpoint has answered is kept: the same command goes on")
        sys.exit(130)


def _command(command: Annotated[EvaluateCommand, tyro.conf.OmitArgPrefixes]) -> None:
    evaluate(command)


if __name__ == "__main__":
    main()
