"""The engine's benchmark runs; what it times is not asserted."""

import json
from pathlib import Path

import numpy as np
import pytest

from envs.alfworld.engine import NOTHING_HAPPENS, Engine
from experiments.benchmarks import alfworld

GAMES = Path(__file__).parents[1] / "golden" / "alfworld" / "games.jsonl"


@pytest.mark.parametrize("recording", [GAMES, None])
def test_all_figures_are_there(capsys, recording):
    alfworld.main(alfworld.Benchmark(recording=recording, games=6, steps=3, repeats=1))
    printed = capsys.readouterr().out
    for name in ("steps a second", "parse, ms", "reset, ms", "memory, kB a game"):
        assert name in printed


def test_commands_are_the_walkthrough_and_then_admissible_ones():
    source = alfworld.sources(alfworld.Benchmark(recording=GAMES))[0]
    assert list(source.walkthrough) == json.loads(GAMES.read_text().splitlines()[0])["walkthrough"]
    commands = alfworld.draw_commands(source.parse(), source.walkthrough, 40, np.random.default_rng(0))
    assert len(commands) == 40
    assert commands[: len(source.walkthrough)] == list(source.walkthrough)
    engine = Engine(source.parse())
    assert NOTHING_HAPPENS not in [engine.step(command) for command in commands]


def test_no_games_are_an_error(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"no games in .*empty\.jsonl"):
        alfworld.sources(alfworld.Benchmark(recording=tmp_path / "empty.jsonl"))
