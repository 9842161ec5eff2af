"""Attention statistics by layer, head and position bin: means over documents and queries."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.attention_data import LayerStatistics
from harness.rows import ATTENTION, STATISTICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(eq=False)
class _Moments:
    """Count, mean and sum of squared deviations of one statistic, each ``(heads, bins)``."""

    count: Floats
    mean: Floats
    squares: Floats

    def merge(self, index: int, block: Floats, absent: npt.NDArray[np.bool_]) -> None:
        """Chan's parallel update of mean and spread; the one-pass sum of squares cancels."""
        count = (~absent).sum(-1).astype(np.float64)
        present = np.where(absent, 0.0, block)
        mean = present.sum(-1) / np.maximum(count, 1)
        squares = (np.where(absent, 0.0, block - mean[..., None]) ** 2).sum(-1)
        old_count, old_mean = self.count[:, index], self.mean[:, index]
        total = np.maximum(old_count + count, 1)
        delta = mean - old_mean
        self.squares[:, index] += squares + delta**2 * old_count * count / total
        self.mean[:, index] = old_mean + delta * count / total
        self.count[:, index] = old_count + count


@dataclass(eq=False)
class _Layer:
    layer_type: str
    queries: Ints
    moments: dict[str, _Moments]


class AttentionAccumulator:
    """Sums per-query statistics into bins; what it keeps grows with neither length nor documents.

    A consumer of `harness.engine.measure`: layers and chunks of documents come in any order.
    """

    def __init__(self, edges: Ints, context_length: int) -> None:
        self._edges = edges[edges <= context_length]
        self._layers: dict[int, _Layer] = {}

    def __call__(self, found: LayerStatistics) -> None:
        """Take in one layer of one chunk.

        Args:
            found: Its values may be NaN where a query has none (normalised entropy with a single
                visible key).
        """
        heads = len(found.values["entropy_nats"])
        bins = len(self._edges) - 1
        if found.layer not in self._layers:
            self._layers[found.layer] = _Layer(
                found.layer_type,
                np.zeros(bins, dtype=np.int64),
                {n: _Moments(*(np.zeros((heads, bins)) for _ in range(3))) for n in STATISTICS},
            )
        layer = self._layers[found.layer]
        cuts = np.searchsorted(found.positions, self._edges)
        for index, (low, high) in enumerate(pairwise(cuts)):
            if high == low:
                continue
            layer.queries[index] += high - low
            for name in STATISTICS:
                block = found.values[name][:, low:high]
                absent = np.zeros(block.shape, bool)
                if name == "normalized_entropy":
                    # The first query sees one key: it has an entropy and no normalised one. Any
                    # other NaN is a measurement that went wrong, and stays one.
                    absent = np.isnan(block) & ~np.isnan(found.values["entropy_nats"][:, low:high])
                layer.moments[name].merge(index, block, absent)

    def rows(self) -> pd.DataFrame:
        """A row per layer, head and bin that has queries; columns as in ``rows.ATTENTION``."""
        parts = [self._layer_rows(index, self._layers[index]) for index in sorted(self._layers)]
        return pd.concat(parts, ignore_index=True)[list(ATTENTION)]

    def _layer_rows(self, number: int, layer: _Layer) -> pd.DataFrame:
        used = np.flatnonzero(layer.queries)
        heads = len(layer.moments["entropy_nats"].count)
        head, index = (a.ravel() for a in np.meshgrid(np.arange(heads), used, indexing="ij"))
        columns: dict[str, Any] = {
            "layer": np.full(len(head), number, dtype=np.int64),
            "layer_type": np.full(len(head), layer.layer_type, dtype=object),
            "head": head,
            "position_start": self._edges[:-1][index],
            "position_stop": self._edges[1:][index],
            "queries": layer.queries[index],
        }
        for name in STATISTICS:
            of = layer.moments[name]
            count, mean, squares = (x[head, index] for x in (of.count, of.mean, of.squares))
            with np.errstate(invalid="ignore", divide="ignore"):
                columns[name] = np.where(count > 0, mean, np.nan)
                columns[f"{name}_std"] = np.where(count > 0, np.sqrt(squares / count), np.nan)
        return pd.DataFrame(columns)
