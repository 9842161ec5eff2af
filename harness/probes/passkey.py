"""Passkey trials: teacher-forced score and loss of the answer, or real greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from harness.engine import answer_logits
from harness.passkey import PasskeyPrompt
from harness.rows import PASSKEY


def _batches(prompts: Sequence[PasskeyPrompt], tokens: int) -> Iterator[list[PasskeyPrompt]]:
    """Prompts of one shape together, as many as fit into a budget of tokens."""
    batch: list[PasskeyPrompt] = []
    for prompt in prompts:
        size = len(prompt.input_ids)
        same = batch and batch[0].answer_tokens == prompt.answer_tokens
        if batch and (not same or (len(batch) + 1) * size > tokens):
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


def greedy_answer(model: Any, prompt: PasskeyPrompt) -> torch.Tensor:
    """The tokens that greedy decoding puts where the answer belongs, shape ``(answer_tokens,)``."""
    device = next(model.parameters()).device
    start = len(prompt.input_ids) - prompt.answer_tokens
    ids = torch.from_numpy(prompt.input_ids[:start])[None].to(device)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=prompt.answer_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=0,
        )
    return out[0, start:].cpu()


def _score(
    model: Any, tokenizer: Any, prompt: PasskeyPrompt, logits: torch.Tensor, generate: bool
) -> dict[str, Any]:
    """One row; `logits` has shape ``(answer_tokens, vocabulary)``."""
    answer = torch.from_numpy(prompt.input_ids[-prompt.answer_tokens :])
    losses = torch.log_softmax(logits.double(), -1).gather(1, answer[:, None])
    guess = logits.argmax(-1)
    text = tokenizer.decode(guess.tolist()).strip()
    # The digits may be right in other tokens than ours (another space, another split). Then only
    # decoding on from the model's own tokens tells what it would have answered.
    other_tokens = text == prompt.answer and not torch.equal(guess, answer)
    if generate or other_tokens:
        guess = greedy_answer(model, prompt)
        text = tokenizer.decode(guess.tolist()).strip()
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
    batch_tokens: int = 8192,
) -> Iterator[pd.DataFrame]:
    """Score prompts in batches.

    Every answer token being the argmax behind the true tokens before it is what greedy decoding
    produces, so one forward pass scores a trial.

    Args:
        model: A causal language model, patched for the whole length of the prompts.
        tokenizer: The model's.
        prompts: All of one length.
        distractors: Noted in the rows.
        generate: Decode greedily instead of comparing argmaxes.
        batch_tokens: Tokens in one forward pass, at most (one prompt at least).

    Yields:
        A table per batch; columns as in ``rows.PASSKEY``.
    """
    device = next(model.parameters()).device
    for batch in _batches(prompts, batch_tokens):
        size, answer = len(batch[0].input_ids), batch[0].answer_tokens
        ids = torch.from_numpy(np.stack([p.input_ids for p in batch])).to(device)
        positions = torch.arange(size - answer - 1, size - 1)
        logits = answer_logits(model, ids, positions).cpu()
        rows = [
            _score(model, tokenizer, prompt, row, generate)
            for prompt, row in zip(batch, logits, strict=True)
        ]
        frame = pd.DataFrame(rows)
        frame["distractors"] = distractors
        yield frame[list(PASSKEY)]
