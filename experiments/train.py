"""Train a policy: roll out, take advantages, update, evaluate, checkpoint.

    python -m experiments.train                          the embedded default, experiments/configs/frozen_lake.py
    python -m experiments.train NAME --seed 1            another config; every field can be overridden
    python -m experiments.train --estimator gigpo        hgpo | gigpo | grpo | rloo | reinforce
    python -m experiments.train --resume runs/NAME       go on from the last checkpoint

A run's folder holds config.json, environment.json, metrics.jsonl, tensorboard/, checkpoints/, learning_curve.png.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.monitoring
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments.assembly import Learner, Rollouts
from experiments.configs import RunConfig, config_from_json, config_to_json, load_config
from experiments.records import Records, draw_learning_curve, environment
from hgpo_jax.learner.checkpoint import Checkpoints

CONSOLE = Console()
PROFILED = 3  # the first iteration, counted from the start of the process, that compiles (almost) nothing


def train(
    run: Annotated[RunConfig, tyro.conf.arg(name="")],
    directory: Path | None = None,
    resume: Path | None = None,
    dump_rollouts: bool = False,
    profile: bool = False,
    wandb: bool = False,
) -> Path:
    """Trains as ``run`` says and returns the run's folder.

    Args:
      run: the experiment.
      directory: of the run; runs/<estimator>-<env>-seed<seed> when left out.
      resume: a run's folder, to go on from its last checkpoint.
      dump_rollouts: write each iteration's batch to <directory>/rollouts, for experiments.replay.
      profile: write a JAX trace of one warm iteration to <directory>/profile.
      wandb: also log to Weights & Biases.
    """
    started, compilations = time.perf_counter(), _count_compilations()
    where = resume or directory or _default_directory(run)
    learner, rollouts = Learner(run), Rollouts(run)
    with Checkpoints(where / "checkpoints") as checkpoints, _stop_requests() as stop:
        iteration, next_task = _begin(run, where, learner, checkpoints, resume is not None)
        records = Records(where, iteration if resume else None, wandb)
        if not resume:
            records.add(0, _evaluation(rollouts, learner, run.evaluation.final_tasks))
        first = iteration
        with _progress(run, iteration) as show:
            while iteration < run.iterations and not stop:
                iteration += 1
                tracing = profile and iteration == min(first + PROFILED, run.iterations)
                with jax.profiler.trace(str(where / "profile")) if tracing else contextlib.nullcontext():
                    batch, metrics = rollouts.train(
                        learner.state.params, next_task, jax.random.fold_in(learner.state.key, 0)
                    )
                    if dump_rollouts:
                        batch.save(where / "rollouts" / f"{iteration:05d}.npz")
                    row = {f"train/{k}": v for k, v in metrics.items()} | _update(learner, batch, iteration)
                next_task += run.rollout.tasks
                last = iteration == run.iterations
                if last or iteration % run.evaluation.every == 0:
                    count = run.evaluation.final_tasks if last else run.evaluation.tasks
                    row |= _evaluation(rollouts, learner, count)
                show(records.add(iteration, row))
                if last or stop or iteration % run.checkpoint_every == 0:
                    success = {"success": row["eval/success"]} if "eval/success" in row else None
                    meta = {"config": config_to_json(run), "next_task": next_task}
                    checkpoints.save(iteration, learner.state, meta, success)
    records.close()
    if iteration < run.iterations:
        CONSOLE.print(f"Stopped after iteration {iteration}; it is saved. Go on with:")
        CONSOLE.print(f"  python -m experiments.train --resume {where}", soft_wrap=True)
        return where
    _summarise(run, records.read(), where, time.perf_counter() - started, len(compilations))
    return where


def _begin(
    run: RunConfig, where: Path, learner: Learner, checkpoints: Checkpoints, resuming: bool
) -> tuple[int, int]:
    """Sets up the folder, or restores its last checkpoint; returns the iterations done and the next task."""
    if resuming:
        learner.state, meta = checkpoints.restore(learner.state)
        return checkpoints.iterations()[-1], meta["next_task"]
    if checkpoints.iterations():
        raise ValueError(
            f"{where} already holds a run: go on with --resume {where}, or choose another --directory"
        )
    (where / "config.json").write_text(json.dumps(config_to_json(run), indent=2))
    (where / "environment.json").write_text(json.dumps(environment(), indent=2))
    # Each seed has a stream of tasks of its own.
    return 0, run.seed * 1_000_000


def _update(learner: Learner, batch: Any, iteration: int) -> dict[str, Any]:
    start = time.perf_counter()
    metrics = learner.learn(batch, iteration)
    if metrics["signal_share"] == 0:
        returns_equal = len(set(batch.reward.tolist())) == 1 and batch.action_valid.all()
        why = (
            "every return is the same"
            if returns_equal
            else "no two steps that share a group differ in return"
        )
        CONSOLE.print(
            f"iteration {iteration}: no advantage in the whole batch ({why}); the update is skipped"
        )
    # Per-step arrays stay out of the log: baselines [L, N] are for the laboratory.
    small = {k: v for k, v in metrics.items() if getattr(v, "ndim", 0) < 2}
    return {k if "/" in k else f"update/{k}": v for k, v in small.items()} | {
        "update/seconds": time.perf_counter() - start
    }


def _evaluation(rollouts: Rollouts, learner: Learner, num_tasks: int) -> dict[str, Any]:
    _, metrics = rollouts.evaluate(learner.state.params, num_tasks)
    return {f"eval/{k}": v for k, v in metrics.items()}


def _default_directory(run: RunConfig) -> Path:
    env = run.env.split("/")[-1].split("-")[0]
    return Path("runs") / f"{run.estimator}-{env}-seed{run.seed}"


def _count_compilations() -> list[float]:
    """A list that grows with each program compiled: its length is the count."""
    seconds: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


@contextlib.contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that Ctrl-C or SIGTERM fills: the iteration under way is finished and saved. Twice ends at once."""
    requests: list[int] = []

    def request(number: int, _: Any) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)
        CONSOLE.print("Stopping after this iteration; once more stops at once.")

    old = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _progress(run: RunConfig, done: int) -> Iterator[Any]:
    columns = (
        TextColumn("[bold]" + run.estimator),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("success {task.fields[success]:.2f}  held out {task.fields[held_out]}"),
    )
    with Progress(*columns, console=CONSOLE) as progress:
        bar = progress.add_task("", total=run.iterations, completed=done, success=0.0, held_out="-")

        def show(row: dict[str, Any]) -> None:
            held_out = {"held_out": f"{row['eval/success']:.2f}"} if "eval/success" in row else {}
            progress.update(bar, completed=row["iteration"], success=row["train/success"], **held_out)
            if not CONSOLE.is_terminal and held_out:  # a log file gets a line instead of a moving bar
                CONSOLE.print(f"iteration {row['iteration']}: success {row['train/success']:.2f}, {held_out}")

        yield show


