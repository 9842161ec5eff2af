"""Progress with time left: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_LINE_EVERY_SECONDS = 10.0


def format_seconds(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Counts tokens to run; the time left follows from the cost of those already run.

    Cost grows faster than the number of tokens, so each unit is weighted by its length:
    ``tokens * (1 + context_length / knee)``.
    """

    def __init__(self, total: float, *, quiet: bool = False) -> None:
        self._total = max(total, 1e-9)
        self._done = 0.0
        self._label = ""
        self._began = self._last_line = time.monotonic()
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def start(self, label: str) -> None:
        """Say what is being measured now."""
        self._label = label
        self._show()

    def advance(self, cost: float) -> None:
        """Count what has been run."""
        self._done += cost
        self._show()

    def skip(self, cost: float) -> None:
        """Take out what will not be run (a pass that failed), so that the time left stays true."""
        self._total = max(self._total - cost, self._done, 1e-9)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            print(f"\r\033[K{text}" if self._live else text, file=sys.stderr, flush=True)

    def _line(self) -> str:
        share = min(self._done / self._total, 1.0)
        elapsed = time.monotonic() - self._began
        left = f"{format_seconds(elapsed / share * (1 - share))} left" if share > 0.01 else "..."
        return f"{share:4.0%}  {format_seconds(elapsed)} so far, {left}  {self._label}"

    def _show(self) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if self._live:
            width = 20
            filled = round(width * min(self._done / self._total, 1.0))
            bar = "#" * filled + "." * (width - filled)
            print(f"\r\033[K[{bar}] {self._line()}"[:150], end="", file=sys.stderr, flush=True)
        elif now - self._last_line >= _LINE_EVERY_SECONDS:
            self._last_line = now
            print(self._line(), file=sys.stderr, flush=True)
