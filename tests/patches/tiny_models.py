"""Tiny random models of many architectures, made in memory."""

from __future__ import annotations

from typing import Any

import torch
import transformers

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
HEADS_OF_8: dict[str, Any] = {**COMMON, "head_dim": 8}
LATENT: dict[str, Any] = {
    **COMMON,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", COMMON),
    "qwen3": ("Qwen3", HEADS_OF_8),
    "mistral": ("Mistral", {**HEADS_OF_8, "sliding_window": 16}),
    "gemma2": ("Gemma2", {**HEADS_OF_8, "sliding_window": 16}),
    "gemma3": (
        "Gemma3",
        {
            **HEADS_OF_8,
            "num_hidden_layers": 4,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "mixtral": (
        "Mixtral",
        {**HEADS_OF_8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    ),
    "qwen2": (
        "Qwen2",
        {**COMMON, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            **HEADS_OF_8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gemma": ("Gemma", HEADS_OF_8),
    "granite": (
        "Granite",
        {**COMMON, "attention_multiplier": 0.6, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    ),
    "stablelm": ("StableLm", {**COMMON, "hidden_size": 64}),
    "phimoe": ("Phimoe", {**COMMON, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_neox": ("GPTNeoX", {**COMMON, "hidden_size": 64, "num_attention_heads": 2}),
    "phi": ("Phi", {**COMMON, "hidden_size": 64}),
    "phi3": ("Phi3", {**COMMON, "original_max_position_embeddings": 64, "pad_token_id": 0}),
    "olmo2": ("Olmo2", COMMON),
    "olmo3": (
        "Olmo3",
        {**COMMON, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
    ),
    "cohere": ("Cohere", COMMON),
    "cohere2": (
        "Cohere2",
        {
            **HEADS_OF_8,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 16,
        },
    ),
    "glm4": ("Glm4", {**HEADS_OF_8, "pad_token_id": 0}),
    "smollm3": ("SmolLM3", {**COMMON, "no_rope_layers": [1, 0], "pad_token_id": 0}),
    "gpt_oss": (
        "GptOss",
        {
            **HEADS_OF_8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "llama4": (
        "Llama4",
        {
            **HEADS_OF_8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 16,
            "floor_scale": 8,
            "pad_token_id": 0,
        },
    ),
    "deepseek_v2": ("DeepseekV2", LATENT),
    "deepseek_v3": ("DeepseekV3", LATENT),
}
# The layers that a method changes when it is not told which; all of them in other families.
CHANGED: dict[str, tuple[int, ...]] = {
    "gemma3": (1, 3),
    "olmo3": (1,),
    "cohere2": (0,),
    "smollm3": (0,),
    "llama4": (0,),
}
_TEXT_CONFIG = {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}


def make_config(name: str, rope_parameters: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A tiny config of the named architecture; nested rotary parameters may name some types."""
    family, values = CONFIGS[name]
    config_class = getattr(transformers, _TEXT_CONFIG.get(family, f"{family}Config"))
    values = {**values, **changes}
    if rope_parameters is not None:
        values["rope_parameters"] = rope_parameters
    return config_class(**values)


def make_model(
    name: str,
    rope_parameters: dict[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **changes: Any,
) -> torch.nn.Module:
    """A tiny random model of the named architecture, always with the same weights."""
    family, _ = CONFIGS[name]
    torch.manual_seed(seed)
    model_class = getattr(transformers, f"{family}ForCausalLM")
    model = model_class._from_config(make_config(name, rope_parameters, **changes), dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise if parameter.ndim > 1 else 1 + 0.1 * noise)
    return model.eval()


def logits(model: torch.nn.Module, num_tokens: int = 48) -> torch.Tensor:
    """Logits of a fixed random sequence, shape ``[num_tokens, vocabulary]``."""
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(1, 64, (1, num_tokens), generator=generator)
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits[0]
