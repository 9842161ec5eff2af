"""Watching what reaches the attention of a transformers model. Imported by ``apply`` only.

Shape suffixes: b batch, h heads, n positions, d size of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from patches.base import PatchError

_NAME = "ropewalk_observed"


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention module.

    Attributes:
        module: The attention module.
        layer: Its layer index.
        args: What it was called with.
        kwargs: What it was called with by name.
        query_bhnd: What it handed to the attention function, after its rotation.
        key_bhnd: The same for the keys.
        scaling: What the logits are multiplied by; ``None`` for the attention function's default.
    """

    module: nn.Module
    layer: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    query_bhnd: Tensor
    key_bhnd: Tensor
    scaling: float | None


@dataclass
class Observer:
    """Collects the calls of attention modules.

    Attributes:
        calls: What was seen, in order.
        pending: Arguments of attention modules that have been entered.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    pending: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: remember what a module is called with."""
        self.pending[module] = (args, kwargs)

    def reach(
        self, module: nn.Module, query_bhnd: Tensor, key_bhnd: Tensor, scaling: float | None
    ) -> None:
        """Record what a module hands to the attention function."""
        args, kwargs = self.pending.get(module, ((), {}))
        layer = getattr(module, "layer_idx", None)
        number = layer if isinstance(layer, int) else len(self.calls)
        query_bhnd, key_bhnd = query_bhnd.detach(), key_bhnd.detach()
        self.calls.append(
            AttentionCall(module, number, args, kwargs, query_bhnd, key_bhnd, scaling)
        )

    def call_again(
        self, call: AttentionCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Call an attention module with other arguments, its hooks left out.

        Returns:
            The query and the key that reach the attention function.

        Raises:
            PatchError: If none do.
        """
        seen = len(self.calls)
        call.module.forward(*args, **kwargs)
        repeated = self.calls[seen:]
        del self.calls[seen:]
        if not repeated:
            raise PatchError(f"layer {call.layer}: its attention cannot be called on its own")
        return repeated[-1].query_bhnd, repeated[-1].key_bhnd


_OBSERVER: ContextVar[Observer | None] = ContextVar("ropewalk_observer", default=None)


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that may be attention, by the name of their class."""
    return [module for module in model.modules() if "Attention" in type(module).__name__]


@contextmanager
def observed(model: nn.Module) -> Iterator[Observer]:
    """Watch a model's attention, through transformers' attention interface, for a while.

    The attention implementation and the hooks are put back at the end. The attention itself is
    PyTorch's; soft-caps and sinks are left out, so the outputs of the model mean nothing.

    Args:
        model: A transformers model.

    Yields:
        What collects the calls.
    """
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    observer = Observer()
    token = _OBSERVER.set(observer)
    implementations = [(config, config._attn_implementation) for config in attention_configs(model)]
    handles = [
        module.register_forward_pre_hook(observer.enter, with_kwargs=True)
        for module in attention_modules(model)
    ]
    try:
        for config, _ in implementations:
            config._attn_implementation = _NAME
        yield observer
    finally:
        # From the outermost config inwards: setting one sets those inside it, too.
        for config, implementation in implementations:
            config._attn_implementation = implementation
        for handle in handles:
            handle.remove()
        _OBSERVER.reset(token)


def attention_configs(model: nn.Module) -> list[Any]:
    """The configs that say which attention is used, each once, from the outermost inwards."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


def _attend(
    module: nn.Module,
    query_bhnd: Tensor,
    key_bhnd: Tensor,
    value_bhnd: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    observer = _OBSERVER.get()
    if observer is not None:
        observer.reach(module, query_bhnd, key_bhnd, scaling)
    output: Tensor = sdpa_attention_forward(
        module, query_bhnd, key_bhnd, value_bhnd, attention_mask, dropout=0.0, scaling=scaling
    )[0]
    return output, None


def run_probe(model: nn.Module, positions: tuple[int, ...]) -> None:
    """Run a short forward pass.

    Args:
        model: A causal language model of transformers, or its base model.
        positions: The position of each token.

    Raises:
        PatchError: If the model cannot be run so.
    """
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    device = getattr(model, "device", embedding.weight.device)
    tokens = torch.arange(1, len(positions) + 1, device=device) % embedding.num_embeddings
    try:
        model(
            input_ids=tokens[None],
            position_ids=torch.tensor([positions], device=device),
            use_cache=False,
        )
    except (PatchError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise PatchError(
            f"{type(model).__name__} fails in a short forward pass with the new tables: {error}"
        ) from error
