"""The language policy: the decoder, sampling from it, and text to tokens."""

from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import SampleOutput, make_sampler, pad_prompts
from hgpo_jax.policy.tokenization import ByteTokenizer, Tokenizer, load_tokenizer, train_tokenizer
from hgpo_jax.policy.transformer import (
    KVCache,
    Transformer,
    abstract_params,
    check_model_config,
    init_cache,
    init_params,
)

__all__ = [
    "ByteTokenizer",
    "KVCache",
    "SampleOutput",
    "Tokenizer",
    "Transformer",
    "abstract_params",
    "check_model_config",
    "init_cache",
    "init_params",
    "load_tokenizer",
    "make_sampler",
    "pad_prompts",
    "response_logprobs",
    "train_tokenizer",
]
