"""What the zoo is trained on: windows of source text and synthetic passkey documents.

The batch of a step is a function of the seed and the step alone, so a resumed training sees what
an uninterrupted one would have seen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.corpus import SourceFile
from harness.passkey import random_key
from harness.passkey_text import (
    ANSWER,
    COLOURS,
    DISTRACTOR,
    FILLER,
    INTRODUCTION,
    NEEDLE,
    QUESTION,
)

IGNORED = -100  # the label that torch's cross entropy leaves out
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the mixture changes with the step."""

    first_share: float = 0.5  # of a batch that are passkey documents, while gaps grow
    later_share: float = 0.2
    growth_steps: int = 250  # over which the longest gap grows to the whole window

    def passkey_share(self, step: int) -> float:
        return self.first_share if step < self.growth_steps else self.later_share

    def longest_gap(self, step: int, window_tokens: int) -> int:
        grown = min(1.0, (step + 1) / self.growth_steps)
        return max(24, int(grown * window_tokens))


class TrainingText:
    """Token ids of the training files, and passkey documents made from them."""

    def __init__(self, tokenizer: Any, files: list[SourceFile], window_tokens: int) -> None:
        """Tokenize everything once; `window_tokens` counts the beginning-of-sequence token."""
        self.tokenizer = tokenizer
        self.window_tokens = window_tokens
        encoded = tokenizer([f.text for f in files], add_special_tokens=False)["input_ids"]
        longer = [np.array(ids, dtype=np.int64) for ids in encoded if len(ids) >= window_tokens]
        self.documents: list[Ids] = longer
        sizes = np.array([len(ids) for ids in longer], dtype=np.float64)
        self.weights = sizes / sizes.sum()
        self.num_tokens = int(sizes.sum())
        digest = hashlib.sha256()
        for ids in longer:
            digest.update(ids.astype("<i8").tobytes())
        self.digest = digest.hexdigest()  # of text and tokenizer together
        self.filler = self._ids(FILLER)

    def _ids(self, text: str) -> Ids:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.array(ids, dtype=np.int64)

    def slice_of_text(self, rng: np.random.Generator, tokens: int) -> Ids:
        document = self.documents[rng.choice(len(self.documents), p=self.weights)]
        start = rng.integers(0, len(document) - tokens + 1)
        return document[start : start + tokens]

    def text_window(self, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """A window of source text behind the beginning-of-sequence token; every token scored."""
        text = self.slice_of_text(rng, self.window_tokens - 1)
        ids = np.concatenate([[self.tokenizer.bos_token_id], text])
        return ids, ids.copy()

    def _gap(self, rng: np.random.Generator, tokens: int, kind: str) -> Ids:
        if tokens <= 0:
            return np.empty(0, dtype=np.int64)
        if kind == "text":
            return self.slice_of_text(rng, tokens)
        shift = int(rng.integers(len(self.filler))) if kind == "shifted" else 0
        return np.resize(np.roll(self.filler, -shift), tokens)

    def passkey_window(self, rng: np.random.Generator, longest_gap: int) -> tuple[Ids, Ids]:
        """A key hidden once and asked for again and again, the last time at the very end.

        Asking often within one window is what makes a small model learn retrieval early; the key's
        own first appearance is random and not scored.
        """
        kind = str(rng.choice(["sentences", "shifted", "text"]))
        key = random_key(rng, int(rng.integers(3, 9)))
        needle = self._ids(NEEDLE.format(key=key))
        ask = self._ids((QUESTION + ANSWER).format(key=key))
        head = np.concatenate([[self.tokenizer.bos_token_id], self._ids(INTRODUCTION)])
        other = [self._distractor(rng) for _ in range(int(rng.integers(0, 3)))]
        room = self.window_tokens - len(head) - len(needle) - sum(map(len, other))
        asked = int(rng.integers(1, 5)) if rng.random() < 0.7 else 1
        asked = max(1, min(asked, room // (2 * len(ask))))
        room -= asked * len(ask)
        after = self._split(rng, min(room, longest_gap), asked)
        before = room - sum(after)
        # What does not fit behind the needle lies before it: the depth varies with the gaps.
        parts = [head, *other, self._gap(rng, before, kind), needle]
        key_start = sum(map(len, parts[:-1]))
        for gap in after:
            parts += [self._gap(rng, gap, kind), ask]
        ids = np.concatenate(parts)
        labels = ids.copy()
        first_key = key_start + self._key_offset(needle, key)
        labels[first_key : first_key + len(key)] = IGNORED
        return ids, labels

    def _distractor(self, rng: np.random.Generator) -> Ids:
        key = random_key(rng, 5)
        return self._ids(DISTRACTOR.format(colour=rng.choice(COLOURS), key=key))

    def _key_offset(self, needle: Ids, key: str) -> int:
        digits = self._ids(key)
        for start in range(len(needle) - len(digits) + 1):
            if np.array_equal(needle[start : start + len(digits)], digits):
                return start
        raise AssertionError("the tokenizer keeps every digit apart")

    @staticmethod
    def _split(rng: np.random.Generator, total: int, parts: int) -> list[int]:
        """Cut a random part of `total` tokens into `parts` gaps."""
        used = int(rng.integers(0, total + 1))
        cuts = np.sort(rng.integers(0, used + 1, size=parts - 1))
        return [int(x) for x in np.diff(np.concatenate([[0], cuts, [used]]))]

    def batch(self, seed: int, step: int, size: int, schedule: Schedule) -> tuple[Ids, Ids, int]:
        """Ids and labels ``[size, window_tokens]`` of one step, passkey documents first.

        Returns:
            Ids, labels (``IGNORED`` where nothing is scored) and the number of passkey documents.
        """
        rng = np.random.default_rng([seed, step])
        passkeys = round(size * schedule.passkey_share(step))
        gap = schedule.longest_gap(step, self.window_tokens)
        rows = [self.passkey_window(rng, gap) for _ in range(passkeys)]
        rows += [self.text_window(rng) for _ in range(size - passkeys)]
        return np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows]), passkeys

    def final_answers(self, seed: int, trials: int, digits: int = 5) -> tuple[Ids, int]:
        """Windows with one key at an even spread of depths, asked for once at the very end.

        Returns:
            Ids ``[trials, window_tokens]`` whose last `digits` tokens are the answer, and `digits`.
        """
        rng = np.random.default_rng([seed, 1])
        rows = []
        for trial in range(trials):
            key = random_key(rng, digits)
            head = np.concatenate([[self.tokenizer.bos_token_id], self._ids(INTRODUCTION)])
            needle = self._ids(NEEDLE.format(key=key))
            ask = self._ids((QUESTION + ANSWER).format(key=key))
            room = self.window_tokens - len(head) - len(needle) - len(ask)
            before = round(room * trial / max(1, trials - 1))
            gaps = [self._gap(rng, n, "sentences") for n in (before, room - before)]
            rows.append(np.concatenate([head, gaps[0], needle, gaps[1], ask]))
        return np.stack(rows), digits
