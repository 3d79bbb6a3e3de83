"""Check this code against recordings of other programs.

python -m experiments.verify advantages DIR
python -m experiments.verify checkpoint DIR
python -m experiments.verify alfworld FILE.jsonl
python -m experiments.verify webshop DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments import replay_advantages, replay_alfworld, replay_checkpoint, replay_webshop

SHOWN = 5  # problems of an ALFWorld recording; each may be long
CONTEXT = 60  # characters shown of a text on both sides of its first difference


def advantages(directory: Annotated[Path, tyro.conf.Positional]) -> int:
    """Replay every recorded batch (.npz) and compare each output, the returns included, within 2e-5.

    Fails above 2e-5 (absolute or relative), when nothing was compared, when an output's name is unknown, and
    when a file is damaged.

    Args:
      directory: holds the recordings, with the keys ``state, group, trajectory, reward, action_valid, gamma,
        discounted_return, step_return`` and outputs such as ``hgpo/K=2/alpha=1.0/mean_std_norm/base=False``.
    """
    console = _console()
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


def checkpoint(directory: Annotated[Path, tyro.conf.Positional]) -> int:
    """Load a Hugging Face checkpoint in float32; compare its logits within 1e-4, and greedy replies token by token.

    Fails when a logit is off by more, a greedy token differs, or nothing can be compared.

    Args:
      directory: a model folder with an ``expected.npz`` of ``ids{i}`` [P], ``logits{i}`` [P, V] and ``greedy{i}``
        [R] for i = 0, 1, ..: prompts, their logits and greedy replies, as another program gave them.
    """
    console = _console()
    try:
        replayed = replay_checkpoint.replay(directory)
    except ValueError as error:
        console.print(f"FAILED: {error}")
        return 1
    table = Table("prompt", "tokens", "worst logit difference", "greedy tokens matched", "result")
    for i, prompt in enumerate(replayed):
        matched, verdict = f"{prompt.matched} of {prompt.greedy}", "ok" if prompt.ok else "FAILED"
        table.add_row(str(i), str(prompt.tokens), f"{prompt.worst:.2e}", matched, verdict)
    console.print(table)
    worst = np.max([prompt.worst for prompt in replayed])  # keeps a NaN
    matched, of = sum(prompt.matched for prompt in replayed), sum(prompt.greedy for prompt in replayed)
    failed = not all(prompt.ok for prompt in replayed)
    verdict = "FAILED: " if failed else ""
    console.print(f"{verdict}worst logit difference {worst:.2e}, {matched} of {of} greedy tokens matched")
    return int(failed)


def alfworld(file: Annotated[Path, tyro.conf.Positional]) -> int:
    """Replay recorded ALFWorld games; compare observation, admissible commands, reward and end at each step.

    Fails at any difference, when a line is damaged, and when there is nothing to compare.

    Args:
      file: one JSON object a line for each game, with the keys ``task_type, pddl_problem, task_description, reset,
        steps``, as in ``tests/golden/alfworld``.
    """
    console = _console()
    report = replay_alfworld.replay(file)
    for line in report.problems[:SHOWN]:
        console.print(f"FAILED: {line}")
    if len(report.problems) > SHOWN:
        console.print(f"and {len(report.problems) - SHOWN} more")
    if not report.steps:
        console.print(f"FAILED: nothing was compared: no recorded game in {file}")
    console.print(f"{report.matched} of {report.steps} steps matched, resets included (games: {report.games})")
    return int(bool(report.problems) or not report.steps)


def webshop(directory: Annotated[Path, tyro.conf.Positional], show: bool = False) -> int:
    """Replay recorded WebShop sessions and searches; compare each step, goal, hidden price, hit and score (1e-4).

    Fails at any difference, when a file is missing or damaged, and when there is nothing to compare.

    Args:
      directory: holds the original's ``items_shuffle*.json``, ``items_ins_v2*.json`` and ``items_human_ins.json``, with
        ``nouns.json``, ``transcripts.jsonl``, ``search_documents.jsonl`` and ``search_results.jsonl``.
      show: print both sides of a mismatch whole, rather than around their first difference.
    """
    console = _console()
    compared, failed = 0, False
    try:
        for part in replay_webshop.replay(directory):
            console.print(f"{part.name}: {part.matched} of {part.compared} matched")
            compared += part.compared
            if first := part.first:
                failed = True
                expected, got = (first.expected, first.got) if show else _around(first.expected, first.got)
                console.print(f"FAILED: {first.where}: {first.field}: expected {expected!r}, got {got!r}")
    except ValueError as error:
        console.print(f"FAILED: {error}")
        return 1
    if not compared:
        console.print(f"FAILED: nothing was compared: no recording in {directory}")
    return int(failed or not compared)


def _around(expected: Any, got: Any) -> tuple[Any, Any]:
    """Two values; of two texts the surroundings of their first difference."""
    if not (isinstance(expected, str) and isinstance(got, str)):
        return expected, got
    pairs = enumerate(zip(expected, got, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), min(len(expected), len(got)))
    seen = slice(max(0, same - CONTEXT), same + CONTEXT)
    return expected[seen], got[seen]


def _console() -> Console:
    return Console(highlight=False, markup=False, soft_wrap=True)


def main(args: list[str] | None = None) -> int:
    """Run the subcommand named on the command line; a new check is one more function here."""
    return tyro.extras.subcommand_cli_from_dict(
        {"advantages": advantages, "checkpoint": checkpoint, "alfworld": alfworld, "webshop": webshop},
        args=args,
        description=__doc__,
    )


if __name__ == "__main__":
    sys.exit(main())
