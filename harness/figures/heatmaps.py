"""A figure of one map per method with one colour scale, for the entropy and passkey figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from harness.figures.layout import PanelSize, panel_grid

_HEADER_INCHES = 0.3
_BAR_INCHES = 0.62


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
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    figure, grid = panel_grid(rows, columns, size, header=_HEADER_INCHES, footer=_BAR_INCHES)
    flat = [axes for line in grid for axes in line]
    for axes in flat[len(titles) :]:
        axes.remove()
    for axes, title in zip(flat, titles, strict=False):
        axes.set_title(title, loc="left", fontsize=7.5, pad=4, parse_math=False)
    height = figure.get_figheight()
    left = 0.12 / figure.get_figwidth()
    figure.text(left, 1 - 0.1 / height, heading, va="top", fontsize=8, fontweight="bold")
    return figure, flat[: len(titles)]


def draw_map(axes: Axes, values: np.ndarray, *, colors: Colormap, scale: Normalize) -> None:
    """Draw a matrix, its first row at the top; NaN is a hatched grey cell.

    Args:
        axes: Where to.
        values: Shape ``[rows, columns]``.
        colors: Colour map.
        scale: From values to the colour map.
    """
    shown = np.ma.masked_invalid(values)
    axes.pcolormesh(shown, cmap=colors, norm=scale, edgecolors="white", linewidth=0.4)
    for row, column in np.argwhere(~np.isfinite(values)):
        axes.add_patch(
            Rectangle((column, row), 1, 1, fc="0.88", ec="0.55", hatch="////", lw=0, gid="hole")
        )
    axes.set_xlim(0, values.shape[1])
    axes.set_ylim(values.shape[0], 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2, pad=1.5)


def write_numbers(
    axes: Axes,
    texts: Sequence[Sequence[str]],
    values: np.ndarray,
    *,
    colors: Colormap,
    scale: Normalize,
    points: float,
) -> None:
    """Write a text into each cell, black or white, whichever is read better.

    Args:
        axes: A panel with a map.
        texts: Shape ``[rows, columns]``.
        values: What the cells show, the same shape.
        colors: Colour map.
        scale: From values to the colour map.
        points: Size of the letters.
    """
    for row, column in np.argwhere(np.isfinite(values)):
        red, green, blue, _ = colors(scale(values[row, column]))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            *(column + 0.5, row + 0.5, texts[row][column]),
            ha="center",
            va="center_baseline",
            fontsize=points,
            color="white" if dark else "black",
        )


def color_bar(figure: Figure, *, colors: Colormap, scale: Normalize, label: str) -> None:
    """A horizontal colour bar at the foot of the figure, with a key for holes.

    Args:
        figure: Made by ``map_grid``.
        colors: Colour map.
        scale: From values to the colour map.
        label: Quantity and unit.
    """
    width, height = figure.get_figwidth(), figure.get_figheight()
    length = min(2.4, width - 0.5)
    box = (0.25 / width, 0.42 / height, length / width, 0.09 / height)
    bar = figure.colorbar(
        ScalarMappable(norm=scale, cmap=colors),
        cax=figure.add_axes(box, label="colorbar"),
        orientation="horizontal",
    )
    bar.set_label(label, fontsize=7, labelpad=1)
    bar.ax.tick_params(labelsize=6.5, length=2, pad=1)
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
