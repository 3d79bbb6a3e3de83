"""The purchase reward: each rule and each quirk on literals, and what holds for every purchase."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.catalogue import Product
from envs.webshop.colours import COLOURS, normalise_pair, normalise_value
from envs.webshop.goals import Goal
from envs.webshop.nouns import NounSource, cached, heuristic
from envs.webshop.reward import option_matches, purchase_reward

WORDS = NounSource("words", lambda name, asin: tuple(name.split()))  # every word is a noun
VALUES = ("black", "x-large", "10.5", "5x7 feet", "12 fl oz (pack of 3)", "wine red", "one size")  # no quirk loses them


def product(name="lamp", **fields):
    blank = {"description": "", "bullets": (), "category": "", "query": "", "product_category": "", "price_tag": "$5.0"}
    blank |= {"prices": (5.0,), "price": 5.0, "options": {}, "attributes": (), "instruction": None}
    return Product(**({"asin": "B1", "name": name, "instruction_attributes": ()} | blank | fields))


def goal(name="lamp", **fields):
    blank = {"category": "", "query": "", "product_category": "", "instruction": "", "attributes": (), "options": ()}
    return Goal(**({"asin": "B2", "name": name, "price_upper": 10.0, "price": 5.0} | blank | fields))


def reward(bought, wanted, price=5.0, chosen=None, nouns=WORDS, strict=False):
    return purchase_reward(bought, wanted, price, chosen or {}, nouns, strict=strict)


def test_a_purchase_worked_out_by_hand():
    bought = product("brass table lamp", query="lamps", attributes=("long lasting",), description="A DIMMABLE light.")
    wanted = goal(
        "oak table lamp",
        query="lamps",
        attributes=("long lasting", "dimmable", "wireless"),
        options={"color": "black", "size": "small"},
    )
    got = reward(bought, wanted, price=10.01, chosen={"color": "black", "size": "medium"})
    assert got.total == 3 / 6  # two attributes of three, one option of two, too expensive
    assert got.details() == {
        "r_type": 1.0,
        "r_att": 2 / 3,
        "w_att": 3 / 6,
        "query_match": True,
        "category_match": False,
        "title_score": 2 / 3,
        "r_option": 1 / 2,
        "w_option": 2 / 6,
        "r_price": False,
        "w_price": 1 / 6,
    }
    assert (got.attributes_met, got.options_met) == ((True, True, False), (True, False))


def test_what_a_goal_does_not_ask_for_is_not_reported():
    got = reward(product(), goal())
    assert got.total == 1.0
    assert list(got.details()) == ["r_type", "query_match", "category_match", "title_score", "r_price", "w_price"]
    assert (got.r_att, got.r_option, got.w_price) == (None, None, 1.0)


@pytest.mark.parametrize(
    ("shared", "of", "same_query", "r_type"),
    [
        (0, 4, True, 0.0),
        (1, 11, True, 0.1),
        (1, 11, False, 0.1),
        (1, 10, True, 1.0),  # 0.1 is not below 0.1
        (1, 10, False, 0.5),
        (1, 5, False, 0.5),  # 0.2 is not above 0.2
        (1, 4, False, 1.0),
    ],
)
def test_the_type_depends_on_the_names_and_the_kind(shared, of, same_query, r_type):
    bought = product(" ".join(f"w{i}" for i in range(shared)), query="a")
    wanted = goal(" ".join(f"w{i}" for i in range(of)), query="a" if same_query else "b")
    got = reward(bought, wanted)
    assert (got.title_score, got.r_type, got.total) == (shared / of, r_type, r_type)


def test_repeated_nouns_of_the_goal_count():
    assert reward(product("lamp lamp"), goal("lamp lamp shade")).title_score == 1 / 3


def test_names_without_nouns():
    assert reward(product(""), goal("", query="other"))[:2] == (0.5, 0.5)
    assert reward(product("lamp"), goal("")).title_score == 0.2
    assert reward(product(""), goal("lamp")).total == 0.0


def test_the_source_of_nouns_gets_names_and_asins():
    found = {("left", "B1"): ("chair",), ("right", "B2"): ("chair", "oak")}
    nouns = NounSource("a table", lambda name, asin: found[name, asin])
    assert reward(product("left"), goal("right"), nouns=nouns).title_score == 1 / 2


@pytest.mark.parametrize(
    ("bought", "wanted", "match"),
    [
        ("Home › Lamps", "Home › Lamps", True),
        ("Home ›  Lamps › Oak", "Lamps › Garden ›Home", True),  # in any order
        ("Home › Lamps", "Home › Rugs", False),
        ("Home › Home", "Home › Home", False),  # one part, however often
        ("", "", False),
    ],
)
def test_categories_agree_in_two_parts(bought, wanted, match):
    assert reward(product(product_category=bought), goal(product_category=wanted)).category_match is match


@pytest.mark.parametrize(
    ("fields", "wanted", "match"),
    [
        ({"attributes": ("long sleeve",)}, "long sleeves", True),  # 96 %
        ({"attributes": ("sleeve", "Long-Sleeve!")}, "long sleeve", True),
        ({"attributes": ("sleeve long extra",)}, "long sleeve", True),  # all words of one are in the other
        ({"attributes": ("non gmo",)}, "non slip", False),
        ({"attributes": ("aaaaaab",)}, "aaaaaac", True),  # 12 / 14 = 85.7 %
        ({"attributes": ("a" * 29 + "b" * 5,)}, "a" * 29 + "c" * 5, False),  # 58 / 68 = 85.3 %, 85 when rounded
        ({"attributes": ("crème",)}, "crme", True),  # Latin-1 letters are deleted
        ({"name": "WiFi Lamp"}, "fi la", True),
        ({"bullets": ("is NON", "GMO")}, "non gmo", True),  # bullets are one text
        ({"description": "Easy to use"}, "easy to use", True),
        ({"description": "Easy to use"}, "Easy", False),  # the wanted one stays as it is
        ({"category": "wood", "query": "wood", "product_category": "wood"}, "wood", False),
    ],
)
def test_attributes_match_by_similarity_or_in_the_text(fields, wanted, match):
    assert reward(product(**fields), goal(attributes=(wanted,))).attributes_met == (match,)


def test_the_price_may_be_the_limit():
    assert [reward(product(), goal(), price=price).r_price for price in (9.99, 10.0, 10.01)] == [True, True, False]


@pytest.mark.parametrize(
    ("value", "wanted", "by_value", "as_pair", "strict"),
    [
        ("black", "black", True, True, True),
        ("black", "white", False, False, False),
        ("3x-large", "3X Large", True, True, True),  # case and punctuation never matter
        ("large", "x-large", True, True, False),
        ("2 ounce (pack of 1)", "2 ounce (pack of 3)", True, True, False),
        ("royal blue", "navy blue", True, True, False),
        ("navy", "royal blue", False, False, False),  # only "blue" comes before "navy" and "royal"
        ("light green", "dark green", False, True, False),  # "green" and "dark", but "('size', 'dark green')"
        ("wine red", "red", True, True, False),
        ("standard", "standard", True, False, True),  # "tan" on both sides, but "('size', 'standard')"
        ("size", "small", False, True, False),  # the pair's name is text too
        ("10.5", "105", True, False, False),  # "10 5": 6 / 7 = 85.7 %
        ("10.5", "5.10", True, True, False),
        ("", "", False, False, True),
        ("★", "★", False, False, True),
        ("★", "☆", False, False, False),
    ],
)
def test_options_match_with_the_quirks_of_the_original_or_strictly(value, wanted, by_value, as_pair, strict):
    assert option_matches("size", value, None, wanted) is by_value
    assert option_matches("size", value, "size", wanted) is as_pair
    assert option_matches("size", value, None, wanted, strict=True) is strict
    assert option_matches("size", value, "size", wanted, strict=True) is strict


def test_only_strictly_the_name_of_an_option_matters():
    assert option_matches("style", "small", "size", "small")
    assert not option_matches("style", "small", "size", "small", strict=True)


def test_one_chosen_option_may_satisfy_several():
    got = reward(product(), goal(options=("blue", "navy blue", "red")), chosen={"color": "royal blue"})
    assert (got.options_met, got.r_option, got.total) == ((True, True, False), 2 / 3, 3 / 4)
    strict = reward(product(), goal(options=("blue", "navy blue", "red")), chosen={"color": "blue"}, strict=True)
    assert strict.options_met == (True, False, False)


def test_the_first_colour_of_the_list_counts():
    assert [normalise_value(value) for value in ("navy blue", "wine red", "grey | silver", "covered", "large", "")] == [
        *("blue", "red", "grey", "red", "large", "")
    ]
    assert normalise_pair("color", "black") == "black"
    assert normalise_pair("color", "navy blue") == "('color', 'navy blue')"
    assert normalise_pair("rose", "black") == "black"
    assert list(COLOURS) == sorted(COLOURS)
    assert len(set(COLOURS)) == 102


def test_an_unknown_asin_is_an_error_not_a_reward_of_zero(tmp_path):
    path = tmp_path / "nouns.json"
    path.write_text('{"B1": ["lamp"]}')
    with pytest.raises(ValueError, match=r"nouns\.json: no nouns of asin B2 \('oak lamp'\)"):
        reward(product(), goal("oak lamp"), nouns=cached(path))


texts = st.text(max_size=12) | st.sampled_from(VALUES) | st.sampled_from(COLOURS)
option_maps = st.dictionaries(texts, texts, max_size=4)
products = st.builds(
    product, texts, description=texts, bullets=st.tuples(texts), query=texts, attributes=st.tuples(texts, texts)
)
goals = st.builds(
    goal,
    texts,
    query=texts,
    attributes=st.lists(texts, max_size=3).map(tuple),
    options=option_maps | st.lists(texts, max_size=3).map(tuple),
)


@given(products, goals, option_maps, st.floats(0, 20), st.booleans())
def test_the_total_follows_from_its_parts(bought, wanted, chosen, price, strict):
    got = reward(bought, wanted, price, chosen, heuristic(), strict)
    assert 0 <= got.total <= 1
    assert got.r_type in (0, 0.1, 0.5, 1)
    assert got.w_att + got.w_option + got.w_price == pytest.approx(1)
    parts = (got.r_att or 0) * got.w_att + (got.r_option or 0) * got.w_option + got.r_price * got.w_price
    assert got.total == pytest.approx(got.r_type * parts)


@given(products, goals, option_maps, texts, texts, st.floats(0, 20), st.floats(0, 20), st.booleans())
def test_more_that_is_right_is_never_less(bought, wanted, chosen, name, value, price, other, strict):
    base = reward(bought, wanted, max(price, other), chosen, strict=strict).total
    assert reward(bought, wanted, min(price, other), chosen, strict=strict).total >= base
    assert reward(bought, wanted, max(price, other), chosen | {name + "+": value} | chosen, strict=strict).total >= base


@given(texts, st.lists(texts, max_size=3), option_maps)
def test_the_wanted_product_with_the_wanted_options_is_worth_1_strictly(name, attributes, options):
    wanted = goal(name, query="a", attributes=tuple(attribute.lower() for attribute in attributes), options=options)
    bought = product(name, query="a", description=" ".join(wanted.attributes))
    assert reward(bought, wanted, chosen=options, strict=True).total == 1.0


@given(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3), st.booleans(), st.booleans())
def test_the_wanted_product_with_the_wanted_options_is_worth_1(values, named, strict):
    chosen = {f"option {number}": value for number, value in enumerate(values)}
    wanted = goal("oak lamp", query="a", attributes=("solid wood",), options=chosen if named else tuple(values))
    bought = product("oak lamp", query="a", attributes=("solid wood",))
    assert reward(bought, wanted, chosen=chosen, nouns=heuristic(), strict=strict).total == 1.0
