"""What is asked of the attention of a forward pass, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from harness.errors import DataError, ModelError
from harness.rows import STATISTICS

if TYPE_CHECKING:
    import pandas as pd


def sample_positions(
    context_lengths: tuple[int, ...], queries: int, seed: int
) -> npt.NDArray[np.int64]:
    """Query positions that give every context length its share.

    Each length gets `queries` positions, one at random in each of as many even strata, so that
    the last eighth of a short length is not left to chance when one pass serves a long one too.

    Returns:
        int64, sorted, without repeats.
    """
    chosen: set[int] = set()
    for length in context_lengths:
        rng = np.random.default_rng([seed, length])
        number = min(queries, length)
        edges = np.linspace(0, length, number + 1)
        drawn = [int(p) for p in rng.uniform(edges[:-1], edges[1:])]
        drawn[-1] = length - 1  # so that the last eighth is never empty, however few are asked for
        chosen.update(drawn)
    return np.array(sorted(chosen), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """What is measured.

    Attributes:
        queries: `all`, how many positions to sample evenly, or the positions themselves.
        local_window: Keys, the query's own included, whose mass is `local_mass`.
        seed: Of the sampled positions.
    """

    queries: Literal["all"] | int | tuple[int, ...] = "all"
    local_window: int = 64
    seed: int = 0

    def positions(self, num_tokens: int) -> npt.NDArray[np.int64]:
        """The measured query positions, ascending, shape ``(queries,)``.

        Raises:
            DataError: If chosen positions are not ascending or not in the sequence.
        """
        if self.queries == "all":
            return np.arange(num_tokens, dtype=np.int64)
        if isinstance(self.queries, tuple):
            chosen = np.array(self.queries, dtype=np.int64)
            if not len(chosen) or chosen[0] < 0 or (np.diff(chosen) < 1).any():
                raise DataError("query positions must be ascending, at least one and none negative")
            if chosen[-1] >= num_tokens:
                raise DataError(f"query position {chosen[-1]} is past the last of {num_tokens}")
            return chosen
        return sample_positions((num_tokens,), int(self.queries), self.seed)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """Statistics of one layer's heads at some measured queries.

    Attributes:
        layer: Its index in the model.
        layer_type: ``full_attention`` where the config says nothing.
        positions: int64, ascending, ``(queries,)``.
        values: Name (``rows.STATISTICS``) to float64 ``(heads, queries)``.
    """

    layer: int
    layer_type: str
    positions: npt.NDArray[np.int64]
    values: dict[str, npt.NDArray[np.float64]]


Consumer = Callable[[LayerStatistics], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionStatistics:
    """Statistics of every attention layer, head and measured query.

    Attributes:
        layer_types: One an attention layer; ``full_attention`` where the config says nothing.
        positions: int64, shape ``(queries,)``.
        values: Name (``rows.STATISTICS``) to float64 ``(layers, heads, queries)``.
        layers: Index in the model of each attention layer; they have gaps where a model has
            layers of another kind (state spaces, convolutions) in between.
    """

    layer_types: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    values: dict[str, npt.NDArray[np.float64]]
    layers: tuple[int, ...]

    def table(self) -> pd.DataFrame:
        """A row per layer, head and query: where it is, and the statistics."""
        import pandas as pd

        layer, head, query = (
            axis.ravel() for axis in np.indices(self.values["entropy_nats"].shape, dtype=np.int64)
        )
        columns: dict[str, Any] = {
            "layer": np.array(self.layers, dtype=np.int64)[layer],
            "layer_type": np.array(self.layer_types, dtype=object)[layer],
            "head": head,
            "position": self.positions[query],
        }
        return pd.DataFrame(columns | {name: self.values[name].ravel() for name in STATISTICS})


class AttentionCollector:
    """A consumer that keeps everything: all layers, heads and measured queries."""

    def __init__(self) -> None:
        self._parts: dict[int, list[LayerStatistics]] = {}

    def __call__(self, found: LayerStatistics) -> None:
        """Take in one layer of one chunk."""
        self._parts.setdefault(found.layer, []).append(found)

    def statistics(self) -> AttentionStatistics:
        """All of it, layers in the model's order.

        Raises:
            ModelError: If layers differ in their number of heads.
        """
        layers = tuple(sorted(self._parts))
        parts = [sorted(self._parts[i], key=lambda part: part.positions[0]) for i in layers]
        if len({len(own[0].values["entropy_nats"]) for own in parts}) > 1:
            raise ModelError(
                "the layers of this model differ in their number of heads: their statistics do "
                "not fit into one array"
            )
        return AttentionStatistics(
            layer_types=tuple(own[0].layer_type for own in parts),
            positions=np.concatenate([part.positions for part in parts[0]]),
            values={
                name: np.stack(
                    [np.concatenate([part.values[name] for part in own], -1) for own in parts]
                )
                for name in STATISTICS
            },
            layers=layers,
        )
