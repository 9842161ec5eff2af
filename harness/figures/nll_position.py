"""Loss by position in the window, at the longest length of each model."""

from __future__ import annotations

from collections.abc import Mapping

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
from harness.figures.lines import methods_of, position_limits, position_line, position_ticks
from harness.figures.style import Styles


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw the mean loss of the tokens of each position bin, a panel per model.

    Args:
        tables: ``perplexity``.
        styles: Looks of the methods.

    Returns:
        ``{"nll_position": figure}``, or nothing without the table.
    """
    if "perplexity" not in tables or tables["perplexity"].empty:
        return {}
    table = tables["perplexity"]
    models = list(dict.fromkeys(table["model"]))
    names = [f"{name}: no data" for name in styles]
    size = PanelSize(width=2.5, height=2.3, right=label_room(names))
    figure, panels = panel_grid(1, len(models), size)
    for axes, model in zip(panels[0], models, strict=True):
        rows = table[table["model"] == model]
        longest = int(rows["context_length"].max())
        _panel(axes, rows[rows["context_length"] == longest], methods_of(rows, styles), styles)
        axes.set_title(
            f"{model}, windows of {format_length(longest)} tokens",
            pad=14,
            loc="left",
            fontweight="bold",
        )
        axes.set_ylabel("loss (nats per token)")
        axes.set_xlabel("position (tokens; multiples of the trained length)")
    return {"nll_position": figure}


def _panel(axes: Axes, rows: pd.DataFrame, methods: list[str], styles: Styles) -> None:
    """One model: a line per method through the bins' means."""
    ends = []
    for method in methods:
        bins = rows[rows["method"] == method].groupby(["position_start", "position_stop"])
        loss = bins["nll_nats"].agg(lambda nats: nats.to_numpy(dtype=float).sum())
        ends.append((method, position_line(axes, loss / bins["tokens"].sum(), styles[method])))
    limits = position_limits(rows)
    trained_length = int(rows["trained_length"].iloc[0])
    length_axis(axes, position_ticks(rows), trained_length, limits=limits)
    axes.margins(y=0.05)
    end_labels(axes, ends, styles)
