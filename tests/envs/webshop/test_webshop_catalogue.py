"""Loading: what the original's cleaning gives, worked out by hand; streaming; and what bad files are told."""

import copy
import gzip
import itertools
import json
import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.webshop import json_stream
from envs.webshop.catalogue import (
    HumanInstruction,
    catalogue_files,
    clean_option,
    load_catalogue,
    make_catalogue,
    read_prices,
)
from envs.webshop.goals import make_goals
from envs.webshop.json_stream import read_array, read_object

MUG = {
    "asin": "B000000001",
    "name": "Blue Mug",
    "full_description": "A mug.",
    "small_description": ["Holds tea.", "Blue."],
    "pricing": "$12.50 - $19.99",
    "product_category": "Kitchen › Mugs",
    "category": "garden",
    "query": " Tea Mugs ",
    "customization_options": {"Color": [{"value": " Navy/White "}, {"value": "a [b] c", "image": None}], "Style": None},
    "images": ["x.jpg"],
    "average_rating": "",
}
ATTRIBUTES = {
    "B000000001": {
        "attributes": ["leak proof", "easy clean"],
        "instruction": "find a mug",
        "instruction_attributes": ["leak proof"],
    }
}
HUMAN = {
    "B000000001": [
        {
            "instruction": "i want a mug.",
            "instruction_attributes": ["easy clean"],
            "instruction_options": ["navy | white"],
        }
    ],
    "B999999999": [{"instruction": "of no product here"}],
}


def item(**fields):
    return {**MUG, **fields}


def load(tmp_path, items, attributes=ATTRIBUTES, human=None, **kwargs):
    paths = []
    for name, content in (("items.json", items), ("ins.json", attributes), ("human.json", human)):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        paths.append(path)
    return load_catalogue(*paths[: 2 if human is None else 3], **kwargs)


def test_a_product_is_cleaned_as_the_original_does(tmp_path):
    catalogue = load(tmp_path, [MUG], human=HUMAN, seed=7)
    (mug,) = catalogue.products
    assert catalogue.by_asin == {"B000000001": mug}
    assert catalogue.human == {"B000000001": (HumanInstruction("i want a mug.", ("easy clean",), ("navy | white",)),)}
    assert catalogue.seed == 7
    assert (mug.name, mug.description, mug.bullets) == ("Blue Mug", "A mug.", ("Holds tea.", "Blue."))
    assert (mug.category, mug.query, mug.product_category) == ("garden", "tea mugs", "Kitchen › Mugs")
    assert (mug.price_tag, mug.prices) == ("$12.5 to $19.99", (12.5, 19.99))
    assert mug.price == 12.5 + (19.99 - 12.5) * random.Random(7).random()
    assert mug.options == {"color": ("navy | white", "a [b] c")}
    assert mug.attributes == ("leak proof", "easy clean")
    assert (mug.instruction, mug.instruction_attributes) == ("find a mug", ("leak proof",))


def test_what_may_be_missing(tmp_path):
    bare = item(asin="B2", small_description="One.", pricing=None, customization_options="")
    (product,) = load(tmp_path, [bare]).products
    assert product.bullets == ("One.",)
    assert (product.price_tag, product.prices, product.price) == ("$100.0", (100.0,), 100.0)
    assert product.options == {}
    assert product.attributes == ("DUMMY_ATTR",)
    assert (product.instruction, product.instruction_attributes) == (None, ())
    assert load(tmp_path, [bare]).human is None
    (product,) = load(tmp_path, [bare], {"B2": {}}).products
    assert product.attributes == ("DUMMY_ATTR",)


@pytest.mark.parametrize(
    ("pricing", "prices"),
    [
        (None, (100.0,)),
        ("", (100.0,)),
        ("$5", (5.0,)),
        ("$1,199.00", (1199.0,)),
        ("from $3.10 each", (3.1,)),
        ("$1.00 - $2.50 - $9", (1.0, 2.5)),
    ],
)
def test_prices(pricing, prices):
    assert read_prices(pricing) == prices


@pytest.mark.parametrize("pricing", ["12.50", "$", "$1.2.3", "$ - $4"])
def test_what_is_no_price(tmp_path, pricing):
    with pytest.raises(ValueError, match=re.escape(f"one price or two, such as '$12.50 - $19.99', got {pricing!r}")):
        read_prices(pricing)
    with pytest.raises(ValueError, match=r"items\.json: product 1: pricing must be empty, one price or two"):
        load(tmp_path, [MUG, item(asin="B2", pricing=pricing)])


def test_option_values():
    assert clean_option(" Black/White ") == "black | white"
    assert clean_option("1/2 Cup [Pack of 3]") == "1 | 2 cup [pack of 3]"


def test_option_names_that_become_alike_are_one(tmp_path):
    options = {"Size": [{"value": "S"}], "Color": [{"value": "red"}], "SIZE": [{"value": "L"}]}
    (product,) = load(tmp_path, [item(customization_options=options)]).products
    assert list(product.options.items()) == [("size", ("l",)), ("color", ("red",))]


