"""Everything that is made from stored passes: tables, summary, figures. Never loads a model."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.assemble import assemble_tables, load_cells
from harness.figures import make_figures
from harness.rows import PROBE_COLUMNS
from harness.store import Store
from harness.summary import summarize, write_summary
from harness.tables import write_tables


def write_outputs(folder: Path) -> dict[str, pd.DataFrame]:
    """Remake ``tables/``, ``summary.{csv,md}`` and ``figures/`` of a results folder.

    Returns:
        The tables, with `summary`.

    Raises:
        DataError: If the folder holds no run.
    """
    cells, seed = load_cells(folder)
    tables = assemble_tables(cells, seed, Store(folder))
    _remove_stale_tables(folder, set(tables))
    write_tables(folder, tables)
    tables["summary"] = summarize(tables, seed=seed)
    write_summary(folder, tables["summary"])
    written = {path.name for path in make_figures(tables, folder / "figures")}
    for path in (folder / "figures").glob("*.*"):
        if path.suffix in (".png", ".svg") and path.name not in written:
            path.unlink()  # of an earlier form of the sweep
    return tables


def _remove_stale_tables(folder: Path, present: set[str]) -> None:
    """A probe that is no longer in the sweep leaves no table behind."""
    for name in set(PROBE_COLUMNS) - present:
        for suffix in ("parquet", "csv"):
            (folder / "tables" / f"{name}.{suffix}").unlink(missing_ok=True)
