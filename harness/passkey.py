"""Passkey prompts of exactly n tokens: a key at a known depth of a haystack, asked for at the end.

The prompts depend on the tokenizer, the length and the seed, never on the model or the method, so
every method is asked the same questions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import DataError
from harness.passkey_text import (
    ANSWER,
    COLOURS,
    DISTRACTOR,
    FILLER,
    INTRODUCTION,
    NEEDLE,
    QUESTION,
)

Ids = npt.NDArray[np.int64]

_LINES_TO_SNAP = 20  # a depth is then off by a fortieth at most


@dataclass(frozen=True, kw_only=True, eq=False)
class PasskeyPrompt:
    """One trial.

    Attributes:
        input_ids: int64, shape ``(n,)``; the last `answer_tokens` of them are the answer.
        answer_tokens: Tokens of the answer (as many as digits, or fewer where the tokenizer
            glues digits together).
        answer: The key's digits.
        depth: Where in the haystack the key was put, 0 (start) to 1 (end).
        trial: Number of the trial at this depth.
    """

    input_ids: Ids
    answer_tokens: int
    answer: str
    depth: float
    trial: int


def _ids(tokenizer: Any, text: str) -> Ids:
    """Token ids of a piece as it stands behind a line break, without special tokens.

    Tokenizers that put a space before the first word of a text do so only at its start.
    """
    start = tokenizer("\n", add_special_tokens=False)["input_ids"]
    behind = tokenizer("\n" + text, add_special_tokens=False)["input_ids"]
    if behind[: len(start)] == start:
        return np.array(behind[len(start) :], dtype=np.int64)
    alone = tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.array(alone, dtype=np.int64)


def split_answer(tokenizer: Any, key: str) -> tuple[Ids, Ids]:
    """Tokenize question and answer together and cut where the answer begins.

    A token of white space between them (``The pass key is`` + space) belongs to the question: a
    model must find the digits, not guess how this tokenizer spaces them.

    Returns:
        Ids of the question and of the answer.
    """
    question = _ids(tokenizer, QUESTION)
    whole = _ids(tokenizer, QUESTION + ANSWER.format(key=key))
    shared = 0
    while shared < min(len(question), len(whole) - 1) and question[shared] == whole[shared]:
        shared += 1
    while shared < len(whole) - 1 and not tokenizer.decode([int(whole[shared])]).strip():
        shared += 1
    return whole[:shared], whole[shared:]


def random_key(rng: np.random.Generator, digits: int) -> str:
    """A key of so many digits, leading noughts included."""
    return "".join(str(digit) for digit in rng.integers(0, 10, size=digits))


def _line_start(position: int, room: int, period: int) -> int:
    """The start of a filler line nearest to a position, so that a needle begins a line.

    Only where a line is short beside the haystack: in a small one, depths would fall together.
    """
    if room < _LINES_TO_SNAP * period:
        return position
    return min(round(position / period) * period, room)


class PasskeyTask:
    """Makes prompts for one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        digits: int,
        distractors: int,
        seed: int,
        filler_ids: Ids | None = None,
    ) -> None:
        """Tokenize the fixed parts.

        Args:
            tokenizer: Any Hugging Face tokenizer.
            digits: Digits of a key.
            distractors: Other numbers strewn into the haystack.
            seed: Of the sweep.
            filler_ids: Tokens of a text to hide the key in, at least as long as the longest
                prompt; None for the built-in sentences.
        """
        self.tokenizer = tokenizer
        self.digits = digits
        self.distractors = distractors
        self.seed = seed
        self._period = 1
        bos = getattr(tokenizer, "bos_token_id", None)
        start = [] if bos is None else [bos]
        self._head = np.concatenate([start, _ids(tokenizer, INTRODUCTION)]).astype(np.int64)
        if filler_ids is None:
            self._filler = _ids(tokenizer, FILLER)
            self._period = len(self._filler)
        else:
            self._filler = filler_ids

    def prompt_hash(self) -> str:
        """SHA-256 of what the prompts are made of, for a pass's identity."""
        parts = [*self._head, -1, *self._filler, -1, *_ids(self.tokenizer, NEEDLE)]
        for text in (QUESTION, ANSWER, DISTRACTOR, *COLOURS):
            parts += [-1, *_ids(self.tokenizer, text)]
        return hashlib.sha256(np.array(parts, dtype="<i8").tobytes()).hexdigest()

    def prompt(
        self, context_length: int, depth: float, depth_index: int, trial: int
    ) -> PasskeyPrompt:
        """The prompt of one trial: exactly `context_length` tokens with question and answer.

        Raises:
            DataError: If the fixed parts alone are longer than that.
        """
        rng = np.random.default_rng([self.seed, context_length, depth_index, trial])
        key = random_key(rng, self.digits)
        question, answer = split_answer(self.tokenizer, key)
        needle = _ids(self.tokenizer, NEEDLE.format(key=key))
        others = [self._distractor(rng, key) for _ in range(self.distractors)]
        fixed = len(self._head) + len(needle) + len(question) + len(answer) + sum(map(len, others))
        room = context_length - fixed
        if room < 0:
            raise DataError(
                f"a passkey prompt needs {fixed} tokens without any haystack; a context length of "
                f"{context_length} is too short (fewer digits or distractors, or a longer context)"
            )
        filler = np.resize(self._filler, room)
        at = _line_start(round(room * depth), room, self._period)
        pieces = self._strew(rng, filler, others, at, needle)
        ids = np.concatenate([self._head, *pieces, question, answer])
        return PasskeyPrompt(
            input_ids=ids, answer_tokens=len(answer), answer=key, depth=depth, trial=trial
        )

    def _distractor(self, rng: np.random.Generator, key: str) -> Ids:
        number = key
        while number == key:
            number = random_key(rng, self.digits)
        return _ids(self.tokenizer, DISTRACTOR.format(colour=rng.choice(COLOURS), key=number))

    def _strew(
        self, rng: np.random.Generator, filler: Ids, others: list[Ids], at: int, needle: Ids
    ) -> list[Ids]:
        """The filler with the needle at `at` and the other numbers at random places."""
        room = len(filler)
        places = [
            (_line_start(int(rng.integers(0, room + 1)), room, self._period), o) for o in others
        ]
        places = sorted([*places, (at, needle)], key=lambda place: place[0])
        pieces: list[Ids] = []
        last = 0
        for place, ids in places:
            pieces += [filler[last:place], ids]
            last = place
        return [*pieces, filler[last:]]


def depth_values(depths: int | list[float]) -> list[float]:
    """Evenly spaced depths from 0 to 1 for a number, or the given ones."""
    if isinstance(depths, int):
        return [0.5] if depths == 1 else [float(d) for d in np.linspace(0.0, 1.0, depths)]
    return list(depths)
