"""The check of recorded ALFWorld games: faithful ones pass, and every kind of difference is shown."""

import json
from pathlib import Path

import pytest

from experiments.verify import main

GOLDEN = Path(__file__).parents[1] / "golden" / "alfworld"


def verify(path, capsys, *games):
    path.write_text("\n".join(game if isinstance(game, str) else json.dumps(game) for game in games))
    code = main(["alfworld", str(path)])
    return code, " ".join(capsys.readouterr().out.split())


@pytest.fixture
def game():
    return json.loads((GOLDEN / "kitchen.jsonl").read_text())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("games", "145 of 145 steps matched, resets included (games: 6)"),
        ("kitchen", "113 of 113 steps matched, resets included (games: 1)"),
    ],
)
def test_recordings_of_the_original_match(capsys, name, said):
    assert main(["alfworld", str(GOLDEN / f"{name}.jsonl")]) == 0
    assert capsys.readouterr().out.strip() == said


def test_the_first_difference_of_a_game_is_shown(tmp_path, capsys, game):
    game["steps"][2]["observation"] = "You arrive at the moon."
    game["steps"][9]["won"] = True
    code, printed = verify(tmp_path / "games.jsonl", capsys, game)
    assert code == 1
    where = "FAILED: game 1, pick_two_obj_and_place, step 3, action 'go to countertop 1': observation: "
    assert f"{where}expected 'You arrive at the moon.', got 'You arrive at countertop 1." in printed
    assert "step 10" not in printed
    assert "111 of 113 steps matched, resets included (games: 1)" in printed


@pytest.mark.parametrize(
    ("field", "value"), [("admissible_commands", ["look"]), ("won", True), ("reward", 1.0), ("done", True)]
)
def test_every_field_counts(tmp_path, capsys, game, field, value):
    game["steps"][0][field] = value
    code, printed = verify(tmp_path / "games.jsonl", capsys, game)
    assert code == 1
    assert f"step 1, action 'look': {field}: expected {value!r}, got" in printed


def test_the_order_of_commands_counts(tmp_path, capsys, game):
    game["reset"]["admissible_commands"].reverse()
    code, printed = verify(tmp_path / "games.jsonl", capsys, game)
    assert code == 1
    assert "step 0, reset: admissible_commands" in printed


def test_rewards_need_not_be_recorded(tmp_path, capsys, game):
    for step in game["steps"]:
        del step["reward"], step["done"]
    assert verify(tmp_path / "games.jsonl", capsys, game, "")[0] == 0


@pytest.mark.parametrize(
    "line", ["{", "[]", "3", '{"task_type": "pick_and_place_simple"}', '{"task_description": "", "task_type": "other"}']
)
def test_damaged_lines_fail(tmp_path, capsys, game, line):
    code, printed = verify(tmp_path / "games.jsonl", capsys, game, line)
    assert code == 1
    assert "FAILED: line 2: damaged:" in printed
    assert "113 of 113 steps matched" in printed


def test_how_a_file_is_written_does_not_matter(tmp_path, capsys, game):
    """A byte order mark, Windows' line ends, rare line ends within a text, which JSON need not escape."""
    line = json.dumps(game | {"note": "a\u2028b\u0085c"}, ensure_ascii=False)
    path = tmp_path / "games.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([line, "", line]).encode())
    assert main(["alfworld", str(path)]) == 0
    assert "226 of 226 steps matched, resets included (games: 2)" in capsys.readouterr().out


def test_a_damaged_problem_or_step_fails(tmp_path, capsys, game):
    problem = game["pddl_problem"]
    code, printed = verify(tmp_path / "games.jsonl", capsys, game | {"pddl_problem": problem[: len(problem) // 2]})
    assert code == 1
    assert "is it cut off" in printed
    code, printed = verify(tmp_path / "games.jsonl", capsys, game | {"steps": [{"action": "look"}]})
    assert code == 1
    assert "FAILED: line 1: damaged: KeyError('observation')" in printed


def test_nothing_to_compare_fails(tmp_path, capsys):
    code, printed = verify(tmp_path / "games.jsonl", capsys)
    assert code == 1
    assert "nothing was compared" in printed
    assert main(["alfworld", str(tmp_path / "absent.jsonl")]) == 1
    assert "FAILED: can't read" in capsys.readouterr().out
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    assert main(["alfworld", str(tmp_path / "bytes.jsonl")]) == 1


def test_many_problems_are_cut_short(tmp_path, capsys):
    code, printed = verify(tmp_path / "games.jsonl", capsys, *["{"] * 8)
    assert code == 1
    assert printed.count("damaged") == 5
    assert "and 3 more" in printed
