"""Floating point operations of a decoder, counted by hand: the compiler's own count takes a loop's body once.

A product of [a, b] with [b, c] takes 2 a b c. Norms, rotations, softmax and the optimizer are left out (below 1 %).

    layer weights    W = D F (H + 2 Q) + H F D + 3 D I          q, k, v; o; gate, up, down
    forward, token   2 layers W + 4 layers H F s + 2 D V r      s slots seen (mean), r share of tokens with logits
    training         3 x forward, 2 x for products with frozen weights; remat="layer" runs the layers once more, and
                     logits in chunks are made twice

``s`` is (T + 1) / 2 for a causal row of T tokens and the cache's length in a turn of decoding. F is a head's width,
I the MLP's; the other letters are those of ``hgpo_jax/types.py``.
"""

from __future__ import annotations

import dataclasses

from hgpo_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of one forward pass over some tokens, by what takes them."""

    weights: float  # products with the layers' weights
    attention: float  # scores, and the mean of the values
    logits: float

    @property
    def forward(self) -> float:
        """One forward pass."""
        return self.weights + self.attention + self.logits

    def training(self, frozen: bool = False) -> float:
        """Forward and backward pass, nothing made twice: what model FLOPs utilisation is quoted in.

        Args:
          frozen: the weights are, and low-rank adapters (left out) are trained: no gradient of a matrix is made.
        """
        return 3 * self.forward - (self.weights + self.logits if frozen else 0.0)

    def executed(self, remat: str) -> float:
        """What an update's forward and backward pass run, recomputation included, all parameters trained.

        "products" keeps the products with weights and makes attention's again.
        """
        again = {"none": 0.0, "layer": self.weights + self.attention, "products": self.attention}[remat]
        return self.training() + self.logits + again


def layer_weights(model: ModelConfig) -> int:
    """W: entries of a layer's matrices."""
    attention = model.hidden_size * model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    return attention + 3 * model.hidden_size * model.intermediate_size


def num_parameters(model: ModelConfig) -> int:
    """All parameters: matrices, embeddings, norms, biases."""
    D, F = model.hidden_size, model.head_dim
    biases = F * (model.num_heads + 2 * model.num_kv_heads) if model.qkv_bias else 0
    norms = 2 * D + (2 * F if model.qk_norm else 0)
    tables = model.vocab_size * D * (1 if model.tie_word_embeddings else 2)
    return model.num_layers * (layer_weights(model) + biases + norms) + tables + D


def forward_flops(model: ModelConfig, tokens: float, seen: float, predicted: float) -> Flops:
    """One forward pass.

    Args:
      model: its shape.
      tokens: that are read, all rows together.
      seen: slots that a token attends to, on average.
      predicted: tokens that logits are made for.
    """
    return Flops(
        weights=2.0 * model.num_layers * layer_weights(model) * tokens,
        attention=4.0 * model.num_layers * model.num_heads * model.head_dim * seen * tokens,
        logits=2.0 * model.hidden_size * model.vocab_size * predicted,
    )


def row_flops(model: ModelConfig, rows: int, length: int, predicted: int) -> Flops:
    """A forward pass over causal rows of ``length`` tokens, of which the last ``predicted`` each have logits."""
    return forward_flops(model, float(rows * length), (length + 1) / 2, float(rows * predicted))


def decode_flops(model: ModelConfig, rows: int, prompt: int, response: int) -> Flops:
    """Drawing ``response`` tokens after prompts that were read, which gave the first: the last is not read."""
    turns = response - 1
    return forward_flops(model, float(rows * turns), prompt + (turns + 1) / 2, float(rows * turns))
