"""Negative log-likelihood by document and position bin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.bins import bins
from harness.data import TokenizedDocument
from harness.rows import PERPLEXITY

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def nll_rows(
    document: TokenizedDocument,
    positions: Ints,
    indices: Ints,
    nll: Floats,
    edges: Ints,
    stop: int,
    protocol: str,
) -> pd.DataFrame:
    """Sum losses into bins.

    Args:
        document: Where the tokens come from.
        positions: Position of each scored token in its window, shape ``(tokens,)``: the tokens
            that the model saw before it.
        indices: Its index in the document, shape ``(tokens,)``.
        nll: Its loss in nats, shape ``(tokens,)``.
        edges: Of the bins.
        stop: Longest position that counts, the context length.
        protocol: full or sliding.

    Returns:
        Columns as in ``rows.PERPLEXITY``. A NaN or infinite loss makes its bin's sum NaN or
        infinite: it is recorded, not hidden.
    """
    token_bytes = document.byte_ends[indices] - document.byte_ends[indices - 1]
    rows: list[dict[str, Any]] = []
    for start, end in bins(edges, stop):
        inside = (positions >= start) & (positions < end)
        if inside.any():
            rows.append(
                {
                    "document": document.name,
                    "position_start": start,
                    "position_stop": end,
                    "tokens": int(inside.sum()),
                    "bytes": int(token_bytes[inside].sum()),
                    "nll_nats": float(nll[inside].sum()),
                    "protocol": protocol,
                }
            )
    return pd.DataFrame(rows, columns=list(PERPLEXITY))


def full_rows(
    document: TokenizedDocument, nll: Floats, edges: Ints, context_length: int
) -> pd.DataFrame:
    """Rows of one forward pass from the document's start; `nll` has shape ``(n - 1,)``."""
    indices = np.arange(1, context_length, dtype=np.int64)
    return nll_rows(document, indices, indices, nll, edges, context_length, "full")


def sliding_windows(
    num_tokens: int, context_length: int, stride: int
) -> Iterator[tuple[int, int, int]]:
    """Windows that score every token once, each with the most context it can have.

    Yields:
        ``(start, stop, first)``: the window ``[start, stop)`` and the index of the first token
        that it scores. The first window scores all of its tokens but the very first, each later
        one the `stride` tokens (at the end fewer) that no window before it reached.
    """
    # A token needs at least one before it in its window: a stride of the whole window would leave
    # the first token of each later window with none.
    stride = min(stride, context_length - 1)
    scored = 1
    stop = min(context_length, num_tokens)
    while True:
        yield stop - min(context_length, stop), stop, scored
        if stop == num_tokens:
            return
        scored = stop
        stop = min(stop + stride, num_tokens)
