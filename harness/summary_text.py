"""The summary as Markdown, for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

import pandas as pd

_MISSING = "–"
_NOTE = (
    "Perplexity and passkey accuracy with 95% intervals (bootstrap over documents; Wilson). "
    "*tail*: perplexity of the last eighth of the window. *entropy*: mean over the queries of "
    "the last eighth, the layers of a type and their heads, in nats; after the slash divided by "
    "the logarithm of the number of visible keys. Bold: the best method at that length.\n"
)


def summary_markdown(summary: pd.DataFrame) -> str:
    """Write the summary as aligned Markdown tables, a section per model.

    Rows are grouped by length, so that methods are compared at a glance. Of two
    or more methods at a length the best is bold: the lowest perplexity and tail
    perplexity, the highest passkey accuracy. A cell that was not measured, or
    whose losses were NaN, is a dash.

    Args:
        summary: What ``summarize`` returned.

    Returns:
        The text, ending in a newline.
    """
    if summary.empty:
        return "# Summary\n\nNothing has been measured yet.\n"
    sections = [_section(model, rows) for model, rows in summary.groupby("model", sort=False)]
    return "\n".join(["# Summary\n", *sections, _NOTE])


def _section(model: Hashable, rows: pd.DataFrame) -> str:
    """Heading, trained length and table of one model."""
    rows = rows.dropna(axis="columns", how="all").sort_values("context_length", kind="stable")
    lengths = [int(length) for length in rows["context_length"]]
    trained = [int(length) for length in rows["trained_length"]]
    columns: dict[str, list[str]] = {
        "length": [f"{n} ({n / of:.3g}x)" for n, of in zip(lengths, trained, strict=True)],
        "method": [str(method).replace("|", "\\|") for method in rows["method"]],
    }
    if "perplexity" in rows:
        columns["perplexity"] = _column(rows, "perplexity", _short, best=min, interval=True)
        columns["tail"] = _column(rows, "tail_perplexity", _short, best=min)
        columns["bits/byte"] = _column(rows, "bits_per_byte", "{:.3f}".format)
    for name in [str(name) for name in rows if str(name).startswith("entropy_nats_")]:
        kind = name.removeprefix("entropy_nats_")
        title = "entropy, " + kind.removesuffix("_attention")
        normalized = _column(rows, f"normalized_entropy_{kind}", "{:.2f}".format)
        pairs = zip(_column(rows, name, "{:.2f}".format), normalized, strict=True)
        columns[title] = [
            _MISSING if nats == _MISSING else f"{nats} / {share}" for nats, share in pairs
        ]
    if "passkey_accuracy" in rows:
        decimals = "{:.2f}".format
        columns["passkey"] = _column(rows, "passkey_accuracy", decimals, best=max, interval=True)
    columns["seconds"] = _column(rows, "seconds", "{:.1f}".format)
    columns["memory"] = _column(rows, "peak_memory_bytes", _memory)
    named = ", ".join(str(length) for length in dict.fromkeys(trained))
    return f"## {model}\n\nTrained length: {named} tokens.\n\n{_table(columns)}"


def _column(
    rows: pd.DataFrame,
    name: str,
    written: Callable[[float], str],
    *,
    best: Callable[[Sequence[float]], float] | None = None,
    interval: bool = False,
) -> list[str]:
    """The cells of one column, the best at each length in bold.

    Args:
        rows: The summary of one model.
        name: Column of the summary; without it every cell is a dash.
        written: How a number is written.
        best: ``min`` or ``max`` of the numbers that compete at a length.
        interval: Whether to append the interval of the same name.
    """
    if name not in rows:
        return [_MISSING] * len(rows)
    values = [float(value) for value in rows[name]]
    at_length: dict[int, list[float]] = {}
    for length, value in zip(rows["context_length"], values, strict=True):
        if not math.isnan(value):
            at_length.setdefault(int(length), []).append(value)
    bounds = _intervals(rows, name.removesuffix("_accuracy"), written) if interval else None
    cells = []
    for index, (length, value) in enumerate(zip(rows["context_length"], values, strict=True)):
        if math.isnan(value):
            cells.append(_MISSING)
            continue
        rivals = at_length[int(length)]
        # Bold says that others did worse: where all are equal nobody won.
        wins = best is not None and value == best(rivals) and len(set(rivals)) > 1
        text = f"**{written(value)}**" if wins else written(value)
        cells.append(text + (bounds[index] if bounds else ""))
    return cells


def _intervals(rows: pd.DataFrame, name: str, written: Callable[[float], str]) -> list[str]:
    """`` [low, high]`` for each row, nothing where there is no interval."""
    if f"{name}_low" not in rows:
        return [""] * len(rows)
    bounds = zip(rows[f"{name}_low"], rows[f"{name}_high"], strict=True)
    return [
        "" if math.isnan(low) else f" [{written(low)}, {written(high)}]" for low, high in bounds
    ]


def _short(value: float) -> str:
    """Three or four digits, whatever the size: 7.43, 31.2, 415, 1.2e+05."""
    if math.isinf(value):
        return "inf"
    if value >= 10_000:
        return f"{value:.1e}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _memory(num_bytes: float) -> str:
    """Bytes in MiB or GiB."""
    mebibytes = num_bytes / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def _table(columns: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table with padded cells; the method to the left, numbers to the right."""
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    rule = [
        "-" * width if name == "method" else "-" * (width - 1) + ":"
        for name, width in widths.items()
    ]
    lines = [list(columns), rule, *(list(row) for row in zip(*columns.values(), strict=True))]
    text = ""
    for line in lines:
        cells = [
            cell.ljust(widths[name]) if name == "method" else cell.rjust(widths[name])
            for name, cell in zip(columns, line, strict=True)
        ]
        text += f"| {' | '.join(cells)} |\n"
    return text