def test_entries_that_are_left_out(tmp_path):
    items = [
        item(asin="nan", name=None),
        item(asin="B1"),
        item(asin="B1", name="again", pricing="no price"),
        item(asin="B2345678901", pricing=3),
        item(asin="B234567890"),
    ]
    assert [product.asin for product in load(tmp_path, items).products] == ["B1", "B234567890"]
    assert [product.asin for product in load(tmp_path, items, num_products=4).products] == [
        "B1"
    ]  # entries, not products


def test_hidden_prices_are_drawn_in_order(tmp_path):
    prices = ["$1 - $2", "$9", None, "$10 - $20", "$6 - $4"]
    items = [item(asin=f"B{i}", pricing=price) for i, price in enumerate(prices)]
    rng = random.Random(42)
    expected = [rng.uniform(1, 2), 9.0, 100.0, rng.uniform(10, 20), rng.uniform(6, 4)]
    assert [product.price for product in load(tmp_path, items).products] == expected
    items.insert(3, item(asin="B1", pricing="$1 - $2"))  # a duplicate draws nothing
    assert [product.price for product in load(tmp_path, items).products] == expected


def test_equal_strings_are_one_object(tmp_path):
    first, second = load(tmp_path, [MUG, item(asin="B2")], {**ATTRIBUTES, "B2": ATTRIBUTES["B000000001"]}).products
    assert first.query is second.query
    assert first.options["color"][0] is second.options["color"][0]
    assert first.attributes[1] is second.attributes[1]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "product 1: must be an object, got 3"),
        (item(asin=None), "product 1: asin must be a string, got None"),
        (item(asin="B2", name=None), "product 1: name must be a string, got None"),
        (item(asin="B2", full_description=["x"]), "product 1: full_description must be a string, got ['x']"),
        (
            item(asin="B2", small_description=[None]),
            "product 1: small_description must be a list of strings, got [None]",
        ),
        (item(asin="B2", pricing=[1.0]), "product 1: pricing must be a string, got [1.0]"),
        (item(asin="B2", customization_options=[1]), "product 1: customization_options: must be an object, got [1]"),
        (
            item(asin="B2", customization_options={"Size": ["S"]}),
            "product 1: customization_options: Size: must be an object, got 'S'",
        ),
        (
            item(asin="B2", customization_options={"Size": [{"image": ""}]}),
            "product 1: customization_options: Size: value must be a string, got None",
        ),
        (
            item(asin="B2", customization_options={"Size": "S"}),
            "product 1: customization_options: Size: must be a list, got 'S'",
        ),
    ],
)
def test_products_of_another_form(tmp_path, entry, message):
    with pytest.raises(ValueError, match=re.escape(f"items.json: {message}")):
        load(tmp_path, [MUG, entry])


@pytest.mark.parametrize(
    ("attributes", "human", "message"),
    [
        ({"B1": []}, None, "ins.json: B1: must be an object, got []"),
        ({"B1": {"attributes": "x"}}, None, "ins.json: B1: attributes must be a list of strings, got 'x'"),
        ({"B1": {"instruction": 1}}, None, "ins.json: B1: instruction must be a string, got 1"),
        ({}, {"B000000001": {}}, "human.json: B000000001: must be a list, got {}"),
        (
            {},
            {"B000000001": [{}]},
            "human.json: B000000001: instruction_attributes must be a list of strings, got None",
        ),
    ],
)
def test_attributes_and_instructions_of_another_form(tmp_path, attributes, human, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path, [MUG], attributes, human)


