"""Parsing: names and numbers, goals, game files, and what is wrong with those that are damaged."""

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.engine import Engine
from envs.alfworld.game import TASK_TYPES, parse_game, read_game
from envs.alfworld.pddl import ground, read_problem
from envs.alfworld.world import NOWHERE, display_names

KITCHEN = (Path(__file__).parents[2] / "golden" / "alfworld" / "kitchen.pddl").read_text()
GRAMMAR = """grammar :: \"\"\"{ "task": [ { "rhs": "Your task is to: TASK" } ] }\"\"\";
action PutObject { template :: "move {o} to {r}"; feedback :: "#PutObject#"; }
action help { template :: "help"; feedback :: "#help#"; }
"""
SMALL = """(define (problem small) (:domain alfred)
(:objects agent1 - agent Mug_bar_1 - object Bed_bar_1 - receptacle loc_bar_1 loc_bar_2 - location)
(:init (atLocation agent1 loc_bar_2) (receptacleAtLocation Bed_bar_1 loc_bar_1) (inReceptacle Mug_bar_1 Bed_bar_1))
(:goal (exists (?o - object) (inReceptacle ?o Bed_bar_1))))"""


def kitchen(**changes):
    arguments: dict[str, Any] = {"task": "put two apple in fridge.", "task_type": "pick_two_obj_and_place"}
    arguments |= {"name": "kitchen", **changes}
    return parse_game(KITCHEN, **arguments)


def small(goal=None, init=""):
    problem = SMALL.replace("(:init", f"(:init {init}")
    if goal:
        problem = problem.replace("(exists (?o - object) (inReceptacle ?o Bed_bar_1))", goal)
    return parse_game(problem, task="t.", task_type=TASK_TYPES[0])


