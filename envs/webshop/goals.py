"""What the shopper is asked to buy: goals out of a catalogue, their order, and their splits."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence

from envs.webshop.catalogue import Catalogue, Product

NO_LIMIT = 1_000_000.0  # dollars, of a goal whose text names no price
SHUFFLE_SEED = 233  # the original's
SPLITS = ("train", "eval", "test")
SPLIT_MODES = ("held_out", "products", "leaky")

_LIMITS = tuple(10.0 * step for step in range(1, 100))  # dollars
_TEST, _EVAL = 500, 1000  # goals, in the original's splits
_FEWEST_TO_SPLIT_BY_NUMBER = 3000  # goals
_PRODUCTS_HELD_OUT = 10  # one product in so many is for "test", and one for "eval"


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """A product to buy, and what the purchase is judged by."""

    asin: str
    category: str
    query: str
    name: str
    product_category: str
    instruction: str  # the whole text, with options and price
    attributes: tuple[str, ...]
    options: dict[str, str] | tuple[str, ...]  # synthetic: name -> value; human: values alone
    price_upper: float  # dollars, the most that may be paid
    price: float  # dollars, what the product costs


def make_goals(
    catalogue: Catalogue, *, human: bool, seed: int | None = None, shuffle_seed: int = SHUFFLE_SEED
) -> list[Goal]:
    """All goals of a catalogue, shuffled, as the original makes them.

    Price limits are drawn product by product (human goals: instruction by instruction), from the stream that the
    catalogue's hidden prices came from.

    Args:
        catalogue: the products.
        human: whether the instructions are those people wrote. Otherwise every product with a synthetic instruction
            has a goal for each combination of its options.
        seed: of the price limits; the catalogue's own by default.
        shuffle_seed: of the order. Published agent runs shuffle with the seed of each worker.

    Returns:
        The goals; the number of a goal is its position.

    Raises:
        ValueError: if there is no goal, or a synthetic one asks for no attribute.
    """
    if human and catalogue.human is None:
        raise ValueError(
            "human goals need the file of human instructions: load the catalogue with items_human_ins.json"
        )
    rng = random.Random(catalogue.seed if seed is None else seed)
    for product in catalogue.products:
        if len(product.prices) > 1:
            rng.random()  # the hidden prices come first in the stream
    make = _human_goals if human else _synthetic_goals
    goals = [goal for product in catalogue.products for goal in make(catalogue, product, rng)]
    if not goals:
        file = "items_human_ins" if human else "items_ins_v2"
        raise ValueError(f"no goal: {file} has no instruction with attributes for any of the catalogue's products")
    random.Random(shuffle_seed).shuffle(goals)
    return goals


def split_goals(goals: Sequence[Goal], mode: str = "held_out") -> dict[str, list[int]]:
    """Which goals are for training and which are held out.

    - "held_out": the original's ranges of the shuffled goals: test 0 to 499, eval 500 to 1499, train from 1500. A goal
      that is also in an earlier one of these is left out of the later one: no two splits have a goal with the same
      product, attributes and options, but they may have goals of one product with different ones. Fewer than 3,000
      goals are split as "products".
    - "products": no two splits share a product. Of the products in the order of their first goals one tenth is for
      test, one tenth for eval and the rest for train, each at least one.
    - "leaky": what published agent runs do: 0 to 499 is eval and test, from 500 is train, nothing left out. Their
      workers each shuffle with a seed of their own, so that training meets the goals of evaluation.

    Args:
        goals: shuffled, as from `make_goals`.
        mode: one of `SPLIT_MODES`.

    Returns:
        Positions in ``goals``, ascending, for each of `SPLITS`.

    Raises:
        ValueError: if the mode is unknown or there are too few goals.
    """
    if mode not in SPLIT_MODES:
        raise ValueError(f"mode must be one of {', '.join(SPLIT_MODES)}, got {mode!r}")
    if mode == "leaky":
        if len(goals) <= _TEST:
            raise ValueError(f"mode 'leaky' needs more than {_TEST} goals, got {len(goals)}")
        first = list(range(_TEST))
        return {"train": list(range(_TEST, len(goals))), "eval": first, "test": list(first)}
    if mode == "products" or len(goals) < _FEWEST_TO_SPLIT_BY_NUMBER:
        return _split_products(goals)
    return _split_numbers(goals)


def _synthetic_goals(catalogue: Catalogue, product: Product, rng: random.Random) -> Iterator[Goal]:
    if product.instruction is None:
        return
    if not product.instruction_attributes:
        raise ValueError(f"items_ins_v2: {product.asin}: instruction needs at least one of instruction_attributes")
    limit, limit_text = _draw_limit(product.price, rng)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = dict(zip(names, values, strict=True))
        chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = product.instruction + (f" with {chosen}" if chosen else "") + limit_text
        yield _goal(product, text, product.instruction_attributes, options, limit)


def _human_goals(catalogue: Catalogue, product: Product, rng: random.Random) -> Iterator[Goal]:
    for instruction in (catalogue.human or {}).get(product.asin, ()):
        if instruction.attributes:
            limit, limit_text = _draw_limit(product.price, rng)
            text = instruction.text.strip(".") + limit_text
            yield _goal(product, text, instruction.attributes, instruction.options, limit)


def _draw_limit(price: float, rng: random.Random) -> tuple[float, str]:
    """The most that may be paid, and how the instruction says it."""
    above = [limit for limit in _LIMITS if limit > price][:4]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: dict[str, str] | tuple[str, ...],
    limit: float,
) -> Goal:
    return Goal(
        asin=product.asin,
        category=product.category,
        query=product.query,
        name=product.name,
        product_category=product.product_category,
        instruction=text,
        attributes=attributes,
        options=options,
        price_upper=limit,
        price=product.price,
    )


def _split_numbers(goals: Sequence[Goal]) -> dict[str, list[int]]:
    """The original's ranges, without what an earlier one has."""
    bounds = {"test": (0, _TEST), "eval": (_TEST, _TEST + _EVAL), "train": (_TEST + _EVAL, len(goals))}
    held_out: set[tuple[object, ...]] = set()
    splits: dict[str, list[int]] = {}
    for split, (start, stop) in bounds.items():
        splits[split] = [number for number in range(start, stop) if _identity(goals[number]) not in held_out]
        if split != "train":  # nothing comes after it
            held_out |= {_identity(goals[number]) for number in range(start, stop)}
    return {split: splits[split] for split in SPLITS}


def _split_products(goals: Sequence[Goal]) -> dict[str, list[int]]:
    asins = list(dict.fromkeys(goal.asin for goal in goals))
    if len(asins) < len(SPLITS):
        raise ValueError(f"three splits without a product in common need goals for 3 products, got {len(asins)}")
    share = max(1, len(asins) // _PRODUCTS_HELD_OUT)
    split_of = dict.fromkeys(asins, "train") | dict.fromkeys(asins[:share], "test")
    split_of |= dict.fromkeys(asins[share : 2 * share], "eval")
    splits: dict[str, list[int]] = {split: [] for split in SPLITS}
    for number, goal in enumerate(goals):
        splits[split_of[goal.asin]].append(number)
    return splits


def _identity(goal: Goal) -> tuple[object, ...]:
    options = goal.options.items() if isinstance(goal.options, dict) else goal.options
    return goal.asin, tuple(sorted(goal.attributes)), tuple(sorted(options))
