"""Attention statistics by layer, head and position bin: means over documents and queries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.rows import ATTENTION, STATISTICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class AttentionAccumulator:
    """Sums per-query statistics into bins; what it keeps does not grow with the documents."""

    def __init__(self, edges: Ints, context_length: int) -> None:
        self._edges = edges[edges <= context_length]
        self._layers: tuple[int, ...] = ()
        self._layer_types: tuple[str, ...] = ()
        # Per statistic: count, mean and sum of squared deviations, each [layers, heads, bins].
        self._count: dict[str, Floats] = {}
        self._mean: dict[str, Floats] = {}
        self._squares: dict[str, Floats] = {}
        self._queries = np.zeros(len(self._edges) - 1, dtype=np.int64)

    def add(
        self,
        positions: Ints,
        layers: tuple[int, ...],
        layer_types: tuple[str, ...],
        values: dict[str, Floats],
    ) -> None:
        """Take in one document.

        Args:
            positions: Of the queries, ascending, shape ``(queries,)``.
            layers: Index in the model of each attention layer.
            layer_types: One a layer.
            values: Statistic to array ``(layers, heads, queries)``; NaN where a query has none
                (normalised entropy with a single visible key).
        """
        self._layers = layers
        self._layer_types = layer_types
        cuts = np.searchsorted(positions, self._edges)
        for index, (low, high) in enumerate(pairwise(cuts)):
            if high == low:
                continue
            self._queries[index] += high - low
            for name in STATISTICS:
                block = values[name][:, :, low:high]
                absent = np.zeros(block.shape, bool)
                if name == "normalized_entropy":
                    # The first query sees one key: it has an entropy and no normalised one. Any
                    # other NaN is a measurement that went wrong, and stays one.
                    absent = np.isnan(block) & ~np.isnan(values["entropy_nats"][:, :, low:high])
                self._merge(name, index, block, absent)

    def _merge(self, name: str, index: int, block: Floats, absent: npt.NDArray[np.bool_]) -> None:
        """Chan's parallel update of mean and spread; the one-pass sum of squares cancels."""
        if name not in self._mean:
            shape = (*block.shape[:2], len(self._queries))
            for store in (self._count, self._mean, self._squares):
                store[name] = np.zeros(shape)
        count = (~absent).sum(-1).astype(np.float64)
        present = np.where(absent, 0.0, block)
        mean = present.sum(-1) / np.maximum(count, 1)
        squares = (np.where(absent, 0.0, block - mean[..., None]) ** 2).sum(-1)
        old_count, old_mean = self._count[name][..., index], self._mean[name][..., index]
        total = np.maximum(old_count + count, 1)
        delta = mean - old_mean
        self._squares[name][..., index] += squares + delta**2 * old_count * count / total
        self._mean[name][..., index] = old_mean + delta * count / total
        self._count[name][..., index] = old_count + count

    def rows(self) -> pd.DataFrame:
        """A row per layer, head and bin that has queries; columns as in ``rows.ATTENTION``."""
        layers, heads, _ = self._mean["entropy_nats"].shape
        used = np.flatnonzero(self._queries)
        layer, head, index = (
            a.ravel() for a in np.meshgrid(np.arange(layers), np.arange(heads), used, indexing="ij")
        )
        columns: dict[str, Any] = {
            "layer": np.array(self._layers, dtype=np.int64)[layer],
            "layer_type": np.array(self._layer_types, dtype=object)[layer],
            "head": head,
            "position_start": self._edges[:-1][index],
            "position_stop": self._edges[1:][index],
            "queries": self._queries[index],
        }
        for name in STATISTICS:
            count = self._count[name][layer, head, index]
            mean = self._mean[name][layer, head, index]
            squares = self._squares[name][layer, head, index]
            with np.errstate(invalid="ignore", divide="ignore"):
                columns[name] = np.where(count > 0, mean, np.nan)
                columns[f"{name}_std"] = np.where(count > 0, np.sqrt(squares / count), np.nan)
        return pd.DataFrame(columns)[list(ATTENTION)]