def test_names_count_down_in_the_order_of_ids():
    ids = sorted(["apple_bar_1", "apple_bar_2", "apple_bar_10", "sink_bar_1_bar_sinkbasin", "agent1", "sink_bar_1"])
    assert display_names(ids) == {
        "agent1": "agent1 ",
        "apple_bar_1": "apple 3",
        "apple_bar_10": "apple 2",
        "apple_bar_2": "apple 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_what_no_fact_names_has_no_number():
    """The original numbers what its facts mention; `Unheard` is declared only."""
    game = kitchen()
    assert "unheard 1" not in game.object_numbers
    assert [thing.name for thing in game.objects][:4] == ["apple 2", "apple 1", "bread 1", "desklamp 1"]
    assert [place.name for place in game.receptacles][:4] == ["cabinet 1", "countertop 1", "drawer 2", "drawer 1"]


def test_the_kitchen_as_parsed():
    game = kitchen()
    places = {place.name: place for place in game.receptacles}
    things = {thing.name: thing for thing in game.objects}
    assert places["sinkbasin 1"].type == "sinkbasin"
    assert places["cabinet 1"].location == NOWHERE
    assert places["sinkbasin 1"].location == places["drawer 2"].location != places["drawer 1"].location
    openable = sorted(name for name, place in places.items() if place.openable)
    assert openable == ["drawer 1", "drawer 2", "fridge 1", "microwave 1"]
    assert [game.receptacles[r].name for r in game.opened] == ["drawer 1"]
    apple, mug = things["apple 2"], things["mug 1"]
    assert (apple.type, apple.sliceable, apple.heatable, apple.is_receptacle) == ("apple", True, True, False)
    assert (mug.is_receptacle, mug.coolable, [game.objects[o].name for o in mug.holds]) == (True, False, ["spoon 1"])
    fits = sorted(game.receptacles[r].name for r in mug.fits)
    assert fits == ["cabinet 1", "fridge 1", "microwave 1", "sidetable 1", "sinkbasin 1"]
    assert [game.objects[o].name for o in game.contents[game.receptacle_numbers["shelf 1"]]] == [
        "bread 1",
        "desklamp 1",
    ]
    assert game.held == NOWHERE


def test_the_goal_keeps_what_can_change():
    game = kitchen()
    fridge, second, first = game.receptacle_numbers["fridge 1"], 0, 1
    both = ("inreceptacle", second, fridge), ("inreceptacle", first, fridge)
    assert game.goal == ("or", ("and", *both), ("and", *both[::-1]))
    assert game.goal_predicates == {"inreceptacle"}


@pytest.mark.parametrize(
    ("goal", "grounded"),
    [
        ("(and)", True),
        ("(or)", False),
        ("(not (inReceptacle Mug_bar_1 Bed_bar_1))", ("not", ("inreceptacle", 0, 0))),
        ("(not (not (opened Bed_bar_1)))", ("opened", 0)),
        ("(imply (holdsAny agent1) (isHot Mug_bar_1))", ("or", ("not", ("holdsany",)), ("ishot", 0))),
        ("(exists (?a - agent ?l - location) (atLocation ?a ?l))", ("or", ("atlocation", 0), ("atlocation", 1))),
        ("(forall (?o - object) (isClean ?o))", ("isclean", 0)),
        ("(forall (?r - receptacle) (openable ?r))", False),
        ("(exists (?o - object ?r - receptacle) (and (pickupable ?o) (inReceptacle ?o ?r)))", False),
        ("(exists (?o - object) (and (not (= ?o Mug_bar_1)) (isHot ?o)))", False),
        ("(exists (?o ?p - object) (and (= ?o ?p) (isHot ?o)))", ("ishot", 0)),
        ("(and (isHot Mug_bar_1) (isHot Mug_bar_1) (receptacleAtLocation Bed_bar_1 loc_bar_1))", ("ishot", 0)),
    ],
)
def test_goals_without_variables(goal, grounded):
    assert small(goal).goal == grounded


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("(checked Bed_bar_1)", "(checked ..) is not understood"),
        ("(isHot ?o)", "not understood: (ishot ?o)"),
        ("(inReceptacle Bed_bar_1 Mug_bar_1)", "must be of a object and a receptacle"),
        ("(isHot Cup_bar_1)", "must be of a object"),
        ("loose", "expected a condition in brackets, got loose"),
        ("(and loose)", "expected a condition in brackets, got loose"),
        ("(and) (and)", "must hold one condition, got 2"),
    ],
)
def test_goals_that_are_not_understood(goal, message):
    with pytest.raises(ValueError, match="game: pddl_problem:") as error:
        small(goal)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("))))", "", "still open: is it cut off"),
        ("(define", "(define) (define", "must be one expression"),
        ("(define", ")", "a ')' without a '('"),
        ("(:init", "(:initial", "no part (:init ..)"),
        ("Mug_bar_1 - object", "Cup_bar_1 - object", "Bed_bar_1) names mug_bar_1, which (:objects ..) lacks"),
        (" - location", "", ":objects: loc_bar_1 has no type"),
        ("loc_bar_2 - location", "loc_bar_2 - (location)", ":objects: expected names and types"),
        ("(atLocation agent1 loc_bar_2)", "", "expected one agent at one location, got 0"),
        ("(:init", "(:init loose", "expected a fact in brackets"),
        ("(:init", "(:init ((opened) Bed_bar_1)", "expected a fact in brackets, got ((opened) bed_bar_1)"),
        ("(:init", "(:init (opened)", "(opened ..) must be of one receptacle"),
        ("(:init", "(:init (inReceptacle Mug_bar_1)", "must be of a object and a receptacle"),
        ("(:init", "(:init (receptacleAtLocation Bed_bar_1 loc_bar_2)", "bed_bar_1 is at two locations"),
        ("(:init", "(:init (holds agent1 Mug_bar_1)", "contradict each other"),
        ("(:init", "(:init (canContain Bed_bar_1)", "must be of two types"),
        ("(:init", "(:init (objectType Mug_bar_1)", "one type each is expected"),
        ("(define", "(defined", "must be one expression (define ..)"),
    ],
)
def test_damaged_problems(old, new, message):
    with pytest.raises(ValueError, match=r"^a game: pddl_problem: ") as error:
        parse_game(SMALL.replace(old, new, 1), task="t.", task_type=TASK_TYPES[0], name="a game")
    assert message.lower() in str(error.value).lower()


