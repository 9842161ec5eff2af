"""Loss by position in the window, at the longest length of each model."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.layout import format_length
from harness.figures.lines import LinePanel, draw_line_panels, methods_of
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
    panels = [
        _panel(model, rows, methods_of(rows, styles))
        for model, rows in tables["perplexity"].groupby("model", sort=False)
    ]
    figure, _ = draw_line_panels(
        panels,
        styles,
        xlabel="position (tokens, trained lengths)",
        ylabel="loss (nats per token)",
    )
    return {"nll_position": figure}


def _panel(model: object, rows: pd.DataFrame, methods: list[str]) -> LinePanel:
    """One model: a line per method through the bins' means."""
    longest = int(rows["context_length"].max())
    rows = rows[rows["context_length"] == longest]
    lines = {}
    for method in methods:
        bins = rows[rows["method"] == method].groupby(["position_start", "position_stop"])
        # Not pandas' own sum, which takes a NaN for nothing.
        nats = bins["nll_nats"].agg(lambda values: values.to_numpy(dtype=float).sum())
        lines[method] = nats / bins["tokens"].sum()
    title = f"{model}, windows of {format_length(longest)} tokens"
    return LinePanel(title=title, rows=rows, lines=lines)
