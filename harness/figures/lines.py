"""Lines over position bins, shared by the figures of loss and of entropy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.figures.style import MethodStyle, Styles


def methods_of(rows: pd.DataFrame, styles: Styles) -> list[str]:
    """The methods with a row at any length, in the order of the run."""
    present = set(rows["method"])
    return [method for method in styles if method in present]


def position_line(
    axes: Axes, values: pd.Series[float], style: MethodStyle
) -> tuple[float, float] | None:
    """Draw values of position bins at the bins' middles, holes as gaps.

    Args:
        axes: Where to.
        values: Indexed by ``(position_start, position_stop)`` in tokens; NaN and
            infinity are holes.
        style: Looks of the method.

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
        ls=style.dashes,
        markevery=max(1, round(len(middles) / 10)),
        gid="method",
        zorder=3,
    )
    drawn = np.flatnonzero(np.isfinite(heights))
    return (float(middles[drawn[-1]]), float(heights[drawn[-1]])) if drawn.size else None


def bin_middles(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Mean position of the tokens in each bin, at least 1 for a logarithmic axis."""
    return np.maximum(1.0, (starts + stops - 1) / 2)


def position_limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Ends of the position axis in tokens: from within the first bin to the last edge."""
    starts, stops = rows["position_start"], rows["position_stop"]
    first = bin_middles(starts.to_numpy(dtype=float), stops.to_numpy(dtype=float)).min()
    return max(0.5, float(first) / 1.15), float(stops.max()) * 1.05


def position_ticks(rows: pd.DataFrame) -> list[int]:
    """Every second doubling of the trained length that falls on the axis, both ways."""
    low, high = position_limits(rows)
    trained_length = int(rows["trained_length"].iloc[0])
    octaves = range(-20, 21) if high / low < 64 else range(-20, 21, 2)
    ticks = [trained_length * 2.0**octave for octave in octaves]
    return [round(tick) for tick in ticks if low <= tick <= high and tick >= 1]
