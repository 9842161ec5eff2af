"""The rows of the table: what is measured, against what, and what it may cost at most."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark import shapes
from benchmark.run import ROOT, Row, Run

EAGER = "eager attention with output_attentions"


def _fill(row: Row, found: dict[str, float]) -> Row:
    row.ours, row.plain = found["ours"], found["plain"]
    row.ratio = row.ours / row.plain
    return row


def _eager(run: Run, row: Row, length: int) -> None:
    """The usual way, once, at a length whose weights fit into memory."""
    row.peer_way, row.peer_context_length_tokens = EAGER, length
    found = run.job("eager_attention", model=row.model, length=length, device=run.device)
    row.peer, row.peer_ratio = found["ours"], found["ours"] / found["plain"]


SAMPLED = "entropy and masses, 256 queries a length"
ALL = "every column, all queries"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A model at a length, with the bounds for sampled and for all queries."""

    model: str
    length: int
    bounds: dict[str, float | None]
    dtype: str = "float32"
    peer: int | None = None


def _attention(run: Run, case: _Case) -> list[Row]:
    """Both kinds of queries beside one plain pass."""
    found = run.job(
        "attention",
        model=case.model,
        length=case.length,
        queries=list(case.bounds),
        dtype=case.dtype,
        repeats=3 if case.dtype == "bfloat16" else run.repeats,
        device=run.device,
    )
    rows = []
    for queries, bound in case.bounds.items():
        row = Row(
            what=SAMPLED if queries == "sampled" else ALL,
            model=case.model,
            context_length_tokens=case.length,
            dtype=case.dtype,
            bound=bound,
        )
        rows.append(_fill(row, {"ours": found[queries], "plain": found["plain"]}))
    if case.peer is not None:
        _eager(run, rows[-1], case.peer)
    return rows


def entropy_rows(run: Run) -> Iterator[Callable[[], list[Row]]]:
    """Entropy and the other columns, sampled and of all queries."""
    qwen, gemma, llama = shapes.QWEN, shapes.GEMMA, shapes.LLAMA
    both: dict[str, float | None] = {"sampled": 1.10, "all": 1.5}
    unbound: dict[str, float | None] = {"sampled": None, "all": None}
    cases = [
        _Case(model=qwen, length=8192, bounds=both),
        _Case(model=qwen, length=4096, bounds={"all": 1.35}, peer=4096),
        _Case(model=gemma, length=4096, bounds={"sampled": 1.10, "all": 1.0}, peer=2048),
        _Case(model=llama, length=8192, bounds={"sampled": 1.10, "all": None}, peer=4096),
        _Case(model=qwen, length=4096, bounds=unbound, dtype="bfloat16"),
        _Case(model=gemma, length=4096, bounds=unbound, dtype="bfloat16"),
    ]
    for case in cases[1:4] if run.quick else cases:
        own = replace(case, length=min(case.length, 2048), peer=1024) if run.quick else case
        yield lambda own=own: _attention(run, own)  # type: ignore[misc]


def memory_rows(run: Run) -> Iterator[Callable[[], list[Row]]]:
    """Peak memory with entropy, and that of the loss alone."""
    length = 4096 if run.quick else 16384

    def peak(what: str, tokens: int) -> float:
        arguments = {"model": shapes.QWEN, "length": tokens, "what": what, "words": 32_000}
        return run.job("memory", device=run.device, **arguments)["peak"]

    plain: dict[str, float] = {}

    def entropy(queries: str) -> list[Row]:
        row = Row(
            what=f"peak memory with entropy, {queries} queries, and loss",
            model=shapes.QWEN,
            context_length_tokens=length,
            unit="bytes",
            bound=1.2,
            note="of the whole process",
        )
        if not plain:
            plain["peak"] = peak("plain", length)
        _fill(row, {"ours": peak(queries, length), "plain": plain["peak"]})
        if queries == "sampled":
            row.peer_way, row.peer_context_length_tokens = EAGER, 4096
            row.peer = peak("eager", 4096)
            row.peer_ratio = row.peer / peak("plain", 4096)
        return [row]

    def loss() -> list[Row]:
        row = Row(
            what="loss over 262,144 words, above model and hidden states",
            model=shapes.WIDE,
            context_length_tokens=length,
            unit="bytes",
            bound=1.0,
            note="the ratio is to 1 GiB",
        )
        found = run.job("loss_memory", length=length, what="ours", device=run.device)["above"]
        _fill(row, {"ours": found, "plain": float(1 << 30)})
        row.peer_way, row.peer_context_length_tokens = "logits of all positions", 2048
        row.peer = run.job("loss_memory", length=2048, what="all", device=run.device)["above"]
        return [row]

    yield lambda: entropy("sampled")
    yield lambda: entropy("all")
    yield loss


