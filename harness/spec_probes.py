"""The probes of a sweep, with their defaults."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from harness.spec_errors import Problem, problem_error, problems_error, shown
from harness.spec_parts import Count, Part, Whole, count_or, whole

PROBES = ("perplexity", "entropy", "passkey")


def _depths(value: Any) -> Any:
    number = whole(value)
    if type(number) is int and number >= 1:
        return number
    if not isinstance(value, list) or not value:
        raise problem_error(
            f"must be a whole number of at least 1 or a list of depths, not {shown(value)}"
            if value != []
            else "must not be empty"
        )
    problems, depths = [], []
    for index, depth in enumerate(value):
        if type(depth) not in (int, float) or not (math.isfinite(depth) and 0 <= depth <= 1):
            message = f"must be a number from 0 (the start) to 1 (the end), not {shown(depth)}"
            problems.append(Problem((index,), message))
        elif float(depth) in depths:
            problems.append(Problem((index,), f"the depth {shown(depth)} is given twice"))
        else:
            depths.append(float(depth))
    if problems:
        raise problems_error(problems)
    return depths


def _settings(value: Any) -> Any:
    if isinstance(value, str | bool | int | float):
        raise problem_error(
            f"must be a mapping of its settings, which may be empty ({{}}), not {shown(value)}; to "
            "switch it off, leave the key out or write false"
        )
    return value


class PerplexityProbe(Part):
    """Loss by position.

    Attributes:
        protocol: ``full``: one window from the document's start; ``sliding``: strided windows, each
            token scored once.
        stride: Tokens from one sliding window to the next.
    """

    protocol: Literal["full", "sliding"] = "full"
    stride: Count | None = None

    @model_validator(mode="after")
    def _stride_with_sliding(self) -> PerplexityProbe:
        if self.protocol == "sliding" and self.stride is None:
            raise problems_error([Problem(("stride",), "is missing; protocol: sliding needs it")])
        if self.protocol == "full" and self.stride is not None:
            raise problems_error([Problem(("stride",), "is for protocol: sliding only")])
        return self


class EntropyProbe(Part):
    """Attention statistics of every layer and head.

    Attributes:
        queries: ``all`` positions, or how many sampled ones.
        local_window: Last keys that count as local, in tokens.
        documents: How many of the sweep's documents, ``None`` for all.
    """

    queries: Annotated[Literal["all"] | int, PlainValidator(count_or("all"))] = "all"
    local_window: Count = 64
    documents: Count | None = None


class PasskeyProbe(Part):
    """Retrieval of a number from a haystack.

    Attributes:
        depths: Where it is hidden, from 0 to 1, or how many evenly spaced places.
        trials: Prompts for each length and depth.
        digits: Digits of the number.
        distractors: Other numbers in the haystack.
        filler: A haystack of repeated ``sentences``, or of the sweep's own ``text``.
        generate: Decode the answer token by token, besides scoring it in one pass.
    """

    depths: Annotated[int | list[float], PlainValidator(_depths)] = 5
    trials: Count = 4
    digits: Count = 5
    distractors: Annotated[Whole, Field(ge=0)] = 0
    filler: Literal["sentences", "text"] = "sentences"
    generate: bool = False


class Probes(Part):
    """What is measured; a probe that is absent is not.

    Attributes:
        perplexity: Loss by position.
        entropy: Attention statistics.
        passkey: Retrieval.
    """

    perplexity: Annotated[PerplexityProbe | None, BeforeValidator(_settings)] = None
    entropy: Annotated[EntropyProbe | None, BeforeValidator(_settings)] = None
    passkey: Annotated[PasskeyProbe | None, BeforeValidator(_settings)] = None

    @model_validator(mode="after")
    def _at_least_one(self) -> Probes:
        if not self.enabled:
            raise problem_error(f"at least one of {', '.join(PROBES)} is needed")
        return self

    def is_sliding(self, probe: str) -> bool:
        """Whether a probe runs strided windows, which belong to one context length each."""
        return (
            probe == "perplexity"
            and self.perplexity is not None
            and self.perplexity.protocol == "sliding"
        )

    @property
    def enabled(self) -> tuple[str, ...]:
        """Names of the probes that are on."""
        return tuple(name for name in PROBES if getattr(self, name) is not None)
