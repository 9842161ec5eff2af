"""Passkey trials: teacher-forced score and loss of the answer, or real greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from harness.passkey import PasskeyPrompt
from harness.prefill import most_rows
from harness.prefix import SharedPrefix, can_share, running
from harness.rows import PASSKEY

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Prompts with one needle's place, and how much of the common haystack comes before it.

    Attributes:
        rows: Their indices among all prompts.
        prompts: The prompts; all have answers of as many tokens.
        shared_tokens: First tokens that they have in common with the haystack of all prompts.
    """

    rows: list[int]
    prompts: list[PasskeyPrompt]
    shared_tokens: int


def _common(ids: Ids, other: Ids) -> int:
    """First tokens that are the same in two sequences of one length."""
    different = np.flatnonzero(ids != other)
    return int(different[0]) if len(different) else len(ids)


def _groups(prompts: Sequence[PasskeyPrompt], share: bool) -> tuple[Ids, list[_Group]]:
    """Group prompts by depth, those that leave the common haystack first before the others.

    Returns:
        The haystack that is shared (the prompt with the deepest needle), and the groups.
    """
    haystack = max(prompts, key=lambda p: p.depth).input_ids
    found: dict[tuple[float, int], list[int]] = {}
    for index, prompt in enumerate(prompts):
        found.setdefault((prompt.depth, prompt.answer_tokens), []).append(index)
    groups = []
    for (_, answer), rows in found.items():
        own = [prompts[i] for i in rows]
        # The last token before the answer must run in each prompt: it predicts the answer.
        most = len(haystack) - answer - 1
        same = min(_common(prompt.input_ids, haystack) for prompt in own)
        shared = min(same, most) if share else 0
        groups.append(_Group(rows=rows, prompts=own, shared_tokens=shared))
    return haystack, sorted(groups, key=lambda group: group.shared_tokens)


def greedy_answer(prefix: SharedPrefix, prompt: PasskeyPrompt) -> torch.Tensor:
    """What greedy decoding puts where the answer belongs, with room for another way to split it.

    Neither what a checkpoint ships for decoding nor its end of a text is heeded: a penalty on
    repetition would forbid repeating a key.

    Args:
        prefix: First tokens of the prompt, none of the answer's.
        prompt: The whole.

    Returns:
        Token ids, shape ``(tokens,)``: enough for a space and a token a digit.
    """
    start = len(prompt.input_ids) - prompt.answer_tokens
    ids = torch.from_numpy(prompt.input_ids[prefix.num_tokens : start])[None]
    return prefix.greedy(ids, len(prompt.answer) + 1)


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
    prefix: SharedPrefix,
    tokenizer: Any,
    prompt: PasskeyPrompt,
    logits: torch.Tensor,
    generate: bool,
) -> dict[str, Any]:
    """One row; `logits` has shape ``(answer_tokens, vocabulary)``."""
    answer = torch.from_numpy(prompt.input_ids[-prompt.answer_tokens :])
    losses = torch.log_softmax(logits.double(), -1).gather(1, answer[:, None])
    guess = logits.argmax(-1)
    if generate or _splits_otherwise(tokenizer, prompt, answer, guess):
        guess = greedy_answer(prefix, prompt)
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
    chunk_tokens: int | None = None,
) -> Iterator[pd.DataFrame]:
    """Score prompts in batches.

    Every answer token being the argmax behind the true tokens before it is what greedy decoding
    produces, so one forward pass scores a trial. The haystack runs once: it is kept in a cache
    that grows from needle to needle, and each trial goes on from where its own needle begins.

    Args:
        model: A causal language model, patched for the whole length of the prompts.
        tokenizer: The model's.
        prompts: All of one length.
        distractors: Noted in the rows.
        generate: Decode greedily instead of comparing argmaxes.
        share: Whether the haystack may run once, where `can_share` holds.
        batch_tokens: Tokens behind the shared haystack in one forward pass, at most (one prompt
            at least).
        chunk_tokens: Tokens that run at once; None for as many as a budget of memory holds.

    Yields:
        A table per batch, indexed by the prompts' numbers; columns as in ``rows.PASSKEY``.
    """
    haystack, groups = _groups(prompts, share and can_share(model))
    prefix = SharedPrefix(model, chunk_tokens)
    for group in groups:
        with running(model):
            grown = haystack[prefix.num_tokens : group.shared_tokens]
            prefix.grow(torch.from_numpy(grown.copy())[None])
        behind = len(haystack) - group.shared_tokens
        size = max(1, min(batch_tokens // behind, most_rows(model, len(haystack))))
        for start in range(0, len(group.prompts), size):
            some = group.prompts[start : start + size]
            frame = _batch_rows(model, tokenizer, prefix, some, generate)
            frame.index = pd.Index(group.rows[start : start + size])
            frame["distractors"] = distractors
            yield frame[list(PASSKEY)]


def _batch_rows(
    model: Any,
    tokenizer: Any,
    prefix: SharedPrefix,
    prompts: list[PasskeyPrompt],
    generate: bool,
) -> pd.DataFrame:
    """Rows of prompts that go on from the prefix."""
    shared, answer = prefix.num_tokens, prompts[0].answer_tokens
    ids = torch.from_numpy(np.stack([p.input_ids[shared:] for p in prompts]))
    size = ids.shape[1]
    with running(model):
        logits = prefix.logits_behind(ids, torch.arange(size - answer - 1, size - 1)).cpu()
        rows = [
            _score(prefix, tokenizer, prompt, row, generate)
            for prompt, row in zip(prompts, logits, strict=True)
        ]
    return pd.DataFrame(rows)
