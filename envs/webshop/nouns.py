"""The nouns of a product's name, from three sources: the reward compares names by them.

The original takes what spaCy's small English model tags NOUN or PROPN. That model is heavy, so that by default rules
stand in for it; every source has a name, which belongs into a run's log.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

Nouns = tuple[str, ...]  # in lower case, in the order of the name, with repetitions

SPACY_MODEL = "en_core_web_sm"

_CACHED_NAMES = 65536
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+(x\d+|l)?")  # "12", and of measures "5x7" and "32l"
_FUNCTION_WORDS = frozenset(
    {
        *("a", "an", "the", "and", "or", "nor", "but", "of", "to", "for", "from", "in", "on", "at", "by", "with"),
        *("without", "into", "onto", "over", "under", "up", "down", "out", "off", "as", "than", "per", "via", "is"),
        *("are", "be", "it", "its", "this", "that", "these", "those", "your", "you", "our", "my", "his", "her"),
        *("their", "he", "she", "we", "they", "i", "all", "any", "both", "each", "every", "more", "most", "no"),
        *("not", "so", "such", "can", "will", "may", "do", "does", "if", "when", "while", "which", "who", "very"),
        *("too", "also", "only", "just", "s"),
    }
)
_MEASURES = frozenset(
    {
        *("small", "medium", "large", "x", "xx", "xxx", "xs", "xl", "xxl", "xxxl", "wide", "narrow", "one", "two"),
        *("three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    }
)


@dataclasses.dataclass(frozen=True)
class NounSource:
    """Where nouns come from. Call it with a product's name and its asin."""

    name: str  # for logs: "heuristic", "cached nouns.json", "spacy en_core_web_sm 3.8.0"
    find: Callable[[str, str], Nouns]  # (name, asin) -> nouns

    def __call__(self, name: str, asin: str) -> Nouns:
        return self.find(name, asin)


def heuristic() -> NounSource:
    """All words of a name without function words, numbers and sizes, by rules that follow spaCy's model on titles."""
    return NounSource("heuristic", lambda name, asin: _likely_nouns(name))


def cached(path: str | Path) -> NounSource:
    """Nouns from a JSON file, an object {asin: [noun, ..]}, such as one that spaCy's model has filled.

    Raises:
        OSError: if the file can't be read.
        ValueError: if it is no such object; when called, if the file has no nouns of an asin.
    """
    path = Path(path)
    try:
        table = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON file: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path}: expected an object {{asin: [noun, ..]}}, got {type(table).__name__}")
    for asin, nouns in table.items():
        if not isinstance(nouns, list) or not all(isinstance(noun, str) for noun in nouns):
            raise ValueError(f"{path}: asin {asin}: expected a list of nouns, got {str(nouns)[:80]}")
    known = {asin: tuple(noun.lower() for noun in nouns) for asin, nouns in table.items()}

    def find(name: str, asin: str) -> Nouns:
        if asin not in known:
            raise ValueError(
                f"{path}: no nouns of asin {asin} ({name[:80]!r}); add them, or choose another noun source"
            )
        return known[asin]

    return NounSource(f"cached {path.name}", find)


def spacy(model: str = SPACY_MODEL) -> NounSource:
    """The tokens that a spaCy model tags NOUN or PROPN, as the original does: a few milliseconds a name.

    Raises:
        ValueError: if spaCy or the model is not installed.
    """
    how_to_get = f"`pip install 'hgpo_jax[webshop]' && python -m spacy download {model}`"
    try:
        import spacy as library  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError as error:
        raise ValueError(f"the noun source spacy needs spaCy ({error}): {how_to_get}") from error
    try:
        tagger = library.load(model, exclude=["ner", "lemmatizer"])  # which don't change the tags, as the parser does
    except OSError as error:
        raise ValueError(f"spaCy has no model {model}: {how_to_get}") from error
    lock = threading.Lock()  # a pipeline adds to its vocabulary

    @functools.lru_cache(maxsize=_CACHED_NAMES)
    def tag(name: str) -> Nouns:
        with lock:
            return tuple(token.text.lower() for token in tagger(name) if token.pos_ in ("NOUN", "PROPN"))

    return NounSource(f"spacy {model} {tagger.meta['version']}", lambda name, asin: tag(name))


@functools.lru_cache(maxsize=_CACHED_NAMES)
def _likely_nouns(name: str) -> Nouns:
    words = _WORD.findall(name)
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return tuple(word.lower() for before, word, after in around if _is_noun(before, word, after))


def _is_noun(before: str, word: str, after: str) -> bool:
    """Whether the model would probably tag ``word`` so, between its neighbours ("": there is none)."""
    lower = word.lower()
    if lower in _FUNCTION_WORDS or lower in _MEASURES or _NUMBER.fullmatch(lower):
        return False
    if "free" in (word, after) or before.lower() == "to":  # "Gluten free" is an adjective, "To Use" a verb
        return False
    # The model takes "headphones" in "Bluetooth headphones Ultra Hd" for a verb.
    among_capitals = before[:1].isupper() and after[:1].isupper()
    return not (among_capitals and word.islower() and word.endswith("s"))
