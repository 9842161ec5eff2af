"""Position bins: fine enough for a curve, with an edge at every context length and its tail."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

TAIL_EIGHTHS = 7  # the tail of a window of n tokens starts at n * 7 // 8


def tail_start(context_length: int) -> int:
    """First position of the last eighth of a window."""
    return context_length * TAIL_EIGHTHS // 8


def bin_edges(context_lengths: Iterable[int]) -> npt.NDArray[np.int64]:
    """Edges ``0 = e_0 < e_1 < ... = longest``, shared by all lengths of a sweep.

    Powers of two up to the shortest length, then the quarters and the last eighth of every
    length, so that a bin never straddles a context length or its tail.
    """
    lengths = sorted(set(context_lengths))
    edges = {0, *lengths}
    power = 16
    while power < lengths[0]:
        edges.add(power)
        power *= 2
    for n in lengths:
        edges |= {n // 4, n // 2, n * 3 // 4, tail_start(n)}
    return np.array(sorted(edges), dtype=np.int64)


def bins(edges: npt.NDArray[np.int64], stop: int) -> list[tuple[int, int]]:
    """The bins ``[start, stop)`` that end at or before a length."""
    return [(int(a), int(b)) for a, b in pairwise(edges) if b <= stop]
