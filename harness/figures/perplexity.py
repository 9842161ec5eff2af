"""Perplexity against length: the whole window, and its last eighth beside it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.layout import (
    PanelSize,
    end_label,
    end_labels,
    label_room,
    length_axis,
    log_value_axis,
    panel_grid,
)
from harness.figures.lines import has_line
from harness.figures.style import MethodStyle, Styles
from harness.summary import summarize

_COLUMNS = (("perplexity", "whole window"), ("tail_perplexity", "last eighth"))


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw perplexity against context length, a row of panels per model.

    Args:
        tables: ``perplexity``, and ``summary`` if it has been computed.
        styles: Looks of the methods.

    Returns:
        ``{"perplexity": figure}``, or nothing without the table.
    """
    if "perplexity" not in tables or tables["perplexity"].empty:
        return {}
    summary = tables.get("summary")
    if summary is None or "perplexity" not in summary:
        summary = summarize(tables)
    models = list(dict.fromkeys(summary["model"]))
    pairs = summary.groupby(["model", "method"], sort=False)["perplexity"]
    labels = [end_label(str(key[1]), has_line=has_line(values)) for key, values in pairs]
    size = PanelSize(width=2.4, height=2.0, right=label_room(labels))
    figure, panels = panel_grid(2 * len(models), 2, size)
    for index, axes in enumerate(panels):
        model = models[index // 2]
        value, name = _COLUMNS[index % 2]
        _panel(axes, summary[summary["model"] == model], value, styles)
        axes.set_title(f"{model}, {name}", pad=14, loc="left", fontweight="bold", parse_math=False)
        axes.set_ylabel("perplexity")
        axes.set_xlabel("context length (tokens, trained lengths)")
    return {"perplexity": figure}


def _panel(axes: Axes, rows: pd.DataFrame, value: str, styles: Styles) -> None:
    """One model: a line per method."""
    lengths = sorted({int(length) for length in rows["context_length"]})
    trained_length = int(rows["trained_length"].iloc[0])
    ends: list[tuple[str, tuple[float, float] | None]] = []
    infinite: list[tuple[int, MethodStyle]] = []
    for method in dict.fromkeys(rows["method"]):
        line = rows[rows["method"] == method].set_index("context_length").reindex(lengths)
        infinite += [(n, styles[method]) for n in line.index[np.isposinf(line[value])]]
        ends.append((method, _line(axes, line, value, method, styles[method])))
    margin = 1.12
    limits = (min(*lengths, trained_length) / margin, max(*lengths, trained_length) * margin)
    log_value_axis(axes)
    length_axis(axes, lengths, trained_length, limits=limits)
    for length, style in infinite:  # no room on any axis: a hollow mark on the upper edge
        axes.plot(
            *([length], [1.0], style.marker),
            transform=axes.get_xaxis_transform(),
            mfc="white",
            mec=style.color,
            clip_on=False,
            label="_infinite",
        )
    for length in sorted({length for length, _ in infinite}):
        axes.annotate(
            *("infinite", (length, 1.0)),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=6,
        )
    end_labels(axes, ends, styles)


def _line(
    axes: Axes, line: pd.DataFrame, value: str, method: str, style: MethodStyle
) -> tuple[float, float] | None:
    """Draw one method, holes as gaps, and return the last point drawn."""
    lengths = line.index.to_numpy(dtype=float)
    values = line[value].to_numpy(dtype=float)
    finite = np.where(np.isfinite(values), values, np.nan)
    axes.plot(
        *(lengths, finite),
        color=style.color,
        marker=style.marker,
        markersize=style.marker_points,
        ls=style.dashes,
        label=method,
        zorder=3,
    )
    if value == "perplexity":
        bounds = line[["perplexity_low", "perplexity_high"]].to_numpy(dtype=float)
        axes.vlines(lengths, *bounds.T, color=style.color, lw=0.8, alpha=0.55, zorder=2)
    drawn = np.flatnonzero(np.isfinite(finite))
    return (float(lengths[drawn[-1]]), float(finite[drawn[-1]])) if drawn.size else None
