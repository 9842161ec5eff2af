"""A figure of one map per method with one colour scale, for the entropy and passkey figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.figures.layout import PanelSize, panel_grid, text_inches

_TITLE_POINTS = 7.5
_HEADER_INCHES = 0.2
_BAR_INCHES = 0.6
_HOLE: dict[str, Any] = {"fc": "0.88", "ec": "0.55", "hatch": "////", "lw": 0}


@dataclass(frozen=True, kw_only=True)
class Look:
    """A colour map and the scale from values to it."""

    colors: Colormap
    scale: Normalize


def map_grid(
    titles: Sequence[str], size: PanelSize, *, heading: str, columns: int = 4
) -> tuple[Figure, list[Axes]]:
    """Panels for the maps, with a heading above and room for a colour bar below.

    Args:
        titles: One for each map.
        size: Size of a panel in inches.
        heading: Written above all of them.
        columns: Panels in a row at most.

    Returns:
        The figure and one axes per title.
    """
    count = len(titles)
    widest = max(text_inches(title, _TITLE_POINTS) for title in titles)
    size = replace(size, right=max(size.right, widest - size.width - size.left + 0.5))
    figure, panels = panel_grid(count, columns, size, header=_HEADER_INCHES, footer=_BAR_INCHES)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=_TITLE_POINTS, pad=4, parse_math=False)
    height = figure.get_figheight()
    left = 0.12 / figure.get_figwidth()
    figure.text(left, 1 - 0.1 / height, heading, va="top", fontsize=8, fontweight="bold")
    return figure, panels


def draw_map(axes: Axes, values: npt.NDArray[np.float64], look: Look) -> None:
    """Draw a matrix, its first row at the top; NaN is a hatched grey cell.

    Args:
        axes: Where to.
        values: Shape ``[rows, columns]``.
        look: Colours and scale of the map.
    """
    shown = np.ma.masked_invalid(values)
    axes.pcolormesh(shown, cmap=look.colors, norm=look.scale, edgecolors="white", linewidth=0.4)
    for row, column in np.argwhere(~np.isfinite(values)):
        axes.add_patch(Rectangle((column, row), 1, 1, label="_hole", **_HOLE))
    axes.set_xlim(0, values.shape[1])
    axes.set_ylim(values.shape[0], 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2, pad=1.5)


def write_numbers(
    axes: Axes, texts: Sequence[Sequence[str]], values: npt.NDArray[np.float64], look: Look
) -> None:
    """Write a text into each cell, black or white, whichever is read better.

    Args:
        axes: A panel with a map.
        texts: Shape ``[rows, columns]``.
        values: What the cells show, the same shape.
        look: Colours and scale of the map.
    """
    for row, column in np.argwhere(np.isfinite(values)):
        red, green, blue, _ = look.colors(look.scale(values[row, column]))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            *(column + 0.5, row + 0.5, texts[row][column]),
            ha="center",
            va="center_baseline",
            fontsize=6,
            color="white" if dark else "black",
        )


def color_bar(figure: Figure, look: Look, *, label: str, has_holes: bool) -> None:
    """A horizontal colour bar at the foot of the figure, with a key for holes.

    Args:
        figure: Made by ``map_grid``.
        look: Colours and scale of the map.
        label: Quantity and unit.
        has_holes: Whether to explain the hatched cells.
    """
    width, height = figure.get_figwidth(), figure.get_figheight()
    length = min(2.4, width - 0.5)
    box = (0.25 / width, 0.42 / height, length / width, 0.09 / height)
    bar = figure.colorbar(
        ScalarMappable(norm=look.scale, cmap=look.colors),
        cax=figure.add_axes(box, label="colorbar"),
        orientation="horizontal",
    )
    bar.set_label(label, fontsize=7, labelpad=1)
    bar.ax.tick_params(labelsize=6.5, length=2, pad=1)
    bar.outline.set_linewidth(0.4)
    if has_holes:
        # Beside the bar; below it where the figure is a single narrow map.
        x = length + 0.55 if width > length + 1.6 else 0.25
        y = 0.4 if width > length + 1.6 else 0.02
        key = Rectangle((x / width, y / height), 0.2 / width, 0.13 / height, **_HOLE)
        key.set_transform(figure.transFigure)
        figure.add_artist(key)
        figure.text((x + 0.26) / width, (y + 0.02) / height, "not measured", fontsize=7)
