"""Passkey trials: teacher-forced score and loss of the answer, or real greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from harness.engine import answer_logits
from harness.passkey import PasskeyPrompt
from harness.rows import PASSKEY

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Prompts that run together, and how many first tokens are the same in all of them."""

    prompts: list[PasskeyPrompt]
    shared_tokens: int


def _shared_prefix(ids: Ids, answer_tokens: int) -> int:
    """Tokens before the first that differs between rows ``(B, n)``; the question is not shared."""
    same = (ids == ids[:1]).all(0)
    first_difference = int(np.argmin(same)) if not same.all() else len(same)
    return min(first_difference, int(ids.shape[1]) - answer_tokens - 1)


def _batches(prompts: Sequence[PasskeyPrompt], tokens: int, share: bool = True) -> Iterator[_Batch]:
    """Prompts that are alike up to their needle, as many as fit into a budget of tokens.

    Only what lies behind the shared haystack counts: a needle near the end costs next to nothing.
    """
    for _, group in groupby(prompts, key=lambda p: (p.depth, p.answer_tokens)):
        alike = list(group)
        ids = np.stack([p.input_ids for p in alike])
        shared = _shared_prefix(ids, alike[0].answer_tokens) if share else 0
        # Behind a prefix, attention needs a mask and does not skip what is hidden: a short prefix
        # saves less than that costs.
        shared = shared if 2 * shared >= ids.shape[1] else 0
        size = max(1, tokens // (ids.shape[1] - shared))
        for start in range(0, len(alike), size):
            batch = alike[start : start + size]
            # Alone, a prompt gains nothing from running in two parts.
            yield _Batch(prompts=batch, shared_tokens=shared if len(batch) > 1 else 0)


def greedy_answer(model: Any, prompt: PasskeyPrompt) -> torch.Tensor:
    """What greedy decoding puts where the answer belongs, with room for another way to split it.

    Returns:
        Token ids, shape ``(tokens,)``: enough for a space and a token a digit, unless it ends.
    """
    from transformers import GenerationConfig

    device = next(model.parameters()).device
    start = len(prompt.input_ids) - prompt.answer_tokens
    ids = torch.from_numpy(prompt.input_ids[:start])[None].to(device)
    # What a checkpoint ships would be merged in: a penalty on repetition forbids repeating a key.
    own = model.generation_config
    model.generation_config = GenerationConfig(
        max_new_tokens=len(prompt.answer) + 1, do_sample=False, num_beams=1, pad_token_id=0
    )
    try:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids))
    finally:
        model.generation_config = own
    answer: torch.Tensor = out[0, start:].cpu()
    return answer


def _read(tokenizer: Any, tokens: torch.Tensor, prompt: PasskeyPrompt) -> str:
    """The key, if the first tokens spell exactly it, however split; else what they say."""
    ids = tokens.tolist()
    for count in range(1, len(ids) + 1):
        if tokenizer.decode(ids[:count]).strip() == prompt.answer:
            return prompt.answer
    text: str = tokenizer.decode(ids[: prompt.answer_tokens]).strip()
    return text


def _splits_otherwise(
    tokenizer: Any, prompt: PasskeyPrompt, answer: torch.Tensor, guess: torch.Tensor
) -> bool:
    """Whether a model that leaves our tokens may still be spelling the key in others of its own.

    It may if its first other token is a space, or goes on with the right digits. Only decoding on
    from there tells, since the tokens behind were predicted from ours.
    """
    different = (guess != answer).nonzero().flatten()
    if not len(different):
        return False
    first = int(different[0])
    own = tokenizer.decode([int(guess[first])])
    so_far = tokenizer.decode([*answer[:first].tolist(), int(guess[first])]).strip()
    only_space = not own.strip() and "\n" not in own
    return only_space or (bool(own.strip()) and prompt.answer.startswith(so_far))


def _score(
    model: Any, tokenizer: Any, prompt: PasskeyPrompt, logits: torch.Tensor, generate: bool
) -> dict[str, Any]:
    """One row; `logits` has shape ``(answer_tokens, vocabulary)``."""
    answer = torch.from_numpy(prompt.input_ids[-prompt.answer_tokens :])
    losses = torch.log_softmax(logits.double(), -1).gather(1, answer[:, None])
    guess = logits.argmax(-1)
    if generate or _splits_otherwise(tokenizer, prompt, answer, guess):
        guess = greedy_answer(model, prompt)
    text = _read(tokenizer, guess, prompt)
    return {
        "depth": prompt.depth,
        "trial": prompt.trial,
        "answer": prompt.answer,
        "predicted": text,
        "correct": text == prompt.answer,
        "answer_nll_nats": float(-losses.sum()),
        "prompt_tokens": len(prompt.input_ids),
    }


def passkey_rows(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[PasskeyPrompt],
    *,
    distractors: int,
    generate: bool,
    share: bool = True,
    batch_tokens: int = 4096,
) -> Iterator[pd.DataFrame]:
    """Score prompts in batches.

    Every answer token being the argmax behind the true tokens before it is what greedy decoding
    produces, so one forward pass scores a trial. Trials at one depth share their haystack up to
    the needle, which is run once for a batch.

    Args:
        model: A causal language model, patched for the whole length of the prompts.
        tokenizer: The model's.
        prompts: All of one length.
        distractors: Noted in the rows.
        generate: Decode greedily instead of comparing argmaxes.
        share: Whether a prefix may run on its own; not where the model's own scaling would take
            other tables for it than for the whole.
        batch_tokens: Tokens behind the shared haystack in one forward pass, at most (one prompt
            at least).

    Yields:
        A table per batch; columns as in ``rows.PASSKEY``.
    """
    device = next(model.parameters()).device
    for batch in _batches(prompts, batch_tokens, share):
        size, answer = len(batch.prompts[0].input_ids), batch.prompts[0].answer_tokens
        ids = torch.from_numpy(np.stack([p.input_ids for p in batch.prompts])).to(device)
        positions = torch.arange(size - answer - 1, size - 1)
        logits = answer_logits(model, ids, positions, shared_tokens=batch.shared_tokens).cpu()
        rows = [
            _score(model, tokenizer, prompt, row, generate)
            for prompt, row in zip(batch.prompts, logits, strict=True)
        ]
        frame = pd.DataFrame(rows)
        frame["distractors"] = distractors
        yield frame[list(PASSKEY)]
