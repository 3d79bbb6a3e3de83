"""What words a text has for the shop's search engine: the analyzer of Lucene 8.11 that the original's index uses.

Word segmentation by Unicode's rules (UAX #29) as Lucene's StandardTokenizer has them, then possessive 's, lower case,
stop words and Porter's stemmer. Lucene goes its own way in three points: pictographs such as ™ and ★ are words, a
word of more than 255 characters is cut, and runs of Thai, Lao, Khmer or Burmese stay whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import regex

VERSION = f"1, regex {regex.__version__}"  # of the rules: another version may find other terms

MAX_TOKEN = 255  # characters
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Extended_Pictographic of Unicode 11, which Lucene keeps to: later versions take out code points without an emoji.
_PICTOGRAPHS = (
    "©®‼⁉™ℹ↔-↙↩-↪⌚-⌛⌨⎈⏏⏩-⏳⏸-⏺Ⓜ▪-▫▶◀◻-◾☀-★☇-☒☔-⚅⚐-✅✈-✒✔✖✝✡✨✳-✴❄❇❌❎❓-❕❗❣-❧➕-➗➡➰➿⤴-⤵⬅-⬇⬛-⬜⭐⭕〰〽㊗㊙"
    r"\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F\U0001F12F\U0001F16C-\U0001F171\U0001F17E-\U0001F17F\U0001F18E"
    r"\U0001F191-\U0001F19A\U0001F1AD-\U0001F1E5\U0001F201-\U0001F20F\U0001F21A\U0001F22F\U0001F232-\U0001F23A"
    r"\U0001F23C-\U0001F23F\U0001F249-\U0001F3FA\U0001F400-\U0001F53D\U0001F546-\U0001F64F\U0001F680-\U0001F6FF"
    r"\U0001F774-\U0001F77F\U0001F7D5-\U0001F7FF\U0001F80C-\U0001F80F\U0001F848-\U0001F84F\U0001F85A-\U0001F85F"
    r"\U0001F888-\U0001F88F\U0001F8AE-\U0001F8FF\U0001F90C-\U0001F93A\U0001F93C-\U0001F945\U0001F947-\U0001FFFD"
)
_MODIFIERS = r"\U0001F3FB-\U0001F3FF"  # skin tones: they extend a base, not a letter


def _word(letter: str, hebrew: str, digit: str, katakana: str, underscore: str, extend: str) -> str:
    """Pattern of a word from character classes (without brackets); ``extend`` is what a character may carry, or "".

    A run of letters or digits takes the mark after it if its own kind goes on behind the mark.
    """
    more = f"[{extend}]*" if extend else ""
    mid_letter = rf"[:.'{'·‧՟״︓﹕：·‘’․﹒＇．' if extend else ''}]{more}(?=[{letter}])"
    mid_number = rf"[,;.'{';։،؍٬߸⁄︐︔﹐﹔，；‘’․﹒＇．' if extend else ''}]{more}(?=[{digit}])"
    if hebrew:
        mid_letter += rf"|(?=['\"])(?<=[{hebrew}]{more})(?:'{more}|\"{more}(?=[{hebrew}]))"
    runs = f"[{letter}][{letter}{extend}]*(?:{mid_letter})?|[{digit}][{digit}{extend}]*(?:{mid_number})?"
    run = f"(?:{runs})+" + (f"|(?:[{katakana}]{more})+" if katakana else "")
    join = f"[{underscore}][{underscore}{extend}]*"
    # Not from amid underscores: a long line of them would be read from each of them on.
    return f"(?:(?<![{underscore}{extend}]){join}+)?(?:{run})(?:{join}(?:{run}))*(?:{join})?"


def _pattern() -> str:
    """A word, a run of South-East Asian script, an ideograph or hiragana, or a pictograph with what belongs to it."""
    extend = rf"[\p{{WB=Format}}\p{{WB=Extend}}\p{{WB=ZWJ}}]--[{_MODIFIERS}]"
    more, carried = f"[{extend}]*", rf"[{extend}--[\uFE0E\uFE0F]]*"
    letter, hebrew = r"\p{WB=ALetter}\p{WB=Hebrew_Letter}", r"\p{WB=Hebrew_Letter}"
    word = _word(letter, hebrew, r"\p{WB=Numeric}０-９", r"\p{WB=Katakana}", r"\p{WB=ExtendNumLet}", f"[{extend}]")
    emoji = (
        rf"(?:\p{{Emoji_Modifier_Base}}{carried}[{_MODIFIERS}]{carried}"
        rf"|[{_PICTOGRAPHS}]{carried}\uFE0F?|[{_MODIFIERS}]{carried})"
    )
    return "|".join(
        [
            word,
            rf"(?:\p{{LB=SA}}{more})+",
            rf"[\p{{Script=Han}}\p{{Script=Hiragana}}]{more}",
            rf"(?:(?<!\u200D)\u200D++)?{emoji}(?:\u200D*(?<=\u200D){emoji})*",
            rf"[#*]{carried}\uFE0F?\u20E3{carried}",  # keycaps; those of digits are words
            rf"(?:\p{{WB=Regional_Indicator}}{more}){{2}}",
        ]
    )


_TOKEN = regex.compile(_pattern(), regex.VERSION1)
# The same rule where nothing else can occur, in a quarter of the time.
_ASCII_TOKEN = re.compile(_word("A-Za-z", "", "0-9", "", "_", ""))


def tokens(text: str) -> list[str]:
    """The words of a text as they stand.

    Args:
        text: any text.

    Returns:
        Words in order, none empty or longer than `MAX_TOKEN`.
    """
    found = (_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text)
    if max(map(len, found), default=0) > MAX_TOKEN:
        return [piece for token in found for piece in (_cut(token) if len(token) > MAX_TOKEN else (token,))]
    return found


def _cut(token: str) -> Iterator[str]:
    """A long word as Lucene sees it through a window of `MAX_TOKEN` characters that starts where a word starts."""
    start = 0
    while start < len(token):
        piece = _TOKEN.search(token, start, start + MAX_TOKEN)
        if piece is None:
            start += MAX_TOKEN
        elif piece.start() > start:
            start = piece.start()
        else:
            yield piece[0]
            start = piece.end()


def terms(text: str) -> list[str]:
    """The terms that a text is indexed under or searched by.

    Args:
        text: any text.

    Returns:
        Stems in the text's order, repeats kept, stop words left out.
    """
    return list(filter(None, map(_term, tokens(text))))


@lru_cache(maxsize=1 << 17)
def _term(token: str) -> str:
    """The stem of a word; "" for a stop word."""
    if len(token) >= 2 and token[-1] in "sS" and token[-2] in "'’＇":
        token = token[:-2]
    # Java lowers each character for itself: İ is i, and no sigma is a final one.
    word = token.lower() if token.isascii() else "".join(c.lower()[0] for c in token)
    return "" if word in STOP_WORDS else stem(word)


def forget_words() -> None:
    """Frees the memory of the words met so far, 25 MB at most."""
    _term.cache_clear()


def stem(word: str) -> str:
    """Porter's stemmer (1980) with the changes of its author's later code: bli, logi, no word under 3 letters.

    Args:
        word: in lower case.

    Returns:
        Its stem. All but a, e, i, o, u and y after a consonant counts as a consonant, digits too.
    """
    if len(word) <= 2:
        return word
    word = _inflection(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    for suffixes in (_STEP_2, _STEP_3):
        for suffix, replacement in suffixes:
            if word.endswith(suffix):
                if _measure(word[: -len(suffix)]) > 0:
                    word = word[: -len(suffix)] + replacement
                break
    return _final(_residue(word))


_STEP_2 = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("logi", "log"),
)
_STEP_3 = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
# Of those that end alike the longest stands first: it decides even where it may not go.
_STEP_4 = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"


def _shape(word: str) -> str:
    """v for each vowel, c for each consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant at the end, the last no w, x or y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"


def _ends_double(word: str) -> bool:
    return len(word) >= 2 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _inflection(word: str) -> str:
    """Without -ed and -ing, mended so that the stem looks like a verb's."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    base = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if base == word or not _has_vowel(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_double(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _ends_short(base) else base


def _residue(word: str) -> str:
    for suffix in _STEP_4.split():
        if word.endswith(suffix) and (suffix != "ion" or word.endswith(("sion", "tion"))):
            return word[: -len(suffix)] if _measure(word[: -len(suffix)]) > 1 else word
    return word


def _final(word: str) -> str:
    measure = _measure(word)  # a last e doesn't count, nor does the second l
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word
