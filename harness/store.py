"""Results on disk: one folder a pass, whole or not there at all.

A pass is written under a temporary name, fsynced, renamed, and marked last. What is not marked
does not exist: a run that was killed leaves nothing that counts.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pandas as pd

from harness.tables import atomic_write

_MARKER = "complete"
_ROWS = "rows.parquet"
_RECORD = "pass.json"
_TEMPORARY = ".partial-"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    atomic_write(path, lambda stream: stream.write(text.encode()))


class Store:
    """The passes of one results folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "passes"

    def _pass_folder(self, pass_id: str) -> Path:
        return self.folder / pass_id

    def record(self, pass_id: str) -> dict[str, Any] | None:
        """What was noted of a pass (status, seconds, ...), or None if it was never finished."""
        folder = self._pass_folder(pass_id)
        if not (folder / _MARKER).is_file():
            return None
        try:
            record: dict[str, Any] = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # damaged after the fact: measured again
            return None
        return record

    def is_done(self, pass_id: str) -> bool:
        """Whether a pass was measured; one that failed is not, and is tried again."""
        record = self.record(pass_id)
        has_rows = (self._pass_folder(pass_id) / _ROWS).is_file()
        return record is not None and record.get("status") == "done" and has_rows

    def rows(self, pass_id: str) -> pd.DataFrame:
        """The rows of a finished pass."""
        return pd.read_parquet(self._pass_folder(pass_id) / _ROWS)

    def commit(self, pass_id: str, record: dict[str, Any], rows: pd.DataFrame | None) -> None:
        """Keep a pass, in place of any earlier try.

        Args:
            pass_id: Of the plan.
            record: JSON values: status, seconds, peak memory, error, ...
            rows: The probe's rows; None for a pass that failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
        partial.mkdir()
        try:
            (partial / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            if rows is not None:
                rows.to_parquet(partial / _ROWS, index=False)
            for path in (*partial.iterdir(), partial):
                _fsync(path)
            target = self._pass_folder(pass_id)
            if target.exists():
                # The marker goes first, so that a half-removed folder does not count.
                (target / _MARKER).unlink(missing_ok=True)
                shutil.rmtree(target)
            partial.rename(target)
            (target / _MARKER).touch()
            _fsync(target / _MARKER)
            _fsync(target)
        finally:
            if partial.exists():
                shutil.rmtree(partial)

    def clean(self) -> None:
        """Remove what a killed run left half-written."""
        for leftover in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)
