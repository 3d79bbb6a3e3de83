"""The facts of a problem in the terms of a game: receptacles, objects and locations by name and number."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from envs.alfworld.pddl import Formula, Problem, ground

STATES = ("isclean", "ishot", "iscool", "issliced", "istoggled", "ison")  # of objects, changed by actions
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")  # never changed
NOWHERE = -1  # the location of a receptacle that has none; no object, where an object is asked for

# What actions change, with the types of what it is about; `checked` is changed too, but nobody reads it.
_CHANGED = {
    "atlocation": ("agent", "location"),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "objectatlocation": ("object", "location"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
    **dict.fromkeys(STATES, ("object",)),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Receptacle:
    """A place that holds objects."""

    name: str  # "sinkbasin 1"
    type: str  # "sinkbasin"
    location: int  # number of the location it is reached from, or NOWHERE
    openable: bool
    arrival: str  # "You arrive at sinkbasin 1." (in older games "You arrive at loc 7.")


@dataclasses.dataclass(frozen=True, slots=True)
class Thing:
    """An object; most can be picked up."""

    name: str  # "apple 2"
    type: str  # "apple"
    pickupable: bool
    cleanable: bool
    heatable: bool
    coolable: bool
    toggleable: bool
    sliceable: bool
    is_receptacle: bool  # such as a bowl; nothing can be put into it
    holds: tuple[int, ...]  # objects that lie in it from the start, as an examination tells
    fits: frozenset[int]  # receptacles that it may be put in


class World:
    """Facts of a problem by predicate, and numbers for its symbols."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.facts: dict[str, list[tuple[str, ...]]] = {}
        for predicate, *symbols in sorted(problem.facts):
            self.facts.setdefault(predicate, []).append(tuple(symbols))
        mentioned = {symbol for fact in problem.facts for symbol in fact[1:]}
        self.names = display_names(sorted(mentioned))
        self.number = {
            kind: {symbol: i for i, symbol in enumerate(s for s in problem.of_type(kind) if s in mentioned)}
            for kind in ("receptacle", "object", "location", "agent")
        }

    def pairs(self, predicate: str, first: str, second: str) -> list[tuple[int, int]]:
        """Facts about two symbols of these types as numbers, ascending; about others they mean nothing."""
        found = []
        for fact in self.facts.get(predicate, []):
            if len(fact) != 2:
                raise ValueError(f"(:init ..): ({' '.join((predicate, *fact))}) must be of a {first} and a {second}")
            a, b = self.number[first].get(fact[0]), self.number[second].get(fact[1])
            if a is not None and b is not None:
                found.append((a, b))
        return sorted(found)

    def all_of(self, predicate: str, kind: str) -> frozenset[int]:
        """Those of a type that a predicate holds for."""
        facts = self.facts.get(predicate, [])
        if any(len(fact) != 1 for fact in facts):
            raise ValueError(f"(:init ..): ({predicate} ..) must be of one {kind}")
        return frozenset(self.number[kind][symbol] for (symbol,) in facts if symbol in self.number[kind])

    def parts(self, *, arrive_at_locations: bool) -> dict[str, Any]:
        """Game's fields that come from the problem."""
        receptacles = self.receptacles(arrive_at_locations)
        objects = self.objects()
        locations = range(len(self.number["location"]))
        here = tuple(tuple(r for r, x in enumerate(receptacles) if x.location == at) for at in locations)
        go = sorted((f"go to {x.name}", x.location) for x in receptacles if x.location != NOWHERE)
        goal = ground(self.problem, self.literal)
        return {
            "receptacles": receptacles,
            "objects": objects,
            "receptacle_numbers": {x.name: r for r, x in enumerate(receptacles)},
            "object_numbers": {x.name: o for o, x in enumerate(objects)},
            "here": here,
            "go_commands": tuple(tuple(command for command, there in go if there != at) for at in locations),
            "start": self.start(),
            "held": self.held(),
            "contents": _grouped(self.pairs("inreceptacle", "object", "receptacle"), len(receptacles)),
            "objects_at": _grouped(self.pairs("objectatlocation", "object", "location"), len(locations)),
            "opened": self.all_of("opened", "receptacle"),
            "states": {state: self.all_of(state, "object") for state in STATES},
            "goal": goal,
            "goal_predicates": frozenset(_predicates(goal)),
        }

    def start(self) -> int:
        at = self.pairs("atlocation", "agent", "location")
        if len(at) != 1:
            raise ValueError(f"(:init ..): expected one agent at one location, got {len(at)} facts (atLocation ..)")
        return at[0][1]

    def held(self) -> int:
        held = self.pairs("holds", "agent", "object")
        if len(held) > 1 or len(held) != len(self.facts.get("holdsany", [])):
            raise ValueError("(:init ..): (holds ..) and (holdsAny ..) contradict each other")
        return held[0][1] if held else NOWHERE

    def receptacles(self, arrive_at_locations: bool) -> tuple[Receptacle, ...]:
        locations: dict[int, int] = {}
        for receptacle, location in self.pairs("receptacleatlocation", "receptacle", "location"):
            if locations.setdefault(receptacle, location) != location:
                symbol = list(self.number["receptacle"])[receptacle]
                raise ValueError(f"(:init ..): receptacle {symbol} is at two locations")
        openable = self.all_of("openable", "receptacle")
        types = self.types("receptacletype")
        at = [self.names[symbol] for symbol in self.number["location"]]
        found = []
        for symbol, r in self.number["receptacle"].items():
            name, there = self.names[symbol], locations.get(r, NOWHERE)
            arrival = f"You arrive at {at[there] if arrive_at_locations else name}."
            found.append(Receptacle(name, _plain(types.get(symbol)), there, r in openable, arrival))
        return tuple(found)

    def objects(self) -> tuple[Thing, ...]:
        able = {ability: self.all_of(ability, "object") for ability in ABILITIES}
        vessels = self.all_of("isreceptacleobject", "object")
        inner = _grouped(self.pairs("inreceptacleobject", "object", "object"), len(self.number["object"]))
        types, fits = self.types("objecttype"), self.fits()
        return tuple(
            Thing(
                name=self.names[symbol],
                type=_plain(types.get(symbol)),
                is_receptacle=o in vessels,
                holds=inner[o],
                fits=fits.get(types.get(symbol, ""), frozenset()),
                **{ability: o in those for ability, those in able.items()},
            )
            for symbol, o in self.number["object"].items()
        )

    def types(self, predicate: str) -> dict[str, str]:
        """The type of each receptacle or object."""
        types: dict[str, str] = {}
        for fact in self.facts.get(predicate, []):
            if len(fact) != 2 or types.setdefault(fact[0], fact[1]) != fact[1]:
                raise ValueError(f"(:init ..): ({' '.join((predicate, *fact))}): one type each is expected")
        return types

    def fits(self) -> dict[str, frozenset[int]]:
        """Receptacles by the type of the objects that may be put in them."""
        by_type: dict[str, set[int]] = {}
        for symbol, kind in self.types("receptacletype").items():
            if symbol in self.number["receptacle"]:
                by_type.setdefault(kind, set()).add(self.number["receptacle"][symbol])
        fits: dict[str, set[int]] = {}
        for fact in self.facts.get("cancontain", []):
            if len(fact) != 2:
                raise ValueError(f"(:init ..): ({' '.join(('cancontain', *fact))}) must be of two types")
            fits.setdefault(fact[1], set()).update(by_type.get(fact[0], ()))
        return {kind: frozenset(receptacles) for kind, receptacles in fits.items()}

    def literal(self, predicate: str, symbols: tuple[str, ...]) -> Formula:
        """A fact of the goal: settled, if no action changes it, else its predicate and numbers (the agent left out)."""
        if predicate == "checked":
            raise ValueError("(:goal ..): (checked ..) is not understood")
        if predicate not in _CHANGED:
            return (predicate, *symbols) in self.problem.facts
        if tuple(map(self.problem.symbols.get, symbols)) != _CHANGED[predicate]:
            expected = " and ".join(f"a {kind}" for kind in _CHANGED[predicate])
            raise ValueError(f"(:goal ..): ({' '.join((predicate, *symbols))}) must be of {expected}")
        numbers = [self.number[kind].get(symbol) for kind, symbol in zip(_CHANGED[predicate], symbols, strict=True)]
        if None in numbers:
            return False  # no fact names the symbol, and no action makes one
        return (predicate, *(n for n, kind in zip(numbers, _CHANGED[predicate], strict=True) if kind != "agent"))


