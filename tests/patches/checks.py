"""Checks that several tests of ``applied`` share."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from patches import RopePatch, applied
from tests.patches.tiny_models import logits


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()} | {
        name: value.clone() for name, value in model.state_dict().items()
    }


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Everything about the model must be as before."""
    modules, before, values = list(model.named_modules()), logits(model), state(model)
    attention = model.config._attn_implementation
    config = copy.deepcopy(model.config)
    yield
    after = list(model.named_modules())
    assert [name for name, _ in after] == [name for name, _ in modules]
    assert all(new is old for (_, new), (_, old) in zip(after, modules, strict=True))
    assert all(torch.equal(value, values[name]) for name, value in state(model).items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert model.config._attn_implementation == attention
    assert model.config.to_dict() == config.to_dict()
    assert torch.equal(logits(model), before)


def with_tables_exchanged(model: nn.Module, index: int, patch: RopePatch) -> torch.Tensor:
    """Logits with one decoder layer given the tables of another model."""
    with applied(model, patch):
        new = copy.deepcopy(model.model.rotary_emb)

    def exchange(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tables = new(args[0], torch.arange(args[0].shape[1])[None])
        return args, {**kwargs, "position_embeddings": tables}

    layer = model.model.layers[index]
    handle = layer.register_forward_pre_hook(exchange, with_kwargs=True)
    try:
        return logits(model, 200)
    finally:
        handle.remove()
