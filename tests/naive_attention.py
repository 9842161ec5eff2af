"""The N x N reference: attention and its statistics as the definitions say, in float64.

Nothing of it is shared with the code that it checks.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

FOUND: dict[int, dict[str, torch.Tensor]] = {}
WINDOW = [7]


def query_statistics(
    p: list[float], s: list[float], i: int, w: int, sink: float = 0.0
) -> dict[str, float]:
    """Statistics of query i from its probabilities and logits of keys 0..n-1 (0 where hidden)."""
    keys = [j for j in range(len(p)) if s[j] != -math.inf]
    entropy = -sum(p[j] * math.log(p[j]) for j in keys if p[j] > 0)
    return {
        "entropy_nats": entropy,
        "normalized_entropy": entropy / math.log(len(keys)) if len(keys) > 1 else math.nan,
        "effective_tokens": math.exp(entropy),
        "sink_mass": p[0],
        "self_mass": p[i],
        "previous_mass": sum(p[j] for j in (i - 1, i - 2) if j >= 0),
        "local_mass": sum(p[j] for j in range(max(0, i - w + 1), i + 1)),
        "learnt_sink_mass": sink,
        "mean_distance_tokens": sum(p[j] * (i - j) for j in keys),
        "max_logit": max(s[j] for j in keys),
    }


def naive_function(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float,
    softcap: float | None = None,
    s_aux: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    q, k, v = query[0].double(), key[0].double(), value[0].double()
    heads, n, _size = q.shape
    out = torch.zeros(heads, n, v.shape[-1], dtype=torch.float64)
    rows: dict[str, list[list[float]]] = {}
    for h in range(heads):
        kv = h * k.shape[0] // heads
        logits = q[h] @ k[kv].T * scaling
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        seen = attention_mask[0, 0] if attention_mask is not None else torch.ones(n, n).tril() > 0
        logits = logits.masked_fill(~seen, -math.inf)
        probabilities = torch.softmax(logits, -1)
        shares, sinks = probabilities, [0.0] * n
        if s_aux is not None:
            with_sink = torch.cat([logits, s_aux[h].double().expand(n, 1)], 1)
            whole = torch.softmax(with_sink, -1)
            shares, sinks = whole[:, :n], whole[:, n].tolist()
        out[h] = shares @ v[kv]
        for i in range(n):
            found = query_statistics(
                probabilities[i].tolist(), logits[i].tolist(), i, WINDOW[0], sinks[i]
            )
            for name, number in found.items():
                rows.setdefault(name, [[] for _ in range(heads)])[h].append(number)
    FOUND[module.layer_idx] = {
        name: torch.tensor(r, dtype=torch.float64) for name, r in rows.items()
    }
    return out.transpose(0, 1)[None].to(query.dtype), None


@contextmanager
def naive(model: Any, window: int) -> Any:
    """Run a model on the reference; afterwards the statistics lie in the dict that is yielded."""
    AttentionInterface.register("naive_reference", naive_function)
    AttentionMaskInterface.register("naive_reference", sdpa_mask)
    old = model.config._attn_implementation
    FOUND.clear()
    WINDOW[0] = window
    model.set_attn_implementation("naive_reference")
    try:
        yield FOUND
    finally:
        model.set_attn_implementation(old)
