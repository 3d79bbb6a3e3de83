"""Speed of the native ALFWorld engine: ``python -m experiments.benchmarks.alfworld``.

A step is a command and the list of admissible commands after it, as an agent asks for both. Each game is played along
its walkthrough and then at random; the commands are drawn before the clock starts. ``--recording FILE.jsonl`` takes
recorded games (such as those in tests/golden/alfworld) instead of generated ones. Times are CPU time of the one thread,
which other programs hardly disturb; medians.

One core of an AMD EPYC, Python 3.11: 260,000 steps a second on 60 generated full scenes (the original: 8.6; 30,000
times), a parse 2.5 ms, a reset 0.011 ms, a parsed game 45 kB, pickled 8.5 kB.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.alfworld.engine import Engine
from envs.alfworld.game import TASK_TYPES, Game, parse_game
from envs.alfworld.generator import draw_problem, generate

ORIGINAL = {"steps a second": 1 / 0.116, "parse, ms": 800.0, "reset, ms": 900.0}  # textworld 1.7.0, one core


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    recording: Path | None = None  # of games, one JSON object a line
    games: int = 60  # generated, all task types in turn, where there is no recording
    steps: int = 100  # commands a game
    repeats: int = 9  # the median is shown


class Source(NamedTuple):
    """What a game is parsed from, and how it is solved."""

    problem: str
    task: str
    task_type: str
    walkthrough: tuple[str, ...]

    def parse(self) -> Game:
        return parse_game(self.problem, task=self.task, task_type=self.task_type)


def sources(benchmark: Benchmark) -> list[Source]:
    """The games' texts.

    Raises:
        ValueError: if there are none.
    """
    if benchmark.recording is None:
        found = []
        for number in range(benchmark.games):
            problem = draw_problem("train", number)
            walkthrough = generate("train", number).walkthrough
            found.append(Source(problem.pddl, problem.task, problem.task_type, walkthrough))
    else:
        games = [json.loads(line) for line in benchmark.recording.read_text().splitlines() if line.strip()]
        found = [
            Source(game["pddl_problem"], game["task_description"], game["task_type"], tuple(game["walkthrough"]))
            for game in games
        ]
    if not found:
        raise ValueError(f"no games in {benchmark.recording or '--games 0'}")
    return found


def draw_commands(game: Game, walkthrough: tuple[str, ...], steps: int, rng: np.random.Generator) -> list[str]:
    """The walkthrough, then admissible commands at random, one kind of command as likely as any other."""
    engine, commands = Engine(game), list(walkthrough[:steps])
    for command in commands:
        engine.step(command)
    while len(commands) < steps:
        verbs = sorted({command.partition(" ")[0] for command in engine.admissible_commands})
        verb = verbs[rng.integers(len(verbs))]
        choices = [command for command in engine.admissible_commands if command.partition(" ")[0] == verb]
        commands.append(choices[rng.integers(len(choices))])
        engine.step(commands[-1])
    return commands


def play(engines: list[Engine], scripts: list[list[str]]) -> None:
    """Every command of every game, the admissible commands asked for after each."""
    for engine, commands in zip(engines, scripts, strict=True):
        for command in commands:
            engine.step(command)
            _ = engine.admissible_commands


def median_seconds(function: Callable[[], object], repeats: int, prepare: Callable[[], object] | None = None) -> float:
    """CPU time of one of ``repeats`` calls; what is prepared before each is not timed."""
    seconds = []
    for _ in range(repeats):
        if prepare:
            prepare()
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)


def bytes_of_each(make: Callable[[], Sequence[object]]) -> float:
    """Memory that each of the objects made keeps, on average."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        return (tracemalloc.get_traced_memory()[0] - before) / len(made)
    finally:
        tracemalloc.stop()


def measure(benchmark: Benchmark) -> dict[str, float]:
    """Figures by name, per game or per second."""
    found = sources(benchmark)
    games = [source.parse() for source in found]
    rng = np.random.default_rng(0)
    scripts = [
        draw_commands(game, source.walkthrough, benchmark.steps, rng) for game, source in zip(games, found, strict=True)
    ]
    engines: list[Engine] = []

    def reset() -> None:
        engines[:] = [Engine(game) for game in games]

    playing = median_seconds(lambda: play(engines, scripts), benchmark.repeats, prepare=reset)
    parsing = median_seconds(lambda: [source.parse() for source in found], benchmark.repeats)
    return {
        "steps a second": sum(map(len, scripts)) / playing,
        "parse, ms": 1e3 * parsing / len(games),
        "reset, ms": 1e3 * median_seconds(reset, benchmark.repeats) / len(games),
        "memory, kB a game": bytes_of_each(lambda: [source.parse() for source in found]) / 1e3,
        "pickled, kB a game": statistics.mean(len(pickle.dumps(game)) for game in games) / 1e3,
    }


def main(benchmark: Benchmark) -> None:
    """Print the figures, beside those of the original engine where they are known."""
    table = Table("", "here", "textworld 1.7.0", "ratio")
    for name, figure in measure(benchmark).items():
        original = ORIGINAL.get(name)
        ratio = 0.0 if original is None else figure / original if name == "steps a second" else original / figure
        known = ("", "") if original is None else (f"{original:,.4g}", f"{ratio:,.0f}")
        table.add_row(name, f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}", *known)
    console = Console()
    console.print(f"{benchmark.recording or f'{benchmark.games} generated games'}, {len(TASK_TYPES)} task types")
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
