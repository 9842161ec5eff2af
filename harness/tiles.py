"""The arithmetic of one tile of queries: output and statistics from the same scores.

A tile's keys come in blocks that fit a processor's cache. With ``z`` a block's scores less the
largest score so far and ``e = exp(z)``, the sums of e, of e times z and of e times value are
carried from block to block and rescaled where a larger score turns up. The entropy of a query in
nats is then

    H = ln(sum e) - sum(e * z) / sum(e)

exactly, with no second pass over the keys.

Shapes: K key heads, G query heads to each, L queries and S keys of the call, T queries of a tile,
C keys of a block, D head size, E size of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harness.layer_call import LayerCall, on_cpu, tile_rows
from harness.masks import TileMask
from harness.rows import STATISTICS
from harness.workers import TileWorkers

_HIDDEN = -1e30  # finite, so that exp(z) * z of a hidden key is 0 and not NaN


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sums:
    """What is carried from block to block; all ``(K, G, T)`` but `values`.

    Attributes:
        peak: The largest score so far, which is taken off all scores.
        total: Sum of e.
        moment: Sum of e times z.
        back: Sum of e times the key's position, counted back from the tile's last.
        near: Sum of e over the local window; None as long as no key of it came by.
        values: Sum of e times value, ``(K, G, T, E)``; None if no output is asked for.
    """

    peak: Tensor
    total: Tensor
    moment: Tensor
    back: Tensor
    near: Tensor | None
    values: Tensor | None

    def take_in(self, old: _Sums) -> None:
        """Add the sums of earlier blocks, whose peak is at most this one's."""
        shift = old.peak - self.peak
        scale = shift.exp()
        self.total.addcmul_(scale, old.total)
        self.moment.addcmul_(scale, torch.addcmul(old.moment, shift, old.total))
        self.back.addcmul_(scale, old.back)
        if self.near is not None and old.near is not None:
            self.near.addcmul_(scale, old.near)
        if self.values is not None and old.values is not None:
            self.values.addcmul_(scale[..., None], old.values)


@dataclass(frozen=True, eq=False)
class _Tile:
    """Queries that are worked on together.

    Attributes:
        queries: Their positions, int64 ``(T,)``, ascending, where the keys are.
        first: The first of them; known without asking a GPU, which would have to be waited for.
        last: The last of them.
    """

    queries: Tensor
    first: int
    last: int


