"""Speed of the native WebShop engine: ``python -m experiments.benchmarks.webshop``.

A step is an action, the page as text and what can be done there, as an agent asks for all three. Visitors act by lot:
they search for some words of their goal, page on, open products, choose options, read, and buy, then begin again; the
actions are drawn before the clock starts. The reset of a session counts as a step. "New searches": nobody has asked
before, as if every visitor had a goal of its own. "Known searches": all results are in the shop's cache, as for the
rest of a group that searches alike. ``--folder`` takes the original's files instead of generated products. Medians of
CPU time of the one thread, which other programs hardly disturb.

One core of an AMD EPYC, nothing else running, Python 3.11, 1,000 products, 24 % of the steps searches: 23,100 steps a
second with new searches and 50,400 with known ones (the original: 17); a session keeps 3.5 kB, 0.3 kB when pickled, so
that 128 take less than half a megabyte.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.webshop.catalogue import catalogue_files, load_catalogue
from envs.webshop.engine import Session, Shop
from envs.webshop.generator import generate_catalogue
from envs.webshop.goals import make_goals
from envs.webshop.nouns import heuristic
from experiments.benchmarks.alfworld import bytes_of_each, median_seconds

ORIGINAL = {"new searches: steps a second": 1 / 0.058}  # one core
RESET = ""  # in place of an action


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    folder: Path | None = None  # of the original's files with 1,000 products
    products: int = 1000  # generated where there is no folder
    sessions: int = 128
    steps: int = 30  # of each session
    repeats: int = 9  # the median is shown


def open_shop(benchmark: Benchmark) -> Shop:
    """A shop with human goals."""
    if benchmark.folder:
        catalogue = load_catalogue(*catalogue_files(benchmark.folder, small=True))
    else:
        catalogue = generate_catalogue(benchmark.products, 0)
    return Shop(catalogue, make_goals(catalogue, human=True), heuristic())


def draw_actions(shop: Shop, goal: int, steps: int, rng: np.random.Generator) -> list[str]:
    """What a visitor does: on a product's page one act in five is to buy, elsewhere one in twenty to search anew."""
    session, actions = Session(shop, goal), []
    while len(actions) < steps:
        if session.done:
            session = Session(shop, goal)
            actions.append(RESET)
            continue
        page, names = session.state.page.kind, [name for name in session.clickables if name != "buy now"]
        if page == "index" or rng.random() < 0.05:
            words = session.goal.instruction.split()
            kept = np.sort(rng.permutation(len(words))[: rng.integers(1, len(words) + 1)])
            actions.append(f"search[{' '.join(words[place] for place in kept)}]")
        elif page == "item" and rng.random() < 0.2:
            actions.append("click[buy now]")
        else:
            actions.append(f"click[{names[rng.integers(len(names))]}]")
        session.step(actions[-1])
    return actions


def play(shop: Shop, scripts: list[list[str]]) -> None:
    """Every action of every session, pages and possible actions asked for after each."""
    for goal, actions in enumerate(scripts):
        session = Session(shop, goal % len(shop.goals))
        for action in actions:
            if action == RESET:
                session = Session(shop, goal % len(shop.goals))
            else:
                session.step(action)
            _ = session.observation, session.available_actions


def halfway(shop: Shop, scripts: list[list[str]]) -> list[Session]:
    """The sessions in the middle of their scripts, with the page that they have shown."""
    sessions = [Session(shop, goal % len(shop.goals)) for goal in range(len(scripts))]
    for session, actions in zip(sessions, scripts, strict=True):
        for action in filter(None, actions[: len(actions) // 2]):
            session.step(action)
        _ = session.observation, session.available_actions
    return sessions


def bytes_of_sessions(shop: Shop, scripts: list[list[str]]) -> float:
    """Memory that a session keeps halfway, on average."""
    play(shop, scripts)  # fills what all share
    return bytes_of_each(lambda: halfway(shop, scripts))


def measure(benchmark: Benchmark) -> dict[str, float]:
    """Figures by name."""
    shop = open_shop(benchmark)
    rng = np.random.default_rng(0)
    scripts = [draw_actions(shop, goal % len(shop.goals), benchmark.steps, rng) for goal in range(benchmark.sessions)]
    steps = sum(map(len, scripts))
    fresh: list[Shop] = []

    def forget() -> None:
        fresh[:] = [Shop(shop.catalogue, shop.goals, shop.nouns, index=shop.index)]

    forget()
    new = median_seconds(lambda: play(fresh[0], scripts), benchmark.repeats, prepare=forget)
    known = median_seconds(lambda: play(fresh[0], scripts), benchmark.repeats)
    pickled = [pickle.dumps(session.state) for session in halfway(shop, scripts)]
    return {
        "new searches: steps a second": steps / new,
        "known searches: steps a second": steps / known,
        "searches, share of the steps": sum(a.startswith("search") for s in scripts for a in s) / steps,
        "memory, kB a session": bytes_of_sessions(shop, scripts) / 1e3,
        "pickled, kB a session": sum(map(len, pickled)) / len(pickled) / 1e3,
    }


def main(benchmark: Benchmark) -> None:
    """Print the figures, beside those of the original where they are known."""
    table = Table("", "here", "original", "ratio")
    for name, figure in measure(benchmark).items():
        original = ORIGINAL.get(name)
        known = ("", "") if original is None else (f"{original:,.1f}", f"{figure / original:,.0f}")
        table.add_row(name, f"{figure:,.0f}" if figure >= 100 else f"{figure:.2g}", *known)
    console = Console()
    console.print(f"{benchmark.folder or f'{benchmark.products} generated products'}, {benchmark.sessions} sessions")
    console.print(table)


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
