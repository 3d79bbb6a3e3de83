"""What a run shows on the terminal, and how it hears that it should stop."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.monitoring
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments.configs import RunConfig

CONSOLE = Console()


def run_command(function: Callable[..., Any], argv: list[str] | None, description: str | None) -> None:
    """The function as a command line; an error that the user can mend ends it with one line and exit status 2."""
    try:
        tyro.cli(function, args=argv, description=description)
    except (ValueError, FloatingPointError, OSError) as error:
        tell_error(error)
        sys.exit(2)


def summary(docstring: str | None) -> str:
    """What --help says of a file that holds its results as well: its title and its commands."""
    return "\n\n".join([*(docstring or "").split("\n\n")[:2], "Results and verdict stand in the file."])


def tell_error(error: Exception) -> None:
    """One line, with whatever stands in brackets."""
    CONSOLE.quiet = False
    CONSOLE.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True, highlight=False)


def resumed_run(args: list[str]) -> str | None:
    """What follows --resume, or its equals sign: the run's own config has to be known before the rest is read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--resume", nargs="?")
    return parser.parse_known_args(args)[0].resume


def count_compilations() -> list[float]:
    """A list that grows with each program compiled: its length is the count."""
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
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


def counting_progress() -> Progress:
    """A bar with a description, how many of all are done, and the time since it began."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=CONSOLE
    )


@contextlib.contextmanager
def progress_bar(run: RunConfig, done: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that moves the bar on by one iteration's record."""
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
            progress.update(bar, completed=row["iteration"], success=row["train/success"])
            if "eval/success" in row:
                progress.update(bar, held_out=f"{row['eval/success']:.2f}")
                if not CONSOLE.is_terminal:  # a log file gets lines instead of a moving bar
                    CONSOLE.print(
                        f"iteration {row['iteration']}: success {row['train/success']:.2f}, "
                        f"held out {row['eval/success']:.2f}"
                    )

        yield show


def summarise(run: RunConfig, rows: list[dict[str, Any]], figure: Path, seconds: float, compiled: int) -> None:
    """The table at the end: the held-out panel before and after."""
    table = Table(title=f"{run.estimator}, {run.iterations} iterations")
    table.add_column("held-out tasks")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name in ("success", "valid_action_share", "episode_length", "response_length"):
        first, last = rows[0][f"eval/{name}"], rows[-1][f"eval/{name}"]
        table.add_row(name.replace("_", " "), f"{first:.3f}", f"{last:.3f}")
    CONSOLE.print(table)
    CONSOLE.print(f"{seconds:.0f} s in this process, {compiled} programs compiled. Figure: {figure}", soft_wrap=True)