def _blocks(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut a range into even blocks of at most a size."""
    number = -(-(last - first) // size)
    for index in range(number):
        span = last - first
        yield first + span * index // number, first + span * (index + 1) // number


def _stream(call: LayerCall, tile: _Tile, local_window: int, workers: TileWorkers) -> _Sums:
    """Sums over all keys that a tile's queries see."""
    mask = call.mask
    first, last = mask.first_visible(tile.first), tile.last + 1
    contiguous = last - tile.first == len(tile.queries)
    begin = tile.first - mask.query_offset
    rows = tile.queries - mask.query_offset
    at = slice(begin, begin + len(rows)) if contiguous else rows
    flat = call.query[:, :, at].flatten(1, 2).to(call.dtype) * call.scaling
    sums: _Sums | None = None
    for low, high in _blocks(first, last, call.block):
        new = _block(call, flat, tile, (low, high), local_window, workers, sums)
        # Counted back from the tile's last key, so that single precision resolves the position.
        new.back.add_(new.total, alpha=low - last)
        if sums is not None:
            new.take_in(sums)
        sums = new
    assert sums is not None
    return sums


def _block(
    call: LayerCall,
    flat: Tensor,
    tile: _Tile,
    keys: tuple[int, int],
    local_window: int,
    workers: TileWorkers,
    old: _Sums | None,
) -> _Sums:
    """Sums over the keys of one block, given by their first position and the one behind."""
    low, high = keys
    mask = call.mask
    at = slice(low - mask.key_offset, high - mask.key_offset)
    keys_of = call.key[:, at].to(call.dtype).transpose(1, 2)
    shape = (*flat.shape[:2], high - low)
    scores = torch.bmm(flat, keys_of, out=workers.scratch("scores", shape, flat))
    if call.softcap is not None:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    z = scores.view(*call.query.shape[:2], len(tile.queries), high - low)
    _hide(mask, z, tile, low, high)
    peak = z.amax(-1)
    peak = peak if old is None else torch.maximum(peak, old.peak)
    z.sub_(peak[..., None])
    e = torch.exp(z, out=workers.scratch("weights", tuple(z.shape), flat))
    near = None
    if high > tile.first - local_window + 1:
        positions = torch.arange(low, high, device=flat.device)
        inside = positions > tile.queries[:, None] - local_window
        near = torch.linalg.vecdot(e, inside.to(e.dtype).expand_as(e))
    flat_e = e.flatten(1, 2)
    values = None
    if call.value is not None:
        values = torch.bmm(flat_e, call.value[:, at].to(call.dtype)).view(*e.shape[:3], -1)
    return _Sums(
        peak=peak,
        total=e.sum(-1),
        moment=torch.linalg.vecdot(e, z),
        back=torch.mv(flat_e.flatten(0, 1), call.columns[: high - low]).view(peak.shape),
        near=near,
        values=values,
    )


def _hide(mask: TileMask, z: Tensor, tile: _Tile, low: int, high: int) -> None:
    """Put scores out of sight; what all queries see is not touched."""
    first = tile.first
    if mask.kind != "other" and mask.first_visible(tile.last) <= low:
        # Nothing is hidden but what comes after a query.
        if high <= first + 1:
            return
        z, low = z[..., max(first + 1 - low, 0) :], max(low, first + 1)
    positions = torch.arange(low, high, device=z.device)
    z.masked_fill_(~mask.visible(tile.queries, positions), _HIDDEN)


def _statistics(call: LayerCall, tile: _Tile, sums: _Sums) -> dict[str, Tensor]:
    """The columns of a tile's queries, each ``(K, G, T)``."""
    mask, total, queries = call.mask, sums.total, tile.queries
    rows = queries - mask.query_offset
    query = call.query[:, :, rows].to(call.dtype) * call.scaling
    lse = sums.peak + total.log()
    starts = mask.starts_of(queries)

    def mass_at(keys: Tensor) -> Tensor:
        """Of one key for each query, 0 where it is hidden."""
        seen = keys >= starts
        if mask.kind == "other":
            pairs = [
                mask.visible(q[None], k[None])[0, 0] for q, k in zip(queries, keys, strict=True)
            ]
            seen = torch.stack(pairs) & (keys >= 0)
        there = call.key[:, (keys - mask.key_offset).clamp(min=0)].to(call.dtype)
        score = torch.einsum("kgtd,ktd->kgt", query, there)
        if call.softcap is not None:
            score = (score / call.softcap).tanh() * call.softcap
        return torch.where(seen, (score - lse).exp(), torch.zeros_like(score))

    count = (queries - starts + 1).to(total.dtype)
    if mask.kind == "other":
        keys = torch.arange(mask.key_offset, tile.last + 1, device=queries.device)
        count = mask.visible(queries, keys).sum(-1).to(total.dtype)
    entropy = total.log() - sums.moment / total
    assert sums.near is not None  # a query's own key is near
    sink = torch.zeros_like(total)
    if call.sinks is not None:
        sink = torch.sigmoid(call.sinks - lse)
    last = tile.last + 1
    return {
        "entropy_nats": entropy,
        "normalized_entropy": torch.where(count > 1, entropy / count.log(), torch.nan),
        "effective_tokens": entropy.exp(),
        "sink_mass": mass_at(torch.zeros_like(queries)),
        "self_mass": mass_at(queries),
        "previous_mass": mass_at(queries - 1) + mass_at(queries - 2),
        "local_mass": sums.near / total,
        "learnt_sink_mass": sink,
        "mean_distance_tokens": (queries - last).to(total.dtype) - sums.back / total,
        "max_logit": sums.peak,
    }


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
    own distribution, and the sink's share is a column.

    Args:
        call: The layer's queries, keys and values.
        queries: int64 positions, ascending, ``(Q,)``, on the CPU.
        workers: Who works on the tiles.
        output: ``(K, G, L, E)``; filled at the queries, which must then be a run.
        statistics: ``rows.STATISTICS`` to ``(K, G, Q)``.
        local_window: Keys, the query's own included, whose mass is `local_mass`.
    """
    key_heads = call.query.shape[0]
    full_tile = tile_rows(call)

    there = queries.to(call.query.device)

    def work(start: int, stop: int) -> None:
        at = slice(start, stop)
        tile = _Tile(there[at], int(queries[start]), int(queries[stop - 1]))
        # A core works on one head at a time, in its cache, or on more of them if their queries are
        # few; a GPU on all.
        step = max(1, full_tile // (stop - start)) if on_cpu(call.query) else key_heads
        for head in range(0, key_heads, step):
            part = call.heads(head, head + step)
            sums = _stream(part, tile, local_window, workers)
            if statistics is not None:
                found = _statistics(part, tile, sums)
                for name in STATISTICS:
                    statistics[name][head : head + step, :, at] = found[name]
            if output is not None:
                assert sums.values is not None
                total = sums.total
                if part.sinks is not None:
                    total = total + (part.sinks - sums.peak).exp()
                first = tile.first - call.mask.query_offset
                rows = slice(first, first + stop - start)
                torch.div(sums.values, total[..., None], out=output[head : head + step, :, rows])

    # The last tiles see the most keys: begun first, no core waits for one of them at the end.
    workers.run(partial(work, *ends) for ends in reversed(_tiles(call, queries)))


def _tiles(call: LayerCall, queries: Tensor) -> list[tuple[int, int]]:
    """Cut queries into tiles: few enough, and near enough that they see about the same keys."""
    rows = tile_rows(call)
    # Sampled queries lie far apart: a tile of many would see far more than its window.
    span = max(rows, call.mask.window or call.block)
    ends = torch.searchsorted(queries, queries + span).tolist()
    found = []
    start = 0
    while start < len(queries):
        stop = min(start + rows, ends[start])
        found.append((start, stop))
        start = stop
    return found
