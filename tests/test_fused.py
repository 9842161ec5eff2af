"""Fused outputs against a softmax in float64, for every mask that they are put together for."""

from itertools import pairwise

import pytest
import torch

from harness import fused, layer_call, tiles
from harness.attention import _Call
from harness.fused import fused_output
from harness.masks import TileMask
from harness.rows import STATISTICS
from harness.tiles import attend
from harness.workers import TileWorkers

CPU = torch.device("cpu")


def reference(query, key, value, visible, scaling, sinks=None):
    groups = query.shape[1] // key.shape[1]
    q, k, v = (t.double() for t in (query, key, value))
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(-1, -2) * scaling).masked_fill(~visible, -torch.inf)
    if sinks is None:
        return scores.softmax(-1) @ v
    more = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, more], -1).softmax(-1)[..., :-1] @ v


def case(seed, *, past, tokens, window=None, width=16, dropped=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    keys = past + tokens
    rule = (
        (lambda b, h, q, k: k <= q)
        if window is None
        else (lambda b, h, q, k: (k <= q) & (k > q - window))
    )
    query = torch.randn(2, 6, tokens, 16, generator=generator).to(dtype)
    key = torch.randn(2, 2, keys - dropped, 16, generator=generator).to(dtype)
    value = torch.randn(2, 2, keys - dropped, width, generator=generator).to(dtype)
    mask = TileMask(rule, tokens, keys - dropped, CPU, query_offset=past, key_offset=dropped)
    visible = mask.visible(torch.arange(past, keys), torch.arange(dropped, keys))
    return query, key, value, mask, visible


CASES = {
    "whole": {"past": 0, "tokens": 50},
    "behind a cache": {"past": 33, "tokens": 50},
    "one token": {"past": 33, "tokens": 1},
    "window": {"past": 0, "tokens": 300, "window": 9},
    "long window": {"past": 0, "tokens": 300, "window": 140},
    "window behind a cache": {"past": 33, "tokens": 150, "window": 9},
    "window behind a cache that dropped": {"past": 33, "tokens": 150, "window": 9, "dropped": 25},
    "narrow values": {"past": 33, "tokens": 50, "width": 8},
}


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(CASES))
def test_outputs(name, dtype, sinks):
    query, key, value, mask, visible = case(1, dtype=dtype, **CASES[name])
    sink = torch.linspace(-2, 3, 6) if sinks else None
    found = fused_output(query, key, value, mask, 0.3, sink)
    expected = reference(query, key, value, visible, 0.3, sink)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype]
    assert (found.double() - expected).abs().max() < tolerance


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_where_operators_give_no_log_sum_exp(name, monkeypatch):
    """The way of other devices, on the CPU."""
    monkeypatch.setattr(fused, "on_cpu", lambda tensor: False)
    query, key, value, mask, visible = case(2, **CASES[name])
    found = fused_output(query, key, value, mask, 0.3)
    expected = reference(query, key, value, visible, 0.3)
    assert (found.double() - expected).abs().max() < 1e-5
    assert fused_output(query, key, value, mask, 0.3, torch.zeros(6)) is None


@pytest.mark.parametrize("window", [None, 9])
def test_tiles_of_all_heads_at_once(window, monkeypatch):
    """The way of other devices, on the CPU: output and statistics are those of a head at a time."""
    query, key, value, mask, visible = case(3, past=33, tokens=50, window=window)

    def run():
        call = layer_call.layer_call(
            query[0], key[0], value[0], mask, scaling=0.3, softcap=None, sinks=None
        )
        output = torch.empty(2, 3, 50, 16)
        statistics = {name: torch.empty(2, 3, 50) for name in STATISTICS}
        with TileWorkers(CPU) as workers:
            attend(
                call,
                torch.arange(33, 83),
                workers,
                output=output,
                statistics=statistics,
                local_window=5,
            )
        return output, statistics

    one, statistics = run()
    for module in (layer_call, tiles):
        monkeypatch.setattr(module, "on_cpu", lambda tensor: False)
    monkeypatch.setattr(layer_call, "DEVICE_TILE_ROWS", 16)
    monkeypatch.setattr(layer_call, "DEVICE_BLOCK_BYTES", 1)
    all_heads, others = run()
    expected = reference(query, key, value, visible, 0.3)[0]
    assert (one.flatten(0, 1).double() - expected).abs().max() < 1e-5
    assert (all_heads - one).abs().max() < 1e-5
    for name, values in statistics.items():
        torch.testing.assert_close(values, others[name], atol=1e-5, rtol=1e-5, equal_nan=True)


def test_scores_with_a_soft_cap_go_to_tiles_in_a_batch():
    query, key, value, mask, visible = case(4, past=33, tokens=50)
    call = _Call(query, key, value, mask, 0.3, 2.0, None)
    with TileWorkers(CPU) as workers:
        found = call._tiled_output(workers)
    k, v = (t.double().repeat_interleave(3, 1) for t in (key, value))
    scores = 2 * (query.double() @ k.transpose(-1, -2) * 0.3 / 2).tanh()
    expected = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v
    assert (found.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 200])
def test_sampled_queries_are_cut_where_they_see_other_keys(window):
    keys = 9000
    rule = (
        (lambda b, h, q, k: k <= q)
        if window is None
        else (lambda b, h, q, k: (k <= q) & (k > q - window))
    )
    mask = TileMask(rule, keys, keys, CPU)
    call = layer_call.layer_call(
        torch.zeros(8, keys, 4),
        torch.zeros(2, keys, 4),
        None,
        mask,
        scaling=1.0,
        softcap=None,
        sinks=None,
    )
    for queries in (torch.arange(0, keys, 30), torch.arange(keys)):
        cuts = tiles._tiles(call, queries)
        assert cuts[0][0] == 0
        assert cuts[-1][1] == len(queries)
        assert all(stop == start for (_, stop), (start, _) in pairwise(cuts))
        for start, stop in cuts:
            assert 0 < stop - start <= layer_call.tile_rows(call)
            assert queries[stop - 1] - queries[start] < max(128, window or 1024)


def test_no_mask_is_made_behind_a_cache_on_other_devices():
    query, key = torch.zeros(1, 4, 20, 8, device="meta"), torch.zeros(1, 2, 50, 8, device="meta")
    rule = lambda b, h, q, k: k <= q  # noqa: E731
    behind = TileMask(rule, 20, 50, CPU, query_offset=30)
    assert fused_output(query, key, key, behind, 1.0) is None
    assert fused_output(
        query, key[:, :, :20], key[:, :, :20], TileMask(rule, 20, 20, CPU), 1.0
    ).shape
