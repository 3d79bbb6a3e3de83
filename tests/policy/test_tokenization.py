import json

import pytest

from hgpo_jax.policy import tokenization
from hgpo_jax.policy.tokenization import Tokenizer, load_tokenizer, train_tokenizer

TEXTS = ["Go up. You see ice, ice and a hole.", "go down"]


@pytest.fixture
def tokenizer():
    return Tokenizer(train_tokenizer(TEXTS))


def test_ids_by_hand(tokenizer):
    """Specials first; then by frequency ('.', 'go' and 'ice' come twice), then the alphabet."""
    order = ["<pad>", "<eos>", "<unk>", ".", "go", "ice", ",", "a", "and", "down", "hole", "see", "up", "you"]
    assert tokenizer.vocab_size == len(order)
    assert tokenizer.encode("GO down, you!") == [order.index(w) for w in ("go", "down", ",", "you", "<unk>")]
    assert (tokenizer.pad_id, tokenizer.eos_ids) == (0, (1,))


def test_decode_joins_with_spaces_and_skips_specials(tokenizer):
    assert tokenizer.decode([0, *tokenizer.encode("Go up."), *tokenizer.eos_ids]) == "go up ."
    assert tokenizer.decode([]) == tokenizer.decode([0, 1]) == ""
    assert tokenizer.encode("") == []


def test_the_order_of_texts_does_not_matter():
    assert train_tokenizer(TEXTS).to_str() == train_tokenizer(iter(TEXTS[::-1])).to_str()


def test_loads_a_saved_file(tokenizer, tmp_path):
    """Padding and truncation that a file carries are dropped: they would add or lose tokens unseen."""
    saved = train_tokenizer(TEXTS)
    saved.enable_padding(length=32)
    saved.enable_truncation(2)
    saved.save(str(tmp_path / "t.json"))
    loaded = load_tokenizer(tmp_path / "t.json")
    for text in TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text)
        assert loaded.decode(loaded.encode(text)) == tokenizer.decode(tokenizer.encode(text))


def test_a_bare_name_loads_a_shipped_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "_SHIPPED", tmp_path)
    train_tokenizer(TEXTS).save(str(tmp_path / "maze.json"))
    assert load_tokenizer("maze").vocab_size == 14
    with pytest.raises(ValueError, match=r"no tokenizer 'lake'.*\(maze\)"):
        load_tokenizer("lake")


def test_special_tokens_of_another_family():
    raw = train_tokenizer(TEXTS)
    raw.add_special_tokens(["<|im_end|>", "<|endoftext|>"])
    tokenizer = Tokenizer(raw, pad_token="<|endoftext|>", eos_tokens=["<|im_end|>", "<|endoftext|>"])
    assert (tokenizer.pad_id, tokenizer.eos_ids, tokenizer.vocab_size) == (15, (14, 15), 16)
    with pytest.raises(ValueError, match=r"lacks \['</s>'\]"):
        Tokenizer(raw, eos_tokens=["</s>"])
    with pytest.raises(ValueError, match="eos_tokens is empty"):
        Tokenizer(raw, eos_tokens=[])


def test_the_file_is_plain_word_level_json():
    saved = json.loads(train_tokenizer(TEXTS).to_str())
    assert saved["model"]["type"] == "WordLevel"
    assert saved["model"]["unk_token"] == "<unk>"


def test_no_words_no_vocabulary():
    with pytest.raises(ValueError, match="no word"):
        train_tokenizer(["", "  "])
