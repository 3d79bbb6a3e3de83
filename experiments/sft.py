"""Teach a policy to act as an expert does: supervised fine-tuning on transcripts of its episodes.

    python -m experiments.sft                                 the default config's decoder learns from its expert
    python -m experiments.sft NAME --expert searcher --episodes 512 --epochs 3
    python -m experiments.sft NAME --init DIR_OR_HUB_ID       a model to start from; adapters and mesh as in train
    python -m experiments.sft --resume runs/NAME              after Ctrl-C or kill -9: ends with the same parameters
    python -m experiments.train NAME --init runs/NAME/model   reinforcement from there

The expert plays training tasks in the run's own environment and prompts; the policy learns its replies, token by token,
and of the prompts nothing unless --prompt-weight says so. A run's folder holds config.json, sft.json, environment.json,
expert.npz (the transcripts), metrics.jsonl (a row for each optimizer step), tensorboard/, checkpoints/, loss_curve.png
and model/, a Hugging Face folder. One process does it all; several devices share the work through --mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import pydantic
import tyro
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments import demonstrations
from experiments.assembly import resolve
from experiments.configs import (
    RunConfig,
    SFTConfig,
    changed_fields,
    config_from_json,
    config_to_json,
    load_config,
    load_sft_config,
)
from experiments.console import CONSOLE, resumed_run, stop_requests, tell_error
from experiments.export import export
from experiments.imitation import Imitation, num_minibatches
from experiments.records import Records, environment, replace_text
from experiments.rollouts import Rollouts
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.processes import ProcessesConfig
from hgpo_jax.types import Trajectories

# What a resumed run may change; anything else would make it another run.
_CHANGEABLE = ("evaluation.", "mesh.", "learner.rows_per_device", "epochs", "learning_rate")


@dataclasses.dataclass(frozen=True)
class SFTCommand:
    """The command line: what to train, and where."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    sft: Annotated[SFTConfig, tyro.conf.arg(name="")] = SFTConfig()
    directory: Path | None = None  # of the run; runs/sft-<env>-seed<seed> when left out
    resume: Path | None = None  # a run's folder, to go on from its last checkpoint
    processes: ProcessesConfig = ProcessesConfig()


def sft(command: SFTCommand) -> Path:
    """Trains as the command says, and returns the run's folder."""
    if command.processes.count > 1 or command.processes.auto:
        raise ValueError("sft runs in one process: leave --processes out; --mesh shares the work among its devices")
    run = resolve(command.run)
    where = command.resume or command.directory or _default_directory(run)
    _begin(run, command.sft, where, command.resume is not None)
    with stop_requests() as requests:
        finished = _train(run, command.sft, where, lambda: bool(requests))
    if finished:
        export(where, where / "model", overwrite=True)
        _conclude(run, where)
    else:
        CONSOLE.print("Stopped. Go on with:")
        CONSOLE.print(f"  python -m experiments.sft --resume {where}", soft_wrap=True)
    return where


def _begin(run: RunConfig, sft: SFTConfig, where: Path, resuming: bool) -> None:
    """Sets up the folder, or checks that it holds a run that goes on with these settings."""
    if resuming:
        _tell_changes(where, run, sft)
    elif any((where / name).exists() for name in ("expert.npz", "checkpoints")):
        raise ValueError(f"{where} already holds a run: go on with --resume {where}, or choose another --directory")
    else:
        where.mkdir(parents=True, exist_ok=True)
        _write_settings(run, sft, where)


def _write_settings(run: RunConfig, sft: SFTConfig, where: Path) -> None:
    for name, content in (("config", config_to_json(run)), ("sft", dataclasses.asdict(sft))):
        replace_text(where / f"{name}.json", json.dumps(content, indent=2))
    replace_text(where / "environment.json", json.dumps(environment(), indent=2))


def _tell_changes(where: Path, run: RunConfig, sft: SFTConfig) -> None:
    changes = changed_fields(config_from_json(where / "config.json"), run)
    old, new = dataclasses.asdict(_sft_from_json(where)), dataclasses.asdict(sft)
    changes |= {name: (old[name], new[name]) for name in old if old[name] != new[name]}
    for name, (before, after) in changes.items():
        if not name.startswith(_CHANGEABLE):
            raise ValueError(
                f"{name} is {after!r}, but the run was started with {before!r}: leave it out, or start a new run"
            )
        CONSOLE.print(f"resuming with {name} = {after} (was {before})", highlight=False)


