"""The engine: recordings of the original, the rules by hand and by a slow oracle, bad commands, copies."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alfworld_oracle import Oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld.engine import NOTHING_HAPPENS, Engine
from envs.alfworld.game import parse_game
from envs.alfworld.pddl import read_problem

GOLDEN = Path(__file__).parents[2] / "golden" / "alfworld"
LINES = [line for name in ("games", "kitchen") for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
RECORDED = [json.loads(line) for line in LINES]
KITCHEN = parse_game(
    (GOLDEN / "kitchen.pddl").read_text(), task="put two apple in fridge.", task_type="pick_two_obj_and_place"
)
PLACES = ("countertop 1", "drawer 1", "drawer 2", "fridge 1", "microwave 1", "shelf 1", "sidetable 1", "sinkbasin 1")


def game_of(recorded):
    task = recorded["task_description"].removeprefix("Your task is to: ").removesuffix('"')
    return parse_game(recorded["pddl_problem"], task=task, task_type=recorded["task_type"])


def play(*commands):
    """The kitchen after some commands, all of them admissible."""
    engine = Engine(KITCHEN)
    for command in commands:
        assert command in engine.admissible_commands
        engine.step(command)
    return engine


def seen(engine):
    return engine.observation, engine.admissible_commands, engine.won


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["task_type"])
def test_recorded_games_of_the_original(recorded):
    engine = Engine(game_of(recorded))
    for step in [recorded["reset"], *recorded["steps"]]:
        if "action" in step:
            assert engine.step(step["action"]) == engine.observation
        assert seen(engine) == (step["observation"], tuple(step["admissible_commands"]), step["won"])


@pytest.mark.parametrize("recorded", RECORDED[:-1], ids=lambda recorded: recorded["task_type"])
def test_walkthroughs_win_with_their_last_command(recorded):
    engine = Engine(game_of(recorded))
    for command in recorded["walkthrough"]:
        assert not engine.won
        engine.step(command)
    assert engine.won


def test_the_start():
    engine = Engine(KITCHEN)
    assert engine.observation == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
        "a countertop 1, a drawer 2, a drawer 1, a fridge 1, a microwave 1, a shelf 1, a sidetable 1, and "
        "a sinkbasin 1.\n\nYour task is to: put two apple in fridge."
    )
    assert engine.admissible_commands == (*(f"go to {place}" for place in PLACES), "help", "inventory", "look")
    assert not engine.won


def test_neighbours_are_within_reach():
    """Countertop, sink and drawer stand at one place: nobody goes from one to the other, everybody reaches all."""
    engine = play("go to sinkbasin 1", "open drawer 2", "take apple 1 from drawer 2")
    assert engine.admissible_commands == (
        "clean apple 1 with sinkbasin 1",
        "close drawer 2",
        "examine apple 1",
        "examine countertop 1",
        "examine drawer 2",
        "examine sinkbasin 1",
        *(f"go to {place}" for place in PLACES if place not in ("countertop 1", "drawer 2", "sinkbasin 1")),
        "help",
        "inventory",
        "look",
        "move apple 1 to countertop 1",
        "move apple 1 to drawer 2",
        "move apple 1 to sinkbasin 1",
    )


def test_going_to_where_one_is_does_nothing():
    assert play("go to shelf 1").step("go to shelf 1") == NOTHING_HAPPENS


def test_the_original_lists_beside_what_was_taken_and_lies_in_a_neighbour():
    engine = play("go to countertop 1", "take apple 2 from countertop 1", "move apple 2 to sinkbasin 1")
    facing = "You are facing the countertop 1, drawer 2, and sinkbasin 1. Next to it, you see"
    assert engine.step("look") == f"{facing} a apple 2."
    engine.step("take apple 2 from sinkbasin 1")
    assert engine.step("look") == f"{facing} nothing."
    engine.step("move apple 2 to countertop 1")
    assert engine.step("look") == f"{facing} a apple 2."  # taken from the sink, too


@pytest.mark.parametrize(
    ("treatments", "words"),
    [
        ("", "There's nothing special about apple 2."),
        ("clean", "This is a clean apple 2."),
        ("heat", "This is a hot apple 2."),
        ("cool", "This is a cold apple 2."),
        ("slice", "This is a sliced apple 2."),
        ("heat cool", "This is a cold apple 2."),
        ("cool heat", "This is a hot apple 2."),
        ("clean heat", "This is a hot and clean apple 2."),
        ("cool clean", "This is a cool and clean apple 2."),
        ("slice clean", "This is a clean sliced apple 2."),
        ("slice heat", "This is a hot sliced apple 2."),
        ("slice cool", "This is a cool sliced apple 2."),
        ("slice clean heat", "This is a hot and clean sliced apple 2."),
        ("slice clean cool", "This is a cool and clean sliced apple 2."),
    ],
)
def test_what_an_object_has_gone_through(treatments, words):
    engine = Engine(KITCHEN)
    if treatments.startswith("slice"):
        for command in ("go to drawer 1", "take knife 1 from drawer 1", "go to countertop 1"):
            engine.step(command)
        assert engine.step("slice apple 2 with knife 1") == "You sliced the apple 2 with the knife 1."
        engine.step("move knife 1 to sinkbasin 1")
    engine.step("go to countertop 1")
    engine.step("take apple 2 from countertop 1")
    for treatment in treatments.removeprefix("slice").split():
        place = {"clean": "sinkbasin 1", "heat": "microwave 1", "cool": "fridge 1"}[treatment]
        engine.step(f"go to {place}")
        assert engine.step(f"{treatment} apple 2 with {place}") == f"You {treatment} the apple 2 using the {place}."
    assert engine.step("examine apple 2") == words


def test_a_lamp_is_turned_on_each_time_and_examined_in_hand():
    engine = play("go to sidetable 1", "use desklamp 1")
    assert engine.step("use desklamp 1") == "You turn on the desklamp 1."
    assert engine.step("examine desklamp 1") == NOTHING_HAPPENS
    engine.step("take desklamp 1 from sidetable 1")
    assert engine.step("examine desklamp 1") == "This desklamp 1 is on."
    assert "use desklamp 1" not in engine.admissible_commands
    engine.step("go to shelf 1")  # where it is said to lie as well
    assert "use desklamp 1" in engine.admissible_commands


def test_winning_is_not_for_good():
    engine = play("go to countertop 1", "open drawer 2", "take apple 1 from drawer 2", "go to fridge 1")
    for command in (
        "open fridge 1",
        "move apple 1 to fridge 1",
        "go to countertop 1",
        "take apple 2 from countertop 1",
    ):
        engine.step(command)
    engine.step("go to fridge 1")
    assert not engine.won
    engine.step("move apple 2 to fridge 1")
    assert engine.won
    assert engine.step("dance") == NOTHING_HAPPENS
    assert engine.won
    engine.step("take apple 1 from fridge 1")
    assert not engine.won


def test_a_goal_about_where_one_is_and_what_is_open():
    problem = (GOLDEN / "kitchen.pddl").read_text()
    goal = "(:goal (and (exists (?a - agent) (atLocation ?a loc_bar_3)) (forall (?r - receptacle) (not (opened ?r)))))"
    problem = problem[: problem.index("(:goal")] + goal + ")"
    engine = Engine(parse_game(problem, task="t.", task_type="pick_and_place_simple"))
    won = []
    for command in ("go to drawer 1", "close drawer 1", "go to fridge 1", "open fridge 1", "close fridge 1", "look"):
        engine.step(command)
        won.append(engine.won)
    assert won == [False, False, True, False, True, True]


BAD = ["", " ", "go", "go to", "GO TO SHELF 1", "go  to shelf 1", "go to shelf 1.", "take", "take apple 1 from", "put"]
BAD += ["go to shelf 9", "take statue 1 from sidetable 1", "去架子 1", "look\x00", "x" * 10_000, "go to " * 2_000]


@pytest.mark.parametrize("command", BAD, ids=lambda command: repr(command[:20]))
def test_other_commands_change_nothing(command):
    engine = play("go to sidetable 1")
    before = pickle.dumps(engine.__dict__ | {"observation": "", "_commands": None})
    assert engine.step(command) == NOTHING_HAPPENS
    assert pickle.dumps(engine.__dict__ | {"observation": "", "_commands": None}) == before


def test_spaces_around_a_command_do_not_matter():
    assert play("go to shelf 1").step("  look\t\n") == "You are facing the shelf 1. Next to it, you see nothing."


words = st.sampled_from(["go to", "take", "move", "use", "with", "from", "to", "apple 1", "knife 1", *PLACES, "look"])


@given(st.lists(st.one_of(st.lists(words, max_size=5).map(" ".join), st.text(max_size=30)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_text_is_a_command(commands):
    engine = Engine(KITCHEN)
    for command in commands:
        admissible = command.strip() in engine.admissible_commands
        assert (engine.step(command) == NOTHING_HAPPENS) != admissible
        assert list(engine.admissible_commands) == sorted(set(engine.admissible_commands))


KINDS = ("apple", "knife", "mug", "lamp")
GOALS = (
    "(exists (?r - receptacle ?o - object) (and (inReceptacle ?o ?r) (objectType ?o AppleType) (isHot ?o)))",
    "(exists (?o - object) (or (isSliced ?o) (and (isCool ?o) (not (isClean ?o)))))",
    "(and (exists (?o - object ?a - agent) (holds ?a ?o)) (exists (?o - object) (isToggled ?o)))",
    "(exists (?r - receptacle ?o - object ?p - object) (and (not (= ?o ?p)) (inReceptacle ?o ?r) (holds agent1 ?p)))",
    "(forall (?r - receptacle) (and (not (opened ?r)) (exists (?l - location) (atLocation agent1 ?l))))",
    "(exists (?o - object ?l - location ?a - agent) (and (objectAtLocation ?o ?l) (atLocation ?a ?l) (holdsAny ?a)))",
)


@st.composite
def problems(draw):
    """A small scene: anything may stand, lie, open and be able to anything."""
    appliances = st.sampled_from(("Shelf", "Fridge", "Microwave", "Sink"))
    places = [f"{kind}_bar_{i}" for i, kind in enumerate(draw(st.lists(appliances, min_size=1, max_size=5)))]
    places = [f"{place}_bar_SinkBasin" if place.startswith("Sink") else place for place in places]
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    things = [f"{kind}_bar_{i}" for i, kind in enumerate(kinds)]
    locations = [f"loc_bar_{i}" for i in range(draw(st.integers(2, 4)))]
    facts = {f"atLocation agent1 {locations[-1]}"}
    for place in places:
        kind = "SinkBasin" if place.endswith("SinkBasin") else place.split("_")[0]
        facts |= {f"receptacleType {place} {kind}Type"}
        if draw(st.integers(0, 7)):
            facts.add(f"receptacleAtLocation {place} {draw(st.sampled_from(locations[:-1]))}")
        facts |= {f"{fact} {place}" for fact in draw(st.sets(st.sampled_from(["openable", "opened"])))}
        facts |= {f"canContain {kind}Type {inner}Type" for inner in draw(st.sets(st.sampled_from(KINDS)))}
    abilities = ["pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "pickupable", "isHot"]
    for thing in things:
        facts.add(f"objectType {thing} {thing.split('_')[0]}Type")
        facts |= {f"{ability} {thing}" for ability in draw(st.sets(st.sampled_from(abilities), min_size=2))}
        facts |= {f"inReceptacle {thing} {place}" for place in draw(st.sets(st.sampled_from(places), max_size=2))}
        near = draw(st.sets(st.sampled_from(locations), max_size=2))
        facts |= {f"objectAtLocation {thing} {there}" for there in near}
    kinds = "ShelfType FridgeType MicrowaveType SinkBasinType - rtype appleType knifeType mugType lampType - otype"
    declared = f"agent1 - agent {kinds} {' '.join(things)} - object {' '.join(places)} - receptacle"
    init = "\n".join(f"({fact})" for fact in sorted(facts))
    goal = draw(st.sampled_from(GOALS))
    return f"(define (:objects {declared} {' '.join(locations)} - location) (:init {init}) (:goal {goal}))"


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_the_oracle_agrees_on_walks(problem, rng):
    engine = Engine(parse_game(problem, task="t.", task_type="pick_and_place_simple"))
    oracle = Oracle(read_problem(problem))
    for _ in range(25):
        commands = sorted(oracle.admissible())
        assert list(engine.admissible_commands) == commands
        assert engine.won == oracle.won()
        first_words = sorted({command.split()[0] for command in commands})
        verb = rng.choice(first_words)  # so that the rarer commands come up
        command = rng.choice([command for command in commands if command.split()[0] == verb])
        oracle.step(command)
        engine.step(command)


def test_a_copy_goes_on_the_same():
    recorded = RECORDED[3]
    engine = Engine(game_of(recorded))
    for i, step in enumerate(recorded["steps"]):
        if i % 3 == 0:
            engine = pickle.loads(pickle.dumps(engine))
        engine.step(step["action"])
        assert seen(engine) == (step["observation"], tuple(step["admissible_commands"]), step["won"])


def test_engines_of_one_game_do_not_meet():
    recorded = RECORDED[0]
    game = game_of(recorded)
    whole = pickle.dumps(game)

    def walk(_):
        engine = Engine(game)
        return [(engine.step(step["action"]), engine.admissible_commands, engine.won) for step in recorded["steps"]]

    with ThreadPoolExecutor(4) as pool:
        walks = list(pool.map(walk, range(8)))
    expected = [(step["observation"], tuple(step["admissible_commands"]), step["won"]) for step in recorded["steps"]]
    assert all(walk == expected for walk in walks)
    assert pickle.dumps(game) == whole
