"""The two players: the planner wins what can be won, the shopper most, and both recover from slips."""

from typing import Any

import numpy as np
import pytest

from envs.webshop.catalogue import make_catalogue
from envs.webshop.environment import WebShop, goal_number
from envs.webshop.experts import best_options, named_options, selectable
from envs.webshop.goals import make_goals
from envs.webshop.reward import purchase_reward
from envs.webshop.source import open_stock, source_of

SYNTHETIC: dict[str, Any] = {"products": 150, "human": False}


@pytest.fixture(autouse=True)
def _no_original_data(monkeypatch):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)


def scores(expert, tasks, slips=0.0, **options):
    """The score of each task's episode of 15 steps, of which some are another's."""
    env, rng, found = WebShop(**options), np.random.default_rng(0), []
    for task in tasks:
        observation, info = env.reset(options={"task": task})
        policy, terminated = WebShop.make_expert(expert, task, "train", **options), False
        while not terminated and info["step"] < 15:
            said = policy(observation, info)
            if rng.random() < slips and "buy" not in (other := WebShop.random_reply(rng, info)):
                said = other
            observation, _, terminated, _, info = env.step(said)
        found.append(info["score"])
    return np.array(found)


def winnable(tasks, **options):
    """Whether the goal's own product can be bought with reward 1."""
    stock = open_stock(source_of(**options))
    shop = stock.shop
    goals = [shop.goals[goal_number(stock, "train", task)] for task in tasks]
    products = [shop.catalogue.by_asin[goal.asin] for goal in goals]
    rewards = [
        purchase_reward(product, goal, product.price, best_options(product, goal, strict=shop.strict), shop.nouns)
        for product, goal in zip(products, goals, strict=True)
    ]
    return np.array([reward.total == 1 for reward in rewards])


@pytest.mark.parametrize("options", [SYNTHETIC, {"products": 150}, SYNTHETIC | {"prompt": "brief", "think": False}])
def test_the_planner_wins_all_that_can_be_won(options):
    tasks = range(60)
    can = winnable(tasks, **options)
    np.testing.assert_array_equal(scores("planner", tasks, **options) == 1, can)
    assert can.mean() > 0.9


def test_under_strict_rewards_everything_can_be_won():
    assert scores("planner", range(60), **SYNTHETIC, strict=True).min() == 1


@pytest.mark.parametrize("options", [SYNTHETIC, {"products": 150}, SYNTHETIC | {"prompt": "brief", "think": False}])
def test_the_shopper_buys_well(options):
    found = scores("shopper", range(60), **options)
    assert found.mean() > 0.85
    assert (found == 1).mean() > 0.6
    np.testing.assert_array_equal(found, scores("shopper", range(60), **options))


def test_the_hasty_one_forgets_options():
    """Of a goal with n of them it chooses all with probability 2^-n, and buys the same product."""
    options: dict[str, Any] = SYNTHETIC | {"strict": True}
    patient, hasty = (scores(expert, range(120), **options) for expert in ("shopper", "hasty"))
    stock = open_stock(source_of(**options))
    wanted = np.array([len(stock.shop.goals[goal_number(stock, "train", task)].options) for task in range(120)])
    assert (hasty <= patient).all()
    assert set(wanted) == {0, 1, 2}
    np.testing.assert_array_equal(hasty[wanted == 0], patient[wanted == 0])
    kept = (hasty == 1).sum() / (2.0 ** -wanted[patient == 1]).sum()
    assert 0.7 < kept < 1.3


@pytest.mark.parametrize("expert", ["planner", "shopper"])
@pytest.mark.parametrize("style", [{}, {"prompt": "brief", "think": False}])
def test_a_slip_costs_steps_and_not_the_goal(expert, style):
    """Options that somebody else has chosen are chosen again, and other pages are left."""
    options = SYNTHETIC | {"strict": True} | style
    without, slipping = (scores(expert, range(40), slips, **options) for slips in (0.0, 0.3))
    assert (slipping == 1).sum() >= 0.8 * (without == 1).sum()


def product(**options):
    entry: dict[str, Any] = {"asin": "B1", "name": "Oak Stool", "full_description": "A seat.", "pricing": "$20.00"}
    entry |= {"small_description": ["oak"], "category": "garden", "query": "stools", "product_category": "A › B"}
    entry["customization_options"] = {name: [{"value": value} for value in values] for name, values in options.items()}
    marks = {"attributes": ["oak"], "instruction": "buy an oak stool", "instruction_attributes": ["oak"]}
    catalogue = make_catalogue([entry], [("B1", marks)])
    return catalogue.products[0], make_goals(catalogue, human=False)


def test_what_a_click_can_choose():
    one, _ = product(color=["red", "navy/blue", "Features"], size=["red", "small", "buy now"])
    assert list(selectable(one.options)) == [("size", "red"), ("color", "navy | blue"), ("size", "small")]


def test_the_best_options():
    one, goals = product(color=["green", "black", "navy"], size=["small", "x-large", "large"])
    for goal in goals:
        assert isinstance(goal.options, dict)
        assert best_options(one, goal) == goal.options
        assert best_options(one, goal, strict=True) == goal.options
    # "standard" becomes "tan", which "tan" meets and the value itself, written as a pair, does not.
    one, goals = product(size=["standard", "tan"])
    assert {best_options(one, goal)["size"] for goal in goals} == {"standard", "tan"}


def test_options_that_an_instruction_names():
    options = {"color": ("black", "black | white", "navy"), "size": ("5", "5.5"), "pack": ("pack of 1", "pack of 4")}
    text = "find me a stool with color: black | white, and size: 5.5, and price lower than 40.00 dollars"
    assert named_options(options, text) == {"color": "black | white", "size": "5.5"}
    assert named_options(options, "i need a navyish stool as a pack of 4") == {"pack": "pack of 4"}
    assert named_options({}, text) == {}
    assert named_options({"size": ("40",)}, text) == {}, "the price is no size"