def test_missing_files_and_products(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*items\.json; setup\.sh of WebShop"):
        load_catalogue(tmp_path / "items.json", tmp_path / "ins.json")
    with pytest.raises(ValueError, match=r"items\.json: no product; setup\.sh of WebShop"):
        load(tmp_path, [item(asin="nan")])
    with pytest.raises(ValueError, match="num_products must be at least 1, got 0"):
        make_catalogue([MUG], [], num_products=0)


def test_files_of_a_folder(tmp_path):
    for name in ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json", "items_shuffle.json"):
        (tmp_path / name).write_text("")
    small = catalogue_files(tmp_path, small=True)
    assert [path.name for path in small] == [
        "items_shuffle_1000.json",
        "items_ins_v2_1000.json",
        "items_human_ins.json",
    ]
    with pytest.raises(ValueError, match=r"no file .*items_ins_v2\.json"):
        catalogue_files(tmp_path)


def test_gzip(tmp_path):
    for name, content in (("items.json.gz", [MUG]), ("ins.json.gz", ATTRIBUTES)):
        with gzip.open(tmp_path / name, "wt") as file:
            json.dump(content, file)
    packed = load_catalogue(tmp_path / "items.json.gz", tmp_path / "ins.json.gz")
    assert packed == load(tmp_path, [MUG])
    whole = (tmp_path / "items.json.gz").read_bytes()
    (tmp_path / "items.json.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"items\.json\.gz: not a complete JSON array"):
        load_catalogue(tmp_path / "items.json.gz", tmp_path / "ins.json.gz")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    content=st.lists(values, max_size=5) | st.dictionaries(st.text(), values, max_size=5),
    indent=st.sampled_from([None, 2]),
    escape=st.booleans(),
    chunk=st.integers(1, 40),
)
@example(content=[0.0, -1.5e-30, 12, True, "x"], indent=None, escape=False, chunk=1)
def test_streams_give_what_json_gives(tmp_path_factory, content, indent, escape, chunk):
    path = tmp_path_factory.getbasetemp() / "stream.json"
    text = json.dumps(content, indent=indent, ensure_ascii=escape)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    read = read_array if isinstance(content, list) else read_object
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        found = list(read(path))
    assert found == (content if isinstance(content, list) else list(content.items()))


def test_streams_read_no_further_than_asked(tmp_path):
    path = tmp_path / "long.json"
    path.write_text("[1, 2" + ", 3" * json_stream._CHUNK + "damaged")
    assert list(itertools.islice(read_array(path), 2)) == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at element 0: expected '[', found the end of the file"),
        ("{}", "at element 0: expected '[', found '{'"),
        ("[", "at element 0: Expecting value"),
        ('[{"asin": "B1"}, {"asin": "B', "at element 1: Unterminated string"),
        ("[1 2]", "at element 1: expected ']', found '2'"),
        ("[1,]", "at element 1: Expecting value"),
        ("[1]]", "at element 1: goes on after its closing ']'"),
        ("[" * 200_000, "at element 0: maximum recursion depth"),
    ],
)
def test_damaged_arrays(tmp_path, text, message):
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}: not a complete JSON array, {message}")):
        list(read_array(path))


@pytest.mark.parametrize(("text", "message"), [("{1: 2}", "expected a string as the key"), ('{"a" 2}', "expected ':'")])
def test_damaged_objects(tmp_path, text, message):
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"not a complete JSON object, at element 0: {message}"):
        list(read_object(path))


def test_what_is_no_text(tmp_path):
    path = tmp_path / "binary.json"
    path.write_bytes(b'["\xff"]')
    with pytest.raises(ValueError, match=r"binary\.json: not a complete JSON array, at element 0: .*utf-8"):
        list(read_array(path))


def test_an_early_flaw_is_told_before_the_whole_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_CHUNK", 10)
    monkeypatch.setattr(json_stream, "_LONGEST", 100)
    path = tmp_path / "flaw.json"
    path.write_bytes(b"[{1: 2}" + b" " * 10_000 + b"\xff")  # the last byte, if it were read, would be the complaint
    with pytest.raises(ValueError, match="at element 0: Expecting property name"):
        list(read_array(path))


FILES = {"items.json": [MUG, {**MUG, "asin": "B2"}], "ins.json": ATTRIBUTES, "human.json": HUMAN}


@pytest.fixture(params=FILES)
def damage(tmp_path, request):
    """Reads a catalogue with other contents in one of its files: None where the file is refused, by its name."""
    paths = {name: tmp_path / name for name in FILES}
    for name, content in FILES.items():
        paths[name].write_text(json.dumps(content))

    def read(content, suffix=""):
        path = tmp_path / f"damaged.json{suffix}"
        path.write_bytes(content)
        try:
            return load_catalogue(*({**paths, request.param: path}.values()))
        except ValueError as error:
            told = str(error)
        assert told.startswith(f"{path}: ")
        return None

    return request.param, read


def test_files_cut_anywhere(damage):
    name, read = damage
    whole = json.dumps(FILES[name]).encode()
    for suffix, content in (("", whole), (".gz", gzip.compress(whole))):
        assert read(content, suffix)
        assert not any(read(content[:end], suffix) for end in range(len(content)))


def test_packed_files_with_a_flaw_anywhere(damage):
    name, read = damage
    content = gzip.compress(json.dumps(FILES[name]).encode())
    intact = read(content, ".gz")
    for place, bit in itertools.product(range(len(content)), (1, 16, 128)):
        flawed = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        assert read(flawed, ".gz") in (None, intact)  # some bytes of its head say nothing of the contents


def places(content, path=()):
    yield path
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def test_any_value_of_another_kind(damage):
    name, read = damage
    for path, odd in itertools.product(
        places(FILES[name]), (None, 3, 1e999, True, "\0\ud800", [], {}, [[{}]], {"a": [3]})
    ):
        changed = {"all": copy.deepcopy(FILES[name])}
        inner = changed
        for key in ("all", *path)[:-1]:
            inner = inner[key]
        inner[("all", *path)[-1]] = odd
        catalogue = read(json.dumps(changed["all"]).encode())
        if catalogue:
            for human in (False, True):
                told = ""
                try:
                    make_goals(catalogue, human=human)
                except ValueError as error:
                    told = str(error)
                assert re.match("$|no goal: items_|items_ins_v2: B000000001: instruction needs", told)
