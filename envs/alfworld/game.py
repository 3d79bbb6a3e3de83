"""A parsed game: what never changes while it is played, and how things stand at its start."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.alfworld.pddl import Formula, read_problem
from envs.alfworld.world import Receptacle, Thing, World

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

# What is put down, and where: the template in a game file's grammar, by Game.verb.
_PUT_TEMPLATES = {"move {o} to {r}": "move", "put {o} in/on {r}": "put"}
_TASK = re.compile(r'"rhs":\s*("Your task is to: (?:[^"\\]|\\.)*")')
_TEMPLATE = re.compile(r'\baction\s+(\w+)\s*\{\s*template\s*::\s*"([^"]*)"')
_ACTION = re.compile(r"\(:action (\S+)(.*?)(?=\(:action|$)")
_RULES = "d7995697a26ea917"  # digest of the known domain's actions, help aside
# Words of the known grammar; where a file lacks some, the original says or understands others than the engine.
_WORDS = (
    "go to [{r.name",
    "open {r}",
    "close {r}",
    "take {o} from {r}",
    "examine {r}",
    "examine {o}",
    "use {o}",
    "heat {o} with {r}",
    "clean {o} with {r}",
    "cool {o} with {r}",
    "slice {co} with {ko}",
    "-= Welcome to TextWorld, ALFRED! =-",
    "You are in the middle of a room. Looking quickly around you, you see ",
    "You are facing the [{r.name",
    ". Next to it, you see ",
    ".name}. #examineReceptacle.feedback#",
    "You open the {r.name}. #",
    "You close the {r.name}.",
    "The {r.name} is closed.",
    "The {r.name} is open. In it, you see [{",
    "On the {r.name}, you see [{",
    "You pick up the {o.name} from the {r.name}.",
    "You heat the {o.name} using the {r.name}.",
    "You clean the {o.name} using the {r.name}.",
    "You cool the {o.name} using the {r.name}.",
    "You sliced the {co.name} with the {ko.name}.",
    "You turn on the {o.name}.",
    "You are carrying: [{",
    "You are not carrying anything.",
    "This is a normal {o.name}. In it, you see [{",
    "There's nothing special about {o.name}.",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Game:
    """A game, for any number of engines at once; nobody writes to its fields.

    Receptacles, objects and locations go by their numbers, which follow the order of their ids; so all lists
    that the player is shown come out in ascending order of these.
    """

    name: str  # such as split, task and trial: the path below the data folder
    task_type: str  # one of TASK_TYPES
    task: str  # "put some soapbottle on countertop."
    verb: str  # "move" (move X to Y), in older games "put" (put X in/on Y)
    walkthrough: tuple[str, ...]
    help_text: str  # "" where "help" is no command
    receptacles: tuple[Receptacle, ...]
    objects: tuple[Thing, ...]
    receptacle_numbers: dict[str, int]  # by name
    object_numbers: dict[str, int]  # by name
    here: tuple[tuple[int, ...], ...]  # location -> receptacles
    go_commands: tuple[tuple[str, ...], ...]  # location -> what is admissible there
    start: int  # location of the agent
    held: int  # object, or NOWHERE
    contents: tuple[tuple[int, ...], ...]  # receptacle -> objects
    objects_at: tuple[tuple[int, ...], ...]  # location -> objects
    opened: frozenset[int]  # receptacles
    states: dict[str, frozenset[int]]  # one of STATES -> objects
    goal: Formula  # over ("inreceptacle", object, receptacle), ("holds", object), ("atlocation", location), ..
    goal_predicates: frozenset[str]  # those in it


def parse_game(
    problem: str,
    *,
    task: str,
    task_type: str,
    name: str = "",
    verb: str = "move",
    walkthrough: Sequence[str] = (),
    arrive_at: str = "receptacle",
    with_help: bool = True,
) -> Game:
    """A game from the text of its PDDL problem.

    Args:
        problem: the text.
        task: what follows "Your task is to: ", full stop included.
        task_type: one of TASK_TYPES.
        name: shown in messages.
        verb: "move", or "put" as in older games.
        walkthrough: commands that solve it.
        arrive_at: "receptacle" or, as in the oldest games, "location": what ``go to`` says that one arrives at.
        with_help: whether "help" is a command; in the oldest games it is not.

    Raises:
        ValueError: if an argument is unknown or the problem is damaged.
    """
    for value, known in ((task_type, TASK_TYPES), (verb, ("move", "put")), (arrive_at, ("receptacle", "location"))):
        if value not in known:
            raise ValueError(f"{name or 'game'}: expected one of {', '.join(known)}, got {value!r}")
    try:
        parts = World(read_problem(problem)).parts(arrive_at_locations=arrive_at == "location")
    except ValueError as error:
        raise ValueError(f"{name or 'game'}: pddl_problem: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{name or 'game'}: pddl_problem: nested too deeply") from error
    about = {"name": name, "task_type": task_type, "task": task, "verb": verb, "walkthrough": tuple(walkthrough)}
    return Game(**about, help_text=_help(verb) if with_help else "", **parts)


def read_game(path: Path) -> Game:
    """A game of the original download: ``game.tw-pddl``, with ``traj_data.json`` beside it.

    Rules and words are this engine's own; where the file's domain or grammar differs from the known ones in more
    than the older words for putting down, arriving and helping, a warning says so.

    Raises:
        ValueError: if a file is missing, damaged, of another kind, or marked as unsolvable.
    """
    path = Path(path)
    file = _read_json(path)
    domain, grammar, problem = (_text_field(path, file, field) for field in ("pddl_domain", "grammar", "pddl_problem"))
    if not file.get("solvable"):
        raise ValueError(f"{path}: solvable: expected true, got {file.get('solvable')!r}; leave the game out")
    templates = dict(_TEMPLATE.findall(grammar))
    verb = _PUT_TEMPLATES.get(templates.get("PutObject", ""))
    if verb is None:
        expected = " or ".join(map(repr, _PUT_TEMPLATES))
        raise ValueError(
            f"{path}: grammar: PutObject's template: expected {expected}, got {templates.get('PutObject')!r}"
        )
    trajectory = path.with_name("traj_data.json")
    task_type = _read_json(trajectory).get("task_type")
    if task_type not in TASK_TYPES:
        raise ValueError(f"{trajectory}: task_type: expected one of {', '.join(TASK_TYPES)}, got {task_type!r}")
    walkthrough = file.get("walkthrough") or []
    if not isinstance(walkthrough, list) or not all(isinstance(command, str) for command in walkthrough):
        raise ValueError(f"{path}: walkthrough: expected a list of commands")
    _warn_of_others(domain, grammar)
    game = parse_game(
        problem,
        task=_task(path, grammar),
        task_type=task_type,
        name=str(path),  # for messages
        verb=verb,
        walkthrough=[_in_the_words_of(verb, command) for command in walkthrough],
        arrive_at="location" if "You arrive at {lend.name}" in grammar else "receptacle",
        with_help="help" in templates and ("(:action help" in domain or "(:action" not in domain),
    )
    return dataclasses.replace(game, name="/".join(path.parts[-4:-1]))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; a game is game.tw-pddl with traj_data.json beside it") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _text_field(path: Path, file: dict[str, Any], field: str) -> str:
    value = file.get(field)
    if not isinstance(value, str):
        raise ValueError(f"{path}: {field}: expected text, got {type(value).__name__}; is it another kind of file?")
    return value


def _task(path: Path, grammar: str) -> str:
    """What follows "Your task is to: " in the grammar, which holds the sentence as a JSON string."""
    found = _TASK.search(grammar)
    if found is None:
        raise ValueError(f"{path}: grammar: found no sentence 'Your task is to: ..'")
    try:
        return json.loads(found[1]).removeprefix("Your task is to: ")
    except ValueError as error:
        raise ValueError(f"{path}: grammar: the sentence 'Your task is to: ..' is damaged: {error}") from error


def _in_the_words_of(verb: str, command: str) -> str:
    """A command of a walkthrough, which newer files may still have in the older words."""
    if verb == "move":
        return re.sub(r"^put (.+) in/on (.+)$", r"move \1 to \2", command)
    return re.sub(r"^move (.+) to (.+)$", r"put \1 in/on \2", command)


def _warn_of_others(domain: str, grammar: str) -> None:
    """Warns of rules and words that are not the engine's. What a file leaves out altogether is as the engine has it."""
    if not _has_known_rules(domain):
        warnings.warn("pddl_domain of game files is not the known one: ALFWorld's rules are played", stacklevel=3)
    missing = [words for words in _WORDS if words not in grammar] if ".feedback" in grammar else []
    if missing:
        text = f"grammar of game files lacks {missing[0]!r}: ALFWorld's words are used, this among them"
        warnings.warn(text, stacklevel=3)


@functools.lru_cache(maxsize=4)  # the domain is the same in every file
def _has_known_rules(domain: str) -> bool:
    actions = _ACTION.findall(" ".join(re.sub(r";[^\n]*", "", domain).lower().split()))
    rules = sorted((name, body.replace(" ", "").rstrip(")")) for name, body in actions if name != "help")
    return not rules or hashlib.sha256(repr(rules).encode()).hexdigest()[:16] == _RULES


def _help(verb: str) -> str:
    put = {"move": "move (object) to (receptacle):", "put": "put (object) in/on (receptacle):"}[verb]
    return _HELP.format(put=put)


_HELP = """\
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  {put}  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
