"""Panels of exact size in inches, length axes, and labels at the ends of lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullLocator

from harness.figures.style import Styles

LABEL_POINTS = 7.0
_LABEL_GAP_INCHES = 0.125
_LABEL_INDENT_INCHES = 0.3


@dataclass(frozen=True, kw_only=True)
class PanelSize:
    """Sizes in inches: the axes, and the room around each of them."""

    width: float
    height: float
    left: float = 0.55
    right: float = 0.15
    top: float = 0.35
    bottom: float = 0.58


def panel_grid(
    count: int, columns: int, size: PanelSize, *, header: float = 0.0, footer: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure with equal panels, row by row.

    Args:
        count: Number of panels.
        columns: Panels in a row at most.
        size: Size of the axes and the room around them.
        header: Room above all panels, in inches.
        footer: Room below all panels, in inches.

    Returns:
        The figure, bound to no window and no global state, and its axes.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    cell_width = size.left + size.width + size.right
    cell_height = size.top + size.height + size.bottom
    width, height = columns * cell_width, rows * cell_height + header + footer
    figure = Figure(figsize=(width, height))
    axes = []
    for index in range(count):
        row, column = divmod(index, columns)
        left = column * cell_width + size.left
        bottom = footer + (rows - 1 - row) * cell_height + size.bottom
        box = (left / width, bottom / height, size.width / width, size.height / height)
        axes.append(figure.add_axes(box, label=f"panel {index}"))
    return figure, axes


def axes_inches(axes: Axes) -> tuple[float, float]:
    """Width and height of a panel in inches."""
    box, figure = axes.get_position(), axes.figure
    assert isinstance(figure, Figure), "panels are not put into sub-figures"
    return box.width * figure.get_figwidth(), box.height * figure.get_figheight()


def text_inches(text: str, points: float = LABEL_POINTS) -> float:
    """Width of a line of text in inches."""
    return float(TextPath((0, 0), text.replace("$", "S"), size=points).get_extents().width) / 72


def end_label(method: str, *, has_line: bool) -> str:
    """What stands beside a panel for a method: its name, and whether its line is missing."""
    return method if has_line else f"{method}: no data"


def label_room(labels: Iterable[str]) -> float:
    """Room to the right of a panel that ``end_labels`` needs, in inches."""
    return _LABEL_INDENT_INCHES + max(map(text_inches, labels), default=0.0) + 0.1


def format_multiple(tokens: float, trained_length: int) -> str:
    """A length in trained lengths: 16x, 1.5x, 1/4x."""
    ratio = tokens / trained_length
    if ratio < 1 and (trained_length / tokens).is_integer():
        return f"1/{trained_length // round(tokens)}x"
    return f"{ratio:.3g}x"


def format_length(tokens: float) -> str:
    """A length in tokens as on an axis: 256, 512, 1k (1024), 1.5k, 128k, 1M."""
    whole = round(tokens)
    if whole >= 2**20 and whole % 2**18 == 0:
        return f"{whole / 2**20:g}M"
    if whole >= 1024 and whole % 256 == 0:
        return f"{whole / 1024:g}k"
    return str(whole)


def length_axis(
    axes: Axes, ticks: Sequence[int], trained_length: int, *, limits: tuple[float, float]
) -> None:
    """Make x a logarithmic axis of lengths, in tokens and in trained lengths.

    The trained length is marked by a line with its name above the panel. Ticks
    too close to their neighbour lose their label.

    Args:
        axes: Where to.
        ticks: Lengths in tokens.
        trained_length: In tokens.
        limits: Ends of the axis, in tokens.
    """
    axes.set_xscale("log", base=2)
    axes.set_xlim(limits)
    per_octave = axes_inches(axes)[0] / np.log2(limits[1] / limits[0])
    labels: list[str] = []
    last = np.inf
    for tick in sorted(set(ticks), reverse=True):
        room = (last - np.log2(tick)) * per_octave
        text = f"{format_length(tick)}\n{format_multiple(tick, trained_length)}"
        labels.append("" if room < 0.3 else text)
        last = last if room < 0.3 else np.log2(tick)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(ticks))))
    axes.xaxis.set_major_formatter(FixedFormatter(labels[::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    if limits[0] <= trained_length <= limits[1]:
        axes.axvline(trained_length, color="0.45", lw=0.8, ls=(0, (4, 2)), zorder=0.5)
        axes.text(
            *(trained_length, 1.01, "trained length"),
            transform=axes.get_xaxis_transform(),
            ha="center" if trained_length > limits[0] * 1.2 else "left",
            va="bottom",
            fontsize=6.5,
            color="0.35",
        )


def log_value_axis(axes: Axes) -> None:
    """Make y logarithmic with plain numbers, more of them where the range is small."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(range(1, 10))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=30))
    axes.yaxis.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=30))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))


