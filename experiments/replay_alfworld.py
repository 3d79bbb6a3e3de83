"""Replays recorded ALFWorld games, as the original engine played them, on the native engine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from envs.alfworld.engine import Engine
from envs.alfworld.game import parse_game

TASK = "Your task is to: "


@dataclasses.dataclass
class Report:
    """What came of one recording."""

    games: int = 0
    steps: int = 0  # the reset of each game counts as one
    matched: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)  # damage, and the first mismatch of each game


def replay(path: Path) -> Report:
    """Replays a recording: one JSON object a line for each game.

    A game has ``task_type``, ``pddl_problem``, ``task_description`` ("Your task is to: .."), ``reset``
    {observation, admissible_commands, won} and ``steps`` [the same with action, and reward and done if recorded].
    """
    report = Report()
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut texts at rarer line ends
    except (OSError, UnicodeDecodeError) as error:
        report.problems.append(f"can't read {path}: {error}")
        return report
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        report.games += 1
        try:
            _replay_game(json.loads(line), f"game {report.games}", report)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            report.problems.append(f"line {number}: damaged: {error!r}")
    return report


def _replay_game(recorded: dict[str, Any], name: str, report: Report) -> None:
    task = recorded["task_description"].partition(TASK)[2].removesuffix('"')  # some recordings have the quote
    engine = Engine(parse_game(recorded["pddl_problem"], task=task, task_type=recorded["task_type"]))
    told = False
    for number, step in enumerate([recorded["reset"], *recorded["steps"]]):
        action = step["action"] if number else None
        if action is not None:
            engine.step(action)
        report.steps += 1
        differences = _differences(engine, step)
        report.matched += not differences
        if differences and not told:
            told = True
            what = "reset" if action is None else f"action {action!r}"
            report.problems.append(f"{name}, {recorded['task_type']}, step {number}, {what}: {differences[0]}")


def _differences(engine: Engine, step: dict[str, Any]) -> list[str]:
    """The fields that differ, each as one line."""
    ours = {
        "observation": engine.observation,
        "admissible_commands": list(engine.admissible_commands),
        "won": engine.won,
    }
    ends = {"reward": float(engine.won), "done": engine.won}
    ours |= {field: got for field, got in ends.items() if field in step}
    return [f"{field}: expected {step[field]!r}, got {got!r}" for field, got in ours.items() if got != step[field]]
