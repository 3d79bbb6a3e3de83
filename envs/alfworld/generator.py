"""Games of our own in the original's format: any number of them, in three splits that share nothing they must not.

A game is drawn in three steps: its room, then its goal, then where everything lies.

- A room's receptacle classes and counts are its layout. A stable hash of the layout alone (`scenes.is_held_out`) makes
  every room one of "unseen" or one that "train" and "seen" share: no two of them can be alike.
- A stable hash of layout and goal (`is_seen_goal`) gives the goals of a shared layout to either "train" or "seen".

Both are functions of the game, not of its number, so the splits are disjoint however many games are drawn, at any size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from envs.alfworld.data import SPLITS
from envs.alfworld.experts import plan
from envs.alfworld.game import TASK_TYPES, Game, parse_game
from envs.alfworld.problems import TASKS, Goal, Problem, Thing
from envs.alfworld.scenes import (
    FULL_SCENE,
    HELD_OUT_ROOMS,
    KINDS,
    LAMPS,
    LARGEST,
    OBJECTS,
    SMALLEST,
    TRAINING_ROOMS,
    Receptacle,
    Room,
    make_room,
    object_id,
)
from envs.draws import Draws

FEWEST_OBJECTS = 25  # in a full scene
SEEN_SHARE = 5  # one goal in five of a training room is asked for in "seen" only

# Of the original's rules and words only those that say which form of them the file has.
_DOMAIN = "(define (domain alfred))"
_GRAMMAR = """\
grammar :: {{"task": [{{"rhs": {task}}}]}};
action PutObject {{ template :: "move {{o}} to {{r}}"; }}
action help {{ template :: "help"; }}
"""


def is_seen_goal(layout: str, task_type: str, goal: Goal) -> bool:
    """Whether "seen" asks for this in a training room of this layout; otherwise "train" does."""
    return zlib.crc32(f"{layout}/{task_type}/{goal.object}/{goal.target}".encode()) % SEEN_SHARE == 0


def generate(split: str, number: int, *, receptacles: int = 0, task_types: Sequence[str] = TASK_TYPES) -> Game:
    """A game of our own: the same for the same arguments on any machine and Python.

    Args:
        split: "train"; "seen" (training rooms, other goals) or "unseen" (other rooms).
        number: from 0; numbers go round the task types.
        receptacles: how many the room has, `SMALLEST` to `LARGEST`; 0 for a full scene of 15 to 30.
        task_types: those asked for.

    Returns:
        The game; its walkthrough is a shortest solution.

    Raises:
        ValueError: if an argument is out of range.
    """
    return _parsed(draw_problem(split, number, receptacles=receptacles, task_types=task_types))


def write_game(
    folder: Path, split: str, number: int, *, receptacles: int = 0, task_types: Sequence[str] = TASK_TYPES
) -> Path:
    """Writes a game, with its shortest solution, in the layout of the original's download.

    Args:
        folder: stands for the download's ``json_2.1.1``; made if it is not there.
        split, number, receptacles, task_types: as in `generate`.

    Returns:
        The path of its ``game.tw-pddl``.

    Raises:
        ValueError: if an argument is out of range.
    """
    problem = draw_problem(split, number, receptacles=receptacles, task_types=task_types)
    target = "None-" + problem.goal.target  # no movable receptacle
    task_folder = f"{problem.task_type}-{problem.goal.object}-{target}-{problem.room.scene}"
    trial = Path(folder, SPLITS[split], task_folder, problem.traj_data["task_id"])
    trial.mkdir(parents=True, exist_ok=True)
    (trial / "traj_data.json").write_text(json.dumps(problem.traj_data), encoding="utf-8")
    content = {
        "pddl_domain": _DOMAIN,
        "grammar": _GRAMMAR.format(task=json.dumps(f"Your task is to: {problem.task}")),
        "pddl_problem": problem.pddl,
        "walkthrough": list(_parsed(problem).walkthrough),
        "solvable": True,
    }
    path = trial / "game.tw-pddl"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def draw_problem(split: str, number: int, *, receptacles: int = 0, task_types: Sequence[str] = TASK_TYPES) -> Problem:
    """The game `generate` gives, as what it consists of. Arguments and errors as there."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if number < 0:
        raise ValueError(f"number must be at least 0, got {number}")
    if receptacles and not SMALLEST <= receptacles <= LARGEST:
        raise ValueError(
            f"receptacles must be 0 for a full scene of {FULL_SCENE[0]} to {FULL_SCENE[1]}, "
            f"or between {SMALLEST} and {LARGEST}, got {receptacles}"
        )
    unknown = [name for name in task_types if name not in TASKS]
    if unknown or not task_types:
        raise ValueError(f"task_types must be some of {', '.join(TASKS)}, got {list(task_types)}")
    task_type = task_types[number % len(task_types)]
    name = f"generated/{split}/{receptacles}/{task_type}-{number}"
    draws = Draws(name)
    room, goal = _draw_room_and_goal(draws, split, receptacles, task_type)
    sentence = draws.choose(TASKS[task_type].sentences)
    task = sentence.format(object=goal.object.lower(), target=goal.target.lower())
    names = _draw_objects(draws, room, task_type, goal, fewest=0 if receptacles else FEWEST_OBJECTS)
    things = _strew(draws, room, names, goal)
    return Problem(name, receptacles, number, task_type, task, goal, room, tuple(things))


