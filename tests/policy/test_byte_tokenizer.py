"""The stand-in of policies without a model."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_jax.policy import ByteTokenizer

TOKENIZER = ByteTokenizer()


def test_ids_by_hand() -> None:
    assert TOKENIZER.encode("a é") == [97, 32, 0xC3, 0xA9]
    assert TOKENIZER.encode_prompt("b", system="a") == [97, 32, 98]
    assert TOKENIZER.eos_ids == (256,)
    assert TOKENIZER.vocab_size == 258
    assert TOKENIZER.decode([104, 105, 256, 257]) == "hi"
    assert TOKENIZER.decode([104, 0xC3]) == "h\ufffd"


@given(st.text())
def test_nothing_is_lost(text: str) -> None:
    assert TOKENIZER.decode([*TOKENIZER.encode(text), *TOKENIZER.eos_ids]) == text
    assert TOKENIZER.encode_prompt(text) == TOKENIZER.encode(text)


def test_there_is_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stands in where there is no model"):
        TOKENIZER.save(tmp_path)