TOKENS = SMALL.replace("(", " ( ").replace(")", " ) ").split()


@given(st.lists(st.tuples(st.integers(0, len(TOKENS) - 1), st.integers(0, len(TOKENS) - 1)), max_size=3), st.data())
@settings(max_examples=300, deadline=None)
def test_no_problem_breaks_the_parser(swaps, data):
    """Words exchanged, left out and written twice: a game, or one clear error."""
    words = [[token] for token in TOKENS]
    for a, b in swaps:
        words[a], words[b] = words[b], words[a]
    changed = data.draw(st.integers(0, len(words) - 1))
    words[changed] *= data.draw(st.sampled_from([0, 1, 2]))
    message = "game: pddl_problem: "
    try:
        game = parse_game(" ".join(word for group in words for word in group), task="t.", task_type=TASK_TYPES[0])
        Engine(game).step("look")
    except ValueError as error:
        message = str(error)
    assert message.startswith("game: pddl_problem: ")


def test_deep_nesting_is_refused():
    with pytest.raises(ValueError, match="game: pddl_problem: nested too deeply"):
        small("(not " * 3_000 + "(holdsAny agent1)" + ")" * 3_000)


def test_what_does_not_matter_is_passed_over():
    """Other case, Windows' line ends, comments, unknown predicates, facts twice, facts about other types."""
    changed = KITCHEN.replace("\n", "\r\n").replace("(:init", "(:init (wet Mug_bar__plus_01) ; a comment ) \r\n")
    changed = changed.replace("pickupable", "PICKUPABLE").replace("(:init", "(:init (openable Spoon_bar__plus_01)")
    changed += "\r\n"
    again = parse_game(changed, task=kitchen().task, task_type=kitchen().task_type, name="kitchen")
    assert again == kitchen()


def test_an_object_in_hand_at_the_start():
    engine = Engine(small(init="(holds agent1 Mug_bar_1) (holdsAny agent1)"))
    assert engine.step("inventory") == "You are carrying: a mug 1."


@pytest.mark.parametrize("change", [{"task_type": "pick"}, {"verb": "drop"}, {"arrive_at": "home"}])
def test_unknown_arguments(change):
    with pytest.raises(ValueError, match="kitchen: expected one of "):
        kitchen(**change)


def test_games_are_small_and_can_be_sent():
    assert pickle.loads(pickle.dumps(kitchen())) == kitchen()
    assert len(pickle.dumps(kitchen())) < 10_000


def test_grounding_does_not_try_what_has_failed():
    """Six variables over six locations: 46,656 combinations, if the first did not decide."""
    tried = []

    def literal(predicate, symbols):
        tried.append((predicate, *symbols))
        return False

    names = " ".join(f"?{x}" for x in "abcdef")
    symbols = " ".join(f"loc_bar_{i}" for i in range(6))
    goal = f"(exists ({names} - location) (and (p ?a) (q ?a ?b) (r {names})))"
    problem = read_problem(f"(define (:objects {symbols} - location) (:init) (:goal {goal}))")
    assert ground(problem, literal) is False
    assert sorted(tried) == [("p", f"loc_bar_{i}") for i in range(6)]


