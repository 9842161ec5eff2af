"""Every family as transformers would build and run it: what patches and probes must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from patches import NTK, Linear, Llama3, RopeGeometry, RopePatch, Theta, YaRN
from tests.patches.tiny_models import CHANGED, CONFIGS, make_config, make_model

FAMILIES = tuple(CONFIGS)
TOKENS = 40  # more than every window and chunk of the configs
METHODS: dict[str, RopePatch] = {
    "linear": Linear(factor=4),
    "ntk": NTK(factor=4),
    "yarn": YaRN(factor=4),
    "llama3": Llama3(factor=8),
    "theta": Theta(base=321.0),
}
# Their attention layers come in types that transformers keeps apart.
MIXED = ("gemma2", "gemma3", "qwen2", "olmo3", "cohere2", "gpt_oss", "llama4")
# Layers of these types have no rotation at all, so there is nothing to change in them.
UNROTATED = {("cohere2", "full_attention"), ("llama4", "full_attention")}


@cache
def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a family as its config has it; shared, so tests must leave it as it was."""
    model: Any = make_model(name, dtype=dtype)
    model.config._experts_implementation = "eager"  # grouped matrix products have no float64
    return model


def changed_layers(name: str) -> tuple[int, ...]:
    """The layers that a method changes when it is not told which."""
    return CHANGED.get(name, tuple(range(make_config(name).num_hidden_layers)))


def native_parameters(method: str, geometry: RopeGeometry) -> dict[str, Any]:
    """The ``rope_parameters`` of transformers that mean the same as a method of ``METHODS``."""
    base = {"rope_theta": geometry.base}
    trained = {"original_max_position_embeddings": geometry.trained_length}
    ramp = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    stretch = 4 ** (geometry.rotary_dim / (geometry.rotary_dim - 2))
    return {
        "linear": {"rope_type": "linear", "factor": 4.0, **base},
        # NTK is another base (bloc97 2023); transformers has no name for it.
        "ntk": {"rope_type": "default", "rope_theta": geometry.base * stretch},
        "yarn": {"rope_type": "yarn", "factor": 4.0, **base, **trained},
        "llama3": {"rope_type": "llama3", "factor": 8.0, **ramp, **base, **trained},
        "theta": {"rope_type": "default", "rope_theta": 321.0},
    }[method]


@cache
def native_model(name: str, method: str, layer_type: str | None = None) -> Any:
    """A model with the same weights, built with the native form of a method.

    Args:
        name: The family.
        method: A key of ``METHODS``.
        layer_type: Which of the nested sets of rotary parameters is changed, in families that have
            them; full attention if not given.
    """
    config = make_config(name)
    geometries = RopeGeometry.from_config(config)
    if name == "phi3":
        return _with_buffers(name, method, geometries[None])
    if None not in geometries:
        key = layer_type or "full_attention"
        given = {**config.rope_parameters, key: native_parameters(method, geometries[key])}
        return make_model(name, given)
    given = native_parameters(method, geometries[None])
    partial = config.rope_parameters.get("partial_rotary_factor")
    if partial is not None:
        given["partial_rotary_factor"] = partial
    if name == "phimoe" and given["rope_type"] != "default":
        # It takes its attention factor from keys of its own, one on each side of a length.
        _, factor = ROPE_INIT_FUNCTIONS[method](make_config("llama", given))
        given |= {"short_mscale": factor, "long_mscale": factor}
        given["original_max_position_embeddings"] = geometries[None].trained_length
    return make_model(name, given)


def _with_buffers(name: str, method: str, geometry: RopeGeometry) -> Any:
    """A model whose config does not take the method: the native tables in its buffers."""
    model: Any = make_model(name)
    config = make_config("llama", native_parameters(method, geometry))
    # The default has no function of its own: it is a linear scaling by 1.
    config.rope_parameters.setdefault("factor", 1.0)
    rope_type = {"ntk": "linear", "theta": "linear"}.get(method, method)
    inv_freq, factor = ROPE_INIT_FUNCTIONS[rope_type](config)
    rotary = model.model.rotary_emb
    assert rotary.inv_freq.shape == inv_freq.shape
    rotary.inv_freq, rotary.attention_scaling = inv_freq, factor
    return model


@contextmanager
def native_tables_in(model: Any, other: Any, layers: tuple[int, ...]) -> Iterator[None]:
    """Give some decoder layers of a model the rotary tables of another model."""

    def exchange(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tables = other.model.rotary_emb(args[0], torch.arange(args[0].shape[1])[None])
        return args, {**kwargs, "position_embeddings": tables}

    handles = [
        model.model.layers[layer].register_forward_pre_hook(exchange, with_kwargs=True)
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def token_ids(tokens: int = TOKENS) -> torch.Tensor:
    """Random ids, shape ``(1, tokens)``."""
    return torch.randint(1, 64, (1, tokens), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def eager(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses ``(n - 1,)`` and entropies ``(layers, heads, n)`` of the model's eager attention.

    The entropies are those of the weights over the keys: what a sink takes is left out.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        output = model(input_ids=ids, use_cache=False, output_attentions=True)
    finally:
        model.set_attn_implementation(before)
    losses = torch.nn.functional.cross_entropy(
        output.logits[0, :-1].double(), ids[0, 1:], reduction="none"
    )
    weights = torch.stack([layer[0].double() for layer in output.attentions])
    weights = weights / weights.sum(-1, keepdim=True)
    return losses, -torch.xlogy(weights, weights).sum(-1)
