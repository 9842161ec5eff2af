"""The forward pass: losses and attention statistics of token sequences, in bounded memory.

One pass serves both: the base model runs over the sequence, in chunks where it is long, with our
attention in place of its own; losses come from slices of the hidden states, statistics from tiles
of queries. Neither depends on the chunks, on the slices, or on what else is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from harness.abilities import safe_chunk_size
from harness.attention import UnsupportedAttentionError, own_attention
from harness.attention_data import (
    AttentionCollector,
    AttentionSettings,
    AttentionStatistics,
    Consumer,
)
from harness.errors import DataError
from harness.head import losses, slice_tokens
from harness.prefill import base_outputs, evaluating, known_tokens

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AttentionSettings",
    "AttentionStatistics",
    "Measurement",
    "attention_statistics",
    "measure",
    "token_nll",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """What one forward pass gave.

    Attributes:
        nll: float64, shape ``(n - 1,)``, nats: loss of token ``i + 1`` given tokens ``0..i``;
            None if not asked for.
        attention: Statistics of every layer and head; None if not asked for, or if they were
            handed to a consumer.
    """

    nll: npt.NDArray[np.float64] | None
    attention: AttentionStatistics | None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_ids(model: Any, input_ids: Any) -> Tensor:
    if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.shape[0] != 1:
        shape = (
            tuple(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
        )
        raise DataError(f"input_ids must be a tensor of shape [1, n], not {shape}")
    if input_ids.shape[1] < 2:
        raise DataError("input_ids must hold at least 2 tokens: one to see and one to predict")
    return known_tokens(model, input_ids)


def _run(
    model: Any, ids: Tensor, chunk: int, head_tokens: int | None
) -> npt.NDArray[np.float64] | None:
    """Run a sequence; its losses, if `head_tokens` is given."""
    parts = []
    for start, output in base_outputs(model, ids, chunk):
        stop = min(start + chunk, ids.shape[1])
        if head_tokens is not None:
            targets = ids[:, start + 1 : stop + 1]
            parts.append(losses(model, ids[:, start:stop], output, targets, head_tokens))
    return np.concatenate(parts) if parts else None


def measure(
    model: Any,
    input_ids: Tensor,
    *,
    nll: bool = True,
    attention: AttentionSettings | None = None,
    consumer: Consumer | None = None,
    chunk_tokens: int | None = None,
    head_chunk_tokens: int | None = None,
) -> Measurement:
    """Losses and attention statistics from one forward pass.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(1, n)``, n at least 2.
        nll: Whether losses are wanted.
        attention: What to measure of the attention; None for nothing.
        consumer: Given the statistics of each layer and chunk as they come, which are then not
            kept; what a long sequence needs.
        chunk_tokens: Tokens that run at once; None for as many as a budget of memory holds. A
            model whose own scaling follows the length of its input (``dynamic``, ``longrope``),
            or that does not go on from a cache as it should, always runs whole.
        head_chunk_tokens: Positions whose logits are there at once; None for what a budget holds.

    Returns:
        What was asked for. NaN and infinite values are passed on as they are.

    Raises:
        DataError: If `input_ids` has another shape or tokens that the model does not know, or a
            number of tokens is below 1.
        ModelError: If the model is not a causal language model, or statistics are asked for and
            its attention does not go through transformers' interface.
    """
    ids = _check_ids(model, input_ids)
    for name, value in (("chunk_tokens", chunk_tokens), ("head_chunk_tokens", head_chunk_tokens)):
        if value is not None and not _is_count(value):
            raise DataError(f"{name} must be a whole number of at least 1, not {value!r}")
    num_tokens = ids.shape[1]
    chunk = safe_chunk_size(model, num_tokens, tokens=chunk_tokens)
    head_tokens = (head_chunk_tokens or slice_tokens(model)) if nll else None
    collector = AttentionCollector() if attention is not None and consumer is None else None
    with evaluating(model):
        try:
            with own_attention(
                model, settings=attention, num_tokens=num_tokens, consumer=consumer or collector
            ):
                found = _run(model, ids, chunk, head_tokens)
        except UnsupportedAttentionError:
            if attention is not None:
                raise
            # Losses need no statistics: the model's own attention gives them as well, whole.
            found = _run(model, ids, num_tokens, head_tokens)
    statistics = None if collector is None else collector.statistics()
    return Measurement(nll=found, attention=statistics)


def token_nll(
    model: Any,
    input_ids: Tensor,
    *,
    chunk_tokens: int | None = None,
    head_chunk_tokens: int | None = None,
) -> npt.NDArray[np.float64]:
    """Negative log-likelihood of every token but the first.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(1, n)``.
        chunk_tokens: As in `measure`.
        head_chunk_tokens: As in `measure`.

    Returns:
        float64, shape ``(n - 1,)``, nats: element i is token ``i + 1`` given tokens ``0..i``.

    Raises:
        DataError: As in `measure`.
        ModelError: As in `measure`.
    """
    result = measure(
        model, input_ids, chunk_tokens=chunk_tokens, head_chunk_tokens=head_chunk_tokens
    )
    assert result.nll is not None
    return result.nll


def attention_statistics(
    model: Any,
    input_ids: Tensor,
    queries: Literal["all"] | int = "all",
    *,
    local_window: int = 64,
    seed: int = 0,
) -> pd.DataFrame:
    """Exact statistics of every layer's and head's attention, without the N x N matrix.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(1, n)``.
        queries: `all`, or how many query positions to sample evenly over the sequence.
        local_window: Keys, the query's own included, whose mass is `local_mass`.
        seed: Of the sampled positions.

    Returns:
        A row per layer, head and query position: `layer`, `layer_type`, `head`, `position`,
        `entropy_nats`, `normalized_entropy` (over ln of the visible keys; NaN with one key),
        `effective_tokens` (exp of the entropy), `sink_mass` (on the first token), `self_mass`,
        `previous_mass` (the two keys before), `local_mass`, `learnt_sink_mass`,
        `mean_distance_tokens`, `max_logit`. Learnt sinks (GPT-OSS) are no keys: all of it is of the
        keys' own distribution, except `learnt_sink_mass`, their share (0 where there are none).

    Raises:
        DataError: As in `measure`, or if `queries` or `local_window` is below 1.
        ModelError: As in `measure`.
    """
    if queries != "all" and not _is_count(queries):
        raise DataError(f"queries must be 'all' or a whole number of at least 1, not {queries!r}")
    if not _is_count(local_window):
        raise DataError(f"local_window must be a whole number of at least 1, not {local_window!r}")
    settings = AttentionSettings(queries=queries, local_window=local_window, seed=seed)
    result = measure(model, input_ids, nll=False, attention=settings).attention
    assert result is not None
    return result.table()
