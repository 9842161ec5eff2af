"""Losses and logits from hidden states, without the logits of all positions.

The language model's head runs on slices. Soft-caps and logit scales stay where they are, since it
is the model's own forward that runs on each slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harness.errors import ModelError
from harness.prefill import base_of

# Logits of a slice.
_LOGIT_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30, "mps": 256 << 20}
_MOST_TOKENS = 512
_BUFFER_NUMBERS = 1 << 20


def slice_tokens(model: Any) -> int:
    """Positions whose logits are there at once."""
    weight = model.get_input_embeddings().weight
    budget = _LOGIT_BYTES.get(weight.device.type, _LOGIT_BYTES["cpu"])
    logit_bytes = int(weight.element_size()) * int(weight.shape[0])
    return max(1, min(_MOST_TOKENS, budget // logit_bytes))


@contextmanager
def _returning(base: Any, output: Any) -> Iterator[list[bool]]:
    """Make a base model return a given output instead of running; a list that tells if it did."""
    own = base.__dict__.get("forward")  # hooks of accelerate replace it on the instance
    called: list[bool] = []

    def forward(*_: Any, **__: Any) -> Any:
        called.append(True)
        return output

    base.forward = forward
    try:
        yield called
    finally:
        if own is None:
            del base.forward
        else:
            base.forward = own


def head_logits(model: Any, input_ids: Tensor, output: Any, at: slice | Tensor) -> Tensor:
    """Logits ``(B, P, V)`` at some positions of a base model's output, by the model's forward."""
    # Of the same class as the base model's own output: some heads read fields of it.
    some = type(output)(last_hidden_state=output.last_hidden_state[:, at])
    with _returning(base_of(model), some) as called:
        logits: Tensor = model(input_ids=input_ids[:, at], use_cache=False, return_dict=True).logits
    if not called:  # it ran the slice as a sequence of its own
        raise ModelError(
            f"{type(model).__name__} does not call its base model as a whole, so its head cannot "
            "be run on its own; its losses cannot be measured"
        )
    return logits


def _log_normalizers(logits: Tensor) -> Tensor:
    """Log-sum-exp over the vocabulary, ``(B, P)``, in float32 (float64 if the model is)."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if logits.device.type != "cpu":
        return logits.to(exact).logsumexp(-1)
    # In one small buffer: fresh memory for each step costs several times what the sums do.
    flat = logits.flatten(0, -2)
    rows = max(1, _BUFFER_NUMBERS // flat.shape[-1])
    buffer = torch.empty((min(rows, len(flat)), flat.shape[-1]), dtype=exact)
    found = torch.empty(len(flat), dtype=exact)
    for start in range(0, len(flat), rows):
        some = flat[start : start + rows]
        part = buffer[: len(some)].copy_(some)
        peak = part.amax(-1)
        found[start : start + rows] = part.sub_(peak[:, None]).exp_().sum(-1).log_().add_(peak)
    return found.view(logits.shape[:-1])


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats of each target."""
    normalizers = _log_normalizers(logits)
    picked = logits.gather(-1, targets[..., None])[..., 0].to(normalizers.dtype)
    return (normalizers - picked).cpu().double()  # MPS has no float64


def losses(
    model: Any, input_ids: Tensor, output: Any, targets: Tensor, tokens: int
) -> npt.NDArray[np.float64]:
    """Losses of one sequence's next tokens.

    Args:
        model: A causal language model.
        input_ids: What the output is of, ``(1, n)``.
        output: Of the base model.
        targets: The tokens that follow, ``(1, m)``, m at most n.
        tokens: Positions whose logits are there at once.

    Returns:
        Nats, ``(m,)``.
    """
    parts = [np.zeros(0)]
    last = targets.shape[1]
    for start in range(0, last, tokens):
        stop = min(start + tokens, last)
        logits = head_logits(model, input_ids, output, slice(start, stop))
        parts.append(_losses(logits, targets[:, start:stop].to(logits.device))[0].numpy())
    return np.concatenate(parts)
