"""Models that do not rotate as their config and their rotary module say."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.patches.tiny_models import make_model

Tables = tuple[Tensor, Tensor]


class HiddenTables(nn.Module):
    """A rotary module under a name that gives nothing away."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.inner = (copy.deepcopy(rotary),)

    def forward(self, hidden_states: Tensor, position_ids: Tensor) -> Tables:
        return self.inner[0](hidden_states, position_ids)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return states * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def _wrap_attention(layer: nn.Module, change: Callable[[dict[str, Any], Tensor], None]) -> None:
    attention = layer.self_attn
    original = attention.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        change(kwargs, hidden)
        return original(*args, **kwargs)

    attention.forward = forward


def _positions(hidden: Tensor) -> Tensor:
    return torch.arange(hidden.shape[1])[None]


def own_tables(layers: tuple[int, ...] = (0, 1)) -> nn.Module:
    """The attention of some layers rotates by tables of its own, whatever it is given."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)

    def change(kwargs: dict[str, Any], hidden: Tensor) -> None:
        kwargs["position_embeddings"] = hidden_tables(hidden, _positions(hidden))

    for layer in layers:
        _wrap_attention(model.model.layers[layer], change)
    return model


def own_tables_at_given_positions() -> nn.Module:
    """As ``own_tables``, at the positions that the model was given."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)

    def change(kwargs: dict[str, Any], hidden: Tensor) -> None:
        kwargs["position_embeddings"] = hidden_tables(hidden, kwargs["position_ids"])

    for layer in model.model.layers:
        _wrap_attention(layer, change)
    return model


def layers_given_other_tables() -> nn.Module:
    """The decoder calls its rotary module, and hands the layers other tables."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)

    def exchange(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tables = hidden_tables(args[0], kwargs["position_ids"])
        return args, {**kwargs, "position_embeddings": tables}

    for layer in model.model.layers:
        layer.register_forward_pre_hook(exchange, with_kwargs=True)
    return model


def rotated_twice() -> nn.Module:
    """The attention turns queries and keys by the given angles and by its own on top."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)

    def change(kwargs: dict[str, Any], hidden: Tensor) -> None:
        cos, sin = kwargs["position_embeddings"]
        more_cos, more_sin = hidden_tables(hidden, _positions(hidden))
        kwargs["position_embeddings"] = (
            cos * more_cos - sin * more_sin,
            sin * more_cos + cos * more_sin,
        )

    for layer in model.model.layers:
        _wrap_attention(layer, change)
    return model


def keys_left_alone() -> nn.Module:
    """The attention turns the queries as it should, and the keys by tables of its own."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)

    class Keys(nn.Module):
        def __init__(self, projection: nn.Module) -> None:
            super().__init__()
            self.projection = projection
            self.undo: Tables | None = None

        def forward(self, hidden: Tensor) -> Tensor:
            states = self.projection(hidden)
            if self.undo is None:
                return states
            shape = (*hidden.shape[:2], -1, 8)
            cos, sin = self.undo
            more_cos, more_sin = hidden_tables(hidden, _positions(hidden))
            heads = rotate(states.view(shape).transpose(1, 2), cos, -sin)
            return rotate(heads, more_cos, more_sin).transpose(1, 2).reshape(states.shape)

    for layer in model.model.layers:
        keys = Keys(layer.self_attn.k_proj)
        layer.self_attn.k_proj = keys

        def change(kwargs: dict[str, Any], hidden: Tensor, keys: Keys = keys) -> None:
            keys.undo = kwargs["position_embeddings"]

        _wrap_attention(layer, change)
    return model


def rotary_not_called() -> nn.Module:
    """The decoder has a rotary module and uses another one."""
    model = make_model("llama")
    hidden_tables = HiddenTables(model.model.rotary_emb)
    original = model.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        kept = model.model._modules["rotary_emb"]
        model.model._modules["rotary_emb"] = hidden_tables
        try:
            return original(*args, **kwargs)
        finally:
            model.model._modules["rotary_emb"] = kept

    model.model.forward = forward
    return model


def own_attention() -> nn.Module:
    """One layer's attention does not go through the attention interface."""
    model = make_model("llama")
    attention = model.model.layers[1].self_attn

    def forward(hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        return hidden_states, None

    attention.forward = forward
    return model


def position_in_the_hidden_states() -> nn.Module:
    """No rotation at all."""
    model = make_model("llama")

    def change(kwargs: dict[str, Any], hidden: Tensor) -> None:
        cos, sin = kwargs["position_embeddings"]
        kwargs["position_embeddings"] = (torch.ones_like(cos), torch.zeros_like(sin))

    for layer in model.model.layers:
        _wrap_attention(layer, change)
    return model


RIGGED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "own tables": (own_tables, "something else"),
    "own tables in one layer": (lambda: own_tables((1,)), "layer 1.*something else"),
    "own tables at given positions": (own_tables_at_given_positions, "something else"),
    "layers given other tables": (layers_given_other_tables, "something else"),
    "rotated twice": (rotated_twice, "something else"),
    "keys left alone": (keys_left_alone, "something else|not rotated by the meant"),
    "rotary not called": (rotary_not_called, "was not called"),
    "own attention": (own_attention, "layer 1 .*cannot be observed"),
    "no rotation": (position_in_the_hidden_states, "no layer of the model is rotated"),
}
