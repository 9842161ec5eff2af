"""What is timed, each in a process of its own: functions of JSON values."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmark import shapes
from harness.attention_data import sample_positions
from harness.engine import AttentionSettings, measure, token_nll
from harness.memory import PeakMemory

Work = Callable[[], Any]
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


def seconds(work: Work, device: str) -> float:
    """How long some work takes."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def alternate(works: Sequence[Work], repeats: int, device: str = "cpu") -> list[float]:
    """Medians of several kinds of work, in turns, so that the machine's drift hits all."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, times in zip(works, found, strict=True):
            times.append(seconds(work, device))
    return [statistics.median(times) for times in found]


def plain_forward(model: Any, ids: torch.Tensor) -> Work:
    """The base model's own forward pass under SDPA."""

    def work() -> None:
        with torch.inference_mode():
            model.base_model(ids, use_cache=False)

    return work


def _settings(queries: str, length: int) -> AttentionSettings:
    if queries == "all":
        return AttentionSettings(queries="all")
    lengths = tuple(n for n in (*LENGTHS, length) if n <= length)
    positions = sample_positions(tuple(sorted(set(lengths))), 256, 0)
    return AttentionSettings(queries=tuple(int(p) for p in positions))


def attention(
    model: str, length: int, queries: list[str], dtype: str, repeats: int, device: str
) -> dict[str, float]:
    """Statistics of the attention of some queries, and the plain forward pass."""
    it = shapes.make(model, dtype=dtype, device=device)
    ids = shapes.random_ids(it, length)

    def measured(which: str, tokens: int) -> Work:
        settings = _settings(which, tokens)
        some = ids[:, :tokens]
        return lambda: measure(it, some, nll=False, attention=settings, consumer=lambda _: None)

    for which in queries:  # warms up
        measured(which, min(length, 256))()
    plain_forward(it, ids[:, :256])()
    works = [measured(which, length) for which in queries]
    times = alternate([*works, plain_forward(it, ids)], repeats, device)
    return dict(zip([*queries, "plain"], times, strict=True))


def eager_attention(model: str, length: int, device: str) -> dict[str, float]:
    """The usual way: all weights of all layers, and the entropy of each row."""
    it = shapes.make(model, device=device)
    ids = shapes.random_ids(it, length)
    plain = seconds(plain_forward(it, ids), device)
    it.set_attn_implementation("eager")

    def work() -> None:
        with torch.inference_mode():
            weights = it.base_model(ids, use_cache=False, output_attentions=True).attentions
            for layer in weights:
                torch.special.entr(layer).sum(-1)

    with PeakMemory(device) as memory:
        found = seconds(work, device)
    return {"ours": found, "plain": plain, "peak": memory.peak_bytes}


def memory(model: str, length: int, what: str, device: str, words: int) -> dict[str, float]:
    """Peak memory of one pass with losses; `what` is plain, eager, sampled or all."""
    it = shapes.make(model, words=words, device=device)
    ids = shapes.random_ids(it, length)
    measure(it, ids[:, :64])  # libraries that are loaded when first used
    if what == "eager":
        it.set_attn_implementation("eager")
    with PeakMemory(device) as peak, torch.inference_mode():
        if what in ("sampled", "all"):
            measure(it, ids, attention=_settings(what, length), consumer=lambda _: None)
        else:
            hidden = it.base_model(
                ids, use_cache=False, output_attentions=what == "eager"
            ).last_hidden_state
            for start in range(0, length - 1, 512):
                logits = it.lm_head(hidden[:, start : start + 512]).float()[0]
                targets = ids[0, start + 1 : start + 513]
                torch.nn.functional.cross_entropy(logits[: len(targets)], targets)
    return {"peak": peak.peak_bytes}


def loss_memory(length: int, what: str, device: str) -> dict[str, float]:
    """Memory above model and hidden states of a loss over 262,144 words."""
    it = shapes.make(shapes.WIDE, device=device)
    ids = shapes.random_ids(it, length)
    with PeakMemory(device) as before:
        torch.zeros(1, device=device)
    with PeakMemory(device) as peak, torch.inference_mode():
        if what == "ours":
            token_nll(it, ids)
        else:
            logits = it(ids, use_cache=False).logits[0, :-1].float()
            torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    hidden = length * it.config.hidden_size * 4
    return {"above": peak.peak_bytes - before.peak_bytes - hidden}


def lengths(model: str, longest: int, repeats: int, device: str, peer: bool) -> dict[str, float]:
    """Losses at all lengths by one pass (or one pass a length), against the longest alone."""
    from harness.bins import bin_edges
    from harness.data import TokenizedDocument
    from harness.probes.perplexity import full_rows
    from patches import YaRN, applied

    it = shapes.make(model, device=device)
    ids = shapes.random_ids(it, longest)
    own = tuple(n for n in LENGTHS if n <= longest)
    tokens = ids[0].cpu().numpy()
    document = TokenizedDocument(name="random", input_ids=tokens, byte_ends=np.arange(len(tokens)))

    def shared() -> None:
        full_rows(document, token_nll(it, ids), bin_edges(own), longest)

    def separate() -> None:
        for n in own:
            token_nll(it, ids[:, :n])

    with applied(it, YaRN(factor=4)):
        token_nll(it, ids[:, :256])  # warms up
        works = [separate if peer else shared, lambda: token_nll(it, ids)]
        ours, longest_alone = alternate(works, repeats, device)
    return {"ours": ours, "plain": longest_alone}


def growth(model: str, length: int, what: str, dtype: str, device: str) -> dict[str, float]:
    """Time and memory of one pass with losses; `what` is plain, sampled or all."""
    it = shapes.make(model, dtype=dtype, device=device)
    ids = shapes.random_ids(it, length)
    settings = None if what == "plain" else _settings(what, length)

    def work() -> None:
        measure(it, ids, attention=settings, consumer=lambda _: None)

    with PeakMemory(device) as before:
        measure(it, ids[:, :256])
    with PeakMemory(device) as peak:
        first = seconds(work, device)
    times = [first] if first > 10 else [first, seconds(work, device), seconds(work, device)]
    return {
        "seconds": statistics.median(times),
        "peak": peak.peak_bytes,
        "above": peak.peak_bytes - before.peak_bytes,
    }
