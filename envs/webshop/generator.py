"""Catalogues of our own in the original's three files: any number of products, without a download.

Product number i depends on the seed and i alone: a smaller catalogue is the beginning of a larger one. Names, wording
and prices are invented.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from envs.draws import Draws
from envs.webshop.catalogue import Catalogue, CatalogueFiles, clean_option, make_catalogue
from envs.webshop.product_types import (
    BRANDS,
    BULLETS,
    CATEGORIES,
    HUMAN_INSTRUCTIONS,
    OPTIONS,
    PHRASES,
    SENTENCES,
    SYNTHETIC_INSTRUCTIONS,
    TYPES,
    ProductType,
)

MOST_OPTIONS = 2  # groups of options a product may have
MOST_PRODUCTS = 1_000_000

_VALUES = (2, 4)  # fewest and most of an option
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASINS = len(_LETTERS) ** 9
_STRIDE = 62_382_091_749_137  # has no divisor in common with _ASINS, so that no number is met twice


class _Entries(NamedTuple):
    """What the three files have of a product."""

    asin: str
    item: dict[str, Any]
    marks: dict[str, Any]
    human: list[dict[str, Any]]


def generate_catalogue(products: int, seed: int, *, max_options: int = MOST_OPTIONS) -> Catalogue:
    """A synthetic catalogue, the same for the same arguments on any machine and Python.

    Args:
        products: how many.
        seed: of products and hidden prices.
        max_options: how many groups of options a product has at most, 0 to `MOST_OPTIONS`; fewer make simpler goals.

    Returns:
        What `load_catalogue` reads, with that seed, from the files that `write_catalogue` writes.

    Raises:
        ValueError: if an argument is out of range.
    """
    _check(products, max_options)
    drawn = [_draw_product(seed, number, max_options) for number in range(products)]
    return make_catalogue(
        (entries.item for entries in drawn),
        ((entries.asin, entries.marks) for entries in drawn),
        ((entries.asin, entries.human) for entries in drawn if entries.human),
        seed=seed,
        sources=("generated items", "generated attributes", "generated human instructions"),
    )


def write_catalogue(folder: str | Path, products: int, seed: int, *, max_options: int = MOST_OPTIONS) -> CatalogueFiles:
    """Writes a synthetic catalogue in the original's format: the same bytes for the same arguments on any machine.

    Args:
        folder: made if it is not there; files of the same names are overwritten.
        products, seed, max_options: as in `generate_catalogue`.

    Returns:
        The paths of the three files.

    Raises:
        OSError: if a file can't be written.
        ValueError: if an argument is out of range.
    """
    _check(products, max_options)
    Path(folder).mkdir(parents=True, exist_ok=True)
    names = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")
    files = CatalogueFiles(*(Path(folder, name) for name in names))
    with (
        files.items.open("w", encoding="utf-8", newline="\n") as items,
        files.attributes.open("w", encoding="utf-8", newline="\n") as attributes,
        files.human.open("w", encoding="utf-8", newline="\n") as human,
    ):
        opening = {items: "[", attributes: "{", human: "{"}
        for number in range(products):
            entries = _draw_product(seed, number, max_options)
            items.write(f"{opening[items]}\n{json.dumps(entries.item)}")
            attributes.write(f"{opening[attributes]}\n{json.dumps(entries.asin)}: {json.dumps(entries.marks)}")
            opening[items] = opening[attributes] = ","
            if entries.human:
                human.write(f"{opening[human]}\n{json.dumps(entries.asin)}: {json.dumps(entries.human)}")
                opening[human] = ","
        items.write("\n]\n")
        attributes.write("\n}\n")
        human.write("\n}\n" if opening[human] == "," else "{}\n")
    return files


def _check(products: int, max_options: int) -> None:
    if not 1 <= products <= MOST_PRODUCTS:
        raise ValueError(f"products must be between 1 and {MOST_PRODUCTS}, got {products}")
    if not 0 <= max_options <= MOST_OPTIONS:
        raise ValueError(f"max_options must be between 0 and {MOST_OPTIONS}, got {max_options}")


def _asin(number: int) -> str:
    """One for each number below 36 to the ninth: "B" and nine digits and letters, in no visible order."""
    left, letters = (number + 1) * _STRIDE % _ASINS, ""
    for _ in range(9):
        left, letter = divmod(left, len(_LETTERS))
        letters = _LETTERS[letter] + letters
    return "B" + letters


def _draw_product(seed: int, number: int, max_options: int) -> _Entries:
    draws = Draws(f"webshop/{seed}/{number}")
    kind = draws.choose(TYPES)
    brand, material = draws.choose(BRANDS), draws.choose(kind.materials)
    attributes = draws.shuffled(kind.attributes)[: draws.between(2, 4)]
    all_options = {OPTIONS[name][0]: _draw_values(draws, name) for name in kind.options}
    # Drawn first and then cut, so that the rest of a product is the same for any max_options.
    options = dict(list(all_options.items())[: min(max_options, draws.between(0, 2 * MOST_OPTIONS))])
    asin = _asin(number)
    item = {
        "asin": asin,
        "name": _draw_title(draws, kind, brand, material, attributes, options),
        "category": kind.category,
        "query": kind.leaf.lower(),
        "product_category": f"{CATEGORIES[kind.category]} › {kind.leaf}",
        "pricing": _draw_pricing(draws, kind.prices),
        "full_description": _draw_description(draws, kind, brand, material, attributes),
        "small_description": [_draw_bullet(draws, kind, attribute) for attribute in attributes],
        "images": [""],
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in options.items()
        },
    }
    asked = attributes[: draws.between(1, 2)]
    marks = {
        "attributes": attributes,
        "instruction": _draw_synthetic(draws, kind, asked),
        "instruction_attributes": asked,
    }
    return _Entries(asin, item, marks, _draw_human(draws, kind, asin, attributes, options))


def _draw_values(draws: Draws, name: str) -> list[str]:
    """Some values of an option, in the table's order: sizes stay ascending."""
    values = OPTIONS[name][1].split(";")
    kept = draws.shuffled(range(len(values)))[: draws.between(*_VALUES)]
    return [values[i] for i in sorted(kept)]


