"""Reading and writing: nothing is lost, nothing is half-written."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import DataError
from harness.summary import summarize, write_summary
from harness.tables import atomic_write, parse_lengths, read_tables, write_tables
from tests.synthetic import Synthetic, make_tables

SMALL = Synthetic(lengths=(256, 512), documents=("a", "b"), layers=2, heads=1, trials=2)


def write_results(directory: Path) -> dict[str, pd.DataFrame]:
    """A results folder as a sweep leaves it; the same content is returned."""
    tables = make_tables(SMALL)
    write_tables(directory, tables)
    summary = summarize(tables)
    write_summary(directory, summary)
    return tables | {"summary": summary}


def test_round_trip_by_parquet(tmp_path: Path) -> None:
    tables = write_results(tmp_path)
    found = read_tables(tmp_path)
    assert list(found) == ["perplexity", "attention", "passkey", "passes", "summary"]
    for name, table in tables.items():
        pd.testing.assert_frame_equal(found[name], table, check_exact=True)


def test_csv_alone_says_the_same(tmp_path: Path) -> None:
    tables = write_results(tmp_path)
    for path in (tmp_path / "tables").glob("*.parquet"):
        path.unlink()
    found = read_tables(str(tmp_path))
    for name, table in tables.items():
        pd.testing.assert_frame_equal(found[name], table, check_exact=True)


def test_the_tables_folder_will_do(tmp_path: Path) -> None:
    tables = write_results(tmp_path)
    assert set(read_tables(tmp_path / "tables")) == set(tables)


def test_everything_read_can_be_written_again(tmp_path: Path) -> None:
    write_results(tmp_path / "one")
    found = read_tables(tmp_path / "one")
    write_tables(tmp_path / "two", found)
    again = read_tables(tmp_path / "two")
    assert list(again) == list(found)
    assert not (tmp_path / "two" / "tables" / "summary.csv").exists()
    for name, table in found.items():
        pd.testing.assert_frame_equal(again[name], table, check_exact=True)


def test_digits_in_text_stay_text(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"answer": ["01234", "1e5"], "predicted": ["", "None"], "correct": [False, True]}
    )
    write_tables(tmp_path, {"passkey": table})
    (tmp_path / "tables" / "passkey.parquet").unlink()
    found = read_tables(tmp_path)["passkey"]
    assert list(found["answer"]) == ["01234", "1e5"]
    assert list(found["predicted"]) == ["", "None"]
    assert found["correct"].dtype == bool


def test_missing_text_is_empty_in_both_formats(tmp_path: Path) -> None:
    table = pd.DataFrame({"error": [None, np.nan], "layers_changed": [(0, 2), "all"]})
    write_tables(tmp_path, {"passes": table})
    parquet = read_tables(tmp_path)["passes"]
    (tmp_path / "tables" / "passes.parquet").unlink()
    pd.testing.assert_frame_equal(read_tables(tmp_path)["passes"], parquet)
    assert list(parquet["error"]) == ["", ""]
    assert list(parquet["layers_changed"]) == ["0,2", "all"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    numbers=st.lists(st.floats(), min_size=1, max_size=6),
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_csv_loses_neither_digit_nor_letter(
    tmp_path: Path, numbers: list[float], text: str
) -> None:
    table = pd.DataFrame({"predicted": [text] * len(numbers), "nll_nats": numbers})
    write_tables(tmp_path, {"passkey": table})
    (tmp_path / "tables" / "passkey.parquet").unlink()
    found = read_tables(tmp_path)["passkey"]
    pd.testing.assert_frame_equal(found, table.astype({"predicted": "str"}), check_exact=True)


def test_nan_and_infinity_are_written_out(tmp_path: Path) -> None:
    table = pd.DataFrame({"nll_nats": [math.nan, math.inf, -math.inf, 0.1]})
    write_tables(tmp_path, {"perplexity": table})
    assert (tmp_path / "tables" / "perplexity.csv").read_text() == "nll_nats\nnan\ninf\n-inf\n0.1\n"


def test_writing_does_not_touch_the_table(tmp_path: Path) -> None:
    table = pd.DataFrame({"nll_nats": [0.5], "document": [None]}, index=[7])
    before = table.copy()
    write_tables(tmp_path, {"perplexity": table})
    pd.testing.assert_frame_equal(table, before)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(stream: IO[bytes]) -> None:
        stream.write(b"new")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_no_folder_no_tables_and_broken_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no results folder"):
        read_tables(tmp_path / "none")
    with pytest.raises(DataError, match="no tables in"):
        read_tables(tmp_path)
    (tmp_path / "passkey.parquet").write_bytes(b"not parquet")
    with pytest.raises(DataError, match=r"passkey\.parquet"):
        read_tables(tmp_path)


def test_empty_csv_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "passes.csv").write_text("")
    with pytest.raises(DataError, match=r"passes\.csv"):
        read_tables(tmp_path)


@pytest.mark.parametrize(
    ("text", "lengths"), [("256,512", (256, 512)), ("256", (256,)), (256, (256,)), ("", ())]
)
def test_parse_lengths(text: object, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


def test_parse_lengths_refuses_words() -> None:
    with pytest.raises(DataError, match="256,512"):
        parse_lengths("long")
