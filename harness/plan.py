"""A sweep as passes: what has to be measured, once each, and who shares it.

A pass is one model under one set of rotary tables with one probe, at the context lengths that one
forward pass serves. Methods whose tables are equal at a length (`auto` at the trained length and
`none`) share the pass; the cells say which method at which length reads which pass.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data import Corpus, build_corpus, read_documents
from harness.errors import ConfigError
from harness.models import ModelFacts, load_tokenizer, model_facts
from harness.passkey import PasskeyTask, depth_values
from harness.spec import MethodSpec, ModelSpec, Sweep
from patches import PatchError, RopeTables
from patches.resolve import resolve

# Raise when the measuring code changes what it measures: old passes are then measured again.
ENGINE_VERSION = 5


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One unit of work and of resume.

    Attributes:
        pass_id: SHA-256 of everything that changes the rows.
        model: Label of the model.
        method: Name of a method that has these tables (the patch that is applied).
        probe: perplexity, entropy or passkey.
        context_lengths: Ascending; served by one forward pass at the longest.
        identity: What the id is the hash of.
    """

    pass_id: str
    model: str
    method: str
    probe: str
    context_lengths: tuple[int, ...]
    identity: dict[str, Any]

    @property
    def longest(self) -> int:
        """Tokens of the forward pass."""
        return self.context_lengths[-1]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method at one length under one probe, and the pass that holds its rows."""

    model: str
    method: str
    kind: str
    layers: str
    factor: float
    base: float
    trained_length: int
    context_length: int
    probe: str
    data_hash: str
    python_version: str
    pass_id: str


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """What is known of a model before it is loaded: facts, tokenizer and tokenized documents."""

    spec: ModelSpec
    facts: ModelFacts
    lengths: tuple[int, ...]
    tokenizer: Any
    corpus: Corpus | None
    passkey: PasskeyTask | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All passes of a sweep, models together, cheap lengths first."""

    passes: tuple[Pass, ...]
    cells: tuple[Cell, ...]
    models: Mapping[str, ModelPlan]


def _table_numbers(tables: RopeTables) -> dict[str, Any]:
    # Twelve digits: a thousand times finer than the float32 that the model sees, and coarse enough
    # that the same table by another formula (yarn at factor 1) is the same pass.
    return {
        "inv_freq": [float(f"{x:.12g}") for x in np.asarray(tables.inv_freq, dtype=np.float64)],
        "attention_factor": float(f"{tables.attention_factor:.12g}"),
    }


def _changed(method: MethodSpec, facts: ModelFacts, length: int) -> dict[str | None, RopeTables]:
    return resolve(method.patch, facts.geometry, length, layer_types=facts.layer_types)


def _resolved(method: MethodSpec, facts: ModelFacts, length: int) -> dict[str, Any]:
    """The rotary tables as JSON: layer type (or "all") to numbers, "native" where unchanged."""
    native: dict[str, Any] = {str(t or "all"): "native" for t in facts.geometry}
    changed = _changed(method, facts, length)
    return native | {str(t or "all"): _table_numbers(tables) for t, tables in changed.items()}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _method_facts(method: MethodSpec, facts: ModelFacts, length: int) -> dict[str, Any]:
    """factor, base and layers of a cell: those of the layers that the method changes."""
    types = list(_changed(method, facts, length))
    named = ", ".join(str(t or "all") for t in types) or "none"
    # Layers of several types that share one table have one geometry, under None.
    first = types[0] if types and types[0] in facts.geometry else next(iter(facts.geometry))
    geometry = facts.geometry[first]
    factor = method.patch.resolved_factor(geometry, length)
    return {"factor": factor, "base": geometry.base, "layers": named}


def plan_model(sweep: Sweep, spec: ModelSpec, folder: Path) -> ModelPlan:
    """Read a model's facts and tokenize what it will be measured on.

    Raises:
        RopewalkError: If model, tokenizer or documents cannot be had.
    """
    facts = model_facts(spec)
    lengths = sweep.lengths_for(facts.trained_length)
    tokenizer = load_tokenizer(spec)
    probes = sweep.probes
    corpus = None
    needs_text = probes.passkey is not None and probes.passkey.filler == "text"
    if probes.perplexity or probes.entropy or needs_text:
        limit = sweep.data.documents
        corpus = build_corpus(read_documents(sweep.data, folder), tokenizer, lengths[-1], limit)
    passkey = None
    if probes.passkey is not None:
        filler = corpus.documents[0].input_ids[1:] if needs_text and corpus else None
        passkey = PasskeyTask(
            tokenizer,
            digits=probes.passkey.digits,
            distractors=probes.passkey.distractors,
            seed=sweep.seed,
            filler_ids=filler,
        )
        for length in lengths:  # too short a length is said now, not after an hour
            passkey.prompt(length, 0.5, 0, 0)
    return ModelPlan(
        spec=spec, facts=facts, lengths=lengths, tokenizer=tokenizer, corpus=corpus, passkey=passkey
    )