def display_names(symbols: Sequence[str]) -> dict[str, str]:
    """The names that players see: class and number, the first id of a class with its highest number.

    Args:
        symbols: ids in lower case, sorted, such as "sink_bar__plus_00_dot_10_bar_sinkbasin".
    """
    classes = {symbol: _class_of(symbol) for symbol in symbols if "_bar_" in symbol}
    left = Counter(classes.values())
    names = {symbol: f"{symbol} " for symbol in symbols}  # the space is the original's
    for symbol, kind in classes.items():
        names[symbol] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _class_of(symbol: str) -> str:
    name = symbol.partition("_bar_")[0]
    return f"{name}basin" if "basin" in symbol else name


def _plain(kind: str | None) -> str:
    """ "SinkBasinType" as "sinkbasin"."""
    return (kind or "").removesuffix("type")


def _grouped(pairs: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, ...], ...]:
    """(member, group) pairs as the members of each group."""
    groups: list[list[int]] = [[] for _ in range(count)]
    for member, group in pairs:
        groups[group].append(member)
    return tuple(map(tuple, groups))


def _predicates(formula: Formula) -> set[str]:
    if isinstance(formula, bool):
        return set()
    if formula[0] in ("and", "or", "not"):
        return set().union(*map(_predicates, formula[1:]))
    return {formula[0]}
