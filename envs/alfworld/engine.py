"""A running episode of a game: plain Python state, changed by commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from envs.alfworld.game import Game
from envs.alfworld.pddl import Formula
from envs.alfworld.world import NOWHERE, STATES

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."

_KNIVES = ("knife", "butterknife")
_TREATMENTS = {"sinkbasin": "clean", "microwave": "heat", "fridge": "cool"}
_MOVED = frozenset({"inreceptacle", "objectatlocation", "holds", "holdsany"})
# What each command may change, in the goal's terms.
_CHANGES = {
    "go": frozenset({"atlocation"}),
    "open": frozenset({"opened"}),
    "close": frozenset({"opened"}),
    "take": _MOVED,
    "move": _MOVED,
    "put": _MOVED,
    "clean": frozenset({"isclean"}),
    "heat": frozenset({"ishot", "iscool"}),
    "cool": frozenset({"ishot", "iscool"}),
    "slice": frozenset({"issliced"}),
    "use": frozenset({"istoggled", "ison"}),
}


class Engine:
    """One episode: it stands at the game's start, and `step` goes on from there.

    Attributes:
        game: never written to.
        observation: the last one; at the start the whole introduction, with the welcome line and the task.
        won: whether the goal holds now: it may be lost again.
    """

    def __init__(self, game: Game):
        self.game = game
        self.location = game.start
        self.held = game.held  # an object, or NOWHERE
        self.opened = set(game.opened)
        self.contents = list(game.contents)  # receptacle -> objects, ascending
        self.objects_at = list(game.objects_at)  # location -> objects; may differ from where their receptacle is
        self.states = {state: set(game.states[state]) for state in STATES}
        self.taken: set[tuple[int, int]] = set()  # (object, receptacle) it was taken from and not put back into
        self.won = self._holds(game.goal)
        self._commands: tuple[str, ...] | None = None
        room = self._room(place.name for place in game.receptacles if place.location != NOWHERE)
        self.observation = f"{WELCOME}\n\n{room}\n\nYour task is to: {game.task}"

    @property
    def admissible_commands(self) -> tuple[str, ...]:
        """What may be done now, sorted."""
        if self._commands is None:
            self._commands = tuple(self._admissible())
        return self._commands

    def step(self, command: str) -> str:
        """Carries out a command, which counts only as it is listed in `admissible_commands`.

        Returns:
            The observation; "Nothing happens." after any other command.
        """
        command = command.strip()
        if command in self.admissible_commands:
            verb, _, rest = command.partition(" ")
            self.observation = _ACTIONS[verb](self, rest)
            changes = _CHANGES.get(verb)
            if changes:
                self._commands = None
                if not changes.isdisjoint(self.game.goal_predicates):
                    self.won = self._holds(self.game.goal)
        else:
            self.observation = NOTHING_HAPPENS
        return self.observation

    # What may be done.

    def _admissible(self) -> list[str]:
        game = self.game
        commands = [*game.go_commands[self.location], "inventory", "look"]
        if game.help_text:
            commands.append("help")
        reach = []  # receptacles here that are not closed
        for r in game.here[self.location]:
            place = game.receptacles[r]
            commands.append(f"examine {place.name}")
            if place.openable:
                commands.append(f"{'close' if r in self.opened else 'open'} {place.name}")
            if not place.openable or r in self.opened:
                reach.append(r)
            commands += [f"use {game.objects[o].name}" for o in self.contents[r] if game.objects[o].toggleable]
        commands += self._takes(reach) if self.held == NOWHERE else self._with_held(reach)
        return sorted(set(commands))

    def _takes(self, reach: list[int]) -> list[str]:
        objects, receptacles = self.game.objects, self.game.receptacles
        return [
            f"take {objects[o].name} from {receptacles[r].name}"
            for r in reach
            for o in self.contents[r]
            if objects[o].pickupable
        ]

    def _with_held(self, reach: list[int]) -> list[str]:
        game = self.game
        thing = game.objects[self.held]
        commands = [f"examine {thing.name}"]  # objects only while held, as in the original
        where = "in/on" if game.verb == "put" else "to"
        commands += [f"{game.verb} {thing.name} {where} {game.receptacles[r].name}" for r in reach if r in thing.fits]
        treated_in = {"sinkbasin": thing.cleanable, "microwave": thing.heatable, "fridge": thing.coolable}
        for place in [game.receptacles[r] for r in game.here[self.location]]:  # closed ones too
            if treated_in.get(place.type):
                commands.append(f"{_TREATMENTS[place.type]} {thing.name} with {place.name}")
        if thing.type in _KNIVES:
            near = [game.objects[o] for o in self.objects_at[self.location]]
            commands += [f"slice {other.name} with {thing.name}" for other in near if other.sliceable]
        return commands

    # What commands do, and say. `rest` is what follows the first word.

    def _go(self, rest: str) -> str:
        r = self.game.receptacle_numbers[rest.removeprefix("to ")]
        self.location = self.game.receptacles[r].location
        return f"{self.game.receptacles[r].arrival} {self._sight(r)}"

    def _open(self, name: str) -> str:
        r = self.game.receptacle_numbers[name]
        self.opened.add(r)
        return f"You open the {name}. {self._sight(r)}"

    def _close(self, name: str) -> str:
        self.opened.remove(self.game.receptacle_numbers[name])
        return f"You close the {name}."

    def _take(self, rest: str) -> str:
        thing, place = rest.split(" from ")
        o, r = self.game.object_numbers[thing], self.game.receptacle_numbers[place]
        self.held = o
        self.contents[r] = _without(self.contents[r], o)
        self.objects_at[self.location] = _without(self.objects_at[self.location], o)
        self.taken.add((o, r))
        return f"You pick up the {thing} from the {place}."

    def _move(self, rest: str) -> str:
        thing, place = self._put_down(rest, " to ")
        return f"You move the {thing} to the {place}."

    def _put(self, rest: str) -> str:
        thing, place = self._put_down(rest, " in/on ")
        return f"You put the {thing} in/on the {place}."

    def _put_down(self, rest: str, between: str) -> tuple[str, str]:
        thing, place = rest.split(between)
        o, r = self.game.object_numbers[thing], self.game.receptacle_numbers[place]
        self.held = NOWHERE
        self.contents[r] = _with(self.contents[r], o)
        self.objects_at[self.location] = _with(self.objects_at[self.location], o)
        self.taken.discard((o, r))
        return thing, place

    def _clean(self, rest: str) -> str:
        return self._treat("clean", rest, "isclean")

    def _heat(self, rest: str) -> str:
        return self._treat("heat", rest, "ishot", undone="iscool")

    def _cool(self, rest: str) -> str:
        return self._treat("cool", rest, "iscool", undone="ishot")

    def _treat(self, verb: str, rest: str, done: str, undone: str | None = None) -> str:
        thing, place = rest.split(" with ")
        o = self.game.object_numbers[thing]
        self.states[done].add(o)
        if undone:
            self.states[undone].discard(o)
        return f"You {verb} the {thing} using the {place}."

    def _slice(self, rest: str) -> str:
        thing, knife = rest.split(" with ")
        self.states["issliced"].add(self.game.object_numbers[thing])
        return f"You sliced the {thing} with the {knife}."

    def _use(self, name: str) -> str:
        o = self.game.object_numbers[name]
        self.states["istoggled"].add(o)  # for good: the original says "on" each time, and so does the goal
        self.states["ison"] ^= {o}
        return f"You turn on the {name}."

    def _examine(self, name: str) -> str:
        r = self.game.receptacle_numbers.get(name)
        return self._sight(r) if r is not None else self._inspection(self.game.object_numbers[name])

    def _look(self, _: str) -> str:
        return self._room(listed=())

    def _inventory(self, _: str) -> str:
        if self.held == NOWHERE:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.objects[self.held].name}."

    def _help(self, _: str) -> str:
        return self.game.help_text

    # What is seen.

    def _room(self, listed: Iterable[str]) -> str:
        """The receptacles before the agent; in the middle of the room those that are listed (only at the start)."""
        game = self.game
        here = game.here[self.location]
        if not here:
            return f"You are in the middle of a room. Looking quickly around you, you see {_listing(listed)}."
        facing = _enumeration([game.receptacles[r].name for r in here])
        # As in the original, what lies here counts once for each receptacle here that it was taken from.
        beside = [game.objects[o].name for o in self.objects_at[self.location] for r in here if (o, r) in self.taken]
        return f"You are facing the {facing}. Next to it, you see {_listing(beside)}."

    def _sight(self, r: int) -> str:
        """A receptacle and what is in it."""
        place = self.game.receptacles[r]
        if place.openable and r not in self.opened:
            return f"The {place.name} is closed."
        inside = _listing(self.game.objects[o].name for o in self.contents[r])
        how = f"The {place.name} is open. In it" if place.openable else f"On the {place.name}"
        return f"{how}, you see {inside}."

    def _inspection(self, o: int) -> str:
        """An object and its state."""
        thing, states = self.game.objects[o], self.states
        if thing.is_receptacle:
            inside = _listing(self.game.objects[inner].name for inner in thing.holds)
            return f"This is a normal {thing.name}. In it, you see {inside}."
        clean, sliced = o in states["isclean"], o in states["issliced"]
        temperature = "hot" if o in states["ishot"] else "cool" if o in states["iscool"] else ""
        if temperature or clean:
            words = " and ".join(filter(None, (temperature, "clean" if clean else "")))
            if words == "cool" and not sliced:
                words = "cold"
            return f"This is a {words} {'sliced ' if sliced else ''}{thing.name}."
        if thing.toggleable and o in states["istoggled"]:
            return f"This {thing.name} is on."
        if thing.sliceable and sliced:
            return f"This is a sliced {thing.name}."
        return f"There's nothing special about {thing.name}."

    def _holds(self, formula: Formula) -> bool:
        """Whether a condition holds now."""
        if isinstance(formula, bool):
            return formula
        kind, *parts = formula
        if kind == "and":
            return all(map(self._holds, parts))
        if kind == "or":
            return any(map(self._holds, parts))
        if kind == "not":
            return not self._holds(parts[0])
        if kind == "inreceptacle":
            return parts[0] in self.contents[parts[1]]
        if kind == "holds":
            return self.held == parts[0]
        if kind == "holdsany":
            return self.held != NOWHERE
        if kind == "atlocation":
            return self.location == parts[0]
        if kind == "objectatlocation":
            return parts[0] in self.objects_at[parts[1]]
        return parts[0] in (self.opened if kind == "opened" else self.states[kind])


_ACTIONS: dict[str, Callable[[Engine, str], str]] = {
    "go": Engine._go,
    "open": Engine._open,
    "close": Engine._close,
    "take": Engine._take,
    "move": Engine._move,
    "put": Engine._put,
    "clean": Engine._clean,
    "heat": Engine._heat,
    "cool": Engine._cool,
    "slice": Engine._slice,
    "use": Engine._use,
    "examine": Engine._examine,
    "look": Engine._look,
    "inventory": Engine._inventory,
    "help": Engine._help,
}


def _without(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(x for x in numbers if x != number)


def _with(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, number}))


def _listing(names: Iterable[str]) -> str:
    """ "a mug 2, and a pen 1", or "nothing"."""
    return _enumeration([f"a {name}" for name in names]) or "nothing"


def _enumeration(words: list[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])}, and {words[-1]}"