def _probe_identity(sweep: Sweep, model: ModelPlan, probe: str) -> dict[str, Any]:
    settings: dict[str, Any] = getattr(sweep.probes, probe).model_dump(mode="json")
    if probe == "passkey":
        assert model.passkey is not None
        settings["depths"] = depth_values(sweep.probes.passkey.depths)  # type: ignore[union-attr]
        return {"probe": probe, "settings": settings, "data": model.passkey.prompt_hash()}
    assert model.corpus is not None
    # The edges of all lengths decide the bins, also of a pass that serves only some of them.
    return {
        "probe": probe,
        "settings": settings,
        "data": model.corpus.data_hash,
        "edges": list(model.lengths),
    }


def _one_forward_serves_all(sweep: Sweep, probe: str) -> bool:
    """A prompt, or a sliding window, belongs to one length; a document's prefix to every length."""
    return probe != "passkey" and not sweep.probes.is_sliding(probe)


@dataclass
class _Users:
    """Methods and lengths that share one set of tables."""

    tables: dict[str, Any]
    methods: list[tuple[int, MethodSpec]]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({length for length, _ in self.methods}))


def _by_tables(sweep: Sweep, model: ModelPlan, probe: str) -> list[_Users]:
    """Put methods and lengths with equal tables together, as far as one forward serves them."""
    users: dict[str, _Users] = {}
    for method in sweep.methods:
        for length in model.lengths:
            try:
                tables = _resolved(method, model.facts, length)
            except PatchError as error:
                raise ConfigError(
                    f"method '{method.name}' on model '{model.spec.label}': {error}"
                ) from None
            key = _digest(tables)
            # Also a method limited to some layers leaves the others the model's own tables.
            follows = "native" in tables.values() and model.facts.native_follows_length
            if follows or not _one_forward_serves_all(sweep, probe):
                key += f"-{length}"
            users.setdefault(key, _Users(tables, [])).methods.append((length, method))
    return list(users.values())


def _make_pass(sweep: Sweep, model: ModelPlan, probe: str, users: _Users) -> Pass:
    identity = {
        "engine": ENGINE_VERSION,
        "model": model.facts.fingerprint,
        "dtype": model.spec.dtype,
        "tables": users.tables,
        "context_lengths": list(users.lengths),
        "seed": sweep.seed,
        **_probe_identity(sweep, model, probe),
    }
    return Pass(
        pass_id=_digest(identity)[:32],
        model=model.spec.label,
        # A method that reaches the longest length with these tables is the one that is applied.
        method=next(m.name for n, m in users.methods if n == users.lengths[-1]),
        probe=probe,
        context_lengths=users.lengths,
        identity=identity,
    )


def _plan_probe(sweep: Sweep, model: ModelPlan, probe: str) -> tuple[list[Pass], list[Cell]]:
    passes, cells = [], []
    for users in _by_tables(sweep, model, probe):
        one = _make_pass(sweep, model, probe, users)
        passes.append(one)
        cells += [
            Cell(
                model=one.model,
                method=method.name,
                kind=method.kind,
                trained_length=model.facts.trained_length,
                context_length=length,
                probe=probe,
                # Another Python has another standard library; the hash tells, this tells why.
                data_hash=one.identity["data"][:16],
                python_version=platform.python_version(),
                pass_id=one.pass_id,
                **_method_facts(method, model.facts, length),
            )
            for length, method in users.methods
        ]
    order = {method.name: index for index, method in enumerate(sweep.methods)}
    cells.sort(key=lambda cell: (order[cell.method], cell.context_length))
    return passes, cells


def make_plan(sweep: Sweep, folder: Path) -> Plan:
    """Everything a sweep has to measure.

    Args:
        sweep: The validated file.
        folder: Where its relative paths start.

    Raises:
        RopewalkError: If a model, its tokenizer or the documents cannot be had, or a method
            does not fit a model.
    """
    passes: list[Pass] = []
    cells: list[Cell] = []
    models: dict[str, ModelPlan] = {}
    for spec in sweep.models:
        models[spec.label] = plan_model(sweep, spec, folder)
        for probe in sweep.probes.enabled:
            more_passes, more_cells = _plan_probe(sweep, models[spec.label], probe)
            passes += more_passes
            cells += more_cells
    return Plan(passes=tuple(passes), cells=tuple(cells), models=models)
