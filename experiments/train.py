"""Train a policy: roll out, take advantages, update, evaluate, checkpoint.

    python -m experiments.train                          the embedded default, experiments/configs/frozen_lake.py
    python -m experiments.train NAME --seed 1            another config; every field can be overridden
    python -m experiments.train --estimator gigpo        hgpo | hgpo_shrinkage | gigpo | grpo | rloo | reinforce | gae
    python -m experiments.train --estimator mine:pulled  the function `pulled` of mine.py: StepSignals -> advantages
    python -m experiments.train --recipe dapo            dapo | dr_grpo | gspo: sets fields that no other option sets
    python -m experiments.train --resume runs/NAME       go on from the last checkpoint
    python -m experiments.train NAME --processes.auto    on every host of a TPU slice, or in every task of Slurm

A run's folder holds config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, learning_curve.png and
groups.png.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from experiments.assembly import Learner, level_names, resolve
from experiments.configs import RunConfig, changed_fields, config_from_json, config_to_json, load_config
from experiments.console import (
    CONSOLE,
    count_compilations,
    progress_bar,
    resumed_run,
    stop_requests,
    summarise,
    tell_error,
)
from experiments.recipes import apply_recipe, take_recipe
from experiments.records import Records, draw_groups, draw_learning_curve, environment, replace_text
from experiments.rollout_files import save_rollouts
from experiments.rollouts import Rollouts
from experiments.warm_start import warm_start
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.processes import (
    ProcessesConfig,
    agree_max,
    gather,
    is_lead,
    process_number,
    require_alike,
    start_processes,
)
from hgpo_jax.watchdog import Watchdog, leave

PROFILED = 3  # the first iteration, counted from the start of the process, that compiles (almost) nothing


@dataclasses.dataclass(frozen=True)
class TrainCommand:
    """The command line: what to run, and what to keep of it."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    directory: Path | None = None  # of the run; runs/<estimator>-<env>-seed<seed> when left out
    resume: Path | None = None  # a run's folder, to go on from its last checkpoint
    dump_rollouts: bool = False  # write each iteration's batch to <directory>/rollouts, for experiments.replay
    profile: bool = False  # write a JAX trace of one warm iteration to <directory>/profile
    wandb: bool = False  # also log to Weights & Biases
    processes: ProcessesConfig = ProcessesConfig()


def train(command: TrainCommand) -> Path:
    """Trains as ``command.run`` says and returns the run's folder."""
    start_processes(command.processes)
    CONSOLE.quiet = not is_lead()
    # Signals from here on: once joined, jax would take SIGTERM for itself and the run would not hear of it.
    watchdog = Watchdog(command.processes.deadline, process_number())
    with stop_requests() as requests, watchdog, watchdog.failing_together():
        return _train(command, watchdog, requests)


def _train(command: TrainCommand, watchdog: Watchdog, requests: list[int]) -> Path:
    run, resume = resolve(command.run), command.resume
    started, compilations = time.perf_counter(), count_compilations()
    where = resume or command.directory or _default_directory(run)
    require_alike("configuration or directory", json.dumps([config_to_json(run), str(where), bool(resume)]))
    learner, rollouts = Learner(run), Rollouts(run)
    CONSOLE.print(f"{rollouts.about}. Held-out panel: {rollouts.panel}", soft_wrap=True, highlight=False)
    with Checkpoints(where / "checkpoints") as checkpoints:
        iteration, next_task = _begin(run, where, learner, rollouts, checkpoints, resume is not None)
        records = Records(where, iteration if resume else None, command.wandb, writes=is_lead())
        if not resume:
            watchdog.feed("evaluation", 0)
            row = records.add(0, rollouts.evaluation_row(learner.sampling_params()))
            _save(checkpoints, learner, run, row, next_task)
        first, stop = iteration, False
        with progress_bar(run, iteration) as show:
            while iteration < run.iterations and not stop:
                iteration += 1
                tracing = command.profile and is_lead() and iteration == min(first + PROFILED, run.iterations)
                with jax.profiler.trace(str(where / "profile")) if tracing else contextlib.nullcontext():
                    alive = functools.partial(watchdog.feed, "rollout", iteration)
                    alive()
                    batch, metrics, _ = rollouts.train(
                        learner.sampling_params(), next_task, learner.sampling_key(), alive
                    )
                    if run.reads_values:
                        batch = learner.with_values(batch)
                    if command.dump_rollouts:
                        save_rollouts(batch, where, iteration)
                    watchdog.feed("update", iteration)
                    row = {f"train/{k}": v for k, v in metrics.items()} | _update(learner, batch, iteration)
                next_task += int(metrics["episodes"]) // run.rollout.group_size  # dynamic sampling takes further tasks
                last = iteration == run.iterations
                if last or iteration % run.evaluation.every == 0:
                    watchdog.feed("evaluation", iteration)
                    row |= rollouts.evaluation_row(learner.sampling_params())
                row = records.add(iteration, row)
                show(row)
                watchdog.feed("checkpoint", iteration)
                stop = agree_max([len(requests)])[0] > 0  # whichever process was asked
                if last or stop or iteration % run.checkpoint_every == 0:
                    _save(checkpoints, learner, run, row, next_task)
    records.close()
    if is_lead():
        _finish(run, where, iteration, records, time.perf_counter() - started, len(compilations))
    agree_max([iteration])  # leave together: who comes to the exit first waits 20 s at most
    return where