def sharing_rows(run: Run) -> Iterator[Callable[[], list[Row]]]:
    """What is shared: lengths, the loaded model, the haystack."""
    longest = 4096 if run.quick else 8192

    def lengths() -> list[Row]:
        row = Row(
            what="perplexity at 8 lengths from 64 tokens on, static method",
            model=shapes.LLAMA,
            context_length_tokens=longest,
            bound=1.15,
            peer_way="a pass per length",
            peer_context_length_tokens=longest,
        )
        arguments = {"model": shapes.LLAMA, "longest": longest, "device": run.device}
        _fill(row, run.job("lengths", repeats=run.repeats, peer=False, **arguments))
        found = run.job("lengths", repeats=1, peer=True, **arguments)
        row.peer, row.peer_ratio = found["ours"], found["ours"] / found["plain"]
        return [row]

    def method() -> list[Row]:
        row = Row(
            what="changing the method, checked, against loading",
            model="qwen2.5-0.5b shape",
            context_length_tokens=0,
            bound=0.01,
            peer_way="reload per method",
        )
        with tempfile.TemporaryDirectory() as folder:
            shapes.save_whole_qwen(Path(folder))
            run.job("method_change", folder=folder, repeats=1)  # warms the file cache
            found = run.job("method_change", folder=folder, repeats=run.repeats)
        _fill(row, found)
        row.peer, row.peer_ratio = found["plain"], 1.0
        first, trusted = found["first"], found["unchecked"] * 1000
        row.note = f"the first change {first:.2f} s; {trusted:.1f} ms without the check"
        return [row]

    yield lengths
    yield method
    cases = [(shapes.LLAMA, 2048), (shapes.LLAMA, 4096), (shapes.QWEN, 1024), (shapes.QWEN, 2048)]
    for model, length in cases[:1] if run.quick else cases:
        yield lambda model=model, length=length: _passkey(run, model, length)  # type: ignore[misc]


def _passkey(run: Run, model: str, length: int) -> list[Row]:
    row = Row(
        what="passkey grid, 10 depths x 4 trials",
        model=model,
        context_length_tokens=length,
        bound=0.5,
        peer_way="a prefill and greedy decoding per trial",
        peer_context_length_tokens=length,
        note="peer: every fifth trial, times five",
    )
    arguments = {"model": model, "length": length, "depths": 10, "trials": 4}
    found = run.job("passkey", device=run.device, **arguments)
    _fill(row, found)
    row.peer, row.peer_ratio = found["plain"], 1.0
    return [row]


def overhead_rows(run: Run) -> Iterator[Callable[[], list[Row]]]:
    """What the quickstart spends outside of the model."""

    def overhead() -> list[Row]:
        row = Row(
            what="quickstart: all that is not the model",
            model="the sweep",
            context_length_tokens=4096,
            bound=0.05,
        )
        found = run.job(
            "overhead", sweep=str(ROOT / "configs" / "quickstart.yaml"), quick=run.quick
        )
        measuring = found["wall"] - found["draw"]
        _fill(row, {"ours": measuring - found["model"], "plain": measuring})
        row.note = f"without figures, which took {found['draw']:.1f} s"
        return [row]

    yield overhead


GROUPS: dict[str, Callable[[Run], Iterator[Callable[[], list[Row]]]]] = {
    "entropy": entropy_rows,
    "memory": memory_rows,
    "sharing": sharing_rows,
    "overhead": overhead_rows,
}


def growth_records(run: Run) -> list[dict[str, Any]]:
    """Time and memory at doubling lengths."""
    longest = 4096 if run.quick else 16384
    models = [(shapes.LLAMA, "float32", ("plain", "all"))]
    real = os.environ.get("ROPEWALK_REAL_MODELS")
    if real and (Path(real) / "gemma-3-270m").is_dir():
        folder = str((Path(real) / "gemma-3-270m").resolve())
        models.append((folder, "bfloat16", ("plain", "sampled")))
    records = []
    for model, dtype, kinds in models:
        for what in kinds:
            length = 1024
            while length <= longest:
                arguments = {"model": model, "length": length, "what": what, "dtype": dtype}
                found = run.job("growth", device=run.device, **arguments)
                records.append(
                    {
                        "model": Path(model).name.removeprefix("zoo:"),
                        "dtype": dtype,
                        "what": what,
                        "context_length_tokens": length,
                        "seconds": found["seconds"],
                        "peak_bytes": int(found["peak"]),
                        "peak_above_model_bytes": int(found["above"]),
                    }
                )
                length *= 2
    return records
