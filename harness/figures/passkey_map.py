"""Passkey accuracy by depth and length, a map per method side by side."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from harness.figures.heatmaps import Look, color_bar, draw_map, map_grid, write_numbers
from harness.figures.layout import PanelSize, format_length
from harness.figures.lines import methods_of
from harness.figures.style import Styles, file_names

_COLORS = "cividis"


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw, per model, the share of passkeys found at each depth and length.

    Args:
        tables: ``passkey``.
        styles: Looks of the methods; here only their order.

    Returns:
        A figure per model, by file name.
    """
    if "passkey" not in tables or tables["passkey"].empty:
        return {}
    table = tables["passkey"]
    names = file_names("passkey_map", list(dict.fromkeys(table["model"])))
    return {
        name: _model(model, table[table["model"] == model], styles) for model, name in names.items()
    }


def accuracies(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Share of correct trials of a method.

    Args:
        rows: Passkey rows of one model: their lengths and depths make the grid.
        method: Which method.

    Returns:
        A row per depth and a column per length, ascending; NaN where nothing
        was measured.
    """
    chosen = rows[rows["method"] == method].assign(correct=lambda r: r["correct"].astype(float))
    means = chosen.groupby(["depth", "context_length"])["correct"].mean().unstack()
    return means.reindex(
        index=sorted(set(rows["depth"])), columns=sorted(set(rows["context_length"]))
    )


def _model(model: str, rows: pd.DataFrame, styles: Styles) -> Figure:
    """The figure of one model."""
    methods = methods_of(rows, styles)
    grids = {method: accuracies(rows, method) for method in methods}
    depths, lengths = next(iter(grids.values())).shape
    look = Look(colors=mpl.colormaps[_COLORS], scale=Normalize(0, 1))
    size = PanelSize(
        width=max(1.2, 0.28 * lengths),
        height=max(0.7, 0.2 * depths),
        left=0.5,
        right=0.08,
        top=0.25,
        bottom=0.42,
    )
    trained = format_length(int(rows["trained_length"].iloc[0]))
    heading = f"{model}: passkeys found (trained length {trained})"
    figure, panels = map_grid(methods, size, heading=heading, columns=4 if size.width < 2 else 3)
    for axes, grid in zip(panels, grids.values(), strict=True):
        values = grid.to_numpy(dtype=float)
        draw_map(axes, values, look)
        texts = [[_short(value) for value in line] for line in values]
        write_numbers(axes, texts, values, look)
        names = [format_length(int(str(length))) for length in grid.columns]
        axes.set_xticks(np.arange(lengths) + 0.5, names, fontsize=6.5)
        axes.set_yticks(np.arange(depths) + 0.5, [f"{d:.0%}" for d in grid.index], fontsize=6.5)
        axes.set_xlabel("context length (tokens)", fontsize=7, labelpad=1)
        axes.set_ylabel("depth", fontsize=7, labelpad=2)
    holes = any(grid.isna().any(axis=None) for grid in grids.values())
    color_bar(figure, look, label="share of trials answered correctly", has_holes=holes)
    return figure


def _short(value: float) -> str:
    """Two decimals without the noughts that say nothing: 1, .75, .5, 0."""
    return f"{value:.2f}".rstrip("0").rstrip(".").replace("0.", ".") or "0"
