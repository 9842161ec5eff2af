"""From stored passes and the plan's cells to the tables: the join of rows with methods."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import DataError
from harness.plan import Cell, Plan
from harness.rows import IDENTITY, PASSES, PROBE_COLUMNS, PROBE_TABLES
from harness.store import Store, write_atomic

_PLAN_FILE = "plan.json"


def save_cells(folder: Path, plan: Plan, seed: int) -> None:
    """Keep what the tables need of the plan, so that they can be remade without a model."""
    content = {"seed": seed, "cells": [asdict(cell) for cell in plan.cells]}
    write_atomic(folder / _PLAN_FILE, json.dumps(content, indent=1) + "\n")


def load_cells(folder: Path) -> tuple[list[Cell], int]:
    """Read back the cells and the seed.

    Raises:
        DataError: If the folder holds no run.
    """
    try:
        content = json.loads((folder / _PLAN_FILE).read_text(encoding="utf-8"))
        return [Cell(**cell) for cell in content["cells"]], int(content["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        if (folder / "tables").is_dir() and not (folder / _PLAN_FILE).exists():
            raise DataError(
                f"{folder} holds the tables of a run, but not the passes they were made from; "
                f"measure again with `ropewalk run {folder / 'sweep.yaml'}`"
            ) from None
        raise DataError(
            f"{folder} holds no results of a run (no readable {_PLAN_FILE}); give the folder that "
            "`ropewalk run` named"
        ) from None


def _identity(cell: Cell, seed: int) -> dict[str, Any]:
    values = asdict(cell) | {"seed": seed}
    return {name: values[name] for name in IDENTITY}


def _cell_rows(cell: Cell, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The rows of a pass that belong to one method at one length."""
    if "position_stop" in rows:
        rows = rows[rows["position_stop"] <= cell.context_length]
    identity = pd.DataFrame([_identity(cell, seed)] * len(rows), index=rows.index)
    return pd.concat([identity, rows], axis=1)


def _pass_rows(cells: Iterable[Cell], store: Store) -> list[dict[str, Any]]:
    """A row per method and pass: methods that share a pass each get theirs."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    lengths: dict[tuple[str, str, str], list[int]] = {}
    for cell in cells:
        key = (cell.model, cell.method, cell.pass_id)
        lengths.setdefault(key, []).append(cell.context_length)
        record = store.record(cell.pass_id) or {"status": "skipped", "error": "not measured yet"}
        facts = {name: value for name, value in asdict(cell).items() if name in PASSES}
        # The longest length wins: factor and time belong to the forward pass that was run.
        rows[key] = {**facts, **record}
    for key, row in rows.items():
        row["context_lengths"] = ",".join(str(n) for n in sorted(lengths[key]))
    return list(rows.values())


def assemble_tables(cells: list[Cell], seed: int, store: Store) -> dict[str, pd.DataFrame]:
    """Tidy tables of everything that has been measured.

    Returns:
        perplexity, attention, passkey (those of the probes that were asked for) and passes.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    loaded: dict[str, pd.DataFrame] = {}
    for cell in sorted(cells, key=lambda c: c.context_length):
        table = PROBE_TABLES[cell.probe]
        parts.setdefault(table, [])
        if store.is_done(cell.pass_id):
            if cell.pass_id not in loaded:
                loaded[cell.pass_id] = store.rows(cell.pass_id)
            parts[table].append(_cell_rows(cell, loaded[cell.pass_id], seed))
    tables = {}
    for table, frames in parts.items():
        columns = [*IDENTITY, *PROBE_COLUMNS[table]]
        tables[table] = (
            pd.concat(frames, ignore_index=True)[columns]
            if frames
            else pd.DataFrame(columns=columns)
        )
    by_length = sorted(cells, key=lambda c: c.context_length)
    passes = pd.DataFrame(_pass_rows(by_length, store))
    tables["passes"] = passes.reindex(columns=list(PASSES))
    return tables
