"""The sources of nouns: what each finds in a name, and what is said where one is damaged or not installed."""

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.nouns import cached, heuristic, spacy


@pytest.mark.parametrize(
    ("name", "nouns"),
    [
        ("", ""),
        ("Oak Table Lamp for the Living Room (Black, x-large)", "oak table lamp living room black"),
        ("Oak Chair, Oak Table", "oak chair oak table"),  # repetitions stay
        ("Men's T-Shirt", "men t shirt"),
        ("Paint 12 fl oz (pack of 3), 10.5", "paint fl oz pack"),
        ("Rug 5x7 feet, Jeans 40w x 32l, Shirt 3x-large, Color A01", "rug feet jeans 40w shirt 3x color a01"),
        ("Soap Dairy Free, Gluten free cookies", "soap dairy free cookies"),  # in lower case an adjective
        ("Lamp Easy To Use", "lamp easy"),
        ("Bluetooth headphones Ultra Hd", "bluetooth ultra hd"),  # which the model takes for a verb
        ("Bluetooth headphones with case", "bluetooth headphones case"),
    ],
)
def test_the_heuristic_leaves_out_what_is_hardly_a_noun(name, nouns):
    assert heuristic()(name, "B1") == tuple(nouns.split())
    assert heuristic().name == "heuristic"


@given(st.text())
def test_the_heuristic_takes_any_name(name):
    nouns = heuristic()(name, "B1")
    assert all(noun and noun == noun.lower() and not noun.isspace() for noun in nouns)
    assert heuristic()(name, "B2") == nouns


def test_cached_nouns_are_found_by_asin(tmp_path):
    path = tmp_path / "nouns.json"
    path.write_text('{"B1": ["Oak", "oak", "lamp"], "B2": []}')
    source = cached(path)
    assert source.name == "cached nouns.json"
    assert source("whatever", "B1") == ("oak", "oak", "lamp")
    assert source("", "B2") == ()
    with pytest.raises(ValueError, match=r"nouns\.json: no nouns of asin B3 \('Oak lamp'\); add them, or choose"):
        source("Oak lamp", "B3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON file"),
        ("{", "no JSON file"),
        ("[" * 100_000, "no JSON file"),
        ("[]", "expected an object {asin: \\[noun, ..\\]}, got list"),
        ('{"B1": "lamp"}', "asin B1: expected a list of nouns, got lamp"),
        ('{"B1": ["a"], "B2": ["b", 3]}', r"asin B2: expected a list of nouns, got \['b', 3\]"),
    ],
)
def test_a_damaged_file_of_nouns_is_named(tmp_path, content, message):
    path = tmp_path / "nouns.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"nouns\.json: {message}"):
        cached(path)


def test_a_missing_file_of_nouns_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        cached(tmp_path / "absent.json")


class Pipeline:
    """Tags a capitalised word NOUN, other words ADJ and "Acme" PROPN, and counts the names it has read."""

    meta = types.MappingProxyType({"version": "3.8.0"})
    read = 0

    def __call__(self, name):
        self.read += 1
        tags = {word: "PROPN" if word == "Acme" else "NOUN" if word.istitle() else "ADJ" for word in name.split()}
        return [types.SimpleNamespace(text=word, pos_=tags[word]) for word in name.split()]


def load(pipeline, model, exclude):
    if model != "en_core_web_sm":
        raise OSError(f"[E050] Can't find model '{model}'.")
    return pipeline


def test_spacy_nouns_are_common_and_proper_ones(monkeypatch):
    pipeline = Pipeline()
    fake = types.SimpleNamespace(load=lambda model, exclude: load(pipeline, model, exclude))
    monkeypatch.setitem(sys.modules, "spacy", fake)
    source = spacy()
    assert source.name == "spacy en_core_web_sm 3.8.0"
    assert [source("Acme oaken Lamp", asin) for asin in ("B1", "B2")] == [("acme", "lamp")] * 2
    assert pipeline.read == 1  # a name is tagged once
    with pytest.raises(ValueError, match=r"spaCy has no model other: .*python -m spacy download other"):
        spacy("other")


def test_without_spacy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(
        ValueError, match=r"pip install 'hgpo_jax\[webshop\]' && python -m spacy download en_core_web_sm"
    ):
        spacy()
