"""The shipped tokenizers are what their maker makes."""

import numpy as np
import pytest

from envs.frozen_lake import MOVES, VERBS, FrozenLakeText
from experiments.make_tokenizer import SHIPPED, main, make_tokenizer
from hgpo_jax.policy.tokenization import UNK, load_tokenizer


def test_the_shipped_file_is_what_the_maker_makes(tmp_path):
    main("frozen_lake", directory=tmp_path)
    assert (tmp_path / "frozen_lake.json").read_text() == (SHIPPED / "frozen_lake.json").read_text()


def test_frozen_lake_is_spoken_in_whole_known_words():
    tokenizer = load_tokenizer("frozen_lake")
    unknown = make_tokenizer("frozen_lake").token_to_id(UNK)
    env = FrozenLakeText(size=8)
    rng = np.random.default_rng(0)
    for task in range(50):
        observation, info = env.reset(seed=0, options={"task": task, "split": "test"})
        for _ in range(10):
            history = [(observation, "go to the left"), (observation, "invalid")]
            prompt = env.format_prompt(observation, history, info)
            ids = tokenizer.encode(prompt)
            assert unknown not in ids
            assert len(ids) == len(prompt.split()) <= 66
            assert tokenizer.decode(ids) == " ".join(prompt.split())
            observation, _, terminated, _, info = env.step(f"go {rng.choice(list(MOVES.values()))}")
            if terminated:
                break


def test_every_command_survives_the_way_to_tokens_and_back():
    tokenizer = load_tokenizer("frozen_lake")
    for verb in VERBS:
        for move in MOVES.values():
            ids = tokenizer.encode(f"{verb} {move}")
            assert len(ids) == (4 if move.startswith("to") else 2)  # replies differ in length
            assert tokenizer.decode([*ids, tokenizer.eos_ids[0]]) == f"{verb} {move}"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no texts for 'chess', choose from \['frozen_lake'\]"):
        make_tokenizer("chess")
