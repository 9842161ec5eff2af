"""How the entropy of each head changes past the trained length: layer x head maps."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from harness.figures.heatmaps import Look, color_bar, draw_map, map_grid, write_numbers
from harness.figures.layout import PanelSize, format_length
from harness.figures.lines import methods_of
from harness.figures.style import Styles, file_names
from harness.summary import last_eighth, query_weighted

_COLORS = "RdBu_r"
_MAX_NUMBERED = 8


def draw(tables: Mapping[str, pd.DataFrame], styles: Styles) -> dict[str, Figure]:
    """Draw, per model, a map of entropy changes for each method.

    The change is from the last eighth of the window at the trained length, with
    plain RoPE, to the last eighth at the longest length with the method. All
    methods of a model share one colour scale, centred at no change.

    Args:
        tables: ``attention``.
        styles: Looks of the methods; here only their order.

    Returns:
        A figure per model, by file name.
    """
    if "attention" not in tables or tables["attention"].empty:
        return {}
    table = tables["attention"]
    names = file_names("entropy_map", list(dict.fromkeys(table["model"])))
    tail = table[last_eighth(table)]
    figures = {}
    for model, name in names.items():
        rows = tail[tail["model"] == model]
        figures[name] = _model(model, rows, methods_of(table[table["model"] == model], styles))
    return figures


def reference_cell(rows: pd.DataFrame) -> tuple[str, int]:
    """The method and length that changes are counted from.

    Args:
        rows: Attention rows of one model.

    Returns:
        Plain RoPE (else the model's native one, else the first method) at the
        trained length, else at the shortest length it has.
    """
    kinds = list(rows["kind"])
    kind = next((kind for kind in ("none", "native") if kind in kinds), None)
    plain = rows[rows["kind"] == kind] if kind else rows[rows["method"] == rows["method"].iloc[0]]
    lengths = set(plain["context_length"])
    trained_length = int(plain["trained_length"].iloc[0])
    return (
        str(plain["method"].iloc[0]),
        trained_length if trained_length in lengths else int(min(lengths)),
    )


def entropy_changes(rows: pd.DataFrame, methods: list[str]) -> dict[str, npt.NDArray[np.float64]]:
    """Entropy at the longest length less that of the reference cell, in nats.

    Args:
        rows: Attention rows of one model, of the last eighth of their windows.
        methods: Which methods.

    Returns:
        By method an array of shape ``[layers, heads]``; NaN where one of the two
        was not measured.
    """
    keys = ["method", "context_length", "layer", "head"]
    means = query_weighted(rows, keys, "entropy_nats").unstack("head").sort_index(axis="columns")
    layers = sorted(set(rows["layer"]))
    longest = int(rows["context_length"].max())

    def matrix(method: str, length: int) -> npt.NDArray[np.float64]:
        index = pd.MultiIndex.from_product([[method], [length], layers], names=keys[:3])
        return means.reindex(index).to_numpy(dtype=float)

    reference = matrix(*reference_cell(rows))
    return {method: matrix(method, longest) - reference for method in methods}


def _model(model: str, rows: pd.DataFrame, methods: list[str]) -> Figure:
    """The figure of one model."""
    changes = entropy_changes(rows, methods)
    layers, heads = next(iter(changes.values())).shape
    finite = [abs(change[np.isfinite(change)]).max(initial=0.0) for change in changes.values()]
    limit = max(*finite, 0.01)
    look = Look(colors=mpl.colormaps[_COLORS], scale=Normalize(-limit, limit))
    cell = 0.3 if max(layers, heads) <= _MAX_NUMBERED else 0.1
    size = PanelSize(
        width=max(1.2, cell * heads),
        height=max(0.9, 0.8 * cell * layers),
        left=0.62 if rows["layer_type"].nunique() > 1 else 0.45,
        right=0.08,
        top=0.25,
        bottom=0.38,
    )
    longest = format_length(int(rows["context_length"].max()))
    method, length = reference_cell(rows)
    heading = f"{model}: entropy at {longest} less that of {method} at {format_length(length)}"
    figure, panels = map_grid(methods, size, heading=heading, columns=4 if size.width < 2 else 3)
    for axes, change in zip(panels, changes.values(), strict=True):
        draw_map(axes, change, look)
        if max(layers, heads) <= _MAX_NUMBERED:
            texts = [[_signed(value) for value in line] for line in change]
            write_numbers(axes, texts, change, look)
        _ticks(axes, rows, layers, heads)
    holes = any(np.isnan(change).any() for change in changes.values())
    color_bar(figure, look, label="change of attention entropy (nats)", has_holes=holes)
    return figure


def _ticks(axes: Axes, rows: pd.DataFrame, layers: int, heads: int) -> None:
    """Name the layers, with their type where there are several, and the heads."""
    types = rows.drop_duplicates("layer").sort_values("layer")
    several = types["layer_type"].nunique() > 1
    names = [
        f"{layer} {layer_type.replace('_attention', '')}" if several else str(layer)
        for layer, layer_type in zip(types["layer"], types["layer_type"], strict=True)
    ]
    step, head_step = max(1, -(-layers // 16)), max(1, -(-heads // 8))
    axes.set_yticks(np.arange(0, layers, step) + 0.5, names[::step], fontsize=6.5)
    names_of_heads = [str(head) for head in range(0, heads, head_step)]
    axes.set_xticks(np.arange(0, heads, head_step) + 0.5, names_of_heads, fontsize=6.5)
    axes.set_xlabel("head", fontsize=7, labelpad=1)
    axes.set_ylabel("layer", fontsize=7, labelpad=2)


def _signed(value: float) -> str:
    """One decimal with its sign; no sign where that is nought."""
    rounded = round(value, 1)
    return f"{rounded:+.1f}".replace("-", "\N{MINUS SIGN}") if rounded else "0"
