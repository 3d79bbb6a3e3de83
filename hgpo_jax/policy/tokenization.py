"""Text to token ids and back, and the small word-level tokenizers that embedded environments ship."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
_SHIPPED = Path(__file__).parent / "tokenizers"


class Tokenizer:
    """``tokenizers.Tokenizer`` with the ids that sampling needs.

    Args:
      tokenizer: of the ``tokenizers`` library.
      pad_token: fills prompts and replies.
      eos_tokens: any of these ends a reply; the first is what a written reply ends with.

    Raises:
      ValueError: the vocabulary lacks one of these tokens, or there is no end-of-sequence token.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, pad_token: str = PAD, eos_tokens: Sequence[str] = (EOS,)):
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        missing = [token for token in (pad_token, *eos_tokens) if token not in vocabulary]
        if missing:
            raise ValueError(f"the tokenizer's vocabulary lacks {missing}; name its own with pad_token, eos_tokens")
        if not eos_tokens:
            raise ValueError("eos_tokens is empty; name at least one token that ends a reply")
        # A saved file may carry padding or truncation, which are the packing's business, not the text's.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.pad_id: int = vocabulary[pad_token]
        self.eos_ids: tuple[int, ...] = tuple(vocabulary[token] for token in eos_tokens)
        self.vocab_size: int = max(vocabulary.values()) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; nothing is added at either end."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)


def load_tokenizer(path_or_name: str | Path) -> Tokenizer:
    """Loads a ``tokenizers`` JSON file, or a shipped one by its bare name, such as ``"frozen_lake"``.

    Raises:
      ValueError: there is neither such a file nor such a name; the message lists the shipped names.
    """
    for path in (Path(path_or_name), _SHIPPED / f"{path_or_name}.json"):
        if path.is_file():
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    shipped = ", ".join(sorted(path.stem for path in _SHIPPED.glob("*.json"))) or "none"
    raise ValueError(f"no tokenizer {str(path_or_name)!r}: not a file, and not one of the shipped ({shipped})")


def train_tokenizer(texts: Iterable[str]) -> tokenizers.Tokenizer:
    """A word-level tokenizer of every word and punctuation mark in ``texts``, in lower case.

    Ids 0, 1, 2 are ``<pad>``, ``<eos>``, ``<unk>``; the words follow by frequency, then alphabet, so that the
    same texts in any order give the same file. Decoding joins with single spaces.

    Raises:
      ValueError: ``texts`` holds no word.
    """
    normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    if not counts:
        raise ValueError("texts holds no word to make a vocabulary of")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    return tokenizer