def _train(run: RunConfig, sft: SFTConfig, where: Path, stopped: Callable[[], bool]) -> bool:
    """Plays, trains, evaluates; True if nothing is left to do."""
    if sft.minibatch_steps is not None:
        learner = dataclasses.replace(run.learner, minibatch_steps=sft.minibatch_steps)
        run = dataclasses.replace(run, learner=learner)
    # The expert plays each task once, and evaluation does not mind.
    alone = dataclasses.replace(run.rollout, tasks=run.rollout.tasks * run.rollout.group_size, group_size=1)
    rollouts = Rollouts(dataclasses.replace(run, rollout=alone))
    CONSOLE.print(f"{rollouts.about}. Held-out panel: {rollouts.panel}", soft_wrap=True, highlight=False)
    played = _transcripts(rollouts, sft, where / "expert.npz", stopped)
    if played is None:
        return False
    batch, held_out = demonstrations.split_off(played, sft.held_out)
    per_epoch = num_minibatches(batch, run)
    total = per_epoch * sft.epochs
    with Checkpoints(where / "checkpoints") as checkpoints:
        imitation = Imitation(run, sft.learning_rate, total, held_out, sft.prompt_weight)
        step = _restore(checkpoints, imitation)
        if step > total:
            raise ValueError(f"epochs is {sft.epochs}, but this run has done {step / per_epoch:.1f}: raise it")
        _write_settings(run, sft, where)  # of a resumed run only now: what is refused is not to be remembered
        records = Records(where, step or None)

        def evaluate() -> dict[str, Any]:
            return rollouts.evaluation_row(imitation.learner.sampling_params())

        if step == total:
            records = _with_evaluation(records, where, step, evaluate)
        if not step:
            records.add(0, {"expert/episodes": sft.episodes, "expert/kept": _episodes(played)} | imitation.held_out())
        with _progress_bar("sft", total, step) as show:
            for minibatch in itertools.islice(imitation.minibatches(batch, step), total - step):
                row = imitation.learn(minibatch, step + 1) | {"epoch": (step + 1) / per_epoch}
                step += 1
                if ends_epoch := step % per_epoch == 0:
                    row |= imitation.held_out()
                if step == total:
                    row |= evaluate()
                row = records.add(step, row)
                show(step, _told(row))
                if ends_epoch or stopped():
                    success = {"success": row["eval/success"]} if "eval/success" in row else None
                    checkpoints.save(step, imitation.learner.state, {"config": config_to_json(run)}, success)
                if stopped():
                    break
        records.close()
    _draw_loss_curve(records.read(), per_epoch, f"{run.env}, seed {run.seed}", where / "loss_curve.png")
    return step == total


def _restore(checkpoints: Checkpoints, imitation: Imitation) -> int:
    """Takes up the last checkpoint, if there is one; returns the steps done."""
    if not (saved := checkpoints.iterations()):
        return 0
    imitation.learner.state, _ = checkpoints.restore(imitation.learner.state)
    return saved[-1]


def _transcripts(rollouts: Rollouts, sft: SFTConfig, path: Path, stopped: Callable[[], bool]) -> Trajectories | None:
    """The expert's episodes, from the disk if they are there: what is trained on is always what was stored."""
    if not path.exists():
        player = rollouts if sft.max_steps is None else _with_steps(rollouts, sft.max_steps)
        with _progress_bar("expert", sft.episodes, 0) as show:
            played = demonstrations.play(player, sft, show, stopped)
        if played is None:
            return None
        demonstrations.save(played, path)
    played = Trajectories.load(path)
    CONSOLE.print(f"expert: {_episodes(played)} of {sft.episodes} episodes kept, {played.num_steps} steps")
    limit = rollouts.config.rollout.max_prompt_length
    if full := sum(len(prompt) == limit for prompt in played.prompt_tokens):
        CONSOLE.print(f"{full} prompts fill rollout.max_prompt_length ({limit}): longer ones are cut from the left")
    return played


