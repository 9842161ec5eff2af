"""Running means equal the means of everything at once."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.attention_data import LayerStatistics, sample_positions
from harness.bins import bin_edges
from harness.probes.entropy import AttentionAccumulator
from harness.rows import ATTENTION, STATISTICS


def random_values(rng, queries, layers=2, heads=3):
    return {name: rng.normal(5, 2, (layers, heads, queries)) for name in STATISTICS}


def add(accumulator, positions, layers, layer_types, values):
    """Every layer of one document, the last layer first."""
    for at in reversed(range(len(layers))):
        accumulator(
            LayerStatistics(
                layer=layers[at],
                layer_type=layer_types[at],
                positions=positions,
                values={name: value[at] for name, value in values.items()},
            )
        )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), documents=st.integers(1, 4))
def test_mean_spread_and_count_over_documents(seed, documents):
    rng = np.random.default_rng(seed)
    edges = bin_edges([16, 64])
    accumulator = AttentionAccumulator(edges, 64)
    blocks = []
    for _ in range(documents):
        values = random_values(rng, 64)
        values["normalized_entropy"][:, :, 0] = np.nan
        blocks.append(values)
        add(accumulator, np.arange(64), (3, 7), ("full_attention", "sliding_attention"), values)
    rows = accumulator.rows()
    assert list(rows.columns) == list(ATTENTION)
    assert len(rows) == 2 * 3 * (len(edges) - 1)
    for row in rows.itertuples():
        inside = slice(row.position_start, row.position_stop)
        assert row.queries == documents * (row.position_stop - row.position_start)
        for name in STATISTICS:
            layer = (3, 7).index(row.layer)
            all_values = np.concatenate([b[name][layer, row.head, inside] for b in blocks])
            assert getattr(row, name) == pytest.approx(np.nanmean(all_values), rel=1e-10)
            assert getattr(row, f"{name}_std") == pytest.approx(np.nanstd(all_values), rel=1e-8)
        assert row.layer_type == ("full_attention", "sliding_attention")[layer]


def test_a_tiny_spread_around_a_large_mean_is_not_lost():
    rng = np.random.default_rng(0)
    accumulator = AttentionAccumulator(np.array([0, 8]), 8)
    values = random_values(rng, 8)
    values["mean_distance_tokens"] = 1e8 + rng.normal(0, 1e-2, (2, 3, 8))
    add(accumulator, np.arange(8), (0, 1), ("a", "a"), values)
    add(accumulator, np.arange(8), (0, 1), ("a", "a"), values)
    expected = values["mean_distance_tokens"].std(-1).ravel()
    assert accumulator.rows()["mean_distance_tokens_std"].to_numpy() == pytest.approx(
        expected, rel=1e-4
    )


def test_a_nan_is_recorded_not_averaged_away():
    rng = np.random.default_rng(0)
    values = random_values(rng, 8)
    values["entropy_nats"][0, 0, 3] = np.nan
    accumulator = AttentionAccumulator(np.array([0, 8]), 8)
    add(accumulator, np.arange(8), (0, 1), ("a", "a"), values)
    rows = accumulator.rows().set_index(["layer", "head"])
    assert np.isnan(rows.loc[(0, 0), "entropy_nats"])
    assert rows["entropy_nats"].notna().sum() == 5


def test_bins_without_queries_have_no_row():
    rng = np.random.default_rng(0)
    accumulator = AttentionAccumulator(bin_edges([16, 64]), 64)
    add(accumulator, np.array([60, 62]), (0, 1), ("a", "a"), random_values(rng, 2))
    rows = accumulator.rows()
    assert set(rows["position_start"]) == {56}
    assert set(rows["queries"]) == {2}


def test_a_bin_of_the_very_first_query_has_no_normalised_entropy():
    rng = np.random.default_rng(0)
    values = random_values(rng, 1)
    values["normalized_entropy"][:] = np.nan
    accumulator = AttentionAccumulator(np.array([0, 1]), 1)
    add(accumulator, np.array([0]), (0, 1), ("a", "a"), values)
    assert accumulator.rows()["normalized_entropy"].isna().all()


@given(
    lengths=st.lists(st.integers(2, 5000), min_size=1, max_size=5, unique=True),
    queries=st.integers(1, 300),
    seed=st.integers(0, 5),
)
def test_sampled_positions_give_every_length_its_share(lengths, queries, seed):
    positions = sample_positions(tuple(sorted(lengths)), queries, seed)
    assert positions.tolist() == sorted(set(positions.tolist()))
    assert positions.min() >= 0
    assert positions.max() < max(lengths)
    for n in lengths:
        assert (positions < n).sum() >= min(queries, n) * 0.6
        assert np.array_equal(positions, sample_positions(tuple(sorted(lengths)), queries, seed))


def test_a_document_of_nan_is_not_averaged_away_in_the_normalised_entropy_either():
    rng = np.random.default_rng(0)
    good, bad = random_values(rng, 8), random_values(rng, 8)
    for name in STATISTICS:
        bad[name][:] = np.nan
    accumulator = AttentionAccumulator(np.array([0, 8]), 8)
    for values in (good, bad):
        add(accumulator, np.arange(8), (0, 1), ("a", "a"), values)
    assert accumulator.rows()[list(STATISTICS)].isna().all().all()


@given(cuts=st.lists(st.integers(1, 63), max_size=4, unique=True), seed=st.integers(0, 99))
def test_chunks_of_a_document_give_the_whole(cuts, seed):
    values = random_values(np.random.default_rng(seed), 64)
    positions, layers, types = np.arange(64), (0, 1), ("a", "a")
    whole, parts = (AttentionAccumulator(bin_edges([16, 64]), 64) for _ in range(2))
    add(whole, positions, layers, types, values)
    for at in np.split(positions, sorted(cuts)):
        add(parts, at, layers, types, {n: v[:, :, at] for n, v in values.items()})
    pd.testing.assert_frame_equal(whole.rows(), parts.rows())
