"""The arithmetic of one tile of queries: output and statistics from the same scores.

With ``z`` the scores less their maximum and ``e = exp(z)``, the entropy of a query in nats is

    H = ln(sum e) - sum(e * z) / sum(e)

exactly, without a second pass over the keys.

Shapes: K key heads, G query heads to each, N tokens, T queries of a tile, S keys that it can see,
D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from harness.masks import TileMask
from harness.rows import STATISTICS
from harness.workers import TileWorkers

# Scores of one tile: small enough for a processor's cache, large enough for its matrix product.
TILE_BYTES = {"cpu": 2 << 20, "cuda": 256 << 20, "mps": 64 << 20}
CPU_TILE_ROWS = 128  # at most, so that a short sequence still has tiles for all cores
_HIDDEN = -1e30  # finite, so that exp(z) * z of a hidden key is 0 and not NaN


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCall:
    """One layer's attention: query ``(K, G, N, D)`` scaled already, key and value ``(K, N, D)``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: TileMask
    softcap: float | None
    sinks: Tensor | None  # logits of learnt sinks, (K, G, 1)

    def heads(self, start: int, stop: int) -> LayerCall:
        """The same for some key heads and their query heads."""
        return replace(
            self,
            query=self.query[start:stop],
            key=self.key[start:stop],
            value=self.value[start:stop],
            sinks=None if self.sinks is None else self.sinks[start:stop],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _View:
    """What some queries see, the same for all heads.

    Attributes:
        queries: int64 positions, ascending, ``(T,)``.
        first: Position of the first key that any of them sees.
        last: Position behind the last.
        hidden: Runs of columns in which keys are hidden, with what is hidden in them.
        count: Visible keys of each query, ``(T,)``.
    """

    queries: Tensor
    first: int
    last: int
    hidden: list[tuple[int, int, Tensor]]
    count: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tile:
    """Scores of some queries, less their maximum.

    Attributes:
        view: What they see.
        z: ``(K, G, T, S)``, huge and negative where a key is hidden.
        e: exp(z).
        peak: The maximum that was taken off, ``(K, G, T)``.
    """

    view: _View
    z: Tensor
    e: Tensor
    peak: Tensor


def _view(mask: TileMask, queries: Tensor) -> _View:
    first, last = mask.first_visible(int(queries[0])), int(queries[-1]) + 1
    visible = mask.visible(queries, torch.arange(first, last, device=queries.device))
    hidden = ~visible
    columns = hidden.any(0).nonzero().flatten()
    runs = []
    if len(columns):
        # A causal tile hides keys at its end, a window also at its start; in between, nothing is
        # hidden and nothing has to be touched.
        breaks = (columns.diff() > 1).nonzero().flatten()
        for run in torch.tensor_split(columns, (breaks + 1).cpu()):
            low, high = int(run[0]), int(run[-1]) + 1
            runs.append((low, high, hidden[:, low:high]))
    return _View(queries=queries, first=first, last=last, hidden=runs, count=visible.sum(-1))


def _make_tile(call: LayerCall, view: _View) -> _Tile:
    key_heads, groups, _, size = call.query.shape
    rows = len(view.queries)
    contiguous = view.last - int(view.queries[0]) == rows
    at = slice(view.last - rows, view.last) if contiguous else view.queries
    flat = call.query[:, :, at].reshape(key_heads, groups * rows, size)
    z = torch.bmm(flat, call.key[:, view.first : view.last].transpose(1, 2))
    z = z.view(key_heads, groups, rows, view.last - view.first)
    if call.softcap is not None:
        z = z.div_(call.softcap).tanh_().mul_(call.softcap)
    for low, high, hidden in view.hidden:
        z[..., low:high].masked_fill_(hidden, _HIDDEN)
    peak = z.amax(-1)
    z.sub_(peak[..., None])
    return _Tile(view=view, z=z, e=z.exp(), peak=peak)


def _weighted(call: LayerCall, tile: _Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of e times value ``(K, G, T, D)``, of e, and of e times position, ``(K, G, T)``.

    The two sums ride along as columns of the values; positions count back from the last key, so
    that float32 resolves them.
    """
    key_heads, groups, rows, columns = tile.e.shape
    back = torch.arange(columns, device=tile.e.device, dtype=tile.e.dtype) - columns
    extra = torch.stack([torch.ones_like(back), back], -1).expand(key_heads, columns, 2)
    values = torch.cat([call.value[:, tile.view.first : tile.view.last], extra], -1)
    sums = torch.bmm(tile.e.view(key_heads, groups * rows, columns), values)
    sums = sums.view(key_heads, groups, rows, -1)
    return sums[..., :-2], sums[..., -2], sums[..., -1]


def _statistics(tile: _Tile, total: Tensor, moment: Tensor, local_window: int) -> dict[str, Tensor]:
    """The columns of a tile's queries, each ``(K, G, T)``."""
    e, columns = tile.e, tile.e.shape[-1]
    own = tile.view.queries - tile.view.first  # column of each query's own key
    rows = torch.arange(len(own), device=e.device)

    def mass_at(at: Tensor) -> Tensor:
        picked = e[:, :, rows, at.clamp(min=0)]
        return torch.where(at >= 0, picked, torch.zeros_like(picked)) / total

    low = max(0, int(own[0]) - local_window + 1)
    span = torch.arange(low, columns, device=e.device)
    near = (span[None] > own[:, None] - local_window).to(e.dtype)
    count = tile.view.count.to(e.dtype)
    entropy = total.log() - torch.linalg.vecdot(e, tile.z) / total
    return {
        "entropy_nats": entropy,
        "normalized_entropy": torch.where(count > 1, entropy / count.log(), torch.nan),
        "effective_tokens": entropy.exp(),
        "sink_mass": e[..., 0] / total if tile.view.first == 0 else torch.zeros_like(total),
        "self_mass": mass_at(own),
        "previous_mass": mass_at(own - 1) + mass_at(own - 2),
        "local_mass": torch.linalg.vecdot(e[..., low:], near.expand_as(e[..., low:])) / total,
        "mean_distance_tokens": (own - columns).to(e.dtype) - moment / total,
        "max_logit": tile.peak,
    }


def tile_rows(call: LayerCall, heads_a_tile: int) -> int:
    """Queries of a tile whose scores fit the budget."""
    device = call.query.device.type
    heads = heads_a_tile * call.query.shape[1]
    row_bytes = heads * call.query.shape[2] * call.query.element_size()
    rows = max(1, TILE_BYTES.get(device, TILE_BYTES["cpu"]) // row_bytes)
    return min(rows, CPU_TILE_ROWS) if device == "cpu" else rows


def _tiles(queries: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
    """Cut query positions into tiles; with each, where it starts."""
    for start in range(0, len(queries), rows):
        yield start, queries[start : start + rows]


def attend(
    call: LayerCall,
    queries: Tensor,
    workers: TileWorkers,
    *,
    output: Tensor | None,
    statistics: dict[str, Tensor] | None,
    local_window: int,
) -> None:
    """Attend from some queries and fill in what is asked for.

    A learnt sink takes its share of the output, but is no key: the statistics are of the keys'
    own distribution.

    Args:
        call: The layer's queries, keys and values.
        queries: int64 positions, ascending, ``(Q,)``.
        workers: Who works on the tiles.
        output: ``(K, G, N, D)``; filled at the queries, which must then be a run.
        statistics: ``rows.STATISTICS`` to ``(K, G, Q)``.
        local_window: Keys, the query's own included, whose mass is `local_mass`.
    """
    key_heads = call.query.shape[0]
    # A core works on one head at a time, in its cache; a GPU on all of them.
    step = 1 if call.query.device.type == "cpu" else key_heads

    def work(start: int, some: Tensor) -> None:
        view = _view(call.mask, some)
        at = slice(start, start + len(some))
        for head in range(0, key_heads, step):
            part = call.heads(head, head + step)
            tile = _make_tile(part, view)
            weighted, total, moment = _weighted(part, tile)
            if statistics is not None:
                found = _statistics(tile, total, moment, local_window)
                for name in STATISTICS:
                    statistics[name][head : head + step, :, at] = found[name]
            if output is not None:
                share = total if part.sinks is None else total + (part.sinks - tile.peak).exp()
                rows = slice(int(some[0]), int(some[-1]) + 1)
                torch.div(weighted, share[..., None], out=output[head : head + step, :, rows])

    workers.run(partial(work, *each) for each in _tiles(queries, tile_rows(call, step)))
