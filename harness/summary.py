"""The summary of a sweep: a row per model, method and context length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from harness.bins import TAIL_EIGHTHS
from harness.errors import DataError
from harness.statistics import bootstrap_perplexity, perplexity, wilson_interval
from harness.summary_text import summary_markdown
from harness.tables import atomic_write, parse_lengths, write_csv

__all__ = ["last_eighth", "query_weighted", "summarize", "summary_markdown", "write_summary"]

_CELL = ["model", "method", "context_length"]
_PERPLEXITY = (
    "perplexity",
    "perplexity_low",
    "perplexity_high",
    "tail_perplexity",
    "bits_per_byte",
)
_PASSKEY = ("passkey_accuracy", "passkey_low", "passkey_high", "passkey_trials")
_COST = ("seconds", "peak_memory_bytes")
_ENTROPY = ("entropy_nats", "normalized_entropy")


def summarize(tables: Mapping[str, pd.DataFrame], *, seed: int = 0) -> pd.DataFrame:
    """One row per model, method and context length, from all the tables.

    - ``perplexity`` is ``exp(sum of nats / sum of tokens)`` over all documents,
      with a bootstrap interval over documents; ``tail_perplexity`` is the same
      over the last eighth of the window, ``bits_per_byte`` is in bits.
    - ``entropy_nats_TYPE`` and ``normalized_entropy_TYPE``: the mean over the
      queries of the last eighth, then over the layers of that type and heads.
    - ``passkey_accuracy`` with its Wilson interval.
    - ``seconds``: what the finished passes took that serve this row, summed
      over the probes. A pass that served several lengths is shared out by
      their tokens: length n gets n / (sum of the lengths) of it, whichever
      methods they belong to. A share that two methods use counts for each.
      ``peak_memory_bytes`` is the largest of those passes.

    A cell that was not measured (a failed pass) is NaN, and so is one whose
    losses are: nothing is averaged away.

    Args:
        tables: Any of ``perplexity``, ``attention``, ``passkey``, ``passes``.
        seed: Seed of the bootstrap.

    Returns:
        The summary, models and methods in the order in which they are met,
        lengths ascending.

    Raises:
        DataError: If a cell mixes two protocols or two trained lengths.
    """
    present = {name: table for name, table in tables.items() if not table.empty}
    rows = _cells(present)
    parts = []
    if "perplexity" in present:
        parts.append(_perplexities(present["perplexity"], seed))
    if "attention" in present:
        parts.append(_entropies(present["attention"]))
    if "passkey" in present:
        parts.append(_passkeys(present["passkey"]))
    if "passes" in present:
        parts.append(_costs(present["passes"]))
    for part in parts:
        rows = rows.merge(part, on=_CELL, how="left")
    return _in_order(rows)


def write_summary(directory: Path, summary: pd.DataFrame) -> None:
    """Write ``summary.csv`` and ``summary.md``, each atomically.

    Args:
        directory: The results folder of the sweep.
        summary: What ``summarize`` returned.
    """
    write_csv(directory / "summary.csv", summary)
    text = summary_markdown(summary)
    atomic_write(directory / "summary.md", lambda stream: stream.write(text.encode()))


def last_eighth(table: pd.DataFrame) -> pd.Series[bool]:
    """Which rows are bins of the last eighth of their window.

    Args:
        table: Has ``position_start`` and ``context_length``, in tokens.

    Returns:
        True where ``position_start >= context_length * 7 // 8``.
    """
    return table["position_start"] >= table["context_length"] * TAIL_EIGHTHS // 8


def query_weighted(attention: pd.DataFrame, keys: list[str], column: str) -> pd.Series[float]:
    """Mean of an attention statistic within groups, weighted by queries.

    A query that sees one key has no normalised entropy: a bin of such queries
    has none either, while its entropy is a number, and is left out. Any other
    NaN makes its group NaN.

    Args:
        attention: Rows of the attention table.
        keys: Columns to group by.
        column: The statistic.

    Returns:
        The means, indexed by ``keys``.
    """
    values = attention[column].astype(float)
    undefined = values.isna()
    if column == "normalized_entropy":
        undefined &= attention["entropy_nats"].notna()
    else:
        undefined &= False
    frame = attention.loc[~undefined, keys].copy()
    queries = attention.loc[~undefined, "queries"].astype(float)
    frame["_weighted"] = values[~undefined] * queries
    frame["_queries"] = queries
    frame["_broken"] = values[~undefined].isna()
    groups = frame.groupby(keys, sort=False)
    sums = groups[["_weighted", "_queries"]].sum()
    means = sums["_weighted"] / sums["_queries"]
    return means.mask(groups["_broken"].any())


def _cells(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Every model, method and length that was measured or tried."""
    columns = ["model", "method", "trained_length", "context_length"]
    frames = [
        tables[name][columns].drop_duplicates()
        for name in ("perplexity", "attention", "passkey")
        if name in tables
    ]
    if "passes" in tables:
        frames.insert(0, _pass_lengths(tables["passes"])[columns].drop_duplicates())
    if not frames:
        return pd.DataFrame({name: pd.Series(dtype="float64") for name in columns})
    cells = pd.concat(frames, ignore_index=True).drop_duplicates(ignore_index=True)
    double = cells.duplicated(_CELL)
    if double.any():
        model, method, length = cells.loc[double, _CELL].iloc[0]
        raise DataError(f"{model}, {method} at {length} has rows of two trained lengths")
    order = {name: rank for rank, name in enumerate(dict.fromkeys(cells["model"]))}
    methods = {name: rank for rank, name in enumerate(dict.fromkeys(cells["method"]))}
    keys = cells.assign(_model=cells["model"].map(order), _method=cells["method"].map(methods))
    keys = keys.sort_values(["_model", "_method", "context_length"], kind="stable")
    return keys[columns].reset_index(drop=True)


