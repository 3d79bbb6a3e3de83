"""Goals: texts and limits by hand, the order of draws, and splits that keep what they promise."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.catalogue import make_catalogue
from envs.webshop.goals import NO_LIMIT, Goal, make_goals, split_goals


def item(asin, pricing="$15.00", options=None):
    return {
        "asin": asin,
        "name": f"name of {asin}",
        "full_description": "",
        "small_description": [],
        "pricing": pricing,
        "product_category": "A › B",
        "category": "garden",
        "query": "mugs",
        "customization_options": {name: [{"value": v} for v in values] for name, values in (options or {}).items()},
    }


def marks(text="find a mug"):
    return {"attributes": ["easy clean", "soft"], "instruction": text, "instruction_attributes": ["easy clean"]}


def human(text="i want a mug.", attributes=("soft",), options=()):
    return {"instruction": text, "instruction_attributes": list(attributes), "instruction_options": list(options)}


def goal(asin, **fields):
    defaults = {"attributes": ("soft",), "options": {}, "price_upper": 20.0, "price": 15.0}
    return Goal(asin, "garden", "mugs", "name", "A › B", "find a mug", **{**defaults, **fields})


def by_text(goals):
    return sorted(goals, key=lambda goal: goal.instruction)


def test_a_synthetic_goal_for_each_combination_of_options():
    options = {"Size": ["S", "L"], "Color": ["Red/Blue"]}
    catalogue = make_catalogue([item("B1", options=options)], [("B1", marks())], seed=3)
    limit = max(random.Random(3).sample([20.0, 30.0, 40.0, 50.0], 2))
    large, small = by_text(make_goals(catalogue, human=False))
    text = "find a mug with color: red | blue, and size: l, and price lower than"
    assert large.instruction == f"{text} {limit:.2f} dollars"
    assert list(large.options.items()) == [("color", "red | blue"), ("size", "l")]
    assert small.options == {"color": "red | blue", "size": "s"}
    assert (large.asin, large.category, large.query) == ("B1", "garden", "mugs")
    assert (large.name, large.product_category, large.attributes) == ("name of B1", "A › B", ("easy clean",))
    assert (large.price_upper, small.price_upper, large.price) == (limit, limit, 15.0)


def test_a_goal_without_options_or_limit():
    catalogue = make_catalogue([item("B1", "$980")], [("B1", marks())])
    (found,) = make_goals(catalogue, human=False)
    assert (found.instruction, found.options, found.price_upper) == ("find a mug", {}, NO_LIMIT)


@pytest.mark.parametrize(("pricing", "limits"), [("$979.99", [990.0]), ("$970", [990.0]), ("$960.5", [980.0, 990.0])])
def test_limits_near_the_end(pricing, limits):
    catalogue = make_catalogue([item(f"B{i}", pricing) for i in range(20)], [(f"B{i}", marks()) for i in range(20)])
    assert {goal.price_upper for goal in make_goals(catalogue, human=False)} <= {*limits}


def test_human_goals_are_drawn_one_by_one():
    people = [("B1", [human("i want a mug..", options=["red"]), human(attributes=()), human("a cup")])]
    catalogue = make_catalogue([item("B1")], [], people, seed=5)
    rng = random.Random(5)
    first, second = (max(rng.sample([20.0, 30.0, 40.0, 50.0], 2)) for _ in range(2))
    cup, mug = by_text(make_goals(catalogue, human=True))
    assert mug.instruction == f"i want a mug, and price lower than {first:.2f} dollars"
    assert (mug.attributes, mug.options, mug.price_upper) == (("soft",), ("red",), first)
    assert cup.instruction == f"a cup, and price lower than {second:.2f} dollars"


def test_limits_come_after_all_hidden_prices_in_the_stream():
    catalogue = make_catalogue(
        [item("B1", "$10 - $12"), item("B2"), item("B3", "$14 - $16")], [("B2", marks())], seed=11
    )
    rng = random.Random(11)
    assert [catalogue.products[i].price for i in (0, 2)] == [rng.uniform(10, 12), rng.uniform(14, 16)]
    (found,) = make_goals(catalogue, human=False)
    assert found.price_upper == max(rng.sample([20.0, 30.0, 40.0, 50.0], 2))
    assert make_goals(catalogue, human=False, seed=11) == [found]


def test_a_product_without_instruction_draws_nothing():
    entries = [("B1", marks()), ("B2", marks("find a cup"))]
    with_three = make_catalogue([item("B1"), item("B0"), item("B2")], entries)
    with_two = make_catalogue([item("B1"), item("B2")], entries)
    assert make_goals(with_three, human=False) == make_goals(with_two, human=False)


def test_the_shuffle_has_a_seed_of_its_own():
    names = [f"B{i}" for i in range(9)]
    catalogue = make_catalogue([item(name) for name in names], [(name, marks()) for name in names])
    order = list(names)
    random.Random(233).shuffle(order)
    goals = make_goals(catalogue, human=False)
    assert [goal.asin for goal in goals] == order
    others = make_goals(catalogue, human=False, shuffle_seed=1)
    assert others != goals
    assert sorted(others, key=lambda goal: goal.asin) == sorted(goals, key=lambda goal: goal.asin)


def test_no_goals():
    with pytest.raises(ValueError, match="items_human_ins has no instruction with attributes for any"):
        make_goals(make_catalogue([item("B1")], [], [("B1", [human(attributes=())])]), human=True)
    with pytest.raises(ValueError, match="items_ins_v2 has no instruction"):
        make_goals(make_catalogue([item("B1")], []), human=False)
    with pytest.raises(ValueError, match=r"load the catalogue with items_human_ins\.json"):
        make_goals(make_catalogue([item("B1")], []), human=True)
    without = {**marks(), "instruction_attributes": []}
    with pytest.raises(ValueError, match="items_ins_v2: B1: instruction needs at least one"):
        make_goals(make_catalogue([item("B1")], [("B1", without)]), human=False)


def identity(goal):
    options = goal.options.items() if isinstance(goal.options, dict) else goal.options
    return goal.asin, frozenset(Counter(goal.attributes).items()), frozenset(Counter(options).items())


def test_large_lists_are_split_by_number():
    goals = [goal(f"B{i}") for i in range(3000)]
    splits = split_goals(goals)
    assert list(splits) == ["train", "eval", "test"]
    assert splits == {"train": list(range(1500, 3000)), "eval": list(range(500, 1500)), "test": list(range(500))}


def test_what_is_held_out_is_in_no_later_split():
    goals = [goal(f"B{i}") for i in range(3000)]
    goals[500] = goal("B3", price_upper=30.0)  # like a test goal
    goals[501] = goal("B3", options={"color": "red"})  # not like it
    goals[1500] = goal("B3")
    goals[1501] = goal("B3", options={"color": "red"})  # like an eval goal
    goals[1502] = goal("B7", attributes=("soft", "dry"))
    goals[1503] = goal("B7", attributes=("dry", "soft"))
    goals[2999] = goals[2998]
    splits = split_goals(goals)
    assert splits["test"] == list(range(500))
    assert splits["eval"] == list(range(501, 1500))
    assert splits["train"] == list(range(1502, 3000))


@given(data=st.data(), count=st.integers(3, 40), mode=st.sampled_from(["held_out", "products"]))
def test_small_lists_share_no_product(data, count, mode):
    asins = [f"B{i}" for i in range(count)]
    asins += data.draw(st.lists(st.sampled_from(asins), max_size=60))
    goals = [goal(asin) for asin in data.draw(st.permutations(asins))]
    splits = split_goals(goals, mode)
    products = {split: {goals[i].asin for i in numbers} for split, numbers in splits.items()}
    assert sorted(i for numbers in splits.values() for i in numbers) == list(range(len(goals)))
    assert all(numbers == sorted(numbers) for numbers in splits.values())
    held_out = max(1, count // 10)
    assert [len(products[split]) for split in ("train", "eval", "test")] == [count - 2 * held_out, held_out, held_out]
    assert len(set.union(*products.values())) == count  # with the line above: none is in two of them
    assert goals[0].asin in products["test"]


def test_products_can_be_held_out_of_large_lists_too():
    goals = [goal(f"B{i % 40}", options=(str(i),)) for i in range(4000)]
    splits = split_goals(goals, "products")
    assert {goals[i].asin for i in splits["eval"]} == {"B4", "B5", "B6", "B7"}
    assert len(splits["train"]) == 3200


def test_the_published_split_leaks():
    goals = [goal("B1")] * 600
    assert split_goals(goals, "leaky") == {
        "train": list(range(500, 600)),
        "eval": list(range(500)),
        "test": list(range(500)),
    }


@given(seed=st.integers(0, 5))
def test_no_two_splits_have_an_identical_goal(seed):
    rng = random.Random(seed)
    goals = [goal(f"B{rng.randrange(900)}", options=(rng.choice("ab"),)) for _ in range(3500)]
    splits = split_goals(goals)
    seen = [{identity(goals[i]) for i in splits[name]} for name in splits]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_bad_splits():
    with pytest.raises(ValueError, match="mode must be one of held_out, products, leaky, got 'random'"):
        split_goals([goal("B1")], "random")
    with pytest.raises(ValueError, match="'leaky' needs more than 500 goals, got 500"):
        split_goals([goal("B1")] * 500, "leaky")
    with pytest.raises(ValueError, match="need goals for 3 products, got 2"):
        split_goals([goal("B1"), goal("B2")] * 5)
