"""Hugging Face model folders: where they are, and their config.json to and from ``ModelConfig``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hgpo_jax.config import ModelConfig

ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # of each model type
DOWNLOADED = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # weights, configs, tokenizer files

# What transformers' Qwen2Config and Qwen3Config take where config.json leaves a field out.
_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "attention_bias": False,
}
_ROPE_THETA = 10_000.0
_QWEN3_HEAD_DIM = 128


def is_hub_id(name: str | Path) -> bool:
    """Whether ``name`` reads OWNER/NAME, and nothing of that name is here."""
    owner, slash, model = str(name).partition("/")
    spelled = slash and "/" not in model and not owner.startswith((".", "~"))
    return bool(owner and model and spelled) and not Path(name).exists()


def resolve_checkpoint(name: str | Path) -> Path:
    """The local folder of a checkpoint.

    Args:
      name: a folder, or a hub id such as ``Qwen/Qwen2.5-1.5B-Instruct``, whose json, safetensors and tokenizer
        files are downloaded into Hugging Face's cache unless they are there.

    Raises:
      ValueError: no such folder and no hub id, or a hub out of reach; the message names the command to fetch it.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    import huggingface_hub  # here: a local folder does without it
    from huggingface_hub.errors import HFValidationError

    fetch = f"fetch it with 'hf download {name} --local-dir DIR' where there is a network, and name DIR"
    if not is_hub_id(name):
        raise ValueError(
            f"checkpoint {str(name)!r} is neither a folder nor a hub id (OWNER/NAME). If it lies on the hub, "
            f"{fetch.replace(str(name), 'OWNER/NAME')}"
        )
    try:
        return Path(huggingface_hub.snapshot_download(str(name), allow_patterns=DOWNLOADED, etag_timeout=10))
    except (OSError, HFValidationError) as error:  # the hub's own errors are OSErrors
        cause = str(error).strip().splitlines()[0]
        raise ValueError(
            f"checkpoint {str(name)!r}: there is no such folder, and the hub did not give it ({cause}); {fetch}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``.

    Raises:
      ValueError: the file is missing, or is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {path.parent} is not a whole Hugging Face model folder") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged, fetch it again: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged, fetch it again: it holds no JSON object")
    return content


def model_config_of(folder: str | Path, **overrides: Any) -> ModelConfig:
    """The decoder that a Hugging Face folder's config.json describes.

    Reads Qwen2, Qwen2.5 and dense Qwen3, as transformers 4 and 5 write them.

    Args:
      folder: holds config.json.
      **overrides: fields of ``ModelConfig`` that a checkpoint leaves open: those of dtypes, adapters and of how it is
        computed.

    Raises:
      ValueError: config.json is missing or damaged, lacks a field, or describes another architecture, scaled
        rotary positions, sliding windows, another activation, quantized weights.
    """
    path = Path(folder) / "config.json"
    content = _DEFAULTS | read_json(path)
    model_type = content.get("model_type")
    if model_type not in ARCHITECTURES:
        raise ValueError(f"{path}: model_type is {model_type!r}; supported are {', '.join(ARCHITECTURES)} (dense)")
    theta = _rope_theta(path, content)
    _check_supported(path, content)
    heads = _integer(path, content, "num_attention_heads")
    hidden = _integer(path, content, "hidden_size")
    if content.get("head_dim") is None:
        content["head_dim"] = _QWEN3_HEAD_DIM if model_type == "qwen3" else hidden // max(heads, 1)
    if content.get("num_key_value_heads") is None:
        content["num_key_value_heads"] = heads
    shape = ModelConfig(
        vocab_size=_integer(path, content, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_integer(path, content, "intermediate_size"),
        num_layers=_integer(path, content, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_integer(path, content, "num_key_value_heads"),
        head_dim=_integer(path, content, "head_dim"),
        rope_theta=theta,
        rms_norm_eps=float(content["rms_norm_eps"]),
        tie_word_embeddings=bool(content["tie_word_embeddings"]),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
    )
    return dataclasses.replace(shape, **overrides)


def _integer(path: Path, content: Mapping[str, Any], field: str) -> int:
    value = content.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{path}: {field} is {value!r}, expected a positive integer")
    return value


def _rope_theta(path: Path, content: Mapping[str, Any]) -> float:
    """From the top level (transformers 4) or ``rope_parameters`` (transformers 5); scaled positions are refused."""
    theta = content.get("rope_theta", _ROPE_THETA)
    for field in ("rope_scaling", "rope_parameters"):
        rope = content.get(field) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(
                f"{path}: {field} is of type {kind!r}, which is not supported; remove it to use the unscaled positions"
            )
        theta = rope.get("rope_theta", theta)
    return float(theta)


def _check_supported(path: Path, content: Mapping[str, Any]) -> None:
    supported = {"hidden_act": "silu", "use_sliding_window": False, "attention_bias": False}
    # Qwen2's biases are not a choice: its config has no attention_bias, and transformers ignores one.
    for field, value in supported.items():
        if content[field] != value and (field, content["model_type"]) != ("attention_bias", "qwen2"):
            raise ValueError(f"{path}: {field} is {content[field]!r}; supported is {value!r} only")
    if set(content.get("layer_types") or ()) - {"full_attention"}:
        raise ValueError(f"{path}: layer_types are {sorted(set(content['layer_types']))}; supported is full attention")
    if content.get("quantization_config"):
        raise ValueError(f"{path}: quantized weights are not supported; use the checkpoint in bfloat16")


def end_tokens(folder: str | Path) -> tuple[int, ...]:
    """The end-of-sequence ids that generation_config.json names, one or several; config.json where it is absent."""
    for name in ("generation_config.json", "config.json"):
        path = Path(folder) / name
        if path.is_file():
            eos = read_json(path).get("eos_token_id")
            ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
            if not all(isinstance(token, int) and token >= 0 for token in ids):
                raise ValueError(f"{path}: eos_token_id is {eos!r}, expected a token id or a list of them")
            return tuple(ids)
    return ()


def config_json_of(config: ModelConfig, dtype: str, base: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of ``config``: read by transformers 4 and 5, vLLM and SGLang.

    Args:
      config: the decoder.
      dtype: of the weights in the files.
      base: further fields, such as those of the checkpoint that training started from.

    Raises:
      ValueError: neither Qwen2 (biases) nor Qwen3 (norms of queries and keys).
    """
    families = {(True, False): "qwen2", (False, True): "qwen3"}
    model_type = families.get((config.qkv_bias, config.qk_norm))
    if model_type is None:
        raise ValueError(
            f"no Hugging Face model has qkv_bias {config.qkv_bias} and qk_norm {config.qk_norm}: "
            "Qwen2 has the biases, Qwen3 the norms"
        )
    described = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.num_layers,
        # Each pair says one thing to transformers 4, vLLM and SGLang, and to transformers 5.
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "torch_dtype": dtype,
        "dtype": dtype,
    }
    if model_type == "qwen3":
        described["attention_bias"] = False
    if model_type == "qwen3" or config.head_dim * config.num_heads != config.hidden_size:
        described["head_dim"] = config.head_dim
    return {"max_position_embeddings": 32768, "initializer_range": 0.02, "use_cache": True} | dict(base) | described
