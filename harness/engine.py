"""The forward pass: losses and attention statistics of a token sequence, in bounded memory.

The logits of all positions are never there at once: the base model runs once, and the language
model's head runs on slices of its hidden states. Soft-caps and logit scales stay where they are,
since it is the model's own forward that runs on each slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harness.attention import recording
from harness.attention_data import AttentionSettings, AttentionStatistics
from harness.errors import DataError, ModelError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "AttentionSettings",
    "AttentionStatistics",
    "Measurement",
    "answer_logits",
    "attention_statistics",
    "measure",
    "token_nll",
]

HEAD_CHUNK_TOKENS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """What one forward pass gave.

    Attributes:
        nll: float64, shape ``(n - 1,)``, nats: loss of token ``i + 1`` given tokens ``0..i``;
            None if not asked for.
        attention: Statistics of every layer and head; None if not asked for.
    """

    nll: npt.NDArray[np.float64] | None
    attention: AttentionStatistics | None


def _base_model(model: Any) -> Any:
    # Llama 4's prefix names something that its text model does not have.
    names = (getattr(model, "base_model_prefix", ""), "model")
    base = next((found for n in names if n and (found := getattr(model, n, None))), None)
    if base is None or base is model:
        raise ModelError(
            f"{type(model).__name__} is not a causal language model of transformers (no base "
            "model beneath its head); load it with AutoModelForCausalLM"
        )
    return base


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:  # not model.train(): some parts may have been at rest before
            module.training = True


@contextmanager
def _returning(base: Any, output: Any) -> Iterator[None]:
    """Make a base model return a given output instead of running."""
    own = base.__dict__.get("forward")  # hooks of accelerate replace it on the instance

    def forward(*_: Any, **__: Any) -> Any:
        return output

    base.forward = forward
    try:
        yield
    finally:
        if own is None:
            del base.forward
        else:
            base.forward = own


def _head(model: Any, input_ids: Tensor, output: Any, at: slice | Tensor) -> Tensor:
    """Logits ``(B, P, V)`` at some positions of a base model's output, by the model's forward."""
    # Of the same class as the base model's own output: some heads read fields of it.
    some = type(output)(last_hidden_state=output.last_hidden_state[:, at])
    with _returning(_base_model(model), some):
        logits: Tensor = model(input_ids=input_ids[:, at], use_cache=False, return_dict=True).logits
    return logits


def _base_output(model: Any, input_ids: Tensor) -> Any:
    return _base_model(model)(input_ids=input_ids, use_cache=False, return_dict=True)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats of each target, in float32 (float64 if the model is)."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    picked = exact.gather(-1, targets[..., None])[..., 0]
    return (exact.logsumexp(-1) - picked).cpu().double()  # MPS has no float64


def _all_losses(model: Any, input_ids: Tensor, output: Any, chunk: int) -> npt.NDArray[np.float64]:
    parts = []
    last = input_ids.shape[1] - 1
    for start in range(0, last, chunk):
        stop = min(start + chunk, last)
        logits = _head(model, input_ids, output, slice(start, stop))
        targets = input_ids[:, start + 1 : stop + 1].to(logits.device)
        parts.append(_losses(logits, targets)[0].numpy())
    return np.concatenate(parts)


def _check_ids(model: Any, input_ids: Any) -> Tensor:
    if not isinstance(input_ids, Tensor) or input_ids.ndim != 2 or input_ids.shape[0] != 1:
        shape = (
            tuple(input_ids.shape) if isinstance(input_ids, Tensor) else type(input_ids).__name__
        )
        raise DataError(f"input_ids must be a tensor of shape [1, n], not {shape}")
    if input_ids.shape[1] < 2:
        raise DataError("input_ids must hold at least 2 tokens: one to see and one to predict")
    return _known_tokens(model, input_ids)


def _known_tokens(model: Any, input_ids: Tensor) -> Tensor:
    """The ids as int64 on the embeddings' device; refused if the model does not know them."""
    _base_model(model)
    if input_ids.is_floating_point():
        raise DataError(f"input_ids must be whole numbers, not {input_ids.dtype}")
    weight = model.get_input_embeddings().weight
    if int(input_ids.max()) >= weight.shape[0] or int(input_ids.min()) < 0:
        raise DataError(
            f"input_ids holds a token outside the model's vocabulary of {weight.shape[0]}; is it "
            "from this model's tokenizer?"
        )
    return input_ids.to(device=weight.device, dtype=torch.int64)


