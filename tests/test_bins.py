"""Bins end where every length and its tail end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bins import bin_edges, bins, tail_start

LENGTHS = st.lists(st.integers(2, 200_000), min_size=1, max_size=8, unique=True)


@given(LENGTHS)
def test_every_length_and_its_tail_is_an_edge(lengths):
    edges = bin_edges(lengths).tolist()
    assert edges[0] == 0
    assert edges[-1] == max(lengths)
    assert edges == sorted(set(edges))
    for n in lengths:
        assert n in edges
        assert tail_start(n) in edges


@given(LENGTHS)
def test_bins_of_a_length_cover_it_once(lengths):
    edges = bin_edges(lengths)
    for n in lengths:
        covered = [p for a, b in bins(edges, n)[:50] for p in (a, b)]
        own = bins(edges, n)
        assert own[0][0] == 0
        assert own[-1][1] == n
        assert all(a[1] == b[0] for a, b in pairwise(own))
        assert covered == sorted(covered)


@pytest.mark.parametrize(("length", "start"), [(256, 224), (4096, 3584), (100, 87), (8, 7), (2, 1)])
def test_tail_is_the_last_eighth(length, start):
    assert tail_start(length) == start


def test_short_positions_are_resolved_finely():
    assert {16, 32, 64, 128} <= set(bin_edges([256, 512]).tolist())