def _draw_title(
    draws: Draws, kind: ProductType, brand: str, material: str, attributes: list[str], options: dict[str, list[str]]
) -> str:
    noun = kind.noun.rpartition(" of ")[2]  # jeans, not a pair of them
    title = f"{_capitals(f'{brand} {material} {noun}')}, {_capitals(', '.join(attributes[:2]))}"
    variant = ", ".join(draws.choose(values) for values in options.values())
    return f"{title} ({variant})" if variant else title


def _draw_pricing(draws: Draws, prices: tuple[int, int]) -> str:
    """One in seven has a range of prices, one in twenty none."""
    low, high = (100 * dollars for dollars in prices)  # in cents: no rounding
    first, second = sorted((draws.between(low, high), draws.between(low, high)))
    sort = draws.between(1, 140)
    if sort <= 7:
        return ""
    return f"{_dollars(first)} - {_dollars(second)}" if sort <= 27 and first < second else _dollars(first)


def _draw_description(draws: Draws, kind: ProductType, brand: str, material: str, attributes: list[str]) -> str:
    text = []
    for sentence in draws.shuffled(SENTENCES)[: draws.between(2, 4)]:
        attribute = draws.choose(attributes)
        such = _with_article(f"{attribute} {kind.noun}")
        text.append(
            sentence.format(brand=brand, noun=kind.noun, material=material.lower(), attribute=attribute, such=such)
        )
    return " ".join(text)


def _draw_bullet(draws: Draws, kind: ProductType, attribute: str) -> str:
    a_noun = _with_article(kind.noun)
    return draws.choose(BULLETS).format(Attribute=attribute.upper(), attribute=attribute, a_noun=a_noun)


def _draw_synthetic(draws: Draws, kind: ProductType, asked: list[str]) -> str:
    return draws.choose(SYNTHETIC_INSTRUCTIONS).format(what=_with_article(f"{', '.join(asked)} {kind.noun}"))


def _draw_human(
    draws: Draws, kind: ProductType, asin: str, attributes: list[str], options: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """Two products in five have an instruction, and half of those another one."""
    instructions = []
    for _ in range((0, 0, 0, 1, 2)[draws.between(0, 4)]):
        asked = draws.shuffled(attributes)[: draws.between(1, 2)]
        chosen = {name.lower(): clean_option(draws.choose(values)) for name, values in options.items()}
        wanted = " and ".join(PHRASES[name].format(value) for name, value in chosen.items())
        text = draws.choose(HUMAN_INSTRUCTIONS).format(
            a_noun=_with_article(kind.noun),
            attributes=" and ".join(asked),
            options=f", {wanted}" if wanted else "",
        )
        instructions.append(
            {
                "asin": asin,
                "instruction": text,
                "attributes": attributes,
                "options": [f"{name}: {value}" for name, value in chosen.items()],
                "instruction_attributes": asked,
                "instruction_options": list(chosen.values()),
            }
        )
    return instructions


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02d}"


def _capitals(text: str) -> str:
    """Capital first letters; str.title would also have them after an apostrophe."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split())


def _with_article(text: str) -> str:
    return f"an {text}" if text[0] in "aeiou" and not text.startswith("usb") else f"a {text}"
