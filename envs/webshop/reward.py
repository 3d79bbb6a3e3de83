"""The purchase reward: how well a product and its chosen options meet a goal.

    R = r_type * (matched attributes + matched options + [price <= price_upper]) / (attributes + options + 1)

The original's rules have quirks, which are kept for fidelity: a chosen "large" satisfies "x-large", "(pack of 1)"
satisfies "(pack of 3)", and navy and royal blue are the same, "blue". ``strict`` mends them, see `option_matches`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from envs.webshop.catalogue import Product
from envs.webshop.colours import normalise_pair, normalise_value
from envs.webshop.goals import Goal
from envs.webshop.nouns import NounSource

MATCH = 85  # percent of similarity that a match exceeds
SIMILAR_TITLE, DISTANT_TITLE = 0.2, 0.1  # title scores: above the one types agree, below the other they hardly do

_CACHED_TEXTS = 65536
_LATIN_1 = dict.fromkeys(range(128, 256))  # the characters that the original deletes before it compares


class Reward(NamedTuple):
    """The total and its parts, under the original's names: r_ a share in 0..1, w_ its weight."""

    total: float  # in 0..1
    r_type: float  # 0, 0.1, 0.5 or 1
    r_att: float | None  # None where the goal has no attributes
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_option: float | None  # None where the goal has no options
    w_option: float
    r_price: bool
    w_price: float
    attributes_met: tuple[bool, ...]  # of each of the goal's
    options_met: tuple[bool, ...]

    def details(self) -> dict[str, float | bool]:
        """The parts as the original reports them: what the goal doesn't ask for is left out."""
        parts: dict[str, float | bool] = {"r_type": self.r_type}
        if self.r_att is not None:
            parts |= {"r_att": self.r_att, "w_att": self.w_att}
        parts |= {name: getattr(self, name) for name in ("query_match", "category_match", "title_score")}
        if self.r_option is not None:
            parts |= {"r_option": self.r_option, "w_option": self.w_option}
        return parts | {"r_price": self.r_price, "w_price": self.w_price}


def purchase_reward(
    product: Product,
    goal: Goal,
    price: float,
    chosen: Mapping[str, str],
    nouns: NounSource,
    *,
    strict: bool = False,
) -> Reward:
    """Reward of buying a product for a goal.

    Args:
        product: what is bought.
        goal: what was asked for.
        price: the product's hidden price, in dollars.
        chosen: the chosen options, {name: value}, in lower case.
        nouns: where the nouns of both names come from.
        strict: compare options without the original's quirks.

    Returns:
        The total with its parts.

    Raises:
        ValueError: if the source of nouns doesn't know one of the names.
    """
    query_match = product.query == goal.query
    category_match = len(_category_parts(product.product_category) & _category_parts(goal.product_category)) >= 2
    title_score = _title_score(nouns(product.name, product.asin), nouns(goal.name, goal.asin))
    r_type = _type_factor(query_match or category_match, title_score)
    attributes_met = tuple(_attribute_matches(product, wanted) for wanted in goal.attributes)
    options_met = tuple(
        any(option_matches(name, value, wanted_name, wanted, strict=strict) for name, value in chosen.items())
        for wanted_name, wanted in _named(goal.options)
    )
    r_price = bool(price <= goal.price_upper)
    terms = len(attributes_met) + len(options_met) + 1
    return Reward(
        total=(sum(attributes_met) + sum(options_met) + r_price) / terms * r_type,
        r_type=r_type,
        r_att=sum(attributes_met) / len(attributes_met) if attributes_met else None,
        w_att=len(attributes_met) / terms,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        r_option=sum(options_met) / len(options_met) if options_met else None,
        w_option=len(options_met) / terms,
        r_price=r_price,
        w_price=1 / terms,
        attributes_met=attributes_met,
        options_met=options_met,
    )


def option_matches(name: str, value: str, wanted_name: str | None, wanted: str, *, strict: bool = False) -> bool:
    """Whether a chosen option satisfies a wanted one.

    The original ignores the chosen option's name, reduces texts to their first colour, and asks for a similarity
    above 85 %; it is 100 % where all words of one text are in the other. A wanted option with a name is a pair there,
    name and value, so that some can't be satisfied: "standard" becomes "tan", and the pair with "standard" doesn't.
    Strict: the names are equal where the wanted one is known, and the values have the same words in the same order,
    whatever their case and punctuation.

    Args:
        name: of the chosen option.
        value: of the chosen option.
        wanted_name: None where the goal has only values.
        wanted: the value asked for.
        strict: mend the quirks.
    """
    if strict:
        return (wanted_name is None or name == wanted_name) and (value == wanted or _same_words(value, wanted))
    target = normalise_value(wanted) if wanted_name is None else normalise_pair(wanted_name, wanted)
    return _similar(normalise_value(value), target)


def _named(options: Mapping[str, str] | Sequence[str]) -> list[tuple[str | None, str]]:
    return list(options.items()) if isinstance(options, Mapping) else [(None, value) for value in options]


def _same_words(left: str, right: str) -> bool:
    words = default_process(left).split()
    return bool(words) and words == default_process(right).split()


def _title_score(bought: Sequence[str], wanted: Sequence[str]) -> float:
    """The share of the wanted name's nouns, repetitions counted, that different nouns of both names make up."""
    return len(set(bought) & set(wanted)) / len(wanted) if wanted else SIMILAR_TITLE


def _type_factor(same_kind: bool, title_score: float) -> float:
    if title_score == 0:
        return 0.0
    if title_score < DISTANT_TITLE:
        return 0.1
    return 1.0 if same_kind or title_score > SIMILAR_TITLE else 0.5


def _attribute_matches(product: Product, wanted: str) -> bool:
    if any(_similar(attribute, wanted) for attribute in product.attributes):
        return True
    return (
        wanted in product.name.lower()
        or wanted in " ".join(product.bullets).lower()
        or wanted in product.description.lower()
    )


def _similar(left: str, right: str) -> bool:
    # The original rounds the ratio to a whole number first: 85.5 is enough.
    return round(token_set_ratio(_plain(left), _plain(right))) > MATCH


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _plain(text: str) -> str:
    """Lower-case letters and digits, all else blank."""
    return default_process(text.translate(_LATIN_1))


@functools.lru_cache(maxsize=_CACHED_TEXTS)
def _category_parts(category: str) -> frozenset[str]:
    return frozenset(part.strip() for part in category.split("›"))
