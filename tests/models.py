"""Tiny random models of many families, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SHARED = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHARED))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SHARED))


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SHARED, sliding_window=9))


def gemma2() -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    # Soft-caps so small that they bend every logit.
    config = Gemma2Config(
        **SHARED,
        sliding_window=11,
        attn_logit_softcapping=0.7,
        final_logit_softcapping=1.5,
        query_pre_attn_scalar=4,
    )
    return Gemma2ForCausalLM(config)


def gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    types = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHARED, sliding_window=13, layer_types=types))


def gpt_oss() -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        **SHARED,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=10,
        layer_types=["sliding_attention", "full_attention"],
    )
    config._experts_implementation = "eager"  # grouped matrix products have no float64
    return GptOssForCausalLM(config)


def gpt_neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shared = {k: v for k, v in SHARED.items() if k not in ("num_key_value_heads", "head_dim")}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**shared))


def cohere() -> Any:
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM(CohereConfig(**SHARED, logit_scale=0.25))


def lfm2() -> Any:
    """Attention in one layer of three, convolutions in the others."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    types = ["conv", "full_attention", "conv"]
    return Lfm2ForCausalLM(Lfm2Config(**SHARED | {"num_hidden_layers": 3}, layer_types=types))


def bamba() -> Any:
    """State spaces beside attention; it counts a chunk's positions from zero if left alone."""
    from transformers import BambaConfig, BambaForCausalLM

    state = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
    shared = SHARED | {"num_hidden_layers": 3}
    config = BambaConfig(**shared, **state, attn_layer_indices=[1], mamba_chunk_size=8)
    return BambaForCausalLM(config)


def recurrent_gemma() -> Any:
    """A recurrence whose state does not go on from one chunk to the next."""
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    shared = SHARED | {"num_hidden_layers": 3, "intermediate_size": 96}
    config = RecurrentGemmaConfig(**shared, lru_width=32, attention_window_size=64)
    return RecurrentGemmaForCausalLM(config)


def minimax() -> Any:
    """Linear attention in two layers of three, in a cache that no other model takes."""
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    types = ["linear_attention", "full_attention", "linear_attention"]
    shared = SHARED | {"num_hidden_layers": 3}
    config = MiniMaxConfig(
        **shared, layer_types=types, num_local_experts=2, num_experts_per_tok=1, block_size=16
    )
    config._experts_implementation = "eager"
    return MiniMaxForCausalLM(config)


MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "qwen3": qwen3,
    "mistral": mistral,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gpt_oss": gpt_oss,
    "gpt_neox": gpt_neox,
    "cohere": cohere,
}

# Not all of their layers are attention.
HYBRIDS: dict[str, Callable[[], Any]] = {
    "lfm2": lfm2,
    "bamba": bamba,
    "recurrent_gemma": recurrent_gemma,
    "minimax": minimax,
}


def make_model(name: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """A model with random weights, large enough that its attention is far from even."""
    torch.manual_seed(seed)
    model = (MODELS | HYBRIDS)[name]().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "sinks" in key:
                parameter.normal_(0.0, 1.0)
            else:
                parameter.normal_(0.0, 0.25)
    return model.to(dtype)


def random_ids(seed: int, tokens: int, batch: int = 1) -> torch.Tensor:
    """Token ids, shape ``(batch, tokens)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 97, (batch, tokens), generator=generator)
