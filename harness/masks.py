"""An attention mask as a rule instead of an N x N tensor.

transformers hands a mask function the rule (a predicate on query and key index) and lets it return
any object, which reaches every attention layer as its `attention_mask`. Ours keeps the rule and
answers for one tile at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.errors import ModelError

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class TileMask:
    """The rule of one kind of layer, for one sequence without padding."""

    def __init__(self, predicate: Predicate, num_keys: int, device: torch.device) -> None:
        """Keep the rule.

        Args:
            predicate: Of batch, head, query and key index (tensors that broadcast) to visible.
            num_keys: Tokens of the sequence.
            device: Where the rule's own tensors live.

        Raises:
            ModelError: If a query sees what comes after it.
        """
        self._predicate = predicate
        self._device = device
        ahead = self.visible(
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.arange(1, num_keys, device=device),
        )
        if bool(ahead.any()):
            raise ModelError(
                "this model's attention is not causal (a token sees later ones); attention "
                "statistics are for causal language models"
            )

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Which keys the queries may see.

        Args:
            queries: int64 positions, shape ``(rows,)``.
            keys: int64 positions, shape ``(columns,)``.

        Returns:
            bool, shape ``(rows, columns)``.
        """
        zero = queries.new_zeros(())
        seen = self._predicate(zero, zero, queries[:, None], keys[None, :])
        return seen.expand(len(queries), len(keys))

    def _sees(self, query: int, key: int) -> bool:
        at = torch.tensor([query, key], device=self._device)
        return bool(self.visible(at[:1], at[1:]))

    def first_visible(self, query: int) -> int:
        """The first key that a query sees; in a causal window, no later query sees an earlier.

        What a query sees is a run of keys that ends with its own, so bisection finds the first.
        """
        if self._sees(query, 0):
            return 0
        low, high = 1, query
        while low < high:
            middle = (low + high) // 2
            if self._sees(query, middle):
                high = middle
            else:
                low = middle + 1
        return low


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
        ModelError: For a batch, padding or a cache, which the statistics do not cover.
    """
    if batch_size != 1:
        raise ModelError("attention statistics take one sequence at a time, not a batch")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ModelError("attention statistics take a sequence without padding")
    if mask_function is None or int(q_offset) or int(kv_offset) or q_length != kv_length:
        raise ModelError("attention statistics take a whole sequence at once, without a cache")
    return TileMask(mask_function, kv_length, torch.device(device))