def _summarise(
    run: RunConfig, rows: list[dict[str, Any]], where: Path, seconds: float, compiled: int
) -> None:
    figure = where / "learning_curve.png"
    draw_learning_curve(rows, f"{run.estimator} on {run.env}, seed {run.seed}", figure)
    table = Table(title=f"{run.estimator}, {run.iterations} iterations")
    table.add_column("held-out tasks")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name in ("success", "valid_action_share", "episode_length", "response_length"):
        first, last = rows[0][f"eval/{name}"], rows[-1][f"eval/{name}"]
        table.add_row(name.replace("_", " "), f"{first:.3f}", f"{last:.3f}")
    CONSOLE.print(table)
    CONSOLE.print(
        f"{seconds:.0f} s in this process, {compiled} programs compiled. Figure: {figure}", soft_wrap=True
    )


def main(argv: list[str] | None = None) -> None:
    """The command line: an optional config name, then overrides."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if "--resume" in args[:-1]:
            base = config_from_json(Path(args[args.index("--resume") + 1]) / "config.json")
        else:
            named = bool(args) and not args[0].startswith("-")
            base = load_config(args.pop(0) if named else "frozen_lake")
        _cli(base, args)
    except (ValueError, FloatingPointError) as error:
        CONSOLE.print(f"[red]error:[/red] {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _cli(base: RunConfig, args: list[str]) -> None:
    def command(
        run: Annotated[RunConfig, tyro.conf.arg(name="")] = base,
        directory: Path | None = None,
        resume: Path | None = None,
        dump_rollouts: bool = False,
        profile: bool = False,
        wandb: bool = False,
    ) -> Path:
        return train(run, directory, resume, dump_rollouts, profile, wandb)

    command.__doc__ = train.__doc__
    tyro.cli(command, args=args, description=__doc__)


if __name__ == "__main__":
    main()