def write(folder, *, grammar=GRAMMAR, task="put two apple in fridge.", trajectory=None, **fields):
    """A game file; a field that is None is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    file = {
        "pddl_domain": "",
        "grammar": grammar.replace("TASK", task),
        "pddl_problem": KITCHEN,
        "walkthrough": ["go to fridge 1", "put apple 1 in/on fridge 1"],
        "solvable": True,
    }
    file = {key: value for key, value in (file | fields).items() if value is not None}
    (folder / "game.tw-pddl").write_text(json.dumps(file))
    trajectory = {"task_type": "pick_two_obj_and_place"} if trajectory is None else trajectory
    (folder / "traj_data.json").write_text(json.dumps(trajectory))
    return folder / "game.tw-pddl"


def test_a_game_file(tmp_path):
    path = write(tmp_path / "train" / "pick-Apple" / "trial_1", task='say \\"two\\" {or} more.')
    game = read_game(path)
    assert game.name == "train/pick-Apple/trial_1"
    assert game.task == 'say "two" {or} more.'
    assert game.task_type == "pick_two_obj_and_place"
    assert (game.verb, bool(game.help_text)) == ("move", True)
    assert game.walkthrough == ("go to fridge 1", "move apple 1 to fridge 1")
    assert game.receptacles == kitchen().receptacles


def test_an_older_game_file_has_other_words(tmp_path):
    older = GRAMMAR.replace("move {o} to {r}", "put {o} in/on {r}").replace("action help", "action other")
    older += "You arrive at {lend.name}."
    engine = Engine(read_game(write(tmp_path, grammar=older, walkthrough=["move apple 1 to fridge 1"])))
    assert engine.game.walkthrough == ("put apple 1 in/on fridge 1",)
    assert "help" not in engine.admissible_commands
    assert engine.step("help") == "Nothing happens."
    # Locations are numbered like anything else: of seven, loc_bar_1 has the highest.
    assert engine.step("go to countertop 1") == "You arrive at loc 7. On the countertop 1, you see a apple 2."
    engine.step("take apple 2 from countertop 1")
    assert "put apple 2 in/on sinkbasin 1" in engine.admissible_commands
    assert engine.step("put apple 2 in/on sinkbasin 1") == "You put the apple 2 in/on the sinkbasin 1."
    assert list(engine.admissible_commands) == sorted(engine.admissible_commands)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"solvable": False}, "solvable: expected true, got False"),
        ({"solvable": None}, "solvable: expected true, got None"),
        ({"pddl_problem": None}, "pddl_problem: expected text, got NoneType"),
        ({"pddl_domain": 3}, "pddl_domain: expected text, got int"),
        ({"pddl_problem": "(define"}, "pddl_problem: the problem ends with 1 '(' still open"),
        (
            {"grammar": "x"},
            "grammar: PutObject's template: expected 'move {o} to {r}' or 'put {o} in/on {r}', got None",
        ),
        ({"grammar": GRAMMAR.replace("Your task", "Their task")}, "grammar: found no sentence 'Your task is to: ..'"),
        ({"task": "put a \\x in fridge."}, "grammar: the sentence 'Your task is to: ..' is damaged: Invalid \\escape"),
        ({"task": "put\r\na mug in fridge."}, "grammar: the sentence 'Your task is to: ..' is damaged: Invalid con"),
        ({"walkthrough": "go"}, "walkthrough: expected a list of commands"),
        ({"trajectory": {"task_type": "pick_and_place_with_movable_recep"}}, "traj_data.json: task_type: expected one"),
        ({"trajectory": ["list"]}, "traj_data.json: expected a JSON object, got list"),
    ],
)
def test_damaged_game_files(tmp_path, fields, message):
    with pytest.raises(ValueError, match=r"trial.(game\.tw-pddl|traj_data\.json): ") as error:
        read_game(write(tmp_path / "trial", **fields))
    assert message in str(error.value)


def test_files_that_are_cut_off_or_missing(tmp_path):
    path = write(tmp_path)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"game\.tw-pddl: damaged, not JSON"):
        read_game(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"game\.tw-pddl: damaged, not JSON"):
        read_game(path)
    path.write_text(whole)
    (tmp_path / "traj_data.json").unlink()
    with pytest.raises(ValueError, match=r"traj_data\.json: no such file"):
        read_game(path)


def test_other_rules_and_words_are_warned_of_and_played(tmp_path):
    other = "(define (domain alfred) (:action look :parameters () :effect ()))"
    with pytest.warns(UserWarning, match="pddl_domain of game files is not the known one"):
        game = read_game(write(tmp_path, pddl_domain=other))
    assert game.receptacles == kitchen().receptacles
    with pytest.warns(UserWarning, match="grammar of game files lacks 'go to "):
        read_game(write(tmp_path, grammar=GRAMMAR + "#PutObject.feedback#"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_game(write(tmp_path))
