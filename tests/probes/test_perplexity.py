"""Losses land in the right bins, each token once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bins import bin_edges
from harness.data import TokenizedDocument
from harness.probes.perplexity import full_rows, nll_rows, sliding_windows


def document(n):
    ends = np.cumsum(np.r_[0, np.full(n - 1, 3)])
    return TokenizedDocument(name="d", input_ids=np.arange(n), byte_ends=ends)


def test_the_first_token_is_not_scored_and_every_other_is_once():
    nll = np.random.default_rng(0).random(63)
    rows = full_rows(document(64), nll, bin_edges([16, 64]), 64)
    assert rows["tokens"].sum() == 63
    assert rows["bytes"].sum() == 63 * 3
    assert rows["nll_nats"].sum() == pytest.approx(nll.sum())
    first = rows.iloc[0]
    assert (first["position_start"], first["tokens"]) == (0, first["position_stop"] - 1)


def test_token_i_is_in_the_bin_of_position_i():
    nll = np.arange(1.0, 64.0)  # the loss of token i is i
    rows = full_rows(document(64), nll, bin_edges([16, 64]), 64)
    for row in rows.itertuples():
        expected = sum(range(max(row.position_start, 1), row.position_stop))
        assert row.nll_nats == expected


def test_a_shorter_length_is_the_head_of_a_longer_one():
    nll = np.random.default_rng(1).random(63)
    edges = bin_edges([16, 32, 64])
    long = full_rows(document(64), nll, edges, 64)
    short = full_rows(document(64), nll[:31], edges, 32)
    assert long[long["position_stop"] <= 32].equals(short)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_loss_spoils_its_bin_and_only_that(bad):
    nll = np.ones(63)
    nll[20] = bad
    rows = full_rows(document(64), nll, bin_edges([16, 64]), 64)
    spoilt = ~np.isfinite(rows["nll_nats"])
    assert spoilt.sum() == 1
    row = rows[spoilt].iloc[0]
    assert row["position_start"] <= 21 < row["position_stop"]


@given(tokens=st.integers(2, 300), context=st.integers(2, 300), stride=st.integers(1, 300))
def test_sliding_windows_score_each_token_once_with_the_most_context(tokens, context, stride):
    scored = []
    for start, stop, first in sliding_windows(tokens, context, stride):
        assert 0 <= start < stop <= tokens
        assert stop - start <= context
        assert stop - start == min(context, stop)  # never shorter than it can be
        assert first > start  # the first token of a window has nothing before it
        scored += range(first, stop)
        fewest = max(1, context - stride)
        assert all(i - start >= min(i, fewest) for i in range(first, stop))
    assert scored == list(range(1, tokens))


def test_one_window_is_the_full_protocol():
    assert list(sliding_windows(64, 64, 16)) == [(0, 64, 1)]


def test_positions_of_a_sliding_window_are_tokens_of_context():
    nll = np.ones(4)
    rows = nll_rows(
        document(64),
        np.array([12, 13, 14, 15]),
        np.array([40, 41, 42, 43]),
        nll,
        bin_edges([16]),
        16,
        "sliding",
    )
    assert rows["position_start"].min() >= 12
    assert rows["bytes"].sum() == 12
    assert set(rows["protocol"]) == {"sliding"}
