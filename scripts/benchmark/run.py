"""A line of the table, and how the jobs behind it are run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(kw_only=True)
class Row:
    """One line of the table; seconds or bytes, as `unit` says."""

    what: str
    model: str
    context_length_tokens: int
    dtype: str = "float32"
    unit: str = "seconds"
    ours: float | None = None
    plain: float | None = None
    ratio: float | None = None
    bound: float | None = None
    peer_way: str = ""
    peer_context_length_tokens: int | None = None
    peer: float | None = None
    peer_ratio: float | None = None
    note: str = ""
    error: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where there is none."""
        if self.bound is None or self.ratio is None:
            return None
        return self.ratio <= self.bound

    def record(self) -> dict[str, Any]:
        """As a row of the CSV file."""
        return asdict(self) | {"holds": self.holds}


@dataclass(kw_only=True)
class Run:
    """How the benchmark runs."""

    quick: bool = False
    device: str = "cpu"
    say: Callable[[str], None] = field(default=lambda _text: None)

    @property
    def repeats(self) -> int:
        """Of each timing; the median counts."""
        return 3 if self.quick else 5

    def job(self, name: str, **arguments: Any) -> dict[str, float]:
        """Run a job in a process of its own.

        Raises:
            RuntimeError: With the last line that it said, if it fails.
        """
        self.say(f"{name} {' '.join(str(v) for v in arguments.values())}")
        command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "--job", name]
        done = subprocess.run(
            [*command, json.dumps(arguments)], capture_output=True, text=True, check=False
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise RuntimeError(said[0])
        found: dict[str, float] = json.loads(lines[-1])
        return found
