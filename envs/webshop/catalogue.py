"""The shop's products, read from the original's three files as the original cleans them.

The hidden price of a product with a price range is drawn when the catalogue is loaded: one uniform per such product, in
the order of the file. `goals.make_goals` goes on with the same stream.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

from envs.webshop.json_stream import read_array, read_object

HOW_TO_GET = (
    "setup.sh of WebShop (https://github.com/princeton-nlp/WebShop) downloads the data: `-d small` for 1,000 products, "
    "`-d all` for 1.18 million"
)
NO_ATTRIBUTE = "DUMMY_ATTR"  # what a product without an entry in items_ins_v2 has
NO_PRICE = 100.0  # dollars, of a product without a price
SEED = 42  # of the hidden prices and the goals' price limits; the original leaves them unseeded

_LONGEST_ASIN = 10


class CatalogueFiles(NamedTuple):
    """Where the three files are."""

    items: Path  # the products
    attributes: Path  # their attributes and synthetic instructions
    human: Path  # human instructions


class HumanInstruction(NamedTuple):
    """What a person wrote for a product."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A product as it is shown and searched."""

    asin: str
    name: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str  # a path such as "Electronics › Cables"
    price_tag: str  # "$12.5" or "$12.5 to $19.99"
    prices: tuple[float, ...]  # dollars: the one or two numbers of the tag
    price: float  # dollars, hidden: what it costs in the end
    options: dict[str, tuple[str, ...]]  # name -> values, in the file's order
    attributes: tuple[str, ...]
    instruction: str | None  # of a synthetic goal, without options and price
    instruction_attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All products of a shop, and the human instructions for them."""

    products: list[Product]  # in the file's order
    by_asin: dict[str, Product]
    human: dict[str, tuple[HumanInstruction, ...]] | None  # by asin; None where no file of them was loaded
    seed: int  # of the hidden prices


def catalogue_files(folder: str | Path, *, small: bool = False) -> CatalogueFiles:
    """The three files in a folder, under the names of the original's download.

    Args:
        folder: the download's ``data``.
        small: whether those with 1,000 products are wanted.

    Raises:
        ValueError: if one is missing.
    """
    tail = "_1000.json" if small else ".json"
    names = (f"items_shuffle{tail}", f"items_ins_v2{tail}", "items_human_ins.json")
    return CatalogueFiles(*(_existing(Path(folder, name)) for name in names))


def load_catalogue(
    items: str | Path,
    attributes: str | Path,
    human: str | Path | None = None,
    *,
    num_products: int | None = None,
    seed: int = SEED,
) -> Catalogue:
    """Reads the original's files; of ``items`` only one product at a time is in memory.

    Args:
        items: ``items_shuffle*.json``. This and the others may be packed with gzip, with ``.gz`` after the name.
        attributes: ``items_ins_v2*.json``.
        human: ``items_human_ins.json``; needed for human goals only.
        num_products: how many entries of ``items`` are looked at; all by default.
        seed: of the hidden prices.

    Returns:
        The catalogue. Entries whose asin is "nan", longer than 10 characters or was met before are left out.

    Raises:
        OSError: if a file can't be read.
        ValueError: if a file is missing, damaged or of another form: names it, the entry and the field.
    """
    paths = [_existing(Path(path)) for path in (items, attributes, *([] if human is None else [human]))]
    return make_catalogue(
        read_array(paths[0]),
        read_object(paths[1]),
        None if human is None else read_object(paths[2]),
        num_products=num_products,
        seed=seed,
        sources=[str(path) for path in paths],
    )


def make_catalogue(
    items: Iterable[Any],
    attributes: Iterable[tuple[str, Any]],
    human: Iterable[tuple[str, Any]] | None = None,
    *,
    num_products: int | None = None,
    seed: int = SEED,
    sources: Sequence[str] = ("items", "attributes", "human"),
) -> Catalogue:
    """The catalogue of what the three files hold: products, and per asin attributes and human instructions.

    Args:
        items, attributes, human, num_products, seed: as in `load_catalogue`, decoded.
        sources: what errors call the three.

    Raises:
        ValueError: as in `load_catalogue`.
    """
    if num_products is not None and num_products < 1:
        raise ValueError(f"num_products must be at least 1, got {num_products}")
    cleaner = _Cleaner(sources[0], random.Random(seed))
    marks = {asin: _marks(entry, f"{sources[1]}: {asin}", cleaner) for asin, entry in attributes}
    by_asin: dict[str, Product] = {}
    for number, entry in enumerate(itertools.islice(items, num_products)):
        where = f"{sources[0]}: product {number}"
        asin = _text(_mapping(entry, where), "asin", where)
        if asin != "nan" and len(asin) <= _LONGEST_ASIN and asin not in by_asin:
            by_asin[asin] = cleaner.product(asin, entry, marks.get(asin, _NO_MARKS), where)
    if not by_asin:
        raise ValueError(f"{sources[0]}: no product; {HOW_TO_GET}")
    instructions = None
    if human is not None:
        instructions = {
            asin: tuple(_human(entry, f"{sources[2]}: {asin}", cleaner) for entry in _list(entries, sources[2], asin))
            for asin, entries in human
            if asin in by_asin
        }
    return Catalogue(list(by_asin.values()), by_asin, instructions, seed)


def clean_option(value: str) -> str:
    """An option's value as the pages show it."""
    return value.strip().replace("/", " | ").lower()