def measure(
    model: Any,
    input_ids: Tensor,
    *,
    nll: bool = True,
    attention: AttentionSettings | None = None,
    head_chunk_tokens: int = HEAD_CHUNK_TOKENS,
) -> Measurement:
    """Losses and attention statistics from one forward pass.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(1, n)``, n at least 2.
        nll: Whether losses are wanted.
        attention: What to measure of the attention; None for nothing.
        head_chunk_tokens: Positions whose logits are there at once.

    Returns:
        What was asked for. NaN and infinite values are passed on as they are.

    Raises:
        DataError: If `input_ids` has another shape or tokens that the model does not know.
        ModelError: If the model is not a causal language model, or its attention does not go
            through transformers' interface.
    """
    ids = _check_ids(model, input_ids)
    nothing: AbstractContextManager[list[AttentionStatistics]] = nullcontext([])
    probe = nothing if attention is None else recording(model, ids.shape[1], attention)
    with _evaluating(model):
        with probe as found:
            output = _base_output(model, ids)
        losses = _all_losses(model, ids, output, head_chunk_tokens) if nll else None
    return Measurement(nll=losses, attention=found[0] if found else None)


def token_nll(
    model: Any, input_ids: Tensor, *, head_chunk_tokens: int = HEAD_CHUNK_TOKENS
) -> npt.NDArray[np.float64]:
    """Negative log-likelihood of every token but the first.

    Args:
        model: A causal language model of transformers, patched or not.
        input_ids: Token ids, shape ``(1, n)``.
        head_chunk_tokens: Positions whose logits are there at once.

    Returns:
        float64, shape ``(n - 1,)``, nats: element i is token ``i + 1`` given tokens ``0..i``.

    Raises:
        DataError: As in `measure`.
        ModelError: As in `measure`.
    """
    result = measure(model, input_ids, head_chunk_tokens=head_chunk_tokens)
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
        `previous_mass` (the two keys before), `local_mass`, `mean_distance_tokens`, `max_logit`.
        Learnt sinks (GPT-OSS) are no keys: all of it is of the keys' own distribution.

    Raises:
        DataError: As in `measure`, or if `queries` or `local_window` is below 1.
        ModelError: As in `measure`.
    """
    if queries != "all" and (isinstance(queries, (bool, str)) or queries < 1):
        raise DataError(f"queries must be 'all' or a number of at least 1, not {queries!r}")
    if local_window < 1:
        raise DataError(f"local_window must be at least 1, not {local_window}")
    settings = AttentionSettings(queries=queries, local_window=local_window, seed=seed)
    result = measure(model, input_ids, nll=False, attention=settings).attention
    assert result is not None
    return result.table()


def _output_behind_prefix(model: Any, input_ids: Tensor, shared_tokens: int) -> Any:
    """The base model's output of the tokens behind a prefix that all rows share.

    The prefix runs once, for one row; its keys and values are then repeated. The rotary tables are
    those of the whole length in both calls.
    """
    from transformers import DynamicCache

    base = _base_model(model)
    # The argument was renamed in transformers 5.
    name = "cache" if "cache" in signature(base.forward).parameters else "past_key_values"
    cache = DynamicCache(config=model.config.get_text_config())
    base(input_ids=input_ids[:1, :shared_tokens], use_cache=True, **{name: cache})
    cache.batch_repeat_interleave(len(input_ids))
    return base(input_ids=input_ids[:, shared_tokens:], use_cache=True, **{name: cache})


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
    input_ids = _known_tokens(model, input_ids)
    at = positions.to(input_ids.device) - shared_tokens
    with _evaluating(model):
        if shared_tokens:
            output = _output_behind_prefix(model, input_ids, shared_tokens)
        else:
            output = _base_output(model, input_ids)
        logits = _head(model, input_ids[:, shared_tokens:], output, at)
    return logits if logits.dtype == torch.float64 else logits.float()
