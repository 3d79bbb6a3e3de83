"""Text to token ids and back: Hugging Face's chat tokenizers, and the word-level ones that environments ship."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from hgpo_jax.policy.hf_config import end_tokens, is_hub_id, read_json, resolve_checkpoint

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
_SHIPPED = Path(__file__).parent / "tokenizers"


class AnyTokenizer(Protocol):
    """What rollouts and exports ask of a tokenizer."""

    pad_id: int  # fills prompts and replies
    eos_ids: tuple[int, ...]  # any of these ends a reply; the first is what a written reply ends with
    vocab_size: int  # largest id + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; nothing is added at either end."""
        ...

    def encode_prompt(self, text: str, system: str | None = None) -> list[int]:
        """Token ids of a prompt, up to where the reply begins."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the files from which transformers' AutoTokenizer loads it."""
        ...


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
        self._special = {"pad_token": pad_token, "eos_token": eos_tokens[0]}
        self.pad_id: int = vocabulary[pad_token]
        self.eos_ids: tuple[int, ...] = tuple(vocabulary[token] for token in eos_tokens)
        self.vocab_size: int = max(vocabulary.values()) + 1
        self._unknown: int | None = vocabulary.get(UNK)

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; nothing is added at either end."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_prompt(self, text: str, system: str | None = None) -> list[int]:
        """``encode``: a model of such a vocabulary has no chat roles; a system message goes before the text.

        Raises:
          ValueError: most of the words are unknown: the tokenizer was made for another environment.
        """
        ids = self.encode(text if system is None else f"{system} {text}")
        if self._unknown is not None and ids.count(self._unknown) > len(ids) / 2:
            raise ValueError(
                f"the tokenizer does not know most words of the prompt {text[:80]!r}: name one of this environment's "
                "(tokenizer), or make one with hgpo_jax.policy.tokenization.train_tokenizer"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, from which transformers' AutoTokenizer loads it."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
        content = {"tokenizer_class": "PreTrainedTokenizerFast", **self._special}
        (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class ChatTokenizer:
    """A Hugging Face tokenizer with its own chat template.

    Replies end with the tokenizer's end token (a chat's end of turn) or any that the folder's
    generation_config.json names, or config.json where there is none.

    Args:
      folder: a model's or tokenizer's folder.

    Raises:
      ValueError: the folder holds no tokenizer, a damaged one, one without a chat template or end token.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        files = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
        if not any((folder / name).is_file() for name in files):
            raise ValueError(f"{folder} holds no tokenizer: expected one of {', '.join(files)}")
        self._tokenizer = _auto_tokenizer(folder)
        if not self._tokenizer.chat_template:
            raise ValueError(
                f"{folder} has no chat template, neither chat_template in tokenizer_config.json nor "
                "chat_template.jinja; take them from the model's Instruct version"
            )
        own, pad = self._tokenizer.eos_token_id, self._tokenizer.pad_token_id
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*([] if own is None else [own]), *end_tokens(folder)]))
        if not self.eos_ids:
            raise ValueError(f"{folder} names no end token; set eos_token in tokenizer_config.json")
        self.pad_id: int = self.eos_ids[0] if pad is None else pad
        self.vocab_size: int = max(self._tokenizer.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; nothing is added at either end."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_prompt(self, text: str, system: str | None = None) -> list[int]:
        """The chat template's rendering of one user message, up to where the assistant's begins.

        Args:
          text: the user's message.
          system: the system message; None leaves it to the template, which may have a default.
        """
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": text})
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        """Writes the tokenizer's files and its chat template."""
        self._tokenizer.save_pretrained(folder)


class ByteTokenizer:
    """The bytes of UTF-8 and an end token: stands in where no model reads the tokens, and loses nothing of a text."""

    pad_id: int = 257
    eos_ids: tuple[int, ...] = (256,)
    vocab_size: int = 258

    def encode(self, text: str) -> list[int]:
        """The bytes of ``text``; nothing is added at either end."""
        return list(text.encode())

    def encode_prompt(self, text: str, system: str | None = None) -> list[int]:
        """``encode``; a system message goes before the text."""
        return self.encode(text if system is None else f"{system} {text}")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, end and padding left out; where a character was cut it has a replacement character."""
        return bytes(i for i in map(int, ids) if i < self.eos_ids[0]).decode(errors="replace")

    def save(self, folder: Path) -> None:
        """No model has this vocabulary.

        Raises:
          ValueError: always.
        """
        raise ValueError(f"the byte tokenizer stands in where there is no model: nothing to save in {folder}")


def _auto_tokenizer(folder: Path):
    # It warns that there is no PyTorch, which tokenizers do without, and takes seconds to import.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # of many kinds: the tokenizers library raises bare Exceptions
        raise ValueError(f"the tokenizer in {folder} does not load, fetch it again: {error}") from error


def load_tokenizer(path_or_name: str | Path) -> Tokenizer | ChatTokenizer:
    """Loads a Hugging Face model's (folder or hub id), a ``tokenizers`` JSON file, or a shipped one by its name.

    A folder's is a `ChatTokenizer`, but a `Tokenizer` where it is word-level and has no chat template.

    Raises:
      ValueError: there is nothing of that name (the message lists the shipped names), or it does not load.
    """
    for path in (Path(path_or_name), _SHIPPED / f"{path_or_name}.json"):
        if path.is_file():
            return Tokenizer(_from_file(path))
    if Path(path_or_name).is_dir() or is_hub_id(path_or_name):
        folder = resolve_checkpoint(path_or_name)
        return _word_level(folder) or ChatTokenizer(folder)
    shipped = ", ".join(sorted(path.stem for path in _SHIPPED.glob("*.json"))) or "none"
    raise ValueError(
        f"no tokenizer {str(path_or_name)!r}: not a file, no Hugging Face folder or id, and not one of the shipped "
        f"({shipped})"
    )


def _from_file(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower one
        raise ValueError(f"{path} is not a tokenizers JSON file: {error}") from error


def _word_level(folder: Path) -> Tokenizer | None:
    """What `Tokenizer.save` has written into a model's folder; None for a tokenizer of another kind."""
    path = folder / "tokenizer_config.json"
    content = read_json(path) if path.is_file() else {}
    if content.get("tokenizer_class") != "PreTrainedTokenizerFast" or "chat_template" in content:
        return None
    path = folder / "tokenizer.json"
    if (folder / "chat_template.jinja").is_file() or not path.is_file():
        return None
    if read_json(path).get("model", {}).get("type") != "WordLevel":
        return None
    tokenizer = _from_file(path)
    ends = (content.get("eos_token", EOS), *(tokenizer.id_to_token(i) or f"id {i}" for i in end_tokens(folder)))
    return Tokenizer(tokenizer, content.get("pad_token", PAD), tuple(dict.fromkeys(ends)))


def train_tokenizer(texts: Iterable[str], whole: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """A word-level tokenizer of every word and punctuation mark in ``texts``, in lower case.

    Ids 0, 1, 2 are ``<pad>``, ``<eos>``, ``<unk>``, then come those of ``whole``; the words follow by frequency, then
    alphabet, so that the same texts in any order give the same file. Decoding joins with single spaces.

    Args:
      texts: all that will be spoken of.
      whole: in lower case, what stays one token wherever it stands, such as tags, and is not left out in decoding.

    Raises:
      ValueError: ``texts`` holds no word.
    """
    normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    parts = (normalizer.normalize_str(text) for text in texts)
    if whole:
        between = re.compile("|".join(map(re.escape, whole)))
        parts = (part for text in parts for part in between.split(text))
    counts = Counter(word for part in parts for word, _ in splitter.pre_tokenize_str(part))
    if not counts:
        raise ValueError("texts holds no word to make a vocabulary of")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *whole, *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    tokenizer.add_tokens(list(whole))
    return tokenizer
