"""Lines over position bins, shared by the figures of loss and of entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.figures.layout import (
    PanelSize,
    end_label,
    end_labels,
    label_room,
    length_axis,
    panel_grid,
)
from harness.figures.style import MethodStyle, Styles

Floats = npt.NDArray[np.float64]


def has_line(values: pd.Series[float]) -> bool:
    """Whether a line over these values has a point."""
    return bool(np.isfinite(values.to_numpy(dtype=float)).any())


def methods_of(rows: pd.DataFrame, styles: Styles) -> list[str]:
    """The methods with a row at any length, in the order of the run."""
    present = set(rows["method"])
    return [method for method in styles if method in present]


def position_line(
    axes: Axes, values: pd.Series[float], style: MethodStyle, *, label: str
) -> tuple[float, float] | None:
    """Draw values of position bins at the bins' middles, holes as gaps.

    Args:
        axes: Where to.
        values: Indexed by ``(position_start, position_stop)`` in tokens; NaN and
            infinity are holes.
        style: Looks of the method.
        label: Name of the method.

    Returns:
        The last point drawn, or None.
    """
    values = values.sort_index()
    starts = values.index.get_level_values(0).to_numpy(dtype=float)
    stops = values.index.get_level_values(1).to_numpy(dtype=float)
    middles = bin_middles(starts, stops)
    heights = values.to_numpy(dtype=float)
    heights = np.where(np.isfinite(heights), heights, np.nan)
    axes.plot(
        *(middles, heights),
        color=style.color,
        marker=style.marker,
        markersize=style.marker_points,
        ls=style.dashes,
        markevery=max(1, round(len(middles) / 10)),
        label=label,
        zorder=3,
    )
    drawn = np.flatnonzero(np.isfinite(heights))
    return (float(middles[drawn[-1]]), float(heights[drawn[-1]])) if drawn.size else None


def bin_middles(starts: Floats, stops: Floats) -> Floats:
    """Mean position of the tokens in each bin, at least 1 for a logarithmic axis."""
    middles: Floats = (starts + stops - 1) / 2
    return np.maximum(1.0, middles)


def position_limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Ends of the position axis in tokens: from within the first bin to the last edge."""
    starts, stops = rows["position_start"], rows["position_stop"]
    first = bin_middles(starts.to_numpy(dtype=float), stops.to_numpy(dtype=float)).min()
    return max(0.5, float(first) / 1.15), float(stops.max()) * 1.05


def position_ticks(rows: pd.DataFrame) -> list[int]:
    """Doublings of the trained length that fall on the axis, both ways, as many as have room."""
    low, high = position_limits(rows)
    trained_length = int(rows["trained_length"].iloc[0])
    step = 1 if high / low < 2**6 else 2 if high / low < 2**12 else 4
    octaves = range(-20, 21, step)
    ticks = [trained_length * 2.0**octave for octave in octaves]
    return [round(tick) for tick in ticks if low <= tick <= high and tick >= 1]


@dataclass(frozen=True, kw_only=True)
class LinePanel:
    """One panel of lines over position.

    Attributes:
        title: Above the panel.
        rows: The rows of the table that it shows: positions and trained length.
        lines: By method, values indexed by ``(position_start, position_stop)``.
    """

    title: str
    rows: pd.DataFrame
    lines: Mapping[str, pd.Series[float]]


def draw_line_panels(
    panels: Sequence[LinePanel],
    styles: Styles,
    *,
    xlabel: str,
    ylabel: str,
    before_labels: Callable[[Axes, pd.DataFrame], None] | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure of panels, two in a row, with a line per method over position.

    Args:
        panels: What to draw.
        styles: Looks of the methods.
        xlabel: Name of the position axis.
        ylabel: Name and unit of the values.
        before_labels: Draws more into a panel, given its rows, and may change
            the limits of y.

    Returns:
        The figure and its axes in the order of ``panels``.
    """
    labels = [
        end_label(method, has_line=has_line(values))
        for panel in panels
        for method, values in panel.lines.items()
    ]
    size = PanelSize(width=2.4, height=2.2, top=0.42, right=label_room(labels))
    figure, grid = panel_grid(len(panels), 2, size)
    for axes, panel in zip(grid, panels, strict=True):
        ends = [
            (method, position_line(axes, values, styles[method], label=method))
            for method, values in panel.lines.items()
        ]
        trained_length = int(panel.rows["trained_length"].iloc[0])
        limits = position_limits(panel.rows)
        length_axis(axes, position_ticks(panel.rows), trained_length, limits=limits)
        if before_labels is not None:
            before_labels(axes, panel.rows)
        axes.set_title(panel.title, pad=14, loc="left", fontweight="bold", parse_math=False)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        end_labels(axes, ends, styles)
    return figure, grid
