"""Invented tables in the exact layout of a sweep's, for tests of what reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pandas as pd

from harness.rows import ATTENTION, IDENTITY, PASSES, PASSKEY, PERPLEXITY, STATISTICS

METHODS = (("none", "none"), ("linear", "linear"), ("ntk", "ntk"), ("yarn", "yarn"))
MANY_METHODS = (
    *METHODS,
    ("native", "native"),
    ("theta(base=500000.0)", "theta"),
    ("dynamic_ntk", "dynamic_ntk"),
    ("ntk_by_parts", "ntk_by_parts"),
    ("ntk_by_parts(variant=paper)", "ntk_by_parts"),
    ("yarn(beta_fast=2)", "yarn"),
    ("yarn(beta_fast=8)", "yarn"),
    ("llama3", "llama3"),
)


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """What the invented sweep looks like. ``holes``: (model, method, length) without rows."""

    models: Sequence[str] = ("zoo:llama-10k", "zoo:gemma-local-global")
    methods: Sequence[tuple[str, str]] = METHODS
    trained_length: int = 256
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096)
    documents: Sequence[str] = ("typing.py", "argparse.py", "inspect.py", "tarfile.py")
    layers: int = 4
    heads: int = 4
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    trials: int = 4
    holes: frozenset[tuple[str, str, int]] = field(default_factory=frozenset)
    seed: int = 0


def make_tables(spec: Synthetic | None = None) -> dict[str, pd.DataFrame]:
    """Tables of a sweep in which plain RoPE explodes past the trained length.

    Args:
        spec: The sweep; by default two models, four methods, 1x to 16x.

    Returns:
        ``perplexity``, ``attention``, ``passkey`` and ``passes``.
    """
    spec = spec or Synthetic()
    random = np.random.default_rng(spec.seed)
    rows: dict[str, list[dict[str, object]]] = {"perplexity": [], "attention": [], "passkey": []}
    passes: list[dict[str, object]] = []
    for model in spec.models:
        for method, kind in spec.methods:
            for length in spec.lengths:
                identity = _identity(spec, model, method, kind, length)
                missing = (model, method, length) in spec.holes
                for probe, table in rows.items():
                    passes.append(_pass(identity, probe, length, failed=missing))
                    if not missing:
                        table += _ROWS[probe](spec, identity, random)
    columns = {
        "perplexity": [*IDENTITY, *PERPLEXITY],
        "attention": [*IDENTITY, *ATTENTION],
        "passkey": [*IDENTITY, *PASSKEY],
    }
    tables = {name: pd.DataFrame(rows[name], columns=columns[name]) for name in rows}
    tables["passes"] = pd.DataFrame(passes, columns=list(PASSES))
    return tables


def bin_edges(lengths: Sequence[int]) -> list[int]:
    """Edges at 0, at each length and at its half, five, six and seven eighths."""
    parts = {length * eighths // 8 for length in lengths for eighths in (4, 5, 6, 7, 8)}
    return sorted({0, min(lengths) // 8, min(lengths) // 4} | parts)


def loss_nats(kind: str, position: float, trained_length: int) -> float:
    """Invented loss of a token: falls within the trained length, then kind decides."""
    octaves = max(0.0, math.log2(position / trained_length))
    slope = {"none": 0.9, "native": 0.9, "theta": 0.08, "linear": 0.35, "ntk": 0.12}
    growth = slope.get(kind, 0.02) * float(octaves**1.3)
    return float(2.6 + 1.5 * math.exp(-position / 60) + growth)


def _identity(
    spec: Synthetic, model: str, method: str, kind: str, length: int
) -> dict[str, object]:
    return {
        "model": model,
        "method": method,
        "kind": kind,
        "layers": "full_attention" if "gemma" in model else "all",
        "factor": 1.0 if kind in ("none", "native") else max(1.0, length / spec.trained_length),
        "base": 10000.0,
        "trained_length": spec.trained_length,
        "context_length": length,
        "seed": spec.seed,
        "data_hash": "0123456789abcdef",
        "python_version": "3.11.7",
        "pass_id": f"{model}-{method}-{length}",
    }


def _perplexity_rows(
    spec: Synthetic, identity: dict[str, object], random: np.random.Generator
) -> list[dict[str, object]]:
    edges = [
        edge for edge in bin_edges(spec.lengths) if edge <= int(str(identity["context_length"]))
    ]
    rows = []
    for number, document in enumerate(spec.documents):
        for start, stop in pairwise(edges):
            tokens = stop - max(start, 1)
            position = (start + stop) / 2
            loss = loss_nats(str(identity["kind"]), position, spec.trained_length)
            loss += 0.15 * (number - 1.5) + 0.05 * random.standard_normal()
            rows.append(
                identity
                | {
                    "document": document,
                    "position_start": start,
                    "position_stop": stop,
                    "tokens": tokens,
                    "bytes": 3 * tokens,
                    "nll_nats": tokens * loss,
                    "protocol": "window",
                }
            )
    return rows


def _attention_rows(
    spec: Synthetic, identity: dict[str, object], random: np.random.Generator
) -> list[dict[str, object]]:
    length = int(str(identity["context_length"]))
    edges = [edge for edge in bin_edges(spec.lengths) if edge <= length]
    local = "gemma" in str(identity["model"])
    window = spec.trained_length // 4
    flat = str(identity["kind"]) not in ("none", "native", "linear")
    rows = []
    for layer in range(spec.layers):
        sliding = local and layer % 2 == 0
        for head in range(spec.heads):
            share = 0.25 + 0.12 * ((3 * layer + 5 * head) % 5)
            for start, stop in pairwise(edges):
                position = (start + stop) / 2
                visible = math.log(min(window, position) if sliding else position)
                octaves = max(0.0, math.log2(position / spec.trained_length))
                drift = 0.0 if sliding or flat else 0.04 * octaves * (1 if head % 2 else -0.5)
                ratio = min(0.98, share + drift + 0.01 * random.standard_normal())
                values = dict.fromkeys(STATISTICS, 0.1) | {
                    "entropy_nats": ratio * visible,
                    "normalized_entropy": ratio,
                    "effective_tokens": math.exp(ratio * visible),
                }
                rows.append(
                    identity
                    | {
                        "layer": layer,
                        "layer_type": "sliding_attention" if sliding else "full_attention",
                        "head": head,
                        "position_start": start,
                        "position_stop": stop,
                        "queries": (stop - start) * len(spec.documents),
                    }
                    | values
                    | {f"{name}_std": 0.05 for name in STATISTICS}
                )
    return rows


def _passkey_rows(
    spec: Synthetic, identity: dict[str, object], random: np.random.Generator
) -> list[dict[str, object]]:
    length = int(str(identity["context_length"]))
    octaves = math.log2(length / spec.trained_length)
    loss_per_octave = {"none": 0.3, "native": 0.3, "linear": 0.25, "ntk": 0.15}
    chance = 1 - loss_per_octave.get(str(identity["kind"]), 0.05) * octaves
    rows = []
    for depth in spec.depths:
        for trial in range(spec.trials):
            answer = f"{random.integers(100000):05d}"
            correct = bool(random.random() < chance + 0.4 * (depth - 0.5) * min(1.0, octaves))
            rows.append(
                identity
                | {
                    "depth": depth,
                    "trial": trial,
                    "distractors": 0,
                    "answer": answer,
                    "predicted": answer if correct else answer[::-1],
                    "correct": correct,
                    "answer_nll_nats": 0.01 if correct else 3.0,
                    "prompt_tokens": length,
                }
            )
    return rows


_ROWS = {
    "perplexity": _perplexity_rows,
    "attention": _attention_rows,
    "passkey": _passkey_rows,
}


def _pass(
    identity: dict[str, object], probe: str, length: int, *, failed: bool
) -> dict[str, object]:
    shared = {name: value for name, value in identity.items() if name in PASSES}
    return shared | {
        "layers_changed": "0,1,2,3",
        "probe": "entropy" if probe == "attention" else probe,
        "context_lengths": str(length),
        "status": "out_of_memory" if failed else "done",
        "seconds": math.nan if failed else length / 1000,
        "tokens": length,
        "tokens_per_second": math.nan if failed else 1000.0,
        "peak_memory_bytes": math.nan if failed else 2.0**20 * length,
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "sdpa",
        "error": "out of memory" if failed else "",
        "data_hash": "0" * 64,
        "model_fingerprint": "1" * 64,
        "python_version": "3.13.0",
    }
