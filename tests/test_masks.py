"""What kind of mask a rule is, and what it answers for a tile, against the whole matrix."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import masks
from harness.errors import ModelError
from harness.masks import TileMask, tile_mask

CPU = torch.device("cpu")


def causal(b, h, q, k):
    return k <= q


def window(size):
    return lambda b, h, q, k: (k <= q) & (k > q - size)


def chunked(size):
    return lambda b, h, q, k: (k <= q) & (k // size == q // size)


def sink_and_window(b, h, q, k):
    return (k <= q) & ((k == 0) | (k > q - 5))


@pytest.mark.parametrize("checked", [1 << 20, 8])  # every row, or some of them
@pytest.mark.parametrize(
    ("rule", "offset", "first_key", "kind", "size"),
    [
        (causal, 0, 0, "causal", 0),
        (causal, 30, 0, "causal", 0),
        (window(7), 0, 0, "window", 7),
        (window(7), 30, 0, "window", 7),
        (window(7), 30, 24, "window", 7),  # a cache that has dropped what no query sees
        (window(100), 0, 0, "causal", 0),
        (chunked(16), 0, 0, "runs", 0),
        (chunked(16), 30, 0, "runs", 0),
        (sink_and_window, 0, 0, "other", 0),
        (sink_and_window, 30, 0, "other", 0),
    ],
)
def test_kinds_and_tiles(rule, offset, first_key, kind, size, checked, monkeypatch):
    monkeypatch.setattr(masks, "_CHECKED_ENTRIES", checked)
    queries = torch.arange(offset, offset + 40)
    keys = torch.arange(first_key, offset + 40)
    mask = TileMask(rule, 40, len(keys), CPU, query_offset=offset, key_offset=first_key)
    assert (mask.kind, mask.window) == (kind, size)
    whole = rule(0, 0, queries[:, None], keys[None])
    assert torch.equal(mask.visible(queries, keys), whole)
    for query in (offset, offset + 13, offset + 39):
        seen = keys[whole[query - offset]]
        assert mask.first_visible(query) <= int(seen[0])
        if kind != "other":
            assert mask.first_visible(query) == int(seen[0])


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_the_first_visible_key_of_a_window(size):
    mask = TileMask(window(size), 64, 64, CPU)
    for query in range(64):
        assert mask.first_visible(query) == max(0, query - size + 1)


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 70), offset=st.integers(0, 50), queries=st.integers(1, 60))
def test_the_first_key_of_any_window(size, offset, queries):
    keys = offset + queries
    mask = TileMask(window(size), queries, keys, CPU, query_offset=offset)
    expected = [max(0, q - size + 1) for q in range(offset, offset + queries)]
    assert mask.starts.tolist() == expected


def test_attention_that_is_not_causal_is_refused():
    with pytest.raises(ModelError, match="not causal"):
        TileMask(lambda b, h, q, k: (q >= 0) & (k >= 0), 8, 8, CPU)


def test_padding_and_fixed_caches_are_refused():
    with pytest.raises(ModelError, match="padding"):
        tile_mask(1, 4, 4, mask_function=causal, attention_mask=torch.tensor([[0, 1, 1, 1]]))
    with pytest.raises(ModelError, match="growing cache"):
        tile_mask(1, 4, 64, mask_function=causal)
    with pytest.raises(ModelError, match="growing cache"):
        tile_mask(1, 4, 4)
