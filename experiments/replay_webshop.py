"""Replays what the original WebShop did, sessions and searches, on the native shop."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from envs.webshop import nouns
from envs.webshop.catalogue import Catalogue, load_catalogue
from envs.webshop.engine import Session, Shop
from envs.webshop.goals import Goal, make_goals
from envs.webshop.search import SearchIndex, document_text

HITS = 50  # recorded of a query, at most
TOLERANCE = 1e-4  # of a search score

_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


@dataclasses.dataclass
class Mismatch:
    """Where a replay first differs."""

    where: str
    field: str
    expected: Any
    got: Any


@dataclasses.dataclass
class Part:
    """What came of one kind of comparison."""

    name: str
    compared: int = 0
    matched: int = 0
    first: Mismatch | None = None

    def add(self, where: str, differences: Iterable[tuple[str, Any, Any]]) -> None:
        """Counts one comparison; ``differences`` are (field, expected, got), none where it matches."""
        self.compared += 1
        difference = next(iter(differences), None)
        self.matched += difference is None
        if difference and not self.first:
            self.first = Mismatch(where, *difference)


@dataclasses.dataclass
class Recording:
    """The files of a recording."""

    items: Path
    attributes: Path
    human: Path
    nouns: Path
    transcripts: Path
    documents: Path
    results: Path


def recording(directory: Path) -> Recording:
    """The files of a recording in a folder.

    Raises:
        ValueError: if one is missing, or there are two of a kind.
    """
    patterns = ("items_shuffle*.json", "items_ins_v2*.json", "items_human_ins.json", "nouns.json")
    patterns += ("transcripts.jsonl", "search_documents.jsonl", "search_results.jsonl")
    found = []
    for pattern in patterns:
        files = sorted(directory.glob(pattern))
        if len(files) != 1:
            raise ValueError(f"{directory} should hold one file {pattern}, and holds {len(files)}")
        found.append(files[0])
    return Recording(*found)


def replay(directory: Path) -> Iterator[Part]:
    """Replays a recording, part by part: each section's prices, goals and steps, then the searches.

    ``transcripts.jsonl`` opens a section with a line ``meta`` {human_goals, mode, prices {asin: dollars}, goals};
    an episode follows a line, {goal_idx, steps [{a, obs, r, d, av, url, info}]}, of which the first step is the reset.
    ``search_documents.jsonl`` has {id, contents}, ``search_results.jsonl`` {query, hits [[id, score]]}. The others are
    the original's own files, and the nouns of each product {asin: [noun]}.

    Raises:
        ValueError: if a file is missing or damaged.
    """
    files = recording(directory)
    catalogue = load_catalogue(files.items, files.attributes, files.human)
    index = SearchIndex.build(map(document_text, catalogue.products))
    source = nouns.cached(files.nouns)
    shop, steps, name, episodes = None, Part("steps"), "", 0
    for number, line in _lines(files.transcripts):
        try:
            if meta := line.get("meta"):
                if shop:
                    yield steps
                goals = make_goals(catalogue, human=meta["human_goals"])
                shop = Shop(catalogue, goals, source, index=index, mode=meta["mode"])
                name = f"{'human' if meta['human_goals'] else 'synthetic'} goals, {meta['mode']}"
                steps, episodes = Part(f"{name}: steps"), 0
                yield from (_prices(meta, catalogue, name), _goals(meta, goals, name))
            else:
                episodes += 1
                _replay_episode(line, shop, f"{name}, episode {episodes}", steps)
        except _DAMAGE as error:
            raise ValueError(f"{files.transcripts}: line {number}: damaged: {error!r}") from error
    if shop:
        yield steps
    yield _searches(files)


def _replay_episode(line: dict[str, Any], shop: Shop | None, where: str, steps: Part) -> None:
    if shop is None:
        raise KeyError("meta")  # belongs before the first episode
    session = Session(shop, line["goal_idx"])
    for number, step in enumerate(line["steps"]):
        reward, done = session.step(step["a"]) if number else (0.0, False)
        ours = {"obs": session.observation, "av": session.available_actions, "url": session.url, "r": reward, "d": done}
        if session.state.purchase:
            ours["info"] = session.state.purchase.details()
        action = "reset" if not number else f"action {step['a']!r:.120}"
        at = f"{where} (goal {line['goal_idx']}), step {number}, {action}"
        steps.add(at, _differences({name: value for name, value in step.items() if name != "a"}, ours))


def _differences(recorded: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The recorded fields that differ."""
    if not {"obs", "av"} <= recorded.keys():
        raise KeyError("obs, av")
    for field, expected in recorded.items():
        if ours.get(field) != expected:
            yield field, expected, ours.get(field)


def _prices(meta: dict[str, Any], catalogue: Catalogue, name: str) -> Part:
    part, ours = Part(f"{name}: prices"), {product.asin: product.price for product in catalogue.products}
    recorded = meta["prices"]
    for asin in recorded | ours:
        expected, got = recorded.get(asin), ours.get(asin)
        part.add(f"{name}, {asin}", [] if expected == got else [("price", expected, got)])
    return part


def _goals(meta: dict[str, Any], goals: Sequence[Goal], name: str) -> Part:
    part = Part(f"{name}: goals")
    for number, (recorded, goal) in enumerate(itertools.zip_longest(meta["goals"], goals)):
        ours = _goal_fields(goal)
        wanted = {field: recorded[field] for field in ours or recorded} if recorded else {}
        differences = [
            (field, wanted.get(field), ours.get(field))
            for field in wanted | ours
            if wanted.get(field) != ours.get(field)
        ]
        part.add(f"{name}, goal {number}", differences)
    return part


def _goal_fields(goal: Goal | None) -> dict[str, Any]:
    """Under the recording's names."""
    if goal is None:
        return {}
    fields = ("asin", "category", "query", "name", "product_category", "price_upper")
    options = dict(goal.options) if isinstance(goal.options, dict) else list(goal.options)
    texts = {"instruction_text": goal.instruction, "attributes": list(goal.attributes), "goal_options": options}
    return {field: getattr(goal, field) for field in fields} | texts


def _searches(files: Recording) -> Part:
    documents = [(line["id"], line["contents"]) for _, line in _checked(files.documents, id=str, contents=str)]
    index = SearchIndex.build(text for _, text in documents)
    part = Part("search: queries")
    for number, line in _checked(files.results, query=str, hits=list):
        ours = [(documents[place][0], score) for place, score in index.scores(line["query"], HITS)]
        try:
            pairs = list(itertools.zip_longest([(asin, score) for asin, score in line["hits"]], ours))
            differences = (
                (f"hit {rank}", expected, got)
                for rank, (expected, got) in enumerate(pairs)
                if not expected or not got or expected[0] != got[0] or not abs(expected[1] - got[1]) <= TOLERANCE
            )
            part.add(f"query {number}, {line['query']!r:.120}", differences)
        except _DAMAGE as error:
            raise ValueError(f"{files.results}: line {number}: damaged: {error!r}") from error
    return part


def _checked(path: Path, **fields: type) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in _lines(path):
        for field, kind in fields.items():
            if not isinstance(line.get(field), kind):
                what = f"{field!r} should be a {kind.__name__}, got {line.get(field)!r:.80}"
                raise ValueError(f"{path}: line {number}: damaged: {what}")
        yield number, line


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A file's objects, one a line, with the line's number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines would cut texts at rarer line ends
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"can't read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: line {number}: damaged: {error!r}") from error
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: line {number}: damaged: an object expected, got {line[:80]!r}")
        yield number, entry
