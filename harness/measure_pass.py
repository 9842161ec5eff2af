"""Measure passes on a loaded model: patch it, run the forward passes, collect rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from harness.attention_data import sample_positions
from harness.bins import bin_edges
from harness.data import TokenizedDocument
from harness.engine import AttentionSettings, measure, token_nll
from harness.passkey import PasskeyPrompt, depth_values
from harness.plan import ModelPlan, Pass
from harness.probes.entropy import AttentionAccumulator
from harness.probes.passkey import passkey_rows
from harness.probes.perplexity import full_rows, nll_rows, sliding_windows
from harness.spec import Sweep

Advance = Callable[[int], None]


def documents_of(sweep: Sweep, plan: ModelPlan, probe: str) -> tuple[TokenizedDocument, ...]:
    """The documents that a probe reads; entropy may be limited to the first few."""
    assert plan.corpus is not None
    entropy = sweep.probes.entropy
    limit = entropy.documents if probe == "entropy" and entropy is not None else None
    return plan.corpus.documents[:limit]


@dataclass(kw_only=True)
class Measured:
    """Rows of one pass and the tokens that were run for them."""

    rows: pd.DataFrame
    tokens: int = 0


@dataclass(kw_only=True)
class Bench:
    """A loaded model with everything that a pass needs to be measured on it.

    Attributes:
        model: In evaluation mode, patched by the caller for the pass at hand.
        sweep: The validated file.
        plan: Of this model.
        advance: Called with the number of tokens after each forward pass.
    """

    model: Any
    sweep: Sweep
    plan: ModelPlan
    advance: Advance = field(default=lambda _tokens: None)

    @property
    def _edges(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return bin_edges(self.plan.lengths)

    @property
    def _chunk_tokens(self) -> int | None:
        wanted = self.plan.spec.chunk_tokens
        return None if wanted == "auto" else int(wanted)

    def _documents(self, probe: str) -> tuple[TokenizedDocument, ...]:
        return documents_of(self.sweep, self.plan, probe)

    def _ids(self, document: TokenizedDocument, start: int, stop: int) -> torch.Tensor:
        device = next(self.model.parameters()).device
        return torch.from_numpy(document.input_ids[start:stop].copy())[None].to(device)

    def _attention_settings(self, stop: int) -> AttentionSettings:
        entropy = self.sweep.probes.entropy
        assert entropy is not None
        queries: Any = entropy.queries
        if queries != "all":
            # Of all lengths of the sweep, so that every method is asked at the same positions.
            positions = sample_positions(self.plan.lengths, queries, self.sweep.seed)
            queries = tuple(int(p) for p in positions if p < stop)
        return AttentionSettings(
            queries=queries, local_window=entropy.local_window, seed=self.sweep.seed
        )

    def documents(self, passes: list[Pass]) -> dict[str, Measured]:
        """Perplexity and entropy passes of the same tables and lengths, in one forward each.

        A value that overflows late in a sequence makes earlier ones NaN, too: a masked key still
        has a weight of zero, and zero times NaN is NaN. Then the shorter lengths run alone.

        Args:
            passes: One, or two that differ in nothing but the probe.

        Returns:
            Probe to its rows.
        """
        probes = {p.probe for p in passes}
        *shorter, longest = passes[0].context_lengths
        measured = self._documents_at(longest, probes)
        for stop in reversed(shorter):
            if not any(_has_nan_before(found.rows, stop) for found in measured.values()):
                break
            again = self._documents_at(stop, probes)
            for probe, found in measured.items():
                late = found.rows[found.rows["position_stop"] > stop]
                found.rows = pd.concat([again[probe].rows, late], ignore_index=True)
                found.tokens += again[probe].tokens
        return measured

    def _documents_at(self, stop: int, probes: set[str]) -> dict[str, Measured]:
        """Rows of all documents up to a length."""
        attention = None
        settings = None
        if "entropy" in probes:
            attention = AttentionAccumulator(self._edges, stop)
            settings = self._attention_settings(stop)
        parts = []
        with_attention = {d.name for d in self._documents("entropy")} if settings else set()
        used = self._documents("perplexity" if "perplexity" in probes else "entropy")
        for document in used:
            found = measure(
                self.model,
                self._ids(document, 0, stop),
                nll="perplexity" in probes,
                attention=settings if document.name in with_attention else None,
                consumer=attention,
                chunk_tokens=self._chunk_tokens,
            )
            if found.nll is not None:
                parts.append(full_rows(document, found.nll, self._edges, stop))
            self.advance(stop)
        measured = {}
        if parts:
            rows = pd.concat(parts, ignore_index=True)
            measured["perplexity"] = Measured(rows=rows, tokens=stop * len(used))
        if attention is not None:
            rows = attention.rows()
            measured["entropy"] = Measured(rows=rows, tokens=stop * len(with_attention))
        return measured

    def sliding(self, one: Pass) -> Measured:
        """Strided windows over each document; tokens weighted alike, each scored once."""
        perplexity = self.sweep.probes.perplexity
        assert perplexity is not None
        assert perplexity.stride is not None
        n = one.longest
        parts, tokens = [], 0
        for document in self._documents("perplexity"):
            size = len(document.input_ids)
            for start, stop, first in sliding_windows(size, n, perplexity.stride):
                ids = self._ids(document, start, stop)
                nll = token_nll(self.model, ids, chunk_tokens=self._chunk_tokens)
                indices = np.arange(first, stop, dtype=np.int64)
                scored = nll[indices - start - 1]
                parts.append(
                    nll_rows(document, indices - start, indices, scored, self._edges, n, "sliding")
                )
                tokens += stop - start
                self.advance(stop - start)
        keys = ["document", "position_start", "position_stop", "protocol"]
        rows = pd.concat(parts, ignore_index=True)
        return Measured(rows=rows.groupby(keys, sort=False, as_index=False).sum(), tokens=tokens)

    def passkey(self, one: Pass) -> Measured:
        """All trials at one length."""
        spec, task = self.sweep.probes.passkey, self.plan.passkey
        assert spec is not None
        assert task is not None
        prompts: list[PasskeyPrompt] = [
            task.prompt(one.longest, depth, index, trial)
            for index, depth in enumerate(depth_values(spec.depths))
            for trial in range(spec.trials)
        ]
        parts = []
        for rows in passkey_rows(
            self.model,
            self.plan.tokenizer,
            prompts,
            distractors=spec.distractors,
            generate=spec.generate,
            chunk_tokens=self._chunk_tokens,
        ):
            parts.append(rows)
            self.advance(len(rows) * one.longest)
        table = pd.concat(parts).sort_index()  # in the prompts' order
        return Measured(rows=table, tokens=len(prompts) * one.longest)

    def run(self, passes: list[Pass]) -> dict[str, Measured]:
        """Measure passes that share a forward; see `group_passes`."""
        one = passes[0]
        if one.probe == "passkey":
            return {"passkey": self.passkey(one)}
        if self.sweep.probes.is_sliding(one.probe):
            return {"perplexity": self.sliding(one)}
        return self.documents(passes)


def _has_nan_before(rows: pd.DataFrame, stop: int) -> bool:
    column = "nll_nats" if "nll_nats" in rows else "entropy_nats"
    return bool(rows.loc[rows["position_stop"] <= stop, column].isna().any())


def tokens_of(sweep: Sweep, plan: ModelPlan, one: Pass) -> int:
    """Tokens that a pass will run, for the time left; perplexity with entropy counts once."""
    if one.probe == "passkey":
        passkey = sweep.probes.passkey
        assert passkey is not None
        return one.longest * len(depth_values(passkey.depths)) * passkey.trials
    documents = documents_of(sweep, plan, one.probe)
    if sweep.probes.is_sliding(one.probe):
        perplexity = sweep.probes.perplexity
        assert perplexity is not None
        assert perplexity.stride is not None
        stride = perplexity.stride
        windows = [sliding_windows(len(d.input_ids), one.longest, stride) for d in documents]
        return sum(stop - start for each in windows for start, stop, _ in each)
    return one.longest * len(documents)


def group_passes(sweep: Sweep, passes: list[Pass]) -> list[list[Pass]]:
    """Put a perplexity and an entropy pass together where one forward serves both."""
    groups: dict[tuple[Any, ...], list[Pass]] = {}
    for one in passes:
        alone = one.probe == "passkey" or sweep.probes.is_sliding(one.probe)
        own = one.probe if alone else "documents"
        key = (one.model, own, one.context_lengths, repr(sorted(one.identity["tables"].items())))
        groups.setdefault(key, []).append(one)
    return list(groups.values())