def read_prices(pricing: str | None) -> tuple[float, ...]:
    """The one or two prices in a text such as "$12.50 - $19.99".

    Args:
        pricing: the text; None or "" where the product has no price.

    Returns:
        Dollars; `NO_PRICE` for no text.

    Raises:
        ValueError: if a text has no number after a dollar sign.
    """
    if not pricing:
        return (NO_PRICE,)
    try:
        prices = [float(Decimal(re.sub(r"[^\d.]", "", part))) for part in pricing.split("$")[1:]]
    except InvalidOperation:
        prices = []
    if not prices:
        raise ValueError(f"must be empty, one price or two, such as '$12.50 - $19.99', got {pricing!r}")
    return tuple(prices[:2])


class _Marks(NamedTuple):
    """What items_ins_v2 says of a product."""

    attributes: tuple[str, ...]
    instruction: str | None
    instruction_attributes: tuple[str, ...]


_NO_MARKS = _Marks((NO_ATTRIBUTE,), None, ())


class _Cleaner:
    """Makes products out of entries; equal strings of different products become one."""

    def __init__(self, source: str, rng: random.Random):
        self._source, self._rng = source, rng
        self._known: dict[str, str] = {}

    def share(self, text: str) -> str:
        return self._known.setdefault(text, text)

    def product(self, asin: str, entry: dict[str, Any], marks: _Marks, where: str) -> Product:
        bullets = entry.get("small_description")
        prices = self._prices(entry, where)
        return Product(
            asin=asin,
            name=_text(entry, "name", where),
            description=_text(entry, "full_description", where),
            bullets=_texts([bullets] if isinstance(bullets, str) else bullets, "small_description", where),
            category=self.share(_text(entry, "category", where)),
            query=self.share(_text(entry, "query", where).lower().strip()),
            product_category=self.share(_text(entry, "product_category", where)),
            price_tag=" to ".join(f"${price}" for price in prices),
            prices=prices,
            price=self._rng.uniform(*prices) if prices[1:] else prices[0],
            options=dict(self._options(entry, where)),
            attributes=marks.attributes,
            instruction=marks.instruction,
            instruction_attributes=marks.instruction_attributes,
        )

    def _prices(self, entry: dict[str, Any], where: str) -> tuple[float, ...]:
        pricing = entry.get("pricing")
        if pricing and not isinstance(pricing, str):
            raise ValueError(f"{where}: pricing must be a string, got {pricing!r:.80}")
        try:
            return read_prices(pricing)
        except ValueError as error:
            raise ValueError(f"{where}: pricing {error}") from error

    def _options(self, entry: dict[str, Any], where: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        options = entry.get("customization_options")
        if not options:
            return
        for name, contents in _mapping(options, f"{where}: customization_options").items():
            if contents is not None:
                place = f"{where}: customization_options: {name}"
                values = [_text(_mapping(value, place), "value", place) for value in _list(contents, place)]
                yield self.share(name.lower()), tuple(self.share(clean_option(value)) for value in values)


def _marks(entry: Any, where: str, cleaner: _Cleaner) -> _Marks:
    fields = _mapping(entry, where)
    attributes = _texts(fields.get("attributes", [NO_ATTRIBUTE]), "attributes", where)
    instruction = None if fields.get("instruction") is None else _text(fields, "instruction", where)
    asked = _texts(fields.get("instruction_attributes") or [], "instruction_attributes", where)
    share = cleaner.share
    return _Marks(tuple(map(share, attributes)), instruction, tuple(map(share, asked)))


def _human(entry: Any, where: str, cleaner: _Cleaner) -> HumanInstruction:
    fields = _mapping(entry, where)
    attributes = _texts(fields.get("instruction_attributes"), "instruction_attributes", where)
    options = _texts(fields.get("instruction_options"), "instruction_options", where)
    text = _text(fields, "instruction", where)
    return HumanInstruction(text, tuple(map(cleaner.share, attributes)), tuple(map(cleaner.share, options)))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"no file {path}; {HOW_TO_GET}")
    return path


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {name} must be a string, got {value!r:.80}")
    return value


def _texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{where}: {name} must be a list of strings, got {value!r:.80}")
    return tuple(value)


def _list(value: Any, *where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{': '.join(where)}: must be a list, got {value!r:.80}")
    return value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be an object, got {value!r:.80}")
    return value
