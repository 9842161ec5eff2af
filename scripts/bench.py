#!/usr/bin/env python3
"""Measure ropewalk's speed and memory: python scripts/bench.py [--quick]

Each row is ours against the plain forward pass of the same model in the same process, in turns,
and against the usual way of getting the same numbers. Tables go to results/bench/.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]


def _jobs() -> dict[str, Callable[..., dict[str, float]]]:
    from benchmark import jobs, more_jobs

    found = {f.__name__: f for f in (more_jobs.method_change, more_jobs.passkey)}
    found |= {"overhead": more_jobs.overhead, "attention": jobs.attention}
    found |= {f.__name__: f for f in (jobs.eager_attention, jobs.memory, jobs.loss_memory)}
    return found | {"lengths": jobs.lengths, "growth": jobs.growth}


def machine(device: str) -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    found: dict[str, Any] = {
        "processor": name,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    return found


def _arguments() -> argparse.Namespace:
    from benchmark.rows import GROUPS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="shorter, in under five minutes")
    parser.add_argument("--only", nargs="*", choices=[*GROUPS, "growth"], help="some groups")
    parser.add_argument("--device", default="cpu", help="where the models run")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "bench")
    return parser.parse_args()


def main() -> None:
    """Run a job of ours, or all of them and write the tables."""
    if sys.argv[1:2] == ["--job"]:
        found = _jobs()[sys.argv[2]](**json.loads(sys.argv[3]))
        print(json.dumps(found))
        return
    import pandas as pd
    from benchmark.report import markdown, write_growth_figure
    from benchmark.rows import GROUPS, growth_records
    from benchmark.run import Row, Run

    options = _arguments()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    run = Run(quick=options.quick, device=options.device, say=say)
    wanted = options.only or [*GROUPS, "growth"]
    options.output.mkdir(parents=True, exist_ok=True)
    about = machine(options.device) | {"quick": options.quick}
    (options.output / "machine.json").write_text(json.dumps(about, indent=1) + "\n")
    rows: list[Row] = []
    for group in [name for name in GROUPS if name in wanted]:
        for measured in GROUPS[group](run):
            try:
                rows += measured()
            except RuntimeError as error:
                rows.append(
                    Row(what=group, model="", context_length_tokens=0, error=str(error)[:300])
                )
            table = pd.DataFrame([row.record() for row in rows])
            table.to_csv(options.output / "table.csv", index=False)
    if rows:
        (options.output / "table.md").write_text(markdown(rows, about))
        print(markdown(rows, about))
    if "growth" in wanted:
        records = pd.DataFrame(growth_records(run))
        records.to_csv(options.output / "growth.csv", index=False)
        write_growth_figure(records, options.output)
    say("done")


if __name__ == "__main__":
    main()