def _parsed(problem: Problem) -> Game:
    game = parse_game(problem.pddl, task=problem.task, task_type=problem.task_type, name=problem.name)
    return dataclasses.replace(game, walkthrough=tuple(plan(game)))


def _draw_room_and_goal(draws: Draws, split: str, receptacles: int, task_type: str) -> tuple[Room, Goal]:
    """A room with a goal for this split in it; small rooms may have none, and another one is drawn."""
    task, held_out = TASKS[task_type], split == "unseen"
    needs = task.appliance if receptacles else ""  # a full kitchen has every appliance
    while True:
        kind = draws.choose(task.rooms)
        number = draws.between(0, (HELD_OUT_ROOMS if held_out else TRAINING_ROOMS) - 1)
        room = make_room(kind, receptacles, needs, number, held_out)
        if goals := _goals(split, task_type, kind, room.layout):
            wanted = draws.choose(list(dict.fromkeys(goal.object for goal in goals)))
            return room, draws.choose([goal for goal in goals if goal.object == wanted])


@functools.lru_cache(maxsize=4096)
def _goals(split: str, task_type: str, kind: str, layout: str) -> list[Goal]:
    """What a split asks for in rooms of a layout. A training room that would serve only one split serves none."""
    goals = _possible_goals(task_type, kind, [entry.partition(":")[0] for entry in layout.split()])
    if split == "unseen":
        return goals
    seen = [goal for goal in goals if is_seen_goal(layout, task_type, goal)]
    train = [goal for goal in goals if goal not in seen]
    return [] if not seen or not train else seen if split == "seen" else train


def _possible_goals(task_type: str, kind: str, present: Sequence[str]) -> list[Goal]:
    """All goals among these receptacle classes that need work: the object can lie elsewhere at first."""
    task, goals = TASKS[task_type], []
    for name in _classes_with_homes(kind, present):
        homes = [home for home in OBJECTS[name].homes if home in present]
        if name in LAMPS:
            continue
        if task_type == "look_at_obj_in_light":
            goals += [Goal(name, lamp) for lamp in LAMPS if lamp in _classes_with_homes(kind, present)]
        elif not task.ability or task.ability in OBJECTS[name].abilities:
            goals += [Goal(name, home) for home in homes if len(homes) > 1 and home != task.appliance]
    return goals


def _classes_with_homes(kind: str, present: Sequence[str]) -> list[str]:
    """Classes of objects of a kind of room that can lie somewhere among the receptacle classes present."""
    return [name for name in KINDS[kind].objects if any(home in present for home in OBJECTS[name].homes)]


def _draw_objects(draws: Draws, room: Room, task_type: str, goal: Goal, fewest: int) -> list[str]:
    """Classes of the objects: first what the goal needs, then a lamp where rooms of a kind have one, then others."""
    possible = _classes_with_homes(room.kind, list(room.by_class))
    wanted = [goal.object] * (2 if task_type == "pick_two_obj_and_place" else 1)
    if draws.between(0, 3) == 0:  # one more than needed
        wanted.append(goal.object)
    lamps = [name for name in LAMPS if name == goal.target] or [name for name in LAMPS if name in possible]
    lamp = [draws.choose(lamps)] if lamps else []
    others = [name for name in possible if name not in (goal.object, *LAMPS)]
    places = len(room.receptacles)
    missing = draws.between(max(places, fewest), 2 * places - 2) - len(wanted + lamp)
    return wanted + lamp + [draws.choose(others) for _ in range(missing) if others]


def _strew(draws: Draws, room: Room, names: Sequence[str], goal: Goal) -> list[Thing]:
    """Gives every object a place, what the goal is about not where it has to go, and an id that no other has."""
    things: list[Thing] = []
    taken = {place.id for place in room.receptacles}
    for name in names:
        place = _draw_home(draws, room, name, avoid=goal.target if name == goal.object else "")
        new = object_id(name, *_draw_position(draws))
        while new in taken:
            new = object_id(name, *_draw_position(draws))
        things.append(Thing(new, name, place))
        taken.add(new)
    return things


def _draw_position(draws: Draws) -> tuple[int, int, int]:
    """In hundredths of a metre; the middle one is the height."""
    return draws.between(-400, 400), draws.between(0, 200), draws.between(-400, 400)


def _draw_home(draws: Draws, room: Room, name: str, avoid: str) -> Receptacle:
    """Where an object lies: its first home is twice as likely as its second, three times as its third, and so on."""
    weights = {home: 1000 // i for i, home in enumerate(OBJECTS[name].homes, start=1)}
    homes = [home for home in weights if home in room.by_class and home != avoid]
    return draws.choose(room.by_class[draws.weighted(homes, [weights[home] for home in homes])])
