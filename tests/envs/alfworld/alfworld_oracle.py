"""The rules once more, slow and plain: a set of facts, every command tried against its conditions."""

from itertools import product
from typing import Any

from envs.alfworld.pddl import Expression, Problem
from envs.alfworld.world import display_names

Fact = tuple[str, ...]
Changes = tuple[set[Fact], set[Fact]]  # facts that come, facts that go


class Oracle:
    """A game as a set of facts."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.facts = set(problem.facts)
        self.names = display_names(sorted({symbol for fact in self.facts for symbol in fact[1:]}))
        self.receptacles = [s for s in problem.of_type("receptacle") if s in self.names]
        self.objects = [s for s in problem.of_type("object") if s in self.names]
        (self.agent,) = problem.of_type("agent")

    def step(self, command: str) -> bool:
        """Whether the command was admissible; it is carried out if so."""
        changes = self.admissible().get(command)
        if changes:
            self.facts = self.facts - changes[1] | changes[0]
        return changes is not None

    def admissible(self) -> dict[str, Changes]:
        found: dict[str, Changes] = {"look": (set(), set()), "inventory": (set(), set()), "help": (set(), set())}
        (here,) = (fact[2] for fact in self.facts if fact[0] == "atlocation")
        for r in self.receptacles:
            found |= self.with_receptacle(r, here, self.names[r])
            for o in self.objects:
                if self.at(r, here):
                    found |= self.with_object(o, r, here, self.names[o], self.names[r])
        for o in self.objects:
            if self.holds(o):
                found[f"examine {self.names[o]}"] = set(), set()
        for o, knife in product(self.objects, self.objects):
            kinds = [("objecttype", knife, kind) in self.facts for kind in ("knifetype", "butterknifetype")]
            near = ("objectatlocation", o, here) in self.facts
            if self.holds(knife) and any(kinds) and near and ("sliceable", o) in self.facts:
                found[f"slice {self.names[o]} with {self.names[knife]}"] = {("issliced", o)}, set()
        return found

    def at(self, r: str, location: str) -> bool:
        return ("receptacleatlocation", r, location) in self.facts

    def holds(self, o: str) -> bool:
        return ("holds", self.agent, o) in self.facts

    def accessible(self, r: str) -> bool:
        return ("openable", r) not in self.facts or ("opened", r) in self.facts

    def with_receptacle(self, r: str, here: str, name: str) -> dict[str, Changes]:
        found: dict[str, Changes] = {}
        for there in self.problem.of_type("location"):
            if self.at(r, there) and there != here:
                found[f"go to {name}"] = {("atlocation", self.agent, there)}, {("atlocation", self.agent, here)}
        if self.at(r, here):
            found[f"examine {name}"] = set(), set()
            if ("openable", r) in self.facts and ("opened", r) in self.facts:
                found[f"close {name}"] = set(), {("opened", r)}
            elif ("openable", r) in self.facts:
                found[f"open {name}"] = {("opened", r)}, set()
        return found

    def with_object(self, o: str, r: str, here: str, thing: str, place: str) -> dict[str, Changes]:
        """Of a receptacle that stands here."""
        found: dict[str, Changes] = {}
        placed: set[Fact] = {("inreceptacle", o, r), ("objectatlocation", o, here)}
        carried: set[Fact] = {("holds", self.agent, o), ("holdsany", self.agent)}
        inside = ("inreceptacle", o, r) in self.facts
        free = ("holdsany", self.agent) not in self.facts
        if inside and ("toggleable", o) in self.facts:
            found[f"use {thing}"] = {("istoggled", o)}, set()
        if inside and free and self.accessible(r) and ("pickupable", o) in self.facts:
            found[f"take {thing} from {place}"] = carried, placed
        if self.holds(o):
            if self.accessible(r) and self.fits(o, r):
                found[f"move {thing} to {place}"] = placed, carried
            for verb, able, kind, come, go in (
                ("clean", "cleanable", "sinkbasintype", "isclean", ""),
                ("heat", "heatable", "microwavetype", "ishot", "iscool"),
                ("cool", "coolable", "fridgetype", "iscool", "ishot"),
            ):
                if (able, o) in self.facts and ("receptacletype", r, kind) in self.facts:
                    found[f"{verb} {thing} with {place}"] = {(come, o)}, {(go, o)}
        return found

    def fits(self, o: str, r: str) -> bool:
        outer = [fact[2] for fact in self.facts if fact[:2] == ("receptacletype", r)]
        inner = [fact[2] for fact in self.facts if fact[:2] == ("objecttype", o)]
        return any(("cancontain", *pair) in self.facts for pair in product(outer, inner))

    def won(self) -> bool:
        return self.true(self.problem.goal, {})

    def true(self, expression: Expression, bound: dict[str, str]) -> bool:
        name, *rest = expression
        parts: Any = rest
        if name == "and":
            return all(self.true(part, bound) for part in parts)
        if name == "or":
            return any(self.true(part, bound) for part in parts)
        if name == "not":
            return not self.true(parts[0], bound)
        if name in ("exists", "forall"):
            names, kinds = parts[0][::3], parts[0][2::3]
            choices = product(*map(self.problem.of_type, kinds))
            truths = [self.true(parts[1], bound | dict(zip(names, choice, strict=True))) for choice in choices]
            return any(truths) if name == "exists" else all(truths)
        values = [bound.get(word, word) for word in parts]
        return values[0] == values[1] if name == "=" else (name, *values) in self.facts