def _plain(value: float) -> str:
    """10, 5000, but a power of ten from 100,000 on."""
    if value < 1e5:
        return f"{value:g}"
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = value / 10**exponent
    return (f"{factor:.0f}·" if factor > 1.5 else "") + f"$10^{{{exponent}}}$"


def spread(
    positions: Sequence[float], *, gap: float, low: float, high: float
) -> npt.NDArray[np.float64]:
    """Move positions apart as little as possible (least squares).

    Args:
        positions: Where labels would like to be, in any order.
        gap: Distance that two must have at least; less where they cannot all fit.
        low: Lower end of the room.
        high: Upper end.

    Returns:
        New positions in the given order, whose ranks are unchanged, shape
        ``[positions]``.
    """
    wanted = np.asarray(positions, dtype=np.float64)
    count = wanted.size
    if count == 0:
        return wanted
    gap = min(gap, (high - low) / max(1, count - 1))
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(count)
    # Without the steps the sought positions need only not decrease: pool the violators.
    blocks: list[tuple[float, int]] = []
    for value in wanted[order] - steps:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, length = blocks.pop()
            mean = (before * length + mean * size) / (length + size)
            size += length
        blocks.append((mean, size))
    pooled = np.concatenate([np.full(size, mean) for mean, size in blocks])
    result = np.empty(count)
    result[order] = np.clip(pooled, low, max(low, high - steps[-1])) + steps
    return result


def end_labels(
    axes: Axes, ends: Sequence[tuple[str, tuple[float, float] | None]], styles: Styles
) -> None:
    """Name each line at its right end, beside the panel, without overlap.

    Call it when the limits of the axes are final. A method without data is named
    at the bottom, so that nobody looks for its line.

    Args:
        axes: The panel.
        ends: Method and the last point of its line in data coordinates, or None.
        styles: Looks of the methods.
    """
    width, height = axes_inches(axes)
    to_axes = axes.transData + axes.transAxes.inverted()
    points = [None if end is None else to_axes.transform(end) for _, end in ends]
    wanted = [-0.05 if point is None else float(np.clip(point[1], 0, 1)) for point in points]
    gap = _LABEL_GAP_INCHES / height
    overflow = max(0.0, gap * (len(ends) - 1) - 1) / 2
    places = spread(wanted, gap=gap, low=-min(overflow, 0.1), high=1 + min(overflow, 0.1))
    for (method, _), point, place in zip(ends, points, places, strict=True):
        style = styles[method]
        mark = 1 + 0.2 / width
        xs, ys = [mark], [place]
        if point is not None:
            xs, ys = [float(point[0]), mark], [float(np.clip(point[1], 0, 1)), place]
        axes.plot(
            *(xs, ys),
            transform=axes.transAxes,
            clip_on=False,
            color=style.color,
            lw=0.4,
            ls="-" if xs[0] > 0.9 else ":",
            markersize=style.marker_points,
            marker=style.marker,
            markevery=[-1],
            label="_leader",
        )
        axes.text(
            *(1 + _LABEL_INDENT_INCHES / width, place),
            end_label(method, has_line=point is not None),
            transform=axes.transAxes,
            ha="left",
            va="center",
            fontsize=LABEL_POINTS,
            parse_math=False,
        )