def _finish(run: RunConfig, where: Path, iteration: int, records: Records, seconds: float, compiled: int) -> None:
    if iteration < run.iterations:
        CONSOLE.print(f"Stopped after iteration {iteration}; it is saved. Go on with:")
        CONSOLE.print(f"  python -m experiments.train --resume {where}", soft_wrap=True)
        return
    figure = where / "learning_curve.png"
    title = f"{run.estimator} on {run.env}, seed {run.seed}"
    draw_learning_curve(records.read(), title, figure)
    draw_groups(records.read(), level_names(run.estimator_config), title, where / "groups.png")
    summarise(run, records.read(), figure, seconds, compiled)


def _begin(
    run: RunConfig, where: Path, learner: Learner, rollouts: Rollouts, checkpoints: Checkpoints, resuming: bool
) -> tuple[int, int]:
    """Sets up the folder, or restores its last checkpoint; returns the iterations done and the next task."""
    if not resuming and checkpoints.iterations():
        raise ValueError(f"{where} already holds a run: go on with --resume {where}, or choose another --directory")
    if resuming:
        _tell_changes(config_from_json(where / "config.json"), run)
    # Each seed has a stream of tasks of its own.
    iteration, next_task = 0, run.seed * 1_000_000
    # A resumed run needs the start again only as the loss's reference.
    warming = run.warm_start.batches > 0 and not run.init  # a model that is loaded knows how to reply
    if warming and (not resuming or run.loss.kl_coef):
        losses = warm_start(learner, rollouts, next_task)
        CONSOLE.print(f"warm start on random valid replies: loss {losses[0]:.2f} -> {losses[-1]:.2f} nats a token")
    next_task += warming * run.warm_start.batches * run.rollout.tasks
    if resuming:
        learner.state, meta = checkpoints.restore(learner.state)
        iteration, next_task = checkpoints.iterations()[-1], meta["next_task"]
    if is_lead():
        replace_text(where / "config.json", json.dumps(config_to_json(run), indent=2))
        replace_text(where / "environment.json", json.dumps(environment(), indent=2))
    return iteration, next_task


def _tell_changes(saved: RunConfig, run: RunConfig) -> None:
    """A resumed run may go on with other settings, but not unnoticed; its seed is that of its start."""
    for name, (old, new) in changed_fields(saved, run).items():
        if name == "seed":
            raise ValueError(f"seed is {new}, but the run was started with {old}: leave --seed out, or start a new run")
        CONSOLE.print(f"resuming with {name} = {new} (was {old})", highlight=False)


def _update(learner: Learner, batch: Any, iteration: int) -> dict[str, Any]:
    start = time.perf_counter()
    metrics = learner.learn(batch, iteration)
    if metrics["signal_share"] == 0:
        lowest, highest, valid = gather([batch.reward.min(), batch.reward.max(), batch.action_valid.all()]).T
        returns_equal = lowest.min() == highest.max() and valid.all()
        why = "every return is the same" if returns_equal else "no two steps that share a group differ in return"
        CONSOLE.print(f"iteration {iteration}: no advantage in the whole batch ({why}); the update is skipped")
    return {k if "/" in k else f"update/{k}": v for k, v in metrics.items()} | {
        "update/seconds": time.perf_counter() - start
    }


def _save(checkpoints: Checkpoints, learner: Learner, run: RunConfig, row: dict[str, Any], next_task: int) -> None:
    success = {"success": row["eval/success"]} if "eval/success" in row else None
    meta = {"config": config_to_json(run), "next_task": next_task}
    checkpoints.save(row["iteration"], learner.state, meta, success)


def _default_directory(run: RunConfig) -> Path:
    return Path("runs") / f"{run.estimator_name}-{run.env_name}-seed{run.seed}"


def main(argv: list[str] | None = None) -> None:
    """The command line: an optional config name, then overrides."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if resume := resumed_run(args):
            base = config_from_json(Path(resume) / "config.json")
        else:
            named = bool(args) and not args[0].startswith("-")
            base = load_config(args.pop(0) if named else "frozen_lake")
        recipe, args = take_recipe(args)
        base = apply_recipe(base, recipe)
        train(tyro.cli(TrainCommand, args=args, default=TrainCommand(run=base), description=__doc__))
    except (ValueError, FloatingPointError, OSError) as error:
        tell_error(error)
        leave(2, process_number())


if __name__ == "__main__":
    main()
