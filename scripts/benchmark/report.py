"""The table as text, and the figure of growth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.run import Row
from harness.figures.layout import format_length
from harness.figures.style import drawing, save

_MIB = 1 << 20
_LINES = {"plain": ("#000000", "-", "o"), "sampled": ("#0072b2", "--", "s")}
_LINES["all"] = ("#d55e00", "-.", "^")


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value / _MIB:,.0f} MiB" if unit == "bytes" else f"{value:.3g} s"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 0.1 else f"{value:.2f}"


def _line(row: Row) -> list[str]:
    if row.error:
        return [row.what, "", "", "", row.error, "", "", "", ""]
    tokens = f"{row.context_length_tokens:,}" if row.context_length_tokens else ""
    bound = "" if row.bound is None else f"{row.bound:g} {'holds' if row.holds else 'MISSED'}"
    peer = row.peer_way
    if row.peer is not None:
        peer += f": {_amount(row.peer, row.unit)}"
        if row.peer_context_length_tokens not in (None, row.context_length_tokens):
            peer += f" at {row.peer_context_length_tokens:,}"
        if row.peer_ratio not in (None, 1.0):
            peer += f" ({_ratio(row.peer_ratio)} x plain)"
    dtype = "" if row.dtype == "float32" else f", {row.dtype}"
    return [
        row.what,
        row.model + dtype,
        tokens,
        _amount(row.ours, row.unit),
        _amount(row.plain, row.unit),
        _ratio(row.ratio),
        bound,
        peer,
        row.note,
    ]


def markdown(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The rows as a table, with what they were measured on."""
    head = ["what", "model", "tokens", "ours", "plain", "ratio", "bound", "the usual way", "note"]
    lines = [" | ".join(cells) for cells in (head, ["---"] * len(head), *map(_line, rows))]
    named = f"{about['processor']}, {about['threads']} threads, torch {about['torch']}"
    if "device" in about:
        named = f"{about['device']}, torch {about['torch']}"
    return "\n".join(f"| {line} |" for line in lines) + f"\n\nMeasured on: {named}.\n"


def write_growth_figure(records: pd.DataFrame, folder: Path) -> None:
    """Time and memory a token against length, a row of panels a model."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(records["model"]))
    with drawing():
        figure = Figure(figsize=(7, 2.6 * len(models)), layout="constrained")
        axes = figure.subplots(len(models), 2, squeeze=False)
        for (time_axes, memory_axes), model in zip(axes, models, strict=True):
            own = records[records["model"] == model]
            for what, part in own.groupby("what", sort=False):
                color, dash, marker = _LINES[str(what)]
                tokens = part["context_length_tokens"]
                label = "loss only" if what == "plain" else f"and entropy, {what} queries"
                style = {"color": color, "linestyle": dash, "marker": marker, "label": label}
                time_axes.plot(tokens, 1e6 * part["seconds"] / tokens, **style)
                memory_axes.plot(tokens, part["peak_above_model_bytes"] / tokens / 1024, **style)
            time_axes.set_ylabel("microseconds a token")
            memory_axes.set_ylabel("peak KiB a token,\nabove the model")
            time_axes.set_title(f"{model}, {own['dtype'].iloc[0]}", loc="left")
            time_axes.legend(loc="lower right")
            for some in (time_axes, memory_axes):
                some.set_xscale("log", base=2)
                some.set_ylim(bottom=0)
                some.set_xticks(sorted(set(own["context_length_tokens"])))
                some.xaxis.set_major_formatter(lambda x, _: format_length(x))
                some.minorticks_off()
                some.set_xlabel("context length in tokens")
        save(figure, folder, "growth")
