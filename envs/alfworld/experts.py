"""Two players that need no learning: `plan` knows the scene, `SearchingExpert` has to search as an agent must."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from envs.alfworld.game import Game
from envs.alfworld.pddl import Formula
from envs.alfworld.scenes import OBJECTS, OPENABLE
from envs.alfworld.world import NOWHERE

Fact: TypeAlias = tuple  # ("inreceptacle", object, receptacle), ("holds", object), ..

_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_TREATMENTS = {"isclean": "clean", "ishot": "heat", "iscool": "cool"}  # the command that brings a state about
_ADJECTIVES = {"clean": "clean", "hot": "heat", "cool": "cool"}
_NAME = re.compile(r"[a-z]+ \d+")
_HOMES = {name.lower(): [home.lower() for home in facts.homes] for name, facts in OBJECTS.items()}
_OPENABLE = tuple(name.lower() for name in OPENABLE)
_SENTENCES = (
    r"(?:put|find) (?P<two>two) (?P<object>\w+) (?:and put them )?(?:in|on) (?P<target>\w+)",
    r"(?:look at|examine)(?: the| a)? (?P<object>\w+) (?:under|with) the (?P<lamp>\w+)",
    r"put (?:a|some) (?P<adjective>clean|hot|cool) (?P<object>\w+) (?:in|on) (?P<target>\w+)",
    r"(?P<verb>clean|heat|cool) some (?P<object>\w+) and put it (?:in|on) (?P<target>\w+)",
    r"put (?:a|some) (?P<object>\w+) (?:in|on) (?P<target>\w+)",
)


def plan(game: Game) -> list[str]:
    """A shortest sequence of commands that wins; none if the game is won at its start.

    The goal is a choice between sets of facts. Each set leaves few sensible ways, all of which are tried: in which
    order objects are moved, and with which appliances. Whatever else one could do costs steps and gains nothing.

    Raises:
        ValueError: if no way leads to the goal, or the agent's hands are full at the start.
    """
    if game.held != NOWHERE:
        raise ValueError(f"{game.name or 'game'}: the agent holds something at the start, which is not planned for")
    ways = (way for facts in _alternatives(game.goal) for way in _ways(game, sorted(facts)))
    shortest = min(ways, key=len, default=None)
    if shortest is None:
        raise ValueError(f"{game.name or 'game'}: no sequence of commands fulfils the task {game.task!r}")
    return shortest


def _alternatives(goal: Formula) -> list[frozenset[Fact]]:
    """The sets of facts each of which fulfils a goal."""
    if isinstance(goal, bool):
        return [frozenset()] * goal
    if goal[0] == "not":
        raise ValueError(f"a goal that denies something can't be planned for: {goal}")
    if goal[0] not in ("and", "or"):
        return [frozenset({goal})]
    parts = [_alternatives(part) for part in goal[1:]]
    choices = itertools.product(*parts) if goal[0] == "and" else ((facts,) for part in parts for facts in part)
    return list(dict.fromkeys(frozenset().union(*choice) for choice in choices))


def _ways(game: Game, facts: Sequence[Fact]) -> Iterator[list[str]]:
    """Command sequences that bring all of the facts about, a shortest one among them."""
    target = {fact[1]: fact[2] for fact in facts if fact[0] == "inreceptacle"}
    held = [fact[1] for fact in facts if fact[0] == "holds"]
    missing = [fact for fact in facts if fact[0] in game.states and fact[1] not in game.states[fact[0]]]
    lamps = [o for state, o in missing if state == "istoggled"]
    treated = [(_TREATMENTS[state], o) for state, o in missing if state in _TREATMENTS]
    moved = [o for o, r in target.items() if o not in game.contents[r] or o in [o for _, o in treated]]
    if len(held) > 1 or not all(_movable(game, o, target.get(o)) for o in moved + held):
        return
    choices = [_within_reach(game, _APPLIANCES[verb]) for verb, _ in treated]
    for order, appliances in itertools.product(itertools.permutations(moved), itertools.product(*choices)):
        walk = _Walk(game)
        for o in order:
            walk.take(o)
            for (verb, what), appliance in zip(treated, appliances, strict=True):
                if what == o:
                    walk.treat(verb, o, appliance)
            walk.put(o, target[o])
        for o in held:
            walk.take(o)
        for location in [fact[1] for fact in facts if fact[0] == "atlocation"]:
            walk.go(location)
        for lamp in lamps:
            walk.use(lamp)
        yield walk.commands


def _within_reach(game: Game, name: str) -> list[int]:
    """Receptacles of a class that one can go to."""
    return [r for r, place in enumerate(game.receptacles) if place.type == name and place.location != NOWHERE]


def _movable(game: Game, o: int, target: int | None) -> bool:
    """Whether an object can be picked up where it lies and, unless it is only to be held, be put where it has to go."""
    thing = game.objects[o]
    ends = [r for r, things in enumerate(game.contents) if o in things]
    if not thing.pickupable or not ends:
        return False
    if target is not None:
        ends.append(target)
    return all(game.receptacles[r].location != NOWHERE for r in ends) and (target is None or target in thing.fits)


class _Walk:
    """The commands of a way through the scene, written down while it is walked."""

    def __init__(self, game: Game):
        self.game = game
        self.location = game.start
        self.opened = set(game.opened)
        self.commands: list[str] = []

    def go(self, location: int) -> None:
        if location != self.location:
            self.commands.append(f"go to {self.game.receptacles[self.game.here[location][0]].name}")
            self.location = location

    def reach_into(self, r: int) -> str:
        """Goes to a receptacle and sees that it is open; returns its name."""
        receptacle = self.game.receptacles[r]
        self.go(receptacle.location)
        if receptacle.openable and r not in self.opened:
            self.commands.append(f"open {receptacle.name}")
            self.opened.add(r)
        return receptacle.name

    def take(self, o: int) -> None:
        lies_in = next(r for r, things in enumerate(self.game.contents) if o in things)
        place = self.reach_into(lies_in)
        self.commands.append(f"take {self.game.objects[o].name} from {place}")

    def treat(self, verb: str, o: int, r: int) -> None:
        self.go(self.game.receptacles[r].location)
        self.commands.append(f"{verb} {self.game.objects[o].name} with {self.game.receptacles[r].name}")

    def put(self, o: int, r: int) -> None:
        place, preposition = self.reach_into(r), {"move": "to", "put": "in/on"}[self.game.verb]
        self.commands.append(f"{self.game.verb} {self.game.objects[o].name} {preposition} {place}")

    def use(self, lamp: int) -> None:
        self.commands.append(f"use {self.game.objects[lamp].name}")


class Task(NamedTuple):
    """A task sentence, understood."""

    object: str  # class, as shown
    target: str  # class of the receptacle; "" for a lamp
    lamp: str  # class of the lamp; "" for a receptacle
    treatment: str  # "clean", "heat", "cool" or ""
    copies: int


def read_task(sentence: str) -> Task:
    """What a task sentence such as "put a hot apple in fridge." asks for.

    Raises:
        ValueError: if it has none of the known forms.
    """
    for form in _SENTENCES:
        if match := re.search(form, sentence):
            found = {name: value or "" for name, value in match.groupdict().items()}
            treatment = found.get("verb") or _ADJECTIVES.get(found.get("adjective", ""), "")
            copies = 2 if "two" in found else 1
            return Task(found["object"], found.get("target", ""), found.get("lamp", ""), treatment, copies)
    raise ValueError(f"the task {sentence!r} has none of the known forms, such as 'put a hot apple in fridge.'")


class SearchingExpert:
    """Looks for what the task needs, likely places first, and does it. Deterministic; one instance an episode.

    It knows what an agent knows: what has been shown, the task, and the admissible commands.
    """

    def __init__(self) -> None:
        self.task: Task | None = None
        self.contents: dict[str, list[str] | None] = {}  # of every receptacle; None: not looked into yet
        self.here = ""  # the receptacle gone to last
        self.holding = ""
        self.treated: set[tuple[str, str]] = set()  # ("heat", "apple 1")
        self.command = ""  # the last one

    def act(self, observation: str, admissible: Sequence[str], done: str = "") -> str:
        """The next command.

        Args:
            observation: what was shown last; at first the whole introduction with the task.
            admissible: the commands that can be carried out now; the one returned is one of them.
            done: the command that was carried out last, where that may not have been the one returned.

        Raises:
            ValueError: if the task sentence is not understood.
        """
        if self.task is None:
            intro, _, sentence = observation.partition("Your task is to: ")
            self.task = read_task(sentence)
            self.contents = dict.fromkeys(_NAME.findall(intro.partition("you see")[2]))
        elif observation.strip() != "Nothing happens.":
            self._remember(observation, done or self.command)
        self.command = next(command for command in self._wishes(self.task) if command in admissible)
        return self.command

    def _remember(self, observation: str, command: str) -> None:
        """What the command changed, and what is shown of its receptacle."""
        verb, *_ = command.split()
        names = _NAME.findall(command)
        if verb in ("go", "open", "examine") and names[0] in self.contents:
            self.here = names[0]
            if "you see" in observation:
                self.contents[self.here] = _NAME.findall(observation.partition("you see")[2])
        elif verb == "take":
            self.holding = names[0]
            if names[0] in self._inside(names[1]):  # others may take from where it has not looked
                self._inside(names[1]).remove(names[0])
        elif verb in ("move", "put"):
            self.holding = ""
            self._inside(names[1]).append(names[0])
        elif verb in _APPLIANCES:
            self.treated -= {("heat", names[0]), ("cool", names[0])} if verb in ("heat", "cool") else set()
            self.treated.add((verb, names[0]))

    def _inside(self, place: str) -> list[str]:
        """What is known to be in a receptacle; of one not looked into, a list that nobody keeps."""
        things = self.contents[place]
        return [] if things is None else things

    def _wishes(self, task: Task) -> Iterator[str]:
        """What it would like to do, most wanted first; the last can always be done."""
        if not self.holding:
            yield from self._fetch(task)
        elif _class(self.holding) != task.object:
            yield from self._put_away()
        elif task.treatment and (task.treatment, self.holding) not in self.treated:
            appliance = _APPLIANCES[task.treatment]
            for place in self._known(appliance):
                yield f"{task.treatment} {self.holding} with {place}"
            for place in self._known(appliance):
                yield from self._go(place)
        elif task.lamp:
            yield from self._use(task.lamp)
        else:
            place = self._destination(task)
            if self.contents.get(place) is None:
                yield from self._go(place)
            yield f"move {self.holding} to {place}"
            yield f"put {self.holding} in/on {place}"
            yield from self._go(place)
        yield "look"

    def _put_away(self) -> Iterator[str]:
        """What is held by mistake, wherever it may be put."""
        for place in sorted(self.contents, key=lambda place: place != self.here):
            yield f"move {self.holding} to {place}"
            yield f"put {self.holding} in/on {place}"
            if self.contents[place] is None or _class(place) in _OPENABLE:
                yield from self._go(place)
        yield from (f"go to {place}" for place in self.contents if place != self.here)

    def _fetch(self, task: Task) -> Iterator[str]:
        done = "" if task.lamp or task.treatment else self._destination(task)
        for place, things in self.contents.items():
            for thing in things or []:
                if _class(thing) == task.object and place != done:
                    yield f"take {thing} from {place}"
                    yield from self._go(place)
        yield from self._search(task.object)

    def _use(self, lamp: str) -> Iterator[str]:
        for place, things in self.contents.items():
            for thing in things or []:
                if _class(thing) == lamp:
                    yield f"use {thing}"
                    yield from self._go(place)
        yield from self._search(lamp)

    def _go(self, place: str) -> Iterator[str]:
        """Towards and into a receptacle; one that shares the location of another can be seen without going."""
        if self.here == place:
            yield f"open {place}"
        yield f"go to {place}"
        if self.here != place:
            yield f"open {place}"
            yield f"examine {place}"

    def _search(self, wanted: str) -> Iterator[str]:
        """The receptacle that promises most for its steps: going there, and opening it."""
        unseen = [place for place, things in self.contents.items() if things is None]
        homes = _HOMES.get(wanted, [])

        def promise(place: str) -> float:
            name = _class(place)
            steps = 1 + (name in _OPENABLE)
            return 1 / (1 + homes.index(name)) / len(self._known(name)) / steps if name in homes else 0.0

        for place in sorted(unseen, key=promise, reverse=True):
            yield from self._go(place)

    def _destination(self, task: Task) -> str:
        """Of the target's receptacles the one that holds most of what is asked for, else one looked into already."""

        def merit(place: str) -> tuple[int, bool]:
            inside = [_class(thing) for thing in self._inside(place)]
            return (inside.count(task.object) if task.copies > 1 else 0, self.contents[place] is not None)

        return max(self._known(task.target), key=merit, default="")

    def _known(self, name: str) -> list[str]:
        """Receptacles of a class."""
        return [place for place in self.contents if _class(place) == name]


def _class(name: str) -> str:
    return name.split()[0]
