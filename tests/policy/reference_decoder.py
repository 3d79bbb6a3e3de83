"""The Qwen2 decoder once more, in float64 loops over rows, tokens and heads: slow, and independent of JAX."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.transformer import abstract_params

TINY = ModelConfig(
    vocab_size=13,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    rope_theta=100.0,
)
B, T = 2, 9


def rows(seed=0):
    """Tokens, positions and segment ids i32 [2, 9]: one row has segments 1, 2 and padding, one a segment."""
    tokens = np.random.default_rng(seed).integers(0, TINY.vocab_size, (B, T)).astype(np.int32)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 0, 0], range(T)], np.int32)
    segment_ids = np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0], [1] * T], np.int32)
    return tokens, positions, segment_ids


def random_params(config: ModelConfig, seed: int = 0):
    """Parameters with no zero bias, no unit norm and logits far from uniform: any fault shows."""
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        return jnp.asarray(0.4 * rng.normal(size=leaf.shape) + (path[-1].key == "scale"), jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, nn.unbox(abstract_params(config)))


def reference_logits(config: ModelConfig, params, tokens, positions, segment_ids) -> np.ndarray:
    """Logits [B, T, V]; 0 on padding."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    logits = np.zeros((*tokens.shape, config.vocab_size))
    for b in range(len(tokens)):
        for segment in set(segment_ids[b].tolist()) - {0}:
            at = np.flatnonzero(segment_ids[b] == segment)
            logits[b, at] = _sequence(config, params, tokens[b, at], positions[b, at])
    return logits


def _sequence(config, params, tokens, positions):
    x = params["embed"][tokens]
    for layer in range(config.num_layers):
        p = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["layers"])
        x = x + _attention(config, p["attention"], _norm(config, x, p["attention_norm"]), positions)
        h = _norm(config, x, p["mlp_norm"])
        gate, up = h @ p["mlp"]["gate"]["kernel"], h @ p["mlp"]["up"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * up) @ p["mlp"]["down"]["kernel"]
    x = _norm(config, x, params["final_norm"])
    return x @ (params["embed"].T if config.tie_word_embeddings else params["unembed"])


def _norm(config, x, p):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * p["scale"]


def _attention(config, p, x, positions):
    out = np.zeros_like(x)
    for head in range(config.num_heads):
        shared = head // (config.num_heads // config.num_kv_heads)
        q, k, v = _project(x, p["q"], head), _project(x, p["k"], shared), _project(x, p["v"], shared)
        if config.qk_norm:
            q, k = _norm(config, q, p["q_norm"]), _norm(config, k, p["k_norm"])
        q, k = _rotate(config, q, positions), _rotate(config, k, positions)
        for t in range(len(x)):
            weight = np.exp(k[: t + 1] @ q[t] / np.sqrt(config.head_dim))
            out[t] += (weight / weight.sum()) @ v[: t + 1] @ p["o"]["kernel"][head]
    return out


def _project(x, p, head):
    return x @ p["kernel"][:, head] + (p["bias"][head] if "bias" in p else 0)


def _rotate(config, x, positions):
    half = config.head_dim // 2
    out = np.empty_like(x)
    for t, position in enumerate(positions):
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / config.head_dim)
            turned = (x[t, i] + 1j * x[t, i + half]) * np.exp(1j * angle)
            out[t, i], out[t, i + half] = turned.real, turned.imag
    return out
