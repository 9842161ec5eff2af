"""Exact attention statistics of every head, tile by tile, never the N x N matrix.

A tile of queries computes its scores against the keys it can see once, and everything comes from
them: the output that the model goes on with, the log-sum-exp, and the statistics. With ``z`` the
scores less their maximum and ``e = exp(z)``, the entropy of a query in nats is

    H = ln(sum e) - sum(e * z) / sum(e)

exactly, without a second pass over the keys. Where only some queries are measured, the model's own
fused attention makes the output.

Shapes: K key heads, G query heads to each, N tokens, T queries of a tile, S keys that it can see,
D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from harness.errors import ModelError
from harness.masks import TileMask, tile_mask
from harness.rows import STATISTICS
from patches import layer_types_of

NAME = "ropewalk_statistics"
FULL_ATTENTION = "full_attention"

# Scores of one tile: small enough for a processor's cache, large enough for its matrix product.
TILE_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20, "mps": 64 << 20}
_HIDDEN = -1e30  # finite, so that exp(z) * z of a hidden key is 0 and not NaN


@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """What is measured.

    Attributes:
        queries: `all`, how many positions to sample evenly, or the positions themselves.
        local_window: Keys, the query's own included, whose mass is `local_mass`.
        seed: Of the sampled positions.
    """

    queries: Literal["all"] | int | tuple[int, ...] = "all"
    local_window: int = 64
    seed: int = 0

    def positions(self, num_tokens: int) -> npt.NDArray[np.int64]:
        """The measured query positions, ascending, shape ``(queries,)``."""
        if self.queries == "all":
            return np.arange(num_tokens, dtype=np.int64)
        if isinstance(self.queries, tuple):
            return np.array(self.queries, dtype=np.int64)
        rng = np.random.default_rng([self.seed, num_tokens])
        edges = np.linspace(0, num_tokens, min(int(self.queries), num_tokens) + 1)
        return np.unique(rng.uniform(edges[:-1], edges[1:]).astype(np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStatistics:
    """Statistics of every layer, head and measured query.

    Attributes:
        layer_types: One a layer.
        positions: int64, shape ``(queries,)``.
        values: Name (``rows.STATISTICS``) to float64 ``(layers, heads, queries)``.
    """

    layer_types: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    values: dict[str, npt.NDArray[np.float64]]


@dataclass(eq=False)
class _Recorder:
    """What the attention function needs and leaves while one model is measured."""

    settings: AttentionSettings
    positions: Tensor
    layers: dict[int, dict[str, Tensor]] = field(default_factory=dict)


# The attention function is registered once and for all models; which measurement it feeds is the
# last one begun.
_recorders: list[_Recorder] = []


@dataclass(frozen=True, kw_only=True, eq=False)
class _Call:
    """One layer's attention: query ``(K, G, N, D)`` scaled already, key and value ``(K, N, D)``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: TileMask
    softcap: float | None
    sinks: Tensor | None  # logits of learnt sinks, (K, G, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tile:
    """Scores of some queries, less their maximum.

    Attributes:
        queries: int64 positions, ascending, ``(T,)``.
        first: Position of the first key.
        visible: ``(T, S)``.
        z: ``(K, G, T, S)``, huge and negative where a key is hidden.
        e: exp(z).
        peak: The maximum that was taken off, ``(K, G, T)``.
    """

    queries: Tensor
    first: int
    visible: Tensor
    z: Tensor
    e: Tensor
    peak: Tensor


def _hide(scores: Tensor, visible: Tensor) -> None:
    """Put hidden keys out of reach; columns that the whole tile sees are not touched."""
    hidden = ~visible
    columns = hidden.any(0).nonzero().flatten()
    if not len(columns):
        return
    # A causal tile hides keys at its end, a window also at its start: two runs at most.
    breaks = (columns.diff() > 1).nonzero().flatten()
    if len(breaks) > 1:
        scores.masked_fill_(hidden, _HIDDEN)
        return
    for run in torch.tensor_split(columns, (breaks + 1).cpu()):
        low, high = int(run[0]), int(run[-1]) + 1
        scores[..., low:high].masked_fill_(hidden[:, low:high], _HIDDEN)


