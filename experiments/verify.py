"""Check this code against recordings of other programs: ``python -m experiments.verify advantages DIR``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from experiments import replay_advantages


def advantages(directory: Annotated[Path, tyro.conf.Positional]) -> int:
    """Replay every recorded batch (.npz) and compare each output, the returns included, within 2e-5.

    Fails above 2e-5 (absolute or relative), when nothing was compared, when an output's name is unknown, and
    when a file is damaged.

    Args:
      directory: holds the recordings, with the keys ``state, group, trajectory, reward, action_valid, gamma,
        discounted_return, step_return`` and outputs such as ``hgpo/K=2/alpha=1.0/mean_std_norm/base=False``.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    reports = replay_advantages.replay_directory(directory)
    table = Table("file", "steps", "outputs compared", "worst difference", "result")
    for report in reports:
        verdict = "FAILED" if report.problems else "ok"
        table.add_row(report.name, str(report.steps), str(report.outputs), f"{report.worst:.2e}", verdict)
    console.print(table)
    for report in reports:
        for line in report.problems:
            console.print(f"{report.name}: FAILED: {line}")
        for line in report.notes:
            console.print(f"{report.name}: {line}")
    compared = sum(report.outputs for report in reports)
    if not compared:
        console.print(f"FAILED: nothing was compared: no recorded output in a .npz file in {directory}")
    return int(not compared or any(report.problems for report in reports))


def main(args: list[str] | None = None) -> int:
    """Run the subcommand named on the command line; a new check is one more function here."""
    return tyro.extras.subcommand_cli_from_dict({"advantages": advantages}, args=args, description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
