"""Which shop is played: the original's files or a generated catalogue, opened once for each process and settings."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from envs.core import check_choice
from envs.webshop import nouns
from envs.webshop.catalogue import HOW_TO_GET, Catalogue, Product, catalogue_files, load_catalogue
from envs.webshop.engine import Shop
from envs.webshop.generator import MOST_OPTIONS, generate_catalogue
from envs.webshop.goals import SPLIT_MODES, make_goals, split_goals
from envs.webshop.nouns import NounSource
from envs.webshop.pages import Mode
from envs.webshop.search import SearchIndex, document_text, load_or_build

VARIABLE = "WEBSHOP_DATA"  # of the environment: where the original data lies, unless the option ``data`` says
GENERATED = 1000  # products of a generated catalogue, unless told otherwise
SEED = 0  # of generated catalogues

_RULES = ("heuristic", "spacy")  # what ``nouns`` may be but a file


class Source(NamedTuple):
    """All that decides on a shop and its goals; what each means stands with `environment.WebShop`."""

    folder: str = ""  # absolute; "" for a generated catalogue
    small: bool = False
    products: int = 0
    max_options: int = MOST_OPTIONS
    mode: Mode = "text"
    human: bool = True
    nouns: str = "heuristic"
    strict: bool = False
    goal_split: str = "held_out"


class Stock(NamedTuple):
    """A shop, and which of its goals are for what."""

    shop: Shop
    splits: dict[str, list[int]]  # split -> numbers of its goals


def source_of(data: str = "", **options: Any) -> Source:
    """The source that the environment's options name; others are passed over.

    Args:
        data: the folder of the original data; "" takes the environment variable's, as it is now.
        **options: of the environment.

    Raises:
        ValueError: options that don't go together or don't exist.
    """
    folder = data or os.environ.get(VARIABLE, "")
    given = {name: value for name, value in options.items() if name in Source._fields}
    if given.get("nouns", _RULES[0]) not in _RULES:
        given["nouns"] = str(Path(given["nouns"]).resolve())
    source = Source(str(Path(folder).resolve()) if folder else "", **given)
    check_choice("mode", source.mode, get_args(Mode))
    check_choice("goal_split", source.goal_split, SPLIT_MODES)
    if source.folder and (source.products or source.max_options != MOST_OPTIONS):
        where = f"data ({data})" if data else f"the variable {VARIABLE} ({folder})"
        raise ValueError(
            f"products and max_options are of generated catalogues, {where} names the original data: leave them "
            f"out, or {'leave data out' if data else f'leave {VARIABLE} unset'}"
        )
    return source


@functools.lru_cache(maxsize=4)
def open_stock(source: Source) -> Stock:
    """The shop of a source: opened at the first call, the same object afterwards.

    Raises:
        ValueError: a folder or file is missing or damaged, the catalogue has too few goals, or there is no such source
            of nouns.
    """
    catalogue, index = _catalogue(source.folder, source.small, source.products, source.max_options)
    goals = make_goals(catalogue, human=source.human)
    source_of_nouns = _nouns(source.nouns, catalogue.products)
    shop = Shop(catalogue, goals, source_of_nouns, index=index, mode=source.mode, strict=source.strict)
    return Stock(shop, split_goals(goals, source.goal_split))


def catalogue_hash(source: Source) -> str:
    """Hash of all that the catalogue's products are, whatever folder they lie in."""
    return _hash(source.folder, source.small, source.products, source.max_options)


def describe(source: Source) -> str:
    """What is played, in a line for the terminal; without the original data also how to get it."""
    stock = open_stock(source)
    products = f"{len(stock.shop.catalogue.products):,} products"
    counts = ", ".join(f"{len(goals):,} {split}" for split, goals in stock.splits.items())
    kind = f"{'human' if source.human else 'synthetic'} goals ({counts}; {source.goal_split})"
    rules = f"nouns {stock.shop.nouns.name}{', strict rewards' if source.strict else ''}"
    if source.folder:
        index = f"search index kept in {cache_folder()}"
        return f"WebShop: the original data in {source.folder}, {products}, {kind}, {rules}; {index}"
    return (
        f"WebShop: a generated catalogue, {products}, {kind}, {rules}. For the original data: {HOW_TO_GET}; "
        f"then --data FOLDER or {VARIABLE}=FOLDER"
    )


def cache_folder() -> Path:
    """Where search indices of the original data are kept: hgpo_jax/webshop in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hgpo_jax" / "webshop"


class _Documents:
    """The texts to be indexed, made when they are read, as often as they are read."""

    def __init__(self, products: Sequence[Product]):
        self._products = products

    def __iter__(self) -> Iterator[str]:
        return map(document_text, self._products)


@functools.lru_cache(maxsize=2)
def _catalogue(folder: str, small: bool, products: int, max_options: int) -> tuple[Catalogue, SearchIndex]:
    if not folder:
        catalogue = generate_catalogue(products or GENERATED, SEED, max_options=max_options)
        return catalogue, SearchIndex.build(_Documents(catalogue.products))
    if not Path(folder).is_dir():
        raise ValueError(f"no folder {folder} with WebShop's data: {HOW_TO_GET}")
    catalogue = load_catalogue(*catalogue_files(folder, small=small))
    try:
        return catalogue, load_or_build(_Documents(catalogue.products), cache_folder())
    except OSError as error:
        raise ValueError(
            f"the search index can't be kept in {cache_folder()} ({error}): set XDG_CACHE_HOME to a folder that can be "
            "written"
        ) from error


@functools.lru_cache(maxsize=2)
def _hash(*source: Any) -> str:
    digest = hashlib.sha256()
    for product in _catalogue(*source)[0].products:
        digest.update(repr(product).encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _nouns(name: str, products: Sequence[Product]) -> NounSource:
    if name == "heuristic":
        return nouns.heuristic()
    if name == "spacy":
        return nouns.spacy()
    if not Path(name).is_file():
        raise ValueError(f"the option nouns is {name!r}, expected heuristic, spacy or a JSON file {{asin: [noun, ..]}}")
    source = nouns.cached(name)
    for product in products:
        source(product.name, product.asin)  # raises now what an episode would meet later
    return source
