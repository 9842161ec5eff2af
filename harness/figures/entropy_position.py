"""Attention entropy against position, per method and layer type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.layout import format_length
from harness.figures.lines import (
    Floats,
    LinePanel,
    draw_line_panels,
    methods_of,
    position_limits,
)
from harness.figures.style import Styles
from harness.summary import query_weighted


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw the mean entropy of layers and heads at each model's longest length.

    A panel per model and layer type. The dotted line is the logarithm of the
    number of keys that a query sees, the most entropy there can be: it stops
    rising where a sliding window caps it.

    Args:
        tables: ``attention``.
        styles: Looks of the methods.

    Returns:
        ``{"entropy_position": figure}``, or nothing without the table.
    """
    if "attention" not in tables or tables["attention"].empty:
        return {}
    panels = []
    for model, rows in tables["attention"].groupby("model", sort=False):
        methods = methods_of(rows, styles)
        longest = rows[rows["context_length"] == rows["context_length"].max()]
        for layer_type, of_type in longest.groupby("layer_type"):
            panels.append(_panel(f"{model}, {_spoken(str(layer_type))}", of_type, methods))
    figure, _ = draw_line_panels(
        panels,
        styles,
        xlabel="position of the query (tokens, trained lengths)",
        ylabel="attention entropy (nats)",
        before_labels=_bound,
    )
    return {"entropy_position": figure}


def visible_nats(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """Logarithm of the number of visible keys, by position.

    Query i sees i + 1 keys, or as many as the window has. The window is read off
    the last bin: there entropy divided by normalised entropy is its logarithm.

    Args:
        rows: Rows of the attention table, one model, layer type and length.

    Returns:
        Positions in tokens and the logarithms in nats, both of shape ``[points]``.
    """
    low, high = position_limits(rows)
    positions: Floats = np.geomspace(max(1.0, low), high, 100)
    bound: Floats = np.log(positions + 1)
    last = rows[rows["position_start"] == rows["position_start"].max()]
    ratios = (last["entropy_nats"] / last["normalized_entropy"]).to_numpy(dtype=float)
    ratios = ratios[np.isfinite(ratios)]
    if ratios.size:
        cap = float(np.median(ratios))
        # Without a window the ratio lies between the logarithms at the bin's two ends.
        if cap < np.log(float(last["position_start"].iloc[0]) + 1) - 1e-3:
            bound = np.minimum(bound, cap)
    return positions, bound


def _panel(title: str, rows: pd.DataFrame, methods: list[str]) -> LinePanel:
    """One model and layer type: a line per method, the mean over layers and heads."""
    lines = {}
    for method in methods:
        keys = ["position_start", "position_stop", "layer", "head"]
        heads = query_weighted(rows[rows["method"] == method], keys, "entropy_nats")
        bins = heads.groupby(["position_start", "position_stop"])
        # A head without a number makes a hole: the mean of the others is not the mean.
        lines[method] = bins.mean().mask(bins.count() < bins.size())
    longest = format_length(int(rows["context_length"].max()))
    return LinePanel(title=f"{title}, {longest} tokens", rows=rows, lines=lines)


def _bound(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw and name the most entropy there can be."""
    positions, bound = visible_nats(rows)
    axes.plot(positions, bound, color="0.25", lw=0.9, ls=(0, (1, 1.5)), label="_bound", zorder=2)
    axes.set_ylim(0, 1.12 * max(axes.get_ylim()[1] / 1.05, float(bound[-1])))
    axes.text(
        *(positions[-1], bound[-1], "ln(visible keys)"),
        ha="right",
        va="bottom",
        fontsize=6.5,
        color="0.25",
    )


def _spoken(layer_type: str) -> str:
    """``sliding_attention`` as it stands in a title."""
    return layer_type.replace("_attention", "").replace("_", " ") + " attention"
