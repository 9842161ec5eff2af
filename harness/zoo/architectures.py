"""The shapes of the zoo's models: a few million parameters, alike but for their positions."""

from __future__ import annotations

from typing import Any

from harness.errors import ModelError
from harness.zoo import TRAINED_LENGTH, VOCABULARY, ZOO

# About 3.7 million parameters: a quarter of them in the tied embeddings.
_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": TRAINED_LENGTH,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama(base: float) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "default", "rope_theta": base}
    return LlamaForCausalLM(LlamaConfig(**_SHARED, rope_parameters=rope))


def _gemma() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **_SHARED,
        # The global layers are second and last: a local layer before each can mark what to find.
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=TRAINED_LENGTH // 4,
        query_pre_attn_scalar=64,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    )
    return Gemma3ForCausalLM(config)


def build_model(name: str) -> Any:
    """A zoo model with fresh random weights (from torch's global generator), in float32.

    Raises:
        ModelError: If there is no such model.
    """
    if name == "llama-10k":
        return _llama(1e4)
    if name == "llama-500k":
        return _llama(5e5)
    if name == "gemma-local-global":
        return _gemma()
    raise ModelError(f"no zoo model '{name}'; there are: {', '.join(ZOO)}")
