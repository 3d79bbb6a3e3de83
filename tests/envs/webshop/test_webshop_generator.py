"""Generated catalogues: the same everywhere, of the original's form, and with goals that can be met."""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.webshop.catalogue import load_catalogue
from envs.webshop.generator import MOST_OPTIONS, generate_catalogue, write_catalogue
from envs.webshop.goals import make_goals
from envs.webshop.product_types import CATEGORIES, OPTIONS, PHRASES, TYPES

DIGESTS = ["393a544d7da34b2e", "012fb605e96a02fc", "c492fa9e01aad73d"]


def digests(files):
    return [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files]


def test_the_files_are_the_same_on_every_machine(tmp_path):
    files = write_catalogue(tmp_path, 60, 7)
    assert [path.name for path in files] == ["items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"]
    assert digests(files) == DIGESTS
    code = f"from envs.webshop.generator import write_catalogue; write_catalogue({str(tmp_path / 'again')!r}, 60, 7)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONHASHSEED": "5", "PYTHONPATH": "."})
    assert digests(tmp_path / "again" / path.name for path in files) == DIGESTS


@settings(max_examples=8, deadline=None)
@given(products=st.integers(1, 40), seed=st.integers(0, 9), max_options=st.integers(0, MOST_OPTIONS))
def test_files_and_memory_hold_the_same(tmp_path_factory, products, seed, max_options):
    files = write_catalogue(tmp_path_factory.mktemp("shop"), products, seed, max_options=max_options)
    loaded = load_catalogue(*files, seed=seed)
    assert loaded == generate_catalogue(products, seed, max_options=max_options)
    assert len(loaded.products) == products
    json.loads(files.items.read_text())  # one array, also for a parser that reads all of it
    assert all(len(product.options) <= max_options for product in loaded.products)


def test_a_smaller_catalogue_is_the_beginning_of_a_larger_one():
    few, many = generate_catalogue(30, 3), generate_catalogue(90, 3)
    assert many.products[:30] == few.products
    assert generate_catalogue(30, 4).products != few.products


def test_fewer_options_change_nothing_else():
    plain, full = generate_catalogue(50, 0, max_options=0), generate_catalogue(50, 0)
    assert [p.attributes for p in plain.products] == [p.attributes for p in full.products]
    assert len(make_goals(plain, human=False)) == 50
    assert len(make_goals(full, human=False)) > 150


def test_asins_are_unique_and_valid():
    asins = [product.asin for product in generate_catalogue(5000, 0).products]
    assert len(set(asins)) == 5000
    assert all(re.fullmatch(r"B[0-9A-Z]{9}", asin) for asin in asins)


def test_all_kinds_of_products_and_prices_occur():
    products = generate_catalogue(2000, 1).products
    assert len({product.query for product in products}) == len(TYPES) == 40
    assert {product.category for product in products} == set(CATEGORIES)
    tags = Counter("to" if len(p.prices) > 1 else "none" if p.price_tag == "$100.0" else "one" for p in products)
    assert 200 < tags["to"] < 400
    assert 50 < tags["none"] < 150
    assert {len(product.options) for product in products} == {0, 1, 2}
    assert {name for product in products for name in product.options} == set(PHRASES)


def test_every_goal_can_be_met():
    catalogue = generate_catalogue(400, 2)
    for human in (False, True):
        goals = make_goals(catalogue, human=human)
        assert len(goals) > 150
        for goal in goals:
            product = catalogue.by_asin[goal.asin]
            page = " ".join((product.name, product.description, *product.bullets)).lower()
            values = {value for group in product.options.values() for value in group}
            wanted = goal.options.values() if isinstance(goal.options, dict) else goal.options
            assert all(attribute in page for attribute in goal.attributes)
            assert set(goal.attributes) <= set(product.attributes)
            assert set(wanted) <= values
            assert product.price < goal.price_upper
            assert all(value in goal.instruction for value in (*wanted, *goal.attributes))
            assert product.category in CATEGORIES


def test_texts_have_no_gaps_left():
    catalogue = generate_catalogue(500, 5)
    for product in catalogue.products:
        for text in (product.name, product.description, *product.bullets, product.instruction or ""):
            assert not re.search(r"[{}]|  |\ba [aeio]|\ban [^aeiou]", text), text


def test_the_table_of_types_is_sound():
    for kind in TYPES:
        assert kind.category in CATEGORIES
        assert len(set(kind.attributes)) >= 4
        assert all(name in OPTIONS for name in kind.options)
        assert len({OPTIONS[name][0] for name in kind.options}) == len(kind.options) <= MOST_OPTIONS
        assert 0 < kind.prices[0] < kind.prices[1]


def test_bad_arguments():
    with pytest.raises(ValueError, match="products must be between 1 and 1000000, got 0"):
        generate_catalogue(0, 0)
    with pytest.raises(ValueError, match="max_options must be between 0 and 2, got 3"):
        write_catalogue("unused", 1, 0, max_options=3)