def _perplexities(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Perplexity, its interval, the tail's and bits per byte, a row per cell."""
    rows = []
    for key, cell in table.groupby(_CELL, sort=False):
        if cell["protocol"].nunique() > 1:
            named = ", ".join(sorted(set(cell["protocol"])))
            raise DataError(f"{key[0]}, {key[1]} at {key[2]} mixes the protocols {named}")
        documents = [part for _, part in cell.groupby("document")]
        sums = np.array([part["nll_nats"].to_numpy(dtype=float).sum() for part in documents])
        tokens = np.array([part["tokens"].sum() for part in documents])
        tail = cell[last_eighth(cell)]
        low, high = bootstrap_perplexity(sums, tokens, seed=seed)
        num_bytes = float(cell["bytes"].sum())
        rows.append(
            (
                *key,
                *(perplexity(sums, tokens), low, high),
                perplexity(tail["nll_nats"], tail["tokens"]),
                float(sums.sum()) / math.log(2) / num_bytes if num_bytes else math.nan,
            )
        )
    return pd.DataFrame(rows, columns=[*_CELL, *_PERPLEXITY])


def _entropies(table: pd.DataFrame) -> pd.DataFrame:
    """Entropy of the last eighth's queries, a column per layer type."""
    tail = table[last_eighth(table)]
    heads = [*_CELL, "layer_type", "layer", "head"]
    result = tail[_CELL].drop_duplicates()
    for column in _ENTROPY:
        by_head = query_weighted(tail, heads, column).reset_index(name="value")
        groups = by_head.groupby([*_CELL, "layer_type"], sort=False)["value"]
        by_type = groups.mean().mask(groups.count() < groups.size()).unstack("layer_type")
        by_type.columns = [f"{column}_{layer_type}" for layer_type in by_type.columns]
        result = result.merge(by_type.reset_index(), on=_CELL, how="left")
    return result


def _passkeys(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy over all depths and trials with its Wilson interval."""
    rows = []
    for key, cell in table.groupby(_CELL, sort=False):
        hits, trials = int(cell["correct"].astype(bool).sum()), len(cell)
        rows.append((*key, hits / trials, *wilson_interval(hits, trials), trials))
    return pd.DataFrame(rows, columns=[*_CELL, *_PASSKEY])


def _pass_lengths(passes: pd.DataFrame) -> pd.DataFrame:
    """The passes, a row per length served, with that length's share of the tokens."""
    lengths = [parse_lengths(text) for text in passes["context_lengths"]]
    frame = passes.assign(context_length=pd.Series(lengths, index=passes.index, dtype=object))
    frame = frame.explode("context_length").dropna(subset="context_length")
    frame["context_length"] = frame["context_length"].astype("int64")
    # What one method does not use of a pass, another does: the shares are of all its lengths.
    served = frame.drop_duplicates(["pass_id", "context_length"])
    totals = served.groupby("pass_id")["context_length"].sum()
    frame["_share"] = frame["context_length"] / frame["pass_id"].map(totals).astype("float64")
    return frame


def _costs(passes: pd.DataFrame) -> pd.DataFrame:
    """Seconds and peak memory of the finished passes behind each cell."""
    served = _pass_lengths(passes[passes["status"] == "done"])
    served = served.drop_duplicates([*_CELL, "probe", "pass_id"])
    served["seconds"] = served["seconds"].astype(float) * served["_share"]
    served["peak_memory_bytes"] = served["peak_memory_bytes"].astype(float)
    groups = served.groupby(_CELL, sort=False)
    costs = groups["seconds"].sum(min_count=1).to_frame()
    costs["peak_memory_bytes"] = groups["peak_memory_bytes"].max()
    return costs.reset_index()


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Columns in their fixed order, those never measured filled with holes."""
    prefix = "entropy_nats_"
    types = sorted(str(name)[len(prefix) :] for name in rows if str(name).startswith(prefix))
    of_type = [f"{column}_{layer_type}" for layer_type in types for column in _ENTROPY]
    order = ["model", "method", "trained_length", "context_length"]
    order += [*_PERPLEXITY, *of_type, *_PASSKEY, *_COST]
    rows = rows.reindex(columns=order)
    rows["passkey_trials"] = rows["passkey_trials"].fillna(0).astype("int64")
    return rows
