"""One layer's attention laid out for tiles: heads by key head, blocks of keys.

Shapes: K key heads, G query heads to each, L queries and S keys of the call, D head size, E size
of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.masks import TileMask

# Keys of a block on a CPU: its scores stay in a core's cache.
CPU_BLOCK_KEYS = 1024
# Elsewhere all heads go at once, in blocks of about so many bytes of scores.
DEVICE_BLOCK_BYTES = 256 << 20
CPU_TILE_ROWS = 512  # queries of all heads of a key head; large enough for the matrix product
DEVICE_TILE_ROWS = 256


def on_cpu(tensor: Tensor) -> bool:
    """Whether work is cut for a core's cache, or for a GPU."""
    return tensor.device.type == "cpu"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCall:
    """One layer's attention, in the model's precision; tiles take what they need in their own.

    Attributes:
        query: ``(K, G, L, D)``.
        key: ``(K, S, D)``.
        value: ``(K, S, E)``; None if no output is asked for.
        dtype: Of scores and sums: float32 at least. In half precision the entropy would be off by
            a tenth of a nat.
        scaling: Of the scores.
        columns: 0, 1, 2, ..., one a key of a block.
        mask: Who sees whom.
        softcap: Bound of the scores, if there is one.
        sinks: Logits of learnt sinks, ``(K, G, 1)``.
        block: Keys of a block.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    dtype: torch.dtype
    scaling: float
    columns: Tensor
    mask: TileMask
    softcap: float | None
    sinks: Tensor | None
    block: int

    def heads(self, start: int, stop: int) -> LayerCall:
        """The same for some key heads and their query heads."""
        return replace(
            self,
            query=self.query[start:stop],
            key=self.key[start:stop],
            value=None if self.value is None else self.value[start:stop],
            sinks=None if self.sinks is None else self.sinks[start:stop],
        )


def layer_call(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    mask: TileMask,
    *,
    scaling: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> LayerCall:
    """Lay out one layer's attention for tiles.

    Args:
        query: ``(H, L, D)``.
        key: ``(K, S, D)``.
        value: ``(K, S, E)``; None if no output is asked for.
        mask: Who sees whom.
        scaling: Of the scores.
        softcap: Bound of the scores, if there is one.
        sinks: Logits of learnt sinks, one a query head.
    """
    heads = key.shape[0]
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    block = CPU_BLOCK_KEYS
    if not on_cpu(query):
        row_bytes = query.shape[0] * DEVICE_TILE_ROWS * dtype.itemsize
        block = max(256, DEVICE_BLOCK_BYTES // row_bytes)
    return LayerCall(
        query=query.reshape(heads, -1, *query.shape[1:]),
        key=key,
        value=value,
        dtype=dtype,
        scaling=scaling,
        columns=torch.arange(block, device=key.device).to(dtype),
        mask=mask,
        softcap=softcap,
        sinks=None if sinks is None else sinks.to(dtype).reshape(heads, -1, 1),
        block=block,
    )


def tile_rows(call: LayerCall) -> int:
    """Queries of a tile."""
    if on_cpu(call.query):
        return max(16, CPU_TILE_ROWS // call.query.shape[1])
    return DEVICE_TILE_ROWS