def _make_tile(call: _Call, queries: Tensor) -> _Tile:
    first = call.mask.first_visible(int(queries[0]))
    last = int(queries[-1]) + 1
    key_heads, groups, _, size = call.query.shape
    rows = len(queries)
    contiguous = last - int(queries[0]) == rows
    picked = call.query[:, :, last - rows : last] if contiguous else call.query[:, :, queries]
    flat = picked.reshape(key_heads, groups * rows, size)
    z = torch.bmm(flat, call.key[:, first:last].transpose(1, 2))
    z = z.view(key_heads, groups, rows, last - first)
    if call.softcap is not None:
        z = z.div_(call.softcap).tanh_().mul_(call.softcap)
    visible = call.mask.visible(queries, torch.arange(first, last, device=z.device))
    _hide(z, visible)
    peak = z.amax(-1)
    z.sub_(peak[..., None])
    return _Tile(queries=queries, first=first, visible=visible, z=z, e=z.exp(), peak=peak)


def _weighted(call: _Call, tile: _Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of e times value ``(K, G, T, D)``, of e, and of e times position, ``(K, G, T)``.

    The two sums ride along as columns of the values; positions count back from the last key, so
    that float32 resolves them.
    """
    key_heads, groups, rows, columns = tile.e.shape
    back = torch.arange(columns, device=tile.e.device, dtype=tile.e.dtype) - columns
    extra = torch.stack([torch.ones_like(back), back], -1).expand(key_heads, columns, 2)
    values = torch.cat([call.value[:, tile.first : tile.first + columns], extra], -1)
    sums = torch.bmm(tile.e.view(key_heads, groups * rows, columns), values)
    sums = sums.view(key_heads, groups, rows, -1)
    return sums[..., :-2], sums[..., -2], sums[..., -1]


def _statistics(tile: _Tile, total: Tensor, moment: Tensor, local_window: int) -> dict[str, Tensor]:
    """The columns of a tile's queries, each ``(K, G, T)``."""
    e, columns = tile.e, tile.e.shape[-1]
    own = tile.queries - tile.first  # column of each query's own key
    rows = torch.arange(len(own), device=e.device)

    def mass_at(at: Tensor) -> Tensor:
        picked = e[:, :, rows, at.clamp(min=0)]
        return torch.where(at >= 0, picked, torch.zeros_like(picked)) / total

    low = max(0, int(own[0]) - local_window + 1)
    span = torch.arange(low, columns, device=e.device)
    near = (span[None] > own[:, None] - local_window).to(e.dtype)
    count = tile.visible.sum(-1).to(e.dtype)
    entropy = total.log() - torch.linalg.vecdot(e, tile.z) / total
    return {
        "entropy_nats": entropy,
        "normalized_entropy": torch.where(count > 1, entropy / count.log(), torch.nan),
        "effective_tokens": entropy.exp(),
        "sink_mass": e[..., 0] / total if tile.first == 0 else torch.zeros_like(total),
        "self_mass": mass_at(own),
        "previous_mass": mass_at(own - 1) + mass_at(own - 2),
        "local_mass": torch.linalg.vecdot(e[..., low:], near.expand_as(e[..., low:])) / total,
        "mean_distance_tokens": (own - columns).to(e.dtype) - moment / total,
        "max_logit": tile.peak,
    }


def _tile_rows(call: _Call) -> int:
    heads = call.query.shape[0] * call.query.shape[1]
    budget = TILE_BYTES.get(call.query.device.type, TILE_BYTES["cpu"])
    row_bytes = heads * call.query.shape[2] * call.query.element_size()
    return max(16, budget // row_bytes)


def _tiles(call: _Call, queries: Tensor) -> Iterator[Tensor]:
    """Cut query positions into tiles whose scores fit the budget."""
    rows = _tile_rows(call)
    for start in range(0, len(queries), rows):
        yield queries[start : start + rows]


def _measure_layer(call: _Call, positions: Tensor, local_window: int) -> dict[str, Tensor]:
    """Statistics ``(heads, queries)`` of chosen queries, without an output."""
    parts: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    for queries in _tiles(call, positions):
        tile = _make_tile(call, queries)
        _, total, moment = _weighted(call, tile)
        for name, value in _statistics(tile, total, moment, local_window).items():
            parts[name].append(value.flatten(0, 1))
    return {name: torch.cat(values, -1) for name, values in parts.items()}


def _attend(call: _Call, local_window: int | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Output ``(K, G, N, D)`` of all queries and, with a window given, their statistics."""
    parts: dict[str, list[Tensor]] = {name: [] for name in STATISTICS}
    out = call.query.new_empty(*call.query.shape[:3], call.value.shape[-1])
    everything = torch.arange(call.query.shape[2], device=call.query.device)
    for queries in _tiles(call, everything):
        tile = _make_tile(call, queries)
        weighted, total, moment = _weighted(call, tile)
        if local_window is not None:
            for name, value in _statistics(tile, total, moment, local_window).items():
                parts[name].append(value.flatten(0, 1))
        # A learnt sink takes its share of the output, but is no key: the statistics are of the
        # keys' own distribution.
        share = total if call.sinks is None else total + (call.sinks - tile.peak).exp()
        low, high = int(queries[0]), int(queries[-1]) + 1
        torch.div(weighted, share[..., None], out=out[:, :, low:high])
    if local_window is None:
        return out, {}
    return out, {name: torch.cat(values, -1) for name, values in parts.items()}


def _fused(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """The output ``(1, heads, N, D)`` of plain causal attention."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _attention_function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """The function that models call: query ``(1, H, N, D)``, key and value ``(1, K, N, D)``."""
    del dropout, sliding_window  # the mask's rule knows the window
    if not _recorders or not isinstance(attention_mask, TileMask):
        raise ModelError(
            f"{type(module).__name__} builds its own attention mask; its attention cannot be "
            "measured"
        )
    recorder = _recorders[-1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    # In bfloat16 the entropy would be off by a tenth of a nat.
    exact = torch.float64 if query.dtype == torch.float64 else torch.float32
    _, heads, tokens, size = query.shape
    key_heads = key.shape[1]
    shape = (key_heads, heads // key_heads, tokens, size)
    call = _Call(
        query=query[0].to(exact).reshape(shape) * scaling,
        key=key[0].to(exact),
        value=value[0].to(exact),
        mask=attention_mask,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.to(exact).reshape(key_heads, -1, 1),
    )
    window = recorder.settings.local_window
    if len(recorder.positions) == tokens:
        out, found = _attend(call, window)
    else:
        found = _measure_layer(call, recorder.positions, window)
        plain = softcap is None and s_aux is None and attention_mask.first_visible(tokens - 1) == 0
        if plain:
            fused = _fused(query, key, value, scaling)
            recorder.layers[int(module.layer_idx)] = found
            return fused.transpose(1, 2).contiguous(), None
        out, _ = _attend(call, None)
    recorder.layers[int(module.layer_idx)] = found
    flat = out.reshape(1, heads, tokens, value.shape[-1]).transpose(1, 2)
    return flat.to(query.dtype).contiguous(), None


def _layer_types(config: Any, num_layers: int) -> tuple[str, ...]:
    known = layer_types_of(
        config.get_text_config() if hasattr(config, "get_text_config") else config
    )
    if known is None or len(known) != num_layers:
        return (FULL_ATTENTION,) * num_layers
    return tuple(known)


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
    AttentionInterface.register(NAME, _attention_function)
    AttentionMaskInterface.register(NAME, tile_mask)
    positions = settings.positions(num_tokens)
    device = next(model.parameters()).device
    recorder = _Recorder(settings, torch.from_numpy(positions).to(device))
    old = model.config._attn_implementation
    result: list[AttentionStatistics] = []
    model.set_attn_implementation(NAME)
    _recorders.append(recorder)
    try:
        yield result
    finally:
        _recorders.pop()
        model.set_attn_implementation(old)
    if not recorder.layers:
        raise ModelError(
            f"{type(model).__name__} does not use transformers' attention interface; its attention "
            "cannot be measured"
        )
    layers = [recorder.layers[i] for i in sorted(recorder.layers)]
    values = {
        name: np.stack([layer[name].double().cpu().numpy() for layer in layers])
        for name in STATISTICS
    }
    result.append(
        AttentionStatistics(
            layer_types=_layer_types(model.config, len(layers)), positions=positions, values=values
        )
    )
