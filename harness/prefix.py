"""Many sequences that begin alike: what they share runs once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from harness.attention import UnsupportedAttentionError, own_attention
from harness.head import head_logits
from harness.prefill import Prefill, base_outputs, chunk_size, evaluating, known_tokens


@contextmanager
def running(model: Any) -> Iterator[None]:
    """Evaluation mode, with our attention where the model lets us: no N x N mask is made."""
    with evaluating(model), ExitStack() as stack:
        try:
            stack.enter_context(own_attention(model))
        except UnsupportedAttentionError:
            stack.close()
        yield


def answer_logits(
    model: Any, input_ids: Tensor, positions: Tensor, *, shared_tokens: int = 0
) -> Tensor:
    """Logits at a few positions only.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(B, n)``, without padding.
        positions: int64, shape ``(P,)``, of the tokens whose successors are asked for.
        shared_tokens: Length of a prefix that is the same in all rows, before all `positions`; it
            is run once. 0 for none.

    Returns:
        float32 (float64 if the model is), shape ``(B, P, V)``.

    Raises:
        DataError: If a token is not in the model's vocabulary.
        ModelError: If the model is not a causal language model.
    """
    with running(model):
        prefix = SharedPrefix(model)
        prefix.grow(input_ids[:1, :shared_tokens])
        return prefix.logits_behind(input_ids[:, shared_tokens:], positions - shared_tokens)


class SharedPrefix:
    """A prefix that many sequences begin with: it runs once, and is kept in a cache.

    Only within `running`, and not for a model whose own scaling follows the length of its input:
    the rotary tables must be those of the whole length from the first token on.
    """

    def __init__(self, model: Any, chunk_tokens: int | None = None) -> None:
        """Begin with no token; `chunk_tokens` as in `harness.engine.measure`."""
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._prefill = Prefill(model)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prefix so far."""
        return self._prefill.num_tokens

    def grow(self, input_ids: Tensor) -> None:
        """Append tokens, ``(1, n)``."""
        if not input_ids.shape[1]:
            return
        ids = known_tokens(self._model, input_ids)
        for _ in self._prefill.outputs(ids, self._chunk(1, ids.shape[1])):
            pass  # nothing is kept but the cache

    def _chunk(self, batch: int, num_tokens: int) -> int:
        """Tokens of each row that run at once."""
        tokens = chunk_size(self._model, batch * num_tokens, tokens=self._chunk_tokens)
        return max(1, tokens // batch)

    def logits_behind(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits at some positions of sequences that go on from the prefix, which stays as it is.

        Args:
            input_ids: What follows the prefix, ``(B, n)``.
            positions: int64, ``(P,)``, ascending, counted from the end of the prefix.

        Returns:
            float32 (float64 if the model is), shape ``(B, P, V)``.
        """
        model = self._model
        ids = known_tokens(model, input_ids)
        chunk = self._chunk(len(ids), ids.shape[1])
        if self.num_tokens == 0:
            outputs = base_outputs(model, ids, chunk)
        else:
            outputs = self._prefill.branch(len(ids)).outputs(ids, chunk)
        parts = []
        for start, output in outputs:
            at = positions[(positions >= start) & (positions < start + chunk)] - start
            if len(at):
                here = ids[:, start : start + chunk]
                parts.append(head_logits(model, here, output, at.to(ids.device)))
        logits = torch.cat(parts, 1)
        return logits if logits.dtype == torch.float64 else logits.float()
