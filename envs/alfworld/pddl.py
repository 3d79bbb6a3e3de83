"""PDDL problems as game files hold them: typed symbols, facts, a goal; and goals made ready to be checked often."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Expression: TypeAlias = "str | list[Expression]"
Formula: TypeAlias = "bool | tuple"  # True, False, ("and" | "or", *formulas), ("not", formula), (predicate, *numbers)

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem, all in lower case (PDDL ignores case)."""

    symbols: dict[str, str]  # symbol -> its type
    facts: frozenset[tuple[str, ...]]  # (predicate, symbol, ..): what holds at the start
    goal: Expression

    def of_type(self, kind: str) -> list[str]:
        """Symbols of a type, sorted."""
        return sorted(symbol for symbol, its_type in self.symbols.items() if its_type == kind)


def read_problem(text: str) -> Problem:
    """Parses ``(define (problem ..) (:objects ..) (:init ..) (:goal ..))``; other parts are passed over.

    Raises:
        ValueError: if brackets do not match, a part is missing, or a fact names an unknown symbol.
    """
    parts = {}
    for part in _nested(text)[1:]:
        if isinstance(part, list) and part and isinstance(part[0], str):
            parts[part[0]] = part[1:]
    for name in (":objects", ":init", ":goal"):
        if name not in parts:
            raise ValueError(f"the problem has no part ({name} ..)")
    if len(parts[":goal"]) != 1:
        raise ValueError(f"(:goal ..) must hold one condition, got {len(parts[':goal'])}")
    symbols = _typed(parts[":objects"], ":objects")
    return Problem(symbols, _facts(parts[":init"], symbols), parts[":goal"][0])


def _nested(text: str) -> list[Expression]:
    """The first expression of a text, as nested lists of words."""
    outermost: list[Expression] = []
    stack = [outermost]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
            stack[-2].append(stack[-1])
        elif token != ")":
            stack[-1].append(token)
        elif len(stack) == 1:
            raise ValueError("the problem has a ')' without a '('")
        else:
            stack.pop()
    if len(stack) > 1:
        raise ValueError(f"the problem ends with {len(stack) - 1} '(' still open: is it cut off?")
    if len(outermost) != 1 or not isinstance(outermost[0], list) or outermost[0][:1] != ["define"]:
        raise ValueError("the problem must be one expression (define ..)")
    return outermost[0]


def _typed(words: list[Expression], where: str) -> dict[str, str]:
    """``a b - kind c - other`` as {a: kind, b: kind, c: other}."""
    types: dict[str, str] = {}
    waiting: list[str] = []
    after_dash = False
    for word in words:
        if not isinstance(word, str):
            raise ValueError(f"{where}: expected names and types, got a bracket")
        if after_dash:
            types |= dict.fromkeys(waiting, word)
            waiting, after_dash = [], False
        elif word == "-":
            after_dash = True
        else:
            waiting.append(word)
    if waiting or after_dash:
        raise ValueError(f"{where}: {waiting[0] if waiting else 'a dash'} has no type after it")
    return types


def _facts(expressions: list[Expression], symbols: Mapping[str, str]) -> frozenset[tuple[str, ...]]:
    """Facts as tuples. Numbers, ``(= (distance ..) 3)``, and denials, ``(not (..))``, say nothing here."""
    facts = set()
    for expression in expressions:
        if not isinstance(expression, list) or not expression or not isinstance(expression[0], str):
            raise ValueError(f"(:init ..): expected a fact in brackets, got {_text(expression)}")
        if expression[0] in ("=", "not"):
            continue
        for word in expression[1:]:
            if not isinstance(word, str) or word not in symbols:
                raise ValueError(f"(:init ..): {_text(expression)} names {_text(word)}, which (:objects ..) lacks")
        facts.add(tuple(expression))
    return frozenset(facts)


def _text(expression: Expression) -> str:
    return expression if isinstance(expression, str) else f"({' '.join(map(_text, expression))})"


def ground(problem: Problem, literal: Callable[[str, tuple[str, ...]], Formula]) -> Formula:
    """The goal without variables: quantifiers become "or" and "and" over symbols, what is settled is left out.

    Args:
        problem: its goal is taken; and, or, not, imply, =, exists and forall are understood.
        literal: what a fact is in the formula, such as True, False, or a tuple that starts with the predicate.

    Raises:
        ValueError: if the goal is not understood.
    """
    return _Grounding(problem, literal).formula(problem.goal, {})


