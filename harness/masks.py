"""An attention mask as a rule instead of an N x N tensor.

transformers hands a mask function the rule (a predicate on query and key index) and lets it return
any object, which reaches every attention layer as its `attention_mask`. Ours keeps the rule,
finds out once what kind it is, and answers for one tile at a time.

Positions are those in the whole sequence, also where a cache holds the first keys or has dropped
them: queries of a mask are a run of positions that ends with the last key's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from harness.errors import ModelError

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Kind = Literal["causal", "window", "runs", "other"]

_CHECKED_ENTRIES = 1 << 20  # up to so many entries of the mask are checked against its kind
_CHECKED_ROWS = 32  # and in a larger one, so many rows


class TileMask:
    """The rule of one kind of layer, for sequences without padding.

    Attributes:
        query_offset: Position of the first query.
        key_offset: Position of the first key that there is.
        num_keys: Keys that there are.
        kind: ``causal`` (every query sees all keys up to its own), ``window`` (the last `window`
            of them), ``runs`` (a run that ends with its own) or ``other``.
        window: Keys that a query of a ``window`` sees at most; 0 for other kinds.
        starts: int64 on the CPU, ``(queries,)``: position of the first key that each query sees.
    """

    def __init__(
        self,
        predicate: Predicate,
        num_queries: int,
        num_keys: int,
        device: torch.device,
        *,
        query_offset: int = 0,
        key_offset: int = 0,
    ) -> None:
        """Keep the rule and find out its kind.

        Args:
            predicate: Of batch, head, query and key index (tensors that broadcast) to visible.
            num_queries: Queries, the last of which belongs to the last key.
            num_keys: Keys.
            device: Where the rule's own tensors live.
            query_offset: Position of the first query.
            key_offset: Position of the first key.

        Raises:
            ModelError: If a query sees what comes after it.
        """
        self._predicate = predicate
        self._device = device
        self.query_offset = query_offset
        self.key_offset = key_offset
        self.num_keys = num_keys
        queries = torch.arange(query_offset, query_offset + num_queries, device=device)
        starts = self._first_visible(queries)
        runs = self._check(queries, starts)
        starts = starts if runs else torch.full_like(queries, key_offset)
        self.starts = starts.cpu()
        self._starts_there = starts
        self.kind, self.window = self._classify(queries.cpu()) if runs else ("other", 0)

    def _seen(self, queries: Tensor, keys: Tensor) -> Tensor:
        # Layers may be spread over devices; the rule's own tensors are on one.
        zero = torch.zeros((), dtype=queries.dtype, device=self._device)
        there = queries.to(self._device), keys.to(self._device)
        seen: Tensor = self._predicate(zero, zero, *there)
        return seen.to(queries.device).expand_as(queries + keys)

    def _first_visible(self, queries: Tensor) -> Tensor:
        """The first key that each query sees, if what it sees is a run that ends with its own."""
        low = torch.full_like(queries, self.key_offset)
        high = queries.clone()
        for _ in range(self.num_keys.bit_length()):
            middle = (low + high) // 2
            sees = self._seen(queries, middle)
            high = torch.where(sees, middle, high)
            low = torch.where(sees, low, torch.minimum(middle + 1, high))
        return low

    def _check(self, queries: Tensor, starts: Tensor) -> bool:
        """Whether queries see just the runs that were found: every row, or some of many."""
        rows = len(queries)
        if rows * self.num_keys > _CHECKED_ENTRIES:
            rows = min(rows, _CHECKED_ROWS)
        at = torch.linspace(0, len(queries) - 1, rows, device=queries.device).round().long()
        some = queries[at][:, None]
        keys = torch.arange(self.key_offset, self.key_offset + self.num_keys, device=some.device)
        seen = self._seen(some, keys[None])
        ahead = keys[None] > some
        if bool((seen & ahead).any()):
            raise ModelError(
                "this model's attention is not causal (a token sees later ones); ropewalk is for "
                "causal language models"
            )
        return bool((seen == ((keys[None] >= starts[at][:, None]) & ~ahead)).all())

    def _classify(self, queries: Tensor) -> tuple[Kind, int]:
        if not bool((self.starts > 0).any()):
            return "causal", 0
        window = int(queries[-1] - self.starts[-1]) + 1
        # A cache that has dropped keys holds at least the window of the first query.
        if bool((self.starts == (queries - window + 1).clamp(min=0)).all()):
            return "window", window
        return "runs", 0

    def first_visible(self, query: int) -> int:
        """Position of the first key that a query, given by its position, sees."""
        return int(self.starts[query - self.query_offset])

    def starts_of(self, queries: Tensor) -> Tensor:
        """The same for many queries, on their device."""
        return self._starts_there.to(queries.device)[queries - self.query_offset]

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys the queries may see.

        Args:
            queries: int64 positions, shape ``(rows,)``.
            keys: int64 positions, shape ``(columns,)``.

        Returns:
            bool, shape ``(rows, columns)``.
        """
        if self.kind == "other":
            return self._seen(queries[:, None], keys[None])
        starts = self.starts_of(queries)
        return (keys[None] <= queries[:, None]) & (keys[None] >= starts[:, None])


def tile_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Predicate | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> TileMask:
    """What transformers calls to build a mask for our attention function.

    Raises:
        ModelError: For padding, or a cache of which parts are not in use.
    """
    del batch_size  # rows of a batch have the same mask, as there is no padding
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ModelError("ropewalk's attention takes sequences without padding")
    query_offset, key_offset = int(q_offset), int(kv_offset)
    if mask_function is None or query_offset + q_length != key_offset + kv_length:
        raise ModelError("ropewalk's attention takes a growing cache (DynamicCache) or none")
    return TileMask(
        mask_function,
        q_length,
        kv_length,
        torch.device(device),
        query_offset=query_offset,
        key_offset=key_offset,
    )
