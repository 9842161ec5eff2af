"""Run a sweep: plan, measure what is missing, commit each pass, write tables and figures."""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.assemble import save_cells
from harness.attention import attention_backend
from harness.environment import describe_environment
from harness.errors import DataError, ModelError, RopewalkError
from harness.measure_pass import Bench, group_passes, tokens_of
from harness.memory import PeakMemory
from harness.models import check_device, devices_of, load_model
from harness.outputs import write_outputs
from harness.plan import ModelPlan, Pass, Plan, make_plan
from harness.progress import Progress, format_seconds
from harness.spec import Sweep, dump_sweep
from harness.store import Store, write_atomic
from patches import PatchError, RopeGeometry, RopePatch, applied

# Where attention costs as much as the rest of a small model; only the time left depends on it.
_KNEE_TOKENS = 2048


def _cost(tokens: int, context_length: int) -> float:
    return tokens * (1 + context_length / _KNEE_TOKENS)


def _group_cost(sweep: Sweep, plan: Plan, group: Sequence[Pass]) -> float:
    model = plan.models[group[0].model]
    return _cost(max(tokens_of(sweep, model, one) for one in group), group[0].longest)


def _status(error: BaseException) -> str:
    # On a CPU torch raises a plain RuntimeError that only its text tells from others.
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
    return "out_of_memory" if out_of_memory else "failed"


