"""The tidy tables of a sweep: their columns, and reading and writing them.

Parquet is the truth and CSV stands beside it with the same content. Every number
survives both: floats are written to CSV with the digits that give the same float
back, NaN and infinity as ``nan`` and ``inf``. Text columns hold text only: a
missing text is the empty one.
"""

from __future__ import annotations

import csv
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import pandas as pd

from harness.errors import DataError

TABLE_NAMES = ("perplexity", "attention", "passkey", "passes", "summary")

# Read as text whatever they look like: the answer "01234" is no number.
TEXT_COLUMNS = frozenset(
    {
        *("model", "method", "kind", "layers", "layers_changed", "pass_id", "document"),
        *("protocol", "layer_type", "answer", "predicted", "probe", "context_lengths"),
        *("status", "device", "dtype", "attention_backend", "error", "data_hash"),
        *("python_version", "model_fingerprint"),
    }
)


def read_tables(directory: Path | str) -> dict[str, pd.DataFrame]:
    """Read the tables of a sweep.

    Args:
        directory: The results folder of a sweep, or its ``tables`` folder.

    Returns:
        The tables that exist, by name: ``perplexity``, ``attention``,
        ``passkey``, ``passes`` and ``summary``.

    Raises:
        DataError: If there is no such folder, no table in it, or a table that
            cannot be read.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise DataError(f"no results folder at {directory}")
    folders = [directory / "tables", directory]
    if directory.name == "tables":
        folders.append(directory.parent)
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLE_NAMES:
        candidates = [folder / f"{name}{end}" for folder in folders for end in (".parquet", ".csv")]
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            tables[name] = _read(path)
    if not tables:
        raise DataError(f"no tables in {directory}: looked for {', '.join(TABLE_NAMES)}")
    return tables


def write_tables(directory: Path | str, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write each table as ``tables/NAME.parquet`` and ``tables/NAME.csv``.

    Each file appears whole or not at all: it is written under a temporary name
    beside its place and renamed.

    Args:
        directory: The results folder of a sweep; made if there is none.
        tables: The tables by name. A ``summary`` is for people: it goes to
            ``summary.csv`` in the results folder itself.
    """
    directory = Path(directory)
    folder = directory / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if name == "summary":
            write_csv(directory / "summary.csv", table)
            continue
        frame = _normalized(table)
        atomic_write(
            folder / f"{name}.parquet",
            lambda stream, frame=frame: frame.to_parquet(stream, index=False),  # type: ignore[misc]
        )
        write_csv(folder / f"{name}.csv", frame)


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write one table as CSV, atomically and without losing a digit.

    Args:
        path: The file.
        table: What to write; the index is left out.
    """
    frame = _normalized(table)
    for column in frame.columns:
        if pd.api.types.is_float_dtype(frame[column]):
            frame[column] = [repr(float(value)) for value in frame[column]]
    text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    atomic_write(path, lambda stream: stream.write(text.encode()))


def atomic_write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call ``write`` on a temporary file and rename that to ``path``.

    Args:
        path: Where the file appears, whole, or stays as it was.
        write: Gets the binary stream open for writing.

    Raises:
        OSError: If the folder cannot be written to. What ``write`` raises
            passes through; in both cases nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def parse_lengths(context_lengths: object) -> tuple[int, ...]:
    """Read the ``context_lengths`` of a pass.

    Args:
        context_lengths: The text ``"256,512"``; a lone number is taken as well.

    Returns:
        The lengths in tokens.

    Raises:
        DataError: If the text holds something else.
    """
    try:
        return tuple(int(part) for part in str(context_lengths).split(",") if part.strip())
    except ValueError:
        message = f"context_lengths should look like 256,512 and not {context_lengths!r}"
        raise DataError(message) from None


def _read(path: Path) -> pd.DataFrame:
    """Read one file; CSV to the types that parquet would have given."""
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        columns = list(pd.read_csv(path, nrows=0).columns)
        return pd.read_csv(
            path,
            dtype={name: "str" for name in columns if name in TEXT_COLUMNS},
            keep_default_na=False,
            na_values={name: ["", "nan"] for name in columns if name not in TEXT_COLUMNS},
            float_precision="round_trip",
            lineterminator="\n",
        )
    except (OSError, ValueError) as error:  # ValueError covers pyarrow's and pandas' own
        raise DataError(f"cannot read the table {path}: {error}") from error


def _normalized(table: pd.DataFrame) -> pd.DataFrame:
    """A copy whose text columns hold text only and whose index is plain."""
    frame = table.reset_index(drop=True).copy()
    for column in frame.columns:
        values = frame[column]
        is_text = values.dtype == object or pd.api.types.is_string_dtype(values.dtype)
        if column in TEXT_COLUMNS or is_text:
            frame[column] = pd.Series([_as_text(value) for value in values], dtype="str")
    return frame


def _as_text(value: object) -> str:
    """A cell as text: lists joined by commas, a missing value the empty text."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return "" if value is None or value is pd.NA or value != value else str(value)