def _with_steps(rollouts: Rollouts, max_steps: int) -> Rollouts:
    config = rollouts.config
    return Rollouts(dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, max_steps=max_steps)))


def _episodes(batch: Trajectories) -> int:
    return len(np.unique(batch.trajectory))


def _with_evaluation(records: Records, where: Path, step: int, evaluate: Callable[[], dict[str, Any]]) -> Records:
    """The records of a run that is over, evaluated if it was not: its epochs may have been lowered to those done."""
    last = (records.read() or [{}])[-1]
    if "eval/success" in last:
        return records
    records.close()
    records = Records(where, step - 1)
    records.add(step, last | evaluate())
    return records


def _told(row: dict[str, Any]) -> str:
    names = {"train/loss": "loss", "held_out/loss": "held out", "held_out/token_accuracy": "tokens right"}
    return ", ".join(f"{text} {row[name]:.3f}" for name, text in names.items() if name in row)


@contextlib.contextmanager
def _progress_bar(name: str, total: int, done: int) -> Iterator[Callable[..., None]]:
    columns = (TextColumn(f"[bold]{name}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=CONSOLE) as progress:
        bar = progress.add_task("", total=total, completed=done, text="")

        def show(done: int, text: str = "") -> None:
            progress.update(bar, completed=done, text=text)
            if "held out" in text and not CONSOLE.is_terminal:  # a log file gets a line an epoch
                CONSOLE.print(f"step {done} of {total}: {text}", highlight=False)

        yield show


def _draw_loss_curve(rows: list[dict[str, Any]], per_epoch: int, title: str, path: Path) -> None:
    """Loss on training and held-out replies, and the share of tokens predicted right, over epochs."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(7, 4), layout="constrained")
    losses = figure.subplots()
    shares = losses.twinx()
    curves = (
        (losses, "train/loss", "training (loss)", "tab:blue", "-", None),
        (losses, "held_out/loss", "held out (loss)", "tab:orange", "-", "o"),
        (shares, "held_out/token_accuracy", "held out (tokens right)", "tab:green", ":", "o"),
        (shares, "held_out/reply_accuracy", "held out (replies right)", "tab:gray", ":", "o"),
    )
    for axes, name, label, colour, style, marker in curves:
        points = [(row["iteration"] / per_epoch, row[name]) for row in rows if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, color=colour, linestyle=style, marker=marker)
    losses.set(xlabel="epoch", ylabel="loss (nats a token)", ylim=(0, None), title=title)
    shares.set(ylabel="share", ylim=(0, 1.02))
    losses.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)


def _conclude(run: RunConfig, where: Path) -> None:
    row = Records(where, writes=False).read()[-1]
    CONSOLE.print(
        f"held-out tasks: success {row['eval/success']:.3f} on panel {row['eval/panel']}, replies drawn with seed "
        f"{run.evaluation.seed}. Figure: {where / 'loss_curve.png'}",
        soft_wrap=True,
        highlight=False,
    )
    CONSOLE.print(f"Go on with: python -m experiments.train NAME --init {where / 'model'}", soft_wrap=True)


def _sft_from_json(where: Path) -> SFTConfig:
    path = where / "sft.json"
    if not path.exists():
        raise ValueError(f"{path} is missing: name the folder of a run that sft.py has made")
    try:
        return pydantic.TypeAdapter(SFTConfig).validate_json(path.read_text(), extra="forbid")
    except pydantic.ValidationError as error:
        raise ValueError(f"{path} does not hold the settings of this version's sft.py: {error}") from error


def _default_directory(run: RunConfig) -> Path:
    return Path("runs") / f"sft-{run.env_name}-seed{run.seed}"


def main(argv: list[str] | None = None) -> None:
    """The command line: an optional config name, then overrides."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if resume := resumed_run(args):
            default = SFTCommand(config_from_json(Path(resume) / "config.json"), _sft_from_json(Path(resume)))
        else:
            name = args.pop(0) if args and not args[0].startswith("-") else "frozen_lake"
            default = SFTCommand(load_config(name), load_sft_config(name))
        sft(tyro.cli(SFTCommand, args=args, default=default, description=__doc__))
    except (ValueError, FloatingPointError, OSError) as error:
        tell_error(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
