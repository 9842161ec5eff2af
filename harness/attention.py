"""Exact attention statistics of every layer and head while a model runs as it is.

A function of ours takes the place of the model's attention for one forward pass. It computes the
same output, and the statistics of each query beside it, tile by tile (`harness.tiles`), never the
N x N matrix. Where only some queries are measured, PyTorch's fused attention makes the output.

Shapes: H query heads, K key heads, G query heads to each key head, N tokens, Q measured queries,
D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from harness.attention_data import AttentionSettings, AttentionStatistics
from harness.errors import ModelError
from harness.masks import TileMask, tile_mask
from harness.rows import STATISTICS
from harness.tiles import LayerCall, attend
from harness.workers import TileWorkers
from patches import layer_types_of
from patches.geometry import FULL_ATTENTION

NAME = "ropewalk_statistics"

# Arguments that some models' attention takes and that would change its scores.
_UNKNOWN = ("position_bias", "sinks", "indices", "block_indices")


@dataclass(eq=False)
class _Recorder:
    """What the attention function needs and leaves while one model is measured."""

    settings: AttentionSettings
    positions: Tensor
    workers: TileWorkers
    layers: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def keep(self, module: Any, found: dict[str, Tensor]) -> None:
        """Store a layer's statistics, on the CPU, ``(heads, Q)``."""
        index = getattr(module, "layer_idx", None)
        if index is None or int(index) in self.layers:
            raise ModelError(
                f"{type(module).__name__} does not say which layer it is, or runs twice; its "
                "attention cannot be measured"
            )
        self.layers[int(index)] = {
            name: value.flatten(0, 1).cpu().double() for name, value in found.items()
        }


# The attention function is registered once and for all models; which measurement it feeds is that
# of the thread that runs the model.
_recorder: ContextVar[_Recorder | None] = ContextVar("ropewalk_recorder", default=None)


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """The output ``(1, heads, N, D)`` of plain causal attention."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _layer_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: TileMask,
    scaling: float,
    softcap: float | None,
    s_aux: Tensor | None,
) -> LayerCall:
    """Drop the batch, fold query heads by key head, and go up to float32 at least."""
    # In bfloat16 the entropy would be off by a tenth of a nat.
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    key_heads = key.shape[1]
    return LayerCall(
        query=query[0].to(exact).reshape(key_heads, -1, *query.shape[2:]) * scaling,
        key=key[0].to(exact),
        value=value[0].to(exact),
        mask=mask,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.to(exact).reshape(key_heads, -1, 1),
    )


def _attention_function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that models call: query ``(1, H, N, D)``, key and value ``(1, K, N, D)``.

    The window is not read from the arguments: the mask's rule knows it.
    """
    recorder = _recorder.get()
    if recorder is None or not isinstance(attention_mask, TileMask):
        raise ModelError(
            f"{type(module).__name__} builds its own attention mask; its attention cannot be "
            "measured"
        )
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses '{name}', which cannot be measured")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):
        call = _layer_call(query, key, value, attention_mask, scaling, softcap, s_aux)
        found, out = _measure(call, recorder)
        if out is None and _is_plain(call):
            out = _fused(query, key, value, scaling)
        elif out is None:
            out = call.query.new_empty(*call.query.shape[:3], value.shape[-1])
            everything = torch.arange(query.shape[2], device=query.device)
            attend(
                call,
                everything,
                recorder.workers,
                output=out,
                statistics=None,
                local_window=1,
            )
    recorder.keep(module, found)
    flat = out.reshape(1, query.shape[1], query.shape[2], value.shape[-1]).transpose(1, 2)
    return flat.to(query.dtype).contiguous(), None


def _measure(call: LayerCall, recorder: _Recorder) -> tuple[dict[str, Tensor], Tensor | None]:
    """Statistics ``(K, G, Q)`` and, if all queries are measured, the output ``(K, G, N, D)``."""
    positions = recorder.positions.to(call.query.device)
    shape = call.query.shape[:3]
    found = {name: call.query.new_empty(*shape[:2], len(positions)) for name in STATISTICS}
    out = None
    if len(positions) == shape[2]:
        out = call.query.new_empty(*shape, call.value.shape[-1])
    attend(
        call,
        positions,
        recorder.workers,
        output=out,
        statistics=found,
        local_window=recorder.settings.local_window,
    )
    return found, out


def _is_plain(call: LayerCall) -> bool:
    """Whether fused attention gives the same output, without an N x N matrix of its own."""
    tokens, size = call.query.shape[2:]
    plain = call.softcap is None and call.sinks is None and call.value.shape[-1] == size
    return plain and call.mask.first_visible(tokens - 1) == 0


def _configs(model: Any) -> list[Any]:
    """The configs that say which attention is used, each once, from the outermost inwards."""
    found: dict[int, Any] = {}
    for module in model.modules() if isinstance(model, nn.Module) else ():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    """Let a model use our function for a while; every config is put back as it was."""
    AttentionInterface.register(NAME, _attention_function)
    AttentionMaskInterface.register(NAME, tile_mask)
    before = [(config, config._attn_implementation) for config in _configs(model)]
    try:
        try:
            model.set_attn_implementation(NAME)
        except (AttributeError, ImportError, ValueError) as error:
            raise ModelError(
                f"the attention of {type(model).__name__} cannot be measured: {error}"
            ) from error
        yield
    finally:
        # Setting a config sets those inside it, too: the outermost first.
        for config, implementation in before:
            config._attn_implementation = implementation


@contextmanager
def recording(
    model: Any, num_tokens: int, settings: AttentionSettings
) -> Iterator[list[AttentionStatistics]]:
    """Measure the forward pass that is run inside.

    Args:
        model: A causal language model of transformers.
        num_tokens: Of the pass.
        settings: What is measured.

    Yields:
        A list, in which the statistics lie after the pass. The model's attention is put back in
        any case.

    Raises:
        ModelError: If the model's attention does not go through transformers' interface.
    """
    positions = settings.positions(num_tokens)
    device = next(model.parameters()).device
    result: list[AttentionStatistics] = []
    with TileWorkers(device) as workers:
        recorder = _Recorder(settings, torch.from_numpy(positions), workers)
        token = _recorder.set(recorder)
        try:
            with _own_attention(model):
                yield result
        finally:
            _recorder.reset(token)
    result.append(_gather(model, recorder, positions))


def _gather(
    model: Any, recorder: _Recorder, positions: npt.NDArray[np.int64]
) -> AttentionStatistics:
    """The statistics of all layers in the model's order."""
    name = type(model).__name__
    if not recorder.layers:
        raise ModelError(
            f"{name} does not use transformers' attention interface; its attention cannot be "
            "measured"
        )
    indices = tuple(sorted(recorder.layers))
    layers = [recorder.layers[i] for i in indices]
    if len({layer["entropy_nats"].shape for layer in layers}) > 1:
        raise ModelError(f"the layers of {name} differ in their number of heads: not supported")
    values = {n: np.stack([layer[n].numpy() for layer in layers]) for n in STATISTICS}
    types = layer_types_of(model.config) or ()
    return AttentionStatistics(
        layer_types=tuple(types[i] if i < len(types) else FULL_ATTENTION for i in indices),
        positions=positions,
        values=values,
        layers=indices,
    )
