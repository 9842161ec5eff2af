"""The summary against numbers computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.errors import DataError
from harness.statistics import bootstrap_perplexity, wilson_interval
from harness.summary import last_eighth, summarize, summary_markdown, write_summary
from tests.synthetic import Synthetic, make_tables

CELL: dict[str, Any] = {
    "model": "m",
    "method": "none",
    "kind": "none",
    "trained_length": 8,
    "context_length": 16,
}


def perplexity_table(**changes: Any) -> pd.DataFrame:
    """Two documents, the bins [0, 14) and [14, 16), of 3 bytes a token."""
    rows = [
        ("a", 0, 14, 13, 39, 26.0),
        ("a", 14, 16, 2, 6, 8.0),
        ("b", 0, 14, 13, 39, 13.0),
        ("b", 14, 16, 2, 6, 2.0),
    ]
    names = ["document", "position_start", "position_stop", "tokens", "bytes", "nll_nats"]
    return pd.DataFrame(rows, columns=names).assign(protocol="window", **CELL, **changes)


def attention_table(rows: list[tuple[object, ...]]) -> pd.DataFrame:
    names = ["layer", "layer_type", "head", "position_start", "position_stop", "queries"]
    names += ["entropy_nats", "normalized_entropy"]
    return pd.DataFrame(rows, columns=names).assign(**CELL)


def passes_table(rows: list[tuple[object, ...]]) -> pd.DataFrame:
    names = ["pass_id", "probe", "context_lengths", "status", "seconds", "peak_memory_bytes"]
    cell = {name: value for name, value in CELL.items() if name != "context_length"}
    return pd.DataFrame(rows, columns=names).assign(**cell)


def test_perplexity_by_hand() -> None:
    row = summarize({"perplexity": perplexity_table()}, seed=5).iloc[0]
    assert row["perplexity"] == pytest.approx(math.exp(49 / 30))
    assert row["tail_perplexity"] == pytest.approx(math.exp(10 / 4))
    assert row["bits_per_byte"] == pytest.approx(49 / math.log(2) / 90)
    interval = bootstrap_perplexity([34.0, 15.0], [15, 15], seed=5)
    assert (row["perplexity_low"], row["perplexity_high"]) == interval


@pytest.mark.parametrize("length", [2, 7, 15, 16, 100, 256])
def test_the_last_eighth_starts_at_the_floor_of_seven_eighths(length: int) -> None:
    table = pd.DataFrame({"position_start": range(length), "context_length": length})
    assert last_eighth(table).sum() == length - length * 7 // 8


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_averaged_away(loss: float) -> None:
    table = perplexity_table()
    table.loc[0, "nll_nats"] = loss
    row = summarize({"perplexity": table}).iloc[0]
    assert row["perplexity"] == pytest.approx(loss, nan_ok=True)
    assert math.isnan(row["perplexity_low"])
    assert row["tail_perplexity"] == pytest.approx(math.exp(10 / 4))


def test_protocols_and_trained_lengths_are_not_mixed() -> None:
    mixed = pd.concat([perplexity_table(), perplexity_table().assign(protocol="sliding")])
    with pytest.raises(DataError, match="sliding, window"):
        summarize({"perplexity": mixed})
    other = pd.concat([perplexity_table(), perplexity_table().assign(trained_length=9)])
    with pytest.raises(DataError, match="two trained lengths"):
        summarize({"perplexity": other})


def test_entropy_is_weighted_by_queries_then_averaged_over_heads_and_layers() -> None:
    table = attention_table(
        [
            (0, "full_attention", 0, 0, 14, 14, 99.0, 99.0),  # before the last eighth
            (0, "full_attention", 0, 14, 15, 3, 1.0, 0.1),
            (0, "full_attention", 0, 15, 16, 1, 5.0, 0.5),
            (1, "full_attention", 0, 14, 16, 4, 4.0, 0.4),
            (2, "sliding_attention", 0, 14, 16, 4, 1.5, 0.9),
        ]
    )
    row = summarize({"attention": table}).iloc[0]
    assert row["entropy_nats_full_attention"] == pytest.approx((2.0 + 4.0) / 2)
    assert row["normalized_entropy_full_attention"] == pytest.approx((0.2 + 0.4) / 2)
    assert row["entropy_nats_sliding_attention"] == 1.5
    assert row["normalized_entropy_sliding_attention"] == 0.9


def test_only_a_query_with_one_key_may_lack_a_normalized_entropy() -> None:
    one_key = (0, "full_attention", 0, 14, 15, 1, 0.0, math.nan)
    other = (0, "full_attention", 0, 15, 16, 1, 2.0, 0.5)
    row = summarize({"attention": attention_table([one_key, other])}).iloc[0]
    assert row["entropy_nats_full_attention"] == 1.0
    assert row["normalized_entropy_full_attention"] == 0.5
    broken = (0, "full_attention", 1, 14, 16, 2, math.nan, math.nan)
    row = summarize({"attention": attention_table([one_key, other, broken])}).iloc[0]
    assert math.isnan(row["entropy_nats_full_attention"])
    assert math.isnan(row["normalized_entropy_full_attention"])


def test_passkey_counts_all_depths() -> None:
    correct = [True, True, False, True]
    table = pd.DataFrame({"depth": [0.0, 0.0, 1.0, 1.0], "correct": correct}).assign(**CELL)
    row = summarize({"passkey": table}).iloc[0]
    assert row["passkey_accuracy"] == 0.75
    assert (row["passkey_low"], row["passkey_high"]) == wilson_interval(3, 4)
    assert row["passkey_trials"] == 4


def test_seconds_are_shared_by_tokens_and_memory_is_the_largest() -> None:
    passes = passes_table(
        [
            ("p", "perplexity", "16,48", "done", 8.0, 100.0),
            ("p", "perplexity", "16,48", "done", 8.0, 100.0),  # the same pass again
            ("q", "passkey", "48", "done", 1.0, 300.0),
            ("r", "entropy", "48", "out_of_memory", 9.0, 900.0),
        ]
    )
    summary = summarize({"passes": passes}).set_index("context_length")
    assert summary.loc[16, "seconds"] == pytest.approx(8 * 16 / 64)
    assert summary.loc[48, "seconds"] == pytest.approx(8 * 48 / 64 + 1)
    assert list(summary["peak_memory_bytes"]) == [100.0, 300.0]


def test_failed_passes_leave_holes() -> None:
    hole = ("zoo:llama-10k", "ntk", 512)
    spec = Synthetic(lengths=(256, 512), documents=("a", "b"), holes=frozenset({hole}))
    summary = summarize(make_tables(spec)).set_index(["model", "method", "context_length"])
    assert len(summary) == 2 * 4 * 2
    values = summary.xs(hole)
    assert values.drop(["trained_length", "passkey_trials"]).isna().all()
    assert values["passkey_trials"] == 0
    others = summary.drop(index=hole).drop(columns=[c for c in summary if "sliding" in str(c)])
    assert not others.isna().any(axis=None)


def test_columns_and_order_are_those_promised() -> None:
    summary = summarize(make_tables(Synthetic(lengths=(256, 512), documents=("a", "b"))))
    assert list(summary) == [
        *("model", "method", "trained_length", "context_length"),
        *("perplexity", "perplexity_low", "perplexity_high", "tail_perplexity", "bits_per_byte"),
        *("entropy_nats_full_attention", "normalized_entropy_full_attention"),
        *("entropy_nats_sliding_attention", "normalized_entropy_sliding_attention"),
        *("passkey_accuracy", "passkey_low", "passkey_high", "passkey_trials"),
        *("seconds", "peak_memory_bytes"),
    ]
    assert list(dict.fromkeys(summary["method"])) == ["none", "linear", "ntk", "yarn"]


def test_nothing_measured_is_no_error() -> None:
    summary = summarize({"perplexity": perplexity_table().iloc[:0]})
    assert summary.empty
    assert "Nothing has been measured" in summary_markdown(summary)


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_markdown_marks_the_best_and_the_missing() -> None:
    summary = pd.DataFrame(
        {
            "model": "m",
            "method": ["none", "yarn", "ntk", "none", "yarn", "ntk"],
            "trained_length": 256,
            "context_length": [256, 256, 256, 512, 512, 512],
            "perplexity": [9.0, 9.0, 9.0, 123456.0, 10.25, math.nan],
            "perplexity_low": [8.0, 8.0, 8.0, math.nan, 9.5, math.nan],
            "perplexity_high": [10.0, 10.0, 10.0, math.nan, 11.0, math.nan],
            "tail_perplexity": [9.0, 8.0, 9.5, math.inf, 20.0, math.nan],
            "bits_per_byte": 1.0,
            "passkey_accuracy": [1.0, 1.0, 1.0, 0.0, 0.5, math.nan],
            "passkey_low": [0.7, 0.7, 0.7, 0.0, 0.2, math.nan],
            "passkey_high": [1.0, 1.0, 1.0, 0.3, 0.8, math.nan],
        }
    )
    text = summary_markdown(summary)
    assert "## m" in text
    header, _, *rows = markdown_rows(text)
    cells = {(row[0].strip("| "), row[1]): dict(zip(header, row, strict=True)) for row in rows}
    assert cells["256 (1x)", "none"]["perplexity"] == "9.00 [8.00, 10.0]"
    assert cells["256 (1x)", "yarn"]["tail"] == "**8.00**"
    assert cells["512 (2x)", "none"]["perplexity"] == "1.2e+05"
    assert cells["512 (2x)", "none"]["tail"] == "inf"
    assert cells["512 (2x)", "yarn"]["perplexity"] == "**10.2** [9.50, 11.0]"
    assert cells["512 (2x)", "yarn"]["passkey"] == "**0.50** [0.20, 0.80]"
    assert cells["512 (2x)", "ntk"]["perplexity"] == "–"


def test_markdown_lines_up_with_a_section_per_model() -> None:
    spec = Synthetic(methods=(("none", "none"), ("odd|name", "yarn")), lengths=(256, 512))
    text = summary_markdown(summarize(make_tables(spec)))
    sections = text.split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == list(spec.models)
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines}) == 1
    assert "odd\\|name" in text


def test_written_files(tmp_path: Path) -> None:
    summary = summarize({"perplexity": perplexity_table()})
    write_summary(tmp_path, summary)
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == summary_markdown(summary)
    assert (tmp_path / "summary.csv").read_text().startswith("model,method,trained_length")


def test_a_pass_is_shared_out_over_the_lengths_of_all_its_methods() -> None:
    passes = pd.DataFrame(
        {
            "pass_id": ["p", "p"],
            "model": "m",
            "method": ["none", "yarn"],
            "trained_length": 256,
            "probe": "perplexity",
            "context_lengths": ["256,768", "256"],
            "status": "done",
            "seconds": 8.0,
            "peak_memory_bytes": 1,
        }
    )
    seconds = summarize({"passes": passes}).set_index(["method", "context_length"])["seconds"]
    assert seconds.to_dict() == {("none", 256): 2.0, ("none", 768): 6.0, ("yarn", 256): 2.0}


def test_a_sweep_of_which_every_pass_failed_has_a_summary_of_holes() -> None:
    passes = pd.DataFrame(
        {
            "pass_id": ["p"],
            "model": "m",
            "method": "none",
            "trained_length": 256,
            "probe": "perplexity",
            "context_lengths": "256",
            "status": "failed",
            "seconds": float("nan"),
            "peak_memory_bytes": float("nan"),
        }
    )
    summary = summarize({"passes": passes})
    assert len(summary) == 1
    assert summary["seconds"].isna().all()
