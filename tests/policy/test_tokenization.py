import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import tokenizers

from hgpo_jax.policy import tokenization
from hgpo_jax.policy.hf_config import is_hub_id
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


def test_prompts_of_a_word_level_tokenizer_are_the_text(tokenizer):
    assert tokenizer.encode_prompt("go up") == tokenizer.encode("go up")
    assert tokenizer.encode_prompt("go up", system="you see ice") == tokenizer.encode("you see ice go up")


QWEN = Path(__file__).parents[1] / "golden" / "qwen" / "qwen2_tied"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(QWEN, tmp_path / "model"))


def test_a_chat_prompt_is_the_templates_rendering():
    chat = load_tokenizer(QWEN)
    raw = tokenizers.Tokenizer.from_file(str(QWEN / "tokenizer.json"))
    user = "<|im_start|>user\nGo up.\n<|im_end|>\n<|im_start|>assistant\n"
    default = "<|im_start|>system\nBe brief.<|im_end|>\n" + user
    assert chat.encode_prompt("Go up.\n") == raw.encode(default).ids
    given = "<|im_start|>system\nYou see ice.<|im_end|>\n" + user
    assert chat.encode_prompt("Go up.\n", system="You see ice.") == raw.encode(given).ids
    assert chat.encode("Go up.") == raw.encode("Go up.").ids


def test_end_tokens_are_the_tokenizers_own_and_all_of_the_generation_config(folder):
    chat = load_tokenizer(folder)
    assert (chat.eos_ids, chat.pad_id, chat.vocab_size) == ((2, 0), 0, 288)
    ids = chat.encode("Go up, é✓")
    assert chat.decode([1, *ids, 2, 0]) == "Go up, é✓"
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert load_tokenizer(folder).eos_ids == (2, 7)
    (folder / "generation_config.json").unlink()
    assert load_tokenizer(folder).eos_ids == (2,)  # config.json's
    (folder / "config.json").write_text('{"eos_token_id": [5, "x"]}')
    with pytest.raises(ValueError, match="eos_token_id is"):
        load_tokenizer(folder)


def test_a_saved_chat_tokenizer_loads_again(folder, tmp_path):
    (tmp_path / "out").mkdir()
    load_tokenizer(folder).save(tmp_path / "out")
    assert load_tokenizer(tmp_path / "out").encode_prompt("go") == load_tokenizer(folder).encode_prompt("go")


def test_folders_without_a_chat_tokenizer_say_what_is_missing(folder, tmp_path):
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in content.items() if k != "chat_template"}))
    with pytest.raises(ValueError, match=r"no chat template, neither chat_template in tokenizer_config\.json nor"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="does not load, fetch it again"):
        load_tokenizer(folder)
    with pytest.raises(ValueError, match=r"holds no tokenizer: expected one of tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizers JSON file"):
        load_tokenizer(folder / "tokenizer.json")


def test_a_hub_id_is_fetched(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(QWEN))
    assert load_tokenizer("Qwen/Qwen2.5-0.5B-Instruct").eos_ids == (2, 0)
    for name in ("a/b/c", "/a", "./a", "~/a", "a/", "a"):
        assert not is_hub_id(name)


def test_whole_tokens_stay_one_and_survive_decoding():
    """Their ids follow the special ones'; inside them nothing is split, around them everything is."""
    raw = train_tokenizer(["<act> put cup in/on bed </act>", "in a cup on 12."], ["<act>", "</act>", "in/on"])
    order = ["<pad>", "<eos>", "<unk>", "<act>", "</act>", "in/on", "cup", ".", "12", "a", "bed", "in", "on", "put"]
    assert raw.get_vocab() == {token: i for i, token in enumerate(order)}
    tokenizer = Tokenizer(raw)
    ids = tokenizer.encode("<ACT>Put cup 12 in/on bed.</act>")
    assert ids == [order.index(w) for w in ("<act>", "put", "cup", "12", "in/on", "bed", ".", "</act>")]
    assert tokenizer.decode([*ids, 1]) == "<act> put cup 12 in/on bed . </act>"
    assert tokenizer.encode("put in 1 / 2") == [order.index(w) for w in ("put", "in", "<unk>", "<unk>", "<unk>")]


def test_a_folder_of_our_own_kind_loads_without_a_chat_template(tmp_path):
    raw = train_tokenizer(TEXTS, ["<act>"])
    saved = Tokenizer(raw)
    saved.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert isinstance(loaded, Tokenizer)
    text = "<act> go up. you see ice"
    assert loaded.encode_prompt(text) == saved.encode_prompt(text)
    assert loaded.decode(loaded.encode(text)) == saved.decode(saved.encode(text))
    assert (loaded.pad_id, loaded.eos_ids, loaded.vocab_size) == (saved.pad_id, saved.eos_ids, saved.vocab_size)
    # As the export writes them: all that end a reply.
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    assert load_tokenizer(tmp_path).eos_ids == (1, 5)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99}')
    with pytest.raises(ValueError, match=r"lacks \['id 99'\]"):
        load_tokenizer(tmp_path)


def test_a_word_level_folder_with_a_chat_template_is_a_chat_tokenizer(tmp_path):
    Tokenizer(train_tokenizer(TEXTS)).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}you see {{ m.content }}{% endfor %}")
    loaded = load_tokenizer(tmp_path)
    assert not isinstance(loaded, Tokenizer)
    assert loaded.encode_prompt("ice") == loaded.encode("you see ice")


def test_a_tokenizer_of_another_environment_is_refused() -> None:
    tokenizer = load_tokenizer("frozen_lake")
    assert tokenizer.encode_prompt("go up now"), "a word that is unknown here and there will do"
    with pytest.raises(ValueError, match="does not know most words of the prompt 'guess a number below ten'"):
        tokenizer.encode_prompt("guess a number below ten")
