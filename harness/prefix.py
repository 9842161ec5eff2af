"""Many sequences that begin alike: what they share runs once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from harness.abilities import abilities, safe_chunk_size
from harness.attention import own_attention
from harness.head import head_logits
from harness.prefill import Prefill, base_of, base_outputs, evaluating, follows_length, known_tokens
from patches.state import rotary_state_kept


def can_share(model: Any) -> bool:
    """Whether sequences that begin alike may share what they begin with.

    Not where the model's own scaling would take other tables for a prefix than for the whole, and
    not where its hidden states do not go on from a cache.
    """
    return abilities(model).continues and not follows_length(model)


@contextmanager
def running(model: Any) -> Iterator[None]:
    """Evaluation mode, with our attention where the model lets us: no N x N mask is made."""
    ours = own_attention(model) if abilities(model).own_attention else nullcontext()
    with evaluating(model), ours:
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
            runs once, if the model lets us (`can_share`). 0 for none.

    Returns:
        float32 (float64 if the model is), shape ``(B, P, V)``.

    Raises:
        DataError: If a token is not in the model's vocabulary.
        ModelError: If the model is not a causal language model.
    """
    if not can_share(model):
        shared_tokens = 0
    with running(model):
        prefix = SharedPrefix(model)
        prefix.grow(input_ids[:1, :shared_tokens])
        return prefix.logits_behind(input_ids[:, shared_tokens:], positions - shared_tokens)


class SharedPrefix:
    """A prefix that many sequences begin with: it runs once, and is kept in a cache.

    Only within `running`, and a prefix of more than no tokens only where `can_share` holds.
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
        tokens = safe_chunk_size(self._model, batch * num_tokens, tokens=self._chunk_tokens)
        return max(1, tokens // batch)

    def logits_behind(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits at some positions of sequences that go on from the prefix, which stays as it is.

        Args:
            input_ids: What follows the prefix, ``(B, n)``.
            positions: int64, ``(P,)``, ascending, counted from the end of the prefix.

        Returns:
            float32 (float64 if the model is), shape ``(B, P, V)``.
        """
        ids = known_tokens(self._model, input_ids)
        positions = positions.cpu()  # where they may index what lies on any device
        if self.num_tokens and len(ids) > 1 and not self._prefill.can_widen:
            return torch.cat([self.logits_behind(row[None], positions) for row in ids])
        chunk = self._chunk(len(ids), ids.shape[1])
        if self.num_tokens == 0:
            outputs = base_outputs(self._model, ids, chunk)
        else:
            outputs = self._prefill.branch(len(ids)).outputs(ids, chunk)
        parts = []
        for start, output in outputs:
            at = positions[(positions >= start) & (positions < start + chunk)] - start
            if len(at):
                parts.append(head_logits(self._model, ids[:, start : start + chunk], output, at))
        return _at_least_float32(torch.cat(parts, 1))

    def greedy(self, input_ids: Tensor, num_tokens: int) -> Tensor:
        """What greedy decoding appends to a sequence that goes on from the prefix.

        Args:
            input_ids: What follows the prefix, ``(1, n)``, n at least 1.
            num_tokens: How many to append; nothing ends it before.

        Returns:
            Token ids on the CPU, int64, shape ``(num_tokens,)``.
        """
        ids = known_tokens(self._model, input_ids)
        if not can_share(self._model):
            # One answer's length is not to choose the tables of the next one's.
            with rotary_state_kept(self._model):
                return self._greedy_anew(ids, num_tokens)
        branch = self._prefill.branch()
        found: list[int] = []
        while len(found) < num_tokens:
            chunk = self._chunk(1, ids.shape[1])
            for start, output in branch.outputs(ids, chunk):
                last, logits_of = ids[:, start : start + chunk], output
            found.append(self._best(last, logits_of))
            ids = ids.new_tensor([[found[-1]]])
        return torch.tensor(found)

    def _greedy_anew(self, ids: Tensor, num_tokens: int) -> Tensor:
        """The same without a cache: each token is that of a forward pass over all before it."""
        size = ids.shape[1]
        for _ in range(num_tokens):
            output = base_of(self._model)(input_ids=ids, use_cache=False, return_dict=True)
            ids = torch.cat([ids, ids.new_tensor([[self._best(ids, output)]])], 1)
        return ids[0, size:].cpu()

    def _best(self, ids: Tensor, output: Any) -> int:
        """The likeliest token behind the last of ``ids``."""
        at = torch.tensor([ids.shape[1] - 1])
        return int(head_logits(self._model, ids, output, at)[0, -1].argmax())


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