class _Grounding:
    """Instantiates variables one after another, so that a condition that fails early spares the later ones."""

    def __init__(self, problem: Problem, literal: Callable[[str, tuple[str, ...]], Formula]):
        self.literal = literal
        self.symbols: dict[str, list[str]] = {}
        for symbol, kind in sorted(problem.symbols.items()):
            self.symbols.setdefault(kind, []).append(symbol)

    def formula(self, expression: Expression, bound: dict[str, str]) -> Formula:
        if not isinstance(expression, list) or not expression or not isinstance(expression[0], str):
            raise ValueError(f"(:goal ..): expected a condition in brackets, got {_text(expression)}")
        name, *rest = expression
        if name == "and":
            return _join("and", (self.formula(part, bound) for part in rest))
        if name == "or":
            return _join("or", (self.formula(part, bound) for part in rest))
        if name == "not" and len(rest) == 1:
            return _negated(self.formula(rest[0], bound))
        if name == "imply" and len(rest) == 2:
            return _join("or", (self.formula(part, bound) for part in (["not", rest[0]], rest[1])))
        if name in ("exists", "forall") and len(rest) == 2 and isinstance(rest[0], list):
            variables = list(_typed(rest[0], f"(:goal ..): {name}").items())
            if name == "exists":
                return self.exists(variables, _conjuncts(rest[1]), bound)
            return _negated(self.exists(variables, [["not", rest[1]]], bound))
        return self.fact(expression, bound)

    def exists(self, variables: list[tuple[str, str]], conditions: list[Expression], bound: dict[str, str]) -> Formula:
        stages = []  # for each variable the conditions that wait for no later one
        for i in range(len(variables), 0, -1):
            name = {variables[i - 1][0]}
            stages.append((*variables[i - 1], [part for part in conditions if _mentions(part, name)]))
            conditions = [part for part in conditions if not _mentions(part, name)]
        now = _join("and", (self.formula(part, bound) for part in conditions))
        return now if now is False else _join("and", (now, self.choices(stages[::-1], bound)))

    def choices(self, stages: list[tuple[str, str, list[Expression]]], bound: dict[str, str]) -> Formula:
        if not stages:
            return True
        (name, kind, conditions), *later = stages
        return _join("or", (self.choice(conditions, later, bound | {name: x}) for x in self.symbols.get(kind, [])))

    def choice(self, conditions: list[Expression], later: list[Any], bound: dict[str, str]) -> Formula:
        now = _join("and", (self.formula(part, bound) for part in conditions))
        return now if now is False else _join("and", (now, self.choices(later, bound)))

    def fact(self, expression: list[Expression], bound: dict[str, str]) -> Formula:
        values = []
        for word in expression[1:]:
            if not isinstance(word, str) or (word.startswith("?") and word not in bound):
                raise ValueError(f"(:goal ..): not understood: {_text(expression)}")
            values.append(bound.get(word, word))
        if expression[0] == "=" and len(values) == 2:
            return values[0] == values[1]
        return self.literal(str(expression[0]), tuple(values))


def _conjuncts(expression: Expression) -> list[Expression]:
    return expression[1:] if isinstance(expression, list) and expression[:1] == ["and"] else [expression]


def _mentions(expression: Expression, names: set[str]) -> bool:
    return expression in names if isinstance(expression, str) else any(_mentions(part, names) for part in expression)


def _join(connective: str, formulas) -> Formula:
    """ "and" or "or" of formulas, which are made one by one only until one decides."""
    decides = connective == "or"
    parts: dict[Formula, None] = {}  # in order, each once
    for formula in formulas:
        if formula is decides:
            return decides
        if not isinstance(formula, bool):
            parts[formula] = None
    if not parts:
        return not decides
    return next(iter(parts)) if len(parts) == 1 else (connective, *parts)


def _negated(formula: Formula) -> Formula:
    if isinstance(formula, bool):
        return not formula
    return formula[1] if formula[0] == "not" else ("not", formula)
