"""Attention entropy against position, per method and layer type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.layout import (
    PanelSize,
    end_labels,
    format_length,
    label_room,
    length_axis,
    panel_grid,
)
from harness.figures.lines import (
    methods_of,
    position_limits,
    position_line,
    position_ticks,
)
from harness.figures.style import Styles
from harness.summary import query_weighted


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw the mean entropy of layers and heads at each model's longest length.

    A panel per model (row) and layer type (column). The dotted line is the
    logarithm of the number of keys that a query sees, the most entropy there
    can be: it stops rising where a sliding window caps it.

    Args:
        tables: ``attention``.
        styles: Looks of the methods.

    Returns:
        ``{"entropy_position": figure}``, or nothing without the table.
    """
    if "attention" not in tables or tables["attention"].empty:
        return {}
    table = tables["attention"]
    models = list(dict.fromkeys(table["model"]))
    types = {m: sorted(set(table.loc[table["model"] == m, "layer_type"])) for m in models}
    columns = max(len(names) for names in types.values())
    names = [f"{name}: no data" for name in styles]
    size = PanelSize(width=2.5, height=2.3, top=0.45, right=label_room(names))
    figure, panels = panel_grid(len(models), columns, size)
    for line, model in zip(panels, models, strict=True):
        rows = table[table["model"] == model]
        methods = methods_of(rows, styles)
        longest = int(rows["context_length"].max())
        rows = rows[rows["context_length"] == longest]
        for axes, layer_type in zip(line, types[model], strict=False):
            _panel(axes, rows[rows["layer_type"] == layer_type], methods, styles)
            where = layer_type.replace("_attention", "").replace("_", " ") + " attention"
            axes.set_title(
                f"{model}, {where}, {format_length(longest)} tokens",
                pad=14,
                loc="left",
                fontweight="bold",
            )
        for axes in line[len(types[model]) :]:
            axes.remove()
    return {"entropy_position": figure}


def _panel(axes: Axes, rows: pd.DataFrame, methods: list[str], styles: Styles) -> None:
    """One model and layer type: a line per method and the bound."""
    ends = []
    for method in methods:
        keys = ["position_start", "position_stop", "layer", "head"]
        heads = query_weighted(rows[rows["method"] == method], keys, "entropy_nats")
        bins = heads.groupby(["position_start", "position_stop"])
        # A head without a number makes a hole: the mean of the others is not the mean.
        means = bins.mean().mask(bins.count() < bins.size())
        ends.append((method, position_line(axes, means, styles[method])))
    positions, bound = visible_nats(rows)
    axes.plot(positions, bound, color="0.25", lw=0.9, ls=(0, (1, 1.5)), gid="bound", zorder=2)
    axes.text(
        *(positions[len(positions) // 2], bound[len(bound) // 2], "ln(visible keys) "),
        ha="right",
        va="bottom",
        fontsize=6.5,
        color="0.25",
    )
    trained_length = int(rows["trained_length"].iloc[0])
    length_axis(axes, position_ticks(rows), trained_length, limits=position_limits(rows))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position of the query (tokens; multiples of the trained length)")
    axes.set_ylabel("attention entropy (nats)")
    end_labels(axes, ends, styles)


def visible_nats(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Logarithm of the number of visible keys, by position.

    Query i sees i + 1 keys, or as many as the window has. The window is read off
    the last bin: there entropy divided by normalised entropy is its logarithm.

    Args:
        rows: Rows of the attention table, one model, layer type and length.

    Returns:
        Positions in tokens and the logarithms in nats, both of shape ``[points]``.
    """
    low, high = position_limits(rows)
    positions = np.geomspace(max(1.0, low), high, 100)
    bound = np.log(positions + 1)
    last = rows[rows["position_start"] == rows["position_start"].max()]
    ratios = (last["entropy_nats"] / last["normalized_entropy"]).to_numpy(dtype=float)
    ratios = ratios[np.isfinite(ratios)]
    if ratios.size:
        cap = float(np.median(ratios))
        # Without a window the ratio lies between the logarithms at the bin's two ends.
        if cap < np.log(float(last["position_start"].iloc[0]) + 1) - 1e-3:
            bound = np.minimum(bound, cap)
    return positions, bound
