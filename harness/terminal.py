"""What the command prints: the plan, the outcome, the methods, the zoo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.errors import UnreachableError
from harness.spec import ModelSpec, Sweep
from harness.zoo import ZOO, model_card
from patches import PATCHES

Tables = dict[str, pd.DataFrame]


def _console() -> Console:
    # Without a terminal rich assumes 80 columns and would fold a wide table.
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _number(value: float, digits: int) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1e5 else f"{value:.1e}"


def _measures(rows: pd.DataFrame) -> list[tuple[str, str, int]]:
    """Columns of the summary to show: name, title, digits; those that hold anything."""
    entropies = [c for c in map(str, rows.columns) if c.startswith("entropy_nats_")]
    chosen = [
        ("tail_perplexity", "perplexity of the last eighth", 1),
        ("passkey_accuracy", "passkeys found", 2),
        *((c, f"entropy in nats, {c.removeprefix('entropy_nats_')}", 2) for c in entropies),
    ]
    return [m for m in chosen if m[0] in rows and rows[m[0]].notna().any()]


def _outcome_table(rows: pd.DataFrame) -> Table:
    """Methods down, lengths across, one block a measure: as wide as the lengths need."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    lengths = sorted(rows["context_length"].unique())
    for n in lengths:
        table.add_column(str(n), justify="right", no_wrap=True)
    for column, title, digits in _measures(rows):
        table.add_row(f"[bold]{title}[/bold]")
        for method, own in rows.groupby("method", sort=False):
            values = own.set_index("context_length")[column]
            cells = [_number(values.get(n, float("nan")), digits) for n in lengths]
            table.add_row(f"  {method}", *cells)
    return table


def print_outcome(folder: Path, tables: Tables) -> int:
    """A compact table per model, what failed, and where everything lies.

    Returns:
        0, or 1 if a pass failed.
    """
    console = _console()
    for model, rows in tables["summary"].groupby("model", sort=False):
        if _measures(rows):
            trained = int(rows["trained_length"].iloc[0])
            console.print(f"[bold]{model}[/bold] (trained at {trained} tokens)", highlight=False)
            console.print(_outcome_table(rows))
    failed = tables["passes"].query("status not in ('done', 'skipped')")
    for row in failed.itertuples():
        console.print(
            f"{row.status}: {row.model} {row.method} {row.probe} at {row.context_lengths}: "
            f"{row.error}",
            markup=False,
            highlight=False,
        )
    missing = int((tables["passes"]["status"] == "skipped").sum())
    if missing:
        console.print(f"{missing} passes have not been measured; `ropewalk run` goes on")
    for what in ("summary.md", "tables", "figures"):
        console.print(f"{what:<10} {folder / what}", markup=False, highlight=False, soft_wrap=True)
    return 1 if len(failed) else 0


def _forwards(sweep: Sweep, num_lengths: int) -> int:
    """Passes of one model at most (equal tables are shared, which needs the model's config)."""
    total = 0
    for probe in sweep.probes.enabled:
        for method in sweep.methods:
            static = probe != "passkey" and not method.patch.depends_on_length
            total += 1 if static else num_lengths
    return total


def _plan_row(sweep: Sweep, spec: ModelSpec, results: Path) -> list[str]:
    from harness.plan import Plan, make_plan
    from harness.store import Store

    one = sweep.model_copy(update={"models": [spec]})
    try:
        plan: Plan = make_plan(one, Path())
    except UnreachableError as error:
        known = sweep.lengths_for(spec.trained_length) if spec.trained_length else ()
        count = f"at most {_forwards(sweep, len(known) or len(sweep.context_lengths))}"
        lengths = ", ".join(map(str, known or sweep.context_lengths))
        trained = str(spec.trained_length or "?")
        return [spec.label, trained, lengths, count, "?", str(error)]
    store = Store(results)
    done = sum(store.is_done(p.pass_id) for p in plan.passes)
    model = plan.models[spec.label]
    return [
        spec.label,
        str(model.facts.trained_length),
        ", ".join(map(str, model.lengths)),
        str(len(plan.passes)),
        str(done),
        "",
    ]


def print_plan(sweep: Sweep, results: Path) -> None:
    """Models with their lengths and passes, methods and probes; nothing is loaded or written."""
    console = _console()
    methods = ", ".join(m.name for m in sweep.methods)
    console.print(f"sweep    {sweep.name} (seed {sweep.seed})", highlight=False)
    console.print(f"methods  {methods}", highlight=False, markup=False)
    console.print(f"probes   {', '.join(sweep.probes.enabled)}", highlight=False)
    table = Table(box=SIMPLE_HEAD)
    for title in ("model", "trained", "context lengths", "passes", "done"):
        table.add_column(title)
    notes = []
    for spec in sweep.models:
        *cells, note = _plan_row(sweep, spec, results)
        table.add_row(*cells)
        if note:
            notes.append(note)
    console.print(table)
    for note in notes:
        console.print(f"not reachable now: {note}", markup=False, highlight=False)


def _fields(patch: type[Any]) -> str:
    parts = []
    for field in dataclasses.fields(patch):
        if field.name == "layers":
            continue
        required = field.default is dataclasses.MISSING
        parts.append(field.name if required else f"{field.name}={field.default}")
    return ", ".join(parts)


def print_methods() -> None:
    """Every method with its fields (a field without a value must be given) and its purpose."""
    table = Table(box=SIMPLE_HEAD)
    for title in ("kind", "fields", "what it does"):
        table.add_column(title)
    for kind, patch in PATCHES.items():
        summary = (patch.__doc__ or "").strip().splitlines()[0]
        table.add_row(kind, _fields(patch), summary)
    _console().print(table)
    print("every method also takes `layers: [...]` (layer types) and `name:`")


def print_zoo() -> None:
    """The shipped models with their training cards."""
    table = Table(box=SIMPLE_HEAD)
    for title in ("path", "what", "parameters", "trained", "loss", "passkey", "steps"):
        table.add_column(title)
    for name, what in ZOO.items():
        card = model_card(name)
        table.add_row(
            f"zoo:{name}",
            what,
            f"{card['parameters'] / 1e6:.1f} M",
            str(card["trained_length"]),
            f"{card['text_loss_nats']:.2f} nats",
            f"{card['passkey_accuracy']:.2f}",
            str(card["steps"]),
        )
    _console().print(table)
