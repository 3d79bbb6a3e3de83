"""The search engine's words: segmentation, possessives, stop words, Porter's stemmer."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.analyzer import MAX_TOKEN, STOP_WORDS, stem, terms, tokens

# The examples of Porter's paper, step by step, each stemmed to the end.
PUBLISHED = """
caresses caress, ponies poni, ties ti, caress caress, cats cat, feed feed, agreed agre, plastered plaster, bled bled,
motoring motor, sing sing, conflated conflat, troubled troubl, sized size, hopping hop, tanned tan, falling fall,
hissing hiss, fizzed fizz, failing fail, filing file, happy happi, sky sky, relational relat, conditional condit,
rational ration, valenci valenc, hesitanci hesit, digitizer digit, conformabli conform, radicalli radic,
differentli differ, vileli vile, analogousli analog, vietnamization vietnam, predication predic, operator oper,
feudalism feudal, decisiveness decis, hopefulness hope, callousness callous, formaliti formal, sensitiviti sensit,
sensibiliti sensibl, triplicate triplic, formative form, formalize formal, electriciti electr, electrical electr,
hopeful hope, goodness good, revival reviv, allowance allow, inference infer, airliner airlin, gyroscopic gyroscop,
adjustable adjust, defensible defens, irritant irrit, replacement replac, adjustment adjust, dependent depend,
adoption adopt, homologou homolog, communism commun, activate activ, angulariti angular, homologous homolog,
effective effect, bowdlerize bowdler, probate probat, rate rate, cease ceas, controll control, roll roll,
generalizations gener, oscillators oscil
"""


@pytest.mark.parametrize("pair", [pair.split() for pair in PUBLISHED.split(",")], ids="-".join)
def test_porters_examples(pair: list[str]) -> None:
    assert stem(pair[0]) == pair[1]


@pytest.mark.parametrize(
    ("word", "stemmed"),
    [
        ("", ""),
        ("is", "is"),  # too short to be stemmed
        ("was", "wa"),
        ("element", "element"),  # -ement decides, though -ment and -ent fit as well
        ("possibly", "possibl"),  # -bli is -ble, of the later code
        ("archaeology", "archaeolog"),  # -logi, of the later code
        ("yes", "ye"),
        ("toys", "toi"),
        ("3x-larges", "3x-larg"),
        ("10.5s", "10.5"),
        ("40ing", "40ing"),  # digits are no vowels
        ("cafés", "café"),
    ],
)
def test_other_stems(word: str, stemmed: str) -> None:
    assert stem(word) == stemmed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ,;!? -- __ '' ", []),
        ("light-pink, grey/silver & (pack of 3)", ["light", "pink", "grey", "silver", "pack", "of", "3"]),
        ("can't women's o'neil rock'n'roll dogs'", ["can't", "women's", "o'neil", "rock'n'roll", "dogs"]),
        ("it’s l‘eau x＇y", ["it’s", "l‘eau", "x＇y"]),
        ("3.5 1,000.50 1;2 1'2 5, 10.", ["3.5", "1,000.50", "1;2", "1'2", "5", "10"]),
        ("u.s.a. a,b a;b foo:bar a: b 1:2", ["u.s.a", "a", "b", "a", "b", "foo:bar", "a", "b", "1", "2"]),
        ("5x7 40w a1.5 1.a a.1 8.5oz", ["5x7", "40w", "a1.5", "1", "a", "a", "1", "8.5oz"]),
        ("_a_ b__1 _ a._", ["_a_", "b__1", "a"]),
        ("a..b 1,,2 a.'b", ["a", "b", "1", "2", "a", "b"]),
        ("straße cafe\u0301 naïve x\u00adray", ["straße", "cafe\u0301", "naïve", "x\u00adray"]),
        ("кот, собака", ["кот", "собака"]),
        ("１２，５ ＡＢ", ["１２，５", "ＡＢ"]),
        ("中文字", ["中", "文", "字"]),
        ("ひらカタカナー漢", ["ひ", "ら", "カタカナー", "漢"]),
        ("カナabc カナ_abc", ["カナ", "abc", "カナ_abc"]),
        ("한국어 옷", ["한국어", "옷"]),
        ("ภาษาไทย abc", ["ภาษาไทย", "abc"]),
        ("צה\"ל ג' ל'א\"", ['צה"ל', "ג'", "ל'א"]),
        ("Brand® Thing™ ★5★ • ✓ ✔", ["Brand", "®", "Thing", "™", "★", "5", "★", "✔"]),
        ("😀😀 ❤️ 👍🏽 a🏽", ["😀", "😀", "❤️", "👍🏽", "a", "🏽"]),
        ("👨\u200d👩\u200d👧👦 ❤️\u200d🔥", ["👨\u200d👩\u200d👧", "👦", "❤️\u200d🔥"]),
        ("🇩🇪🇫🇷🇩 #️⃣ 1️⃣ *", ["🇩🇪", "🇫🇷", "#️⃣", "1️⃣"]),
        ("\ud800 a\ud800b", ["a", "b"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@given(st.text(st.sampled_from("ab1_.,:;'\" -#")))
def test_ascii_is_no_other_rule(text: str) -> None:
    assert tokens(text) == tokens(text + " é")[:-1]


@given(st.text(st.characters() | st.sampled_from("a1_.':®\u200d\u0301\ufe0f\u20e3👍🏽🇩ก中カ한ה\"")))
def test_words_stand_in_the_text_in_order(text: str) -> None:
    position = 0
    for token in tokens(text):
        assert 0 < len(token) <= MAX_TOKEN
        position = text.index(token, position) + len(token)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a" * 255, [255]),
        ("a" * 256, [255, 1]),
        ("b " + "a" * 600, [1, 255, 255, 90]),
        ("a" * 254 + "'s", [254, 1]),  # within the 255 characters nothing follows the apostrophe
        ("é" * 300, [255, 45]),
    ],
)
def test_long_words_are_cut(text: str, lengths: list[int]) -> None:
    assert [len(token) for token in tokens(text)] == lengths


@pytest.mark.parametrize(
    "unit",
    ["a", "_", "_a", "a.", "'", "1,", "é", "é_", "é_\u0301", "\u0301", "\u200d", "#\u0301", "👍", "👍\u200d", "🇩", "ก"],
)
def test_any_long_text_is_read_in_little_time(unit: str) -> None:
    text = (unit * 50_000)[:50_000] + " "
    start = time.process_time()
    terms(text + text[::-1])
    assert time.process_time() - start < 2  # what is quadratic takes minutes


def test_terms() -> None:
    assert terms("The women's Running-Shoes, for her") == ["women", "run", "shoe", "her"]
    assert terms("WOMEN’S BOSS＇S 's s's x's") == ["women", "boss", "s", "s", "x"]
    assert terms("it's THE with") == []
    assert terms("ΟΔΟΣ İx ẞ") == ["οδοσ", "ix", "ß"]  # each letter for itself, as Java does it
    assert terms("men’s and men's") == ["men", "men"]


def test_stop_words() -> None:
    assert len(STOP_WORDS) == 33
    assert terms(" ".join(sorted(STOP_WORDS)).upper()) == []
    assert terms("from you i") == ["from", "you", "i"]
