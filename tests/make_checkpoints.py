"""Makes the small random checkpoints in tests/golden/qwen, with what transformers computes from them.

Needs torch 2.13 and transformers 5.24, which the tests do not: run it in an environment that has both, from the
repository's root, as ``python tests/make_checkpoints.py``. Each folder is a Hugging Face model and ``expected.npz``:
for each prompt i, ``ids{i}`` [P], ``logits{i}`` f32 [P, V] and ``greedy{i}`` [64], computed in float32; greedy
decoding does not stop at an end token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch  # pyright: ignore[reportMissingImports]
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

GOLDEN = Path(__file__).parent / "golden" / "qwen"
PROMPT_LENGTHS = (3, 17, 8, 26)
GREEDY = 64
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
SHARED: dict[str, Any] = {"vocab_size": 288, "bos_token_id": None, "pad_token_id": 0, "max_position_embeddings": 512}

# Qwen2's, but for a shorter default system message.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = [
    "Go up. You see ice, ice and a hole.",
    "go down",
    "The action was not valid.",
    "Be brief. You are at the start.",
]


def make(name: str, config: Any, seed: int, dtype: str = "float32", shard_size: str = "5GB") -> None:
    """Writes one checkpoint and its ``expected.npz``."""
    torch.manual_seed(seed)
    kind = Qwen3ForCausalLM if config.model_type == "qwen3" else Qwen2ForCausalLM
    model = kind(config)
    for parameter_name, parameter in model.named_parameters():
        _randomize(parameter_name, parameter.data)
    model = model.to(getattr(torch, dtype))
    # Two end tokens, as the instruct models have; the first is the chat's.
    model.generation_config = GenerationConfig(eos_token_id=[2, 0], pad_token_id=0, do_sample=False)
    model.save_pretrained(GOLDEN / name, max_shard_size=shard_size)
    model = kind.from_pretrained(GOLDEN / name, dtype=torch.float32).eval()
    rng = np.random.default_rng(seed)
    expected = {}
    for i, length in enumerate(PROMPT_LENGTHS):
        ids = rng.integers(0, config.vocab_size, length)
        expected |= {f"ids{i}": ids, **_replay(model, i, torch.tensor(ids)[None])}
    np.savez_compressed(GOLDEN / name / "expected.npz", **expected)


def _randomize(name: str, parameter: Any) -> None:
    """Larger than the default, so that logits are far from equal and a lost bias or norm shows."""
    if name.endswith("norm.weight"):
        parameter.uniform_(0.5, 1.5)
    elif name.endswith("bias"):
        parameter.normal_(0.0, 0.5)
    elif "embed_tokens" in name:
        parameter.normal_(0.0, 0.4)
    else:
        parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)


def _replay(model: Any, i: int, ids: Any) -> dict[str, np.ndarray]:
    with torch.no_grad():
        logits = model(ids).logits[0]
        model.generation_config.eos_token_id = None
        options = {"do_sample": False, "max_new_tokens": GREEDY, "attention_mask": torch.ones_like(ids)}
        greedy = model.generate(ids, **options)[0, ids.shape[1] :]
    return {f"logits{i}": logits.numpy(), f"greedy{i}": greedy.numpy()}


def make_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer with a chat template, like Qwen's."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=288, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(content, indent=2))


def main() -> None:
    """Each family, tied and not, one to four key/value heads, one file and shards, float32 and bfloat16."""
    qwen2: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    narrow: dict[str, Any] = {
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
    }
    tied = Qwen2Config(**SHARED, **qwen2, num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=2)
    untied = Qwen2Config(
        **SHARED, **narrow, num_key_value_heads=1, tie_word_embeddings=False, eos_token_id=2, rms_norm_eps=1e-5
    )
    qwen3 = Qwen3Config(**SHARED, **qwen2, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, eos_token_id=2)
    full = Qwen3Config(**SHARED, **qwen2, num_key_value_heads=4, head_dim=6, tie_word_embeddings=False, eos_token_id=2)
    for config, theta in ((tied, 1e6), (untied, 1e4), (qwen3, 1e6), (full, 5e5)):
        config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
    make("qwen2_tied", tied, seed=1, shard_size="60KB")
    make_tokenizer(GOLDEN / "qwen2_tied")
    make("qwen2_untied", untied, seed=2)
    make("qwen3_tied", qwen3, seed=3, shard_size="60KB")
    make("qwen3_untied_bfloat16", full, seed=4, dtype="bfloat16")


if __name__ == "__main__":
    main()