def _free_device_memory() -> None:
    """After an out-of-memory error the next pass must not find the allocator's cache full."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class _Runner:
    """One sweep on one results folder."""

    def __init__(self, sweep: Sweep, plan: Plan, store: Store, progress: Progress) -> None:
        self.sweep = sweep
        self.plan = plan
        self.store = store
        self.progress = progress

    def _record(self, one: Pass, model: Any | None) -> dict[str, Any]:
        record: dict[str, Any] = {
            "pass_id": one.pass_id,
            "probe": one.probe,
            "seed": self.sweep.seed,
            "data_hash": one.identity["data"],
            "model_fingerprint": one.identity["model"],
            "python_version": platform.python_version(),
            "identity": one.identity,
            "error": None,
        }
        if model is not None:
            record["device"] = ", ".join(map(str, devices_of(model)))
            record["dtype"] = str(next(model.parameters()).dtype).removeprefix("torch.")
            record["attention_backend"] = attention_backend(model)
        return record

    def _fail(self, group: Sequence[Pass], model: Any | None, error: BaseException) -> None:
        what = str(error).strip() or type(error).__name__
        text = (
            what
            if isinstance(error, (RopewalkError, PatchError))
            else (f"{type(error).__name__}: {what}")
        )
        details = "".join(traceback.format_exception(error))
        for one in group:
            record = self._record(one, model)
            record |= {"status": _status(error), "error": text, "traceback": details}
            self.store.commit(one.pass_id, record, None)
            self.progress.note(f"{_label(one)}: {record['status']}: {text}")
        self.progress.skip(_group_cost(self.sweep, self.plan, group))

    def _patch_of(self, one: Pass) -> RopePatch:
        return next(m.patch for m in self.sweep.methods if m.name == one.method)

    def _measure(self, bench: Bench, group: list[Pass]) -> None:
        one = group[0]
        model_plan = self.plan.models[one.model]
        began = time.perf_counter()
        with (
            PeakMemory(*devices_of(bench.model)) as memory,
            applied(
                bench.model,
                self._patch_of(one),
                context_length=one.longest,
                geometry=dict(model_plan.facts.geometry),
            ) as patched,
        ):
            measured = bench.run(group)
        # A forward that served two probes is shared out, so that sums over probes are true.
        whole = time.perf_counter() - began
        for each in group:
            record = self._record(each, bench.model) | {
                "status": "done",
                "layers_changed": ",".join(str(i) for i in patched.layers_changed),
                "seconds": round(whole / len(group), 4),
                "tokens": measured[each.probe].tokens,
                "tokens_per_second": round(measured[each.probe].tokens / whole, 1),
                "peak_memory_bytes": memory.peak_bytes,
            }
            self.store.commit(each.pass_id, record, measured[each.probe].rows)

    def _advance_at(self, context_length: int) -> Callable[[int], None]:
        return lambda tokens: self.progress.advance(_cost(tokens, context_length))

    def run_model(self, model_plan: ModelPlan, groups: list[list[Pass]]) -> None:
        """Load a model once and measure its passes; a pass that fails does not stop the rest."""
        label = model_plan.spec.label
        self.progress.start(f"loading {label}")
        try:
            model = load_model(model_plan.spec)
            _check_geometry(model, model_plan)
        except Exception as error:
            for group in groups:
                self._fail(group, None, error)
            return
        bench = Bench(model=model, sweep=self.sweep, plan=model_plan)
        for group in groups:
            bench.advance = self._advance_at(group[0].longest)
            self.progress.start(_label(group[0], len(group) > 1))
            failed = False
            try:
                self._measure(bench, group)
            except Exception as error:
                failed = True
                self._fail(group, model, error)
            if failed:  # and out of the handler: the error's frames held what was allocated
                _free_device_memory()

    def run(self, groups: list[list[Pass]]) -> None:
        """All models, each with its own groups, one after the other."""
        for label, model_plan in self.plan.models.items():
            own = [group for group in groups if group[0].model == label]
            if own:
                self.run_model(model_plan, own)


def _check_geometry(model: Any, plan: ModelPlan) -> None:
    """What was planned from the config must be what the loaded model is.

    Raises:
        ModelError: If it is not: every table of the plan would be another model's.
    """
    found = RopeGeometry.from_model(model)
    planned = plan.facts.geometry
    if {t: (g.rotary_dim, g.base) for t, g in found.items()} != {
        t: (g.rotary_dim, g.base) for t, g in planned.items()
    }:
        raise ModelError(f"{plan.spec.label}: its config says {planned}, the loaded model {found}")


def _label(one: Pass, shared: bool = False) -> str:
    probe = "perplexity+entropy" if shared else one.probe
    return f"{one.model}  {one.method}  {probe} at {one.longest} tokens"


def _check_results_folder(folder: Path, sweep: Sweep) -> None:
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; --results needs a folder")
    # A sweep.yaml alone may be the user's own, which must not be written over.
    known = (folder / "environment.json").exists() and (folder / "sweep.yaml").exists()
    if folder.exists() and not known and any(folder.iterdir()):
        raise DataError(
            f"{folder} holds other files and no results of ropewalk; choose an empty folder "
            f"(--results), or move them away, for the results of '{sweep.name}'"
        )


def run_sweep(
    sweep: Sweep,
    results: Path | str | None = None,
    *,
    folder: Path | str = ".",
    quiet: bool = False,
) -> Path:
    """Measure what is missing of a sweep and write its tables, summary and figures.

    Args:
        sweep: From `load_sweep`.
        results: Folder of the results; by default ``results/NAME``. A run that was interrupted
            goes on there.
        folder: Where relative paths of a sweep made in Python start; those of a file are absolute.
        quiet: No progress on standard error.

    Returns:
        The results folder.

    Raises:
        RopewalkError: If the sweep cannot be planned. Failures of single passes are rows in the
            `passes` table instead.
    """
    target = Path(results) if results is not None else Path("results") / sweep.name
    _check_results_folder(target, sweep)
    for spec in sweep.models:
        check_device(spec)
    plan = make_plan(sweep, Path(folder))
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target} cannot be made: {error.strerror}; choose --results") from None
    store = Store(target)
    store.clean()
    write_atomic(target / "sweep.yaml", dump_sweep(sweep))
    environment = describe_environment()
    write_atomic(target / "environment.json", json.dumps(environment, indent=1) + "\n")
    save_cells(target, plan, sweep.seed)
    # Two entries of one model may have passes in common: each is measured once.
    passes = {one.pass_id: one for one in plan.passes}
    missing = [one for one in passes.values() if not store.is_done(one.pass_id)]
    groups = group_passes(sweep, missing)
    began = time.monotonic()
    total = sum(_group_cost(sweep, plan, group) for group in groups)
    with Progress(total, quiet=quiet) as progress:
        _say_plan(progress, plan, missing)
        _Runner(sweep, plan, store, progress).run(groups)
        progress.note(f"measured in {format_seconds(time.monotonic() - began)}; writing tables")
    write_outputs(target)
    return target


def _say_plan(progress: Progress, plan: Plan, missing: list[Pass]) -> None:
    done = len(plan.passes) - len(missing)
    kept = f", {done} already measured" if done else ""
    progress.note(f"{len(plan.passes)} passes{kept}")
    for label, model in plan.models.items():
        if model.corpus is not None and model.corpus.too_short:
            names = ", ".join(model.corpus.too_short[:5])
            more = ", ..." if len(model.corpus.too_short) > 5 else ""
            progress.note(
                f"{label}: left out {len(model.corpus.too_short)} documents with fewer than "
                f"{model.lengths[-1]} tokens ({names}{more})"
            )
