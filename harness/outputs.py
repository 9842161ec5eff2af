"""Everything that is made from stored passes: tables, summary, figures. Never loads a model."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.assemble import assemble_tables, load_cells
from harness.figures import make_figures
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
    write_tables(folder, tables)
    tables["summary"] = summarize(tables, seed=seed)
    write_summary(folder, tables["summary"])
    make_figures(tables, folder / "figures")
    return tables
