"""Peak memory of one block of work, not of the process's whole life."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

_SAMPLE_SECONDS = 0.02


def _status_bytes(field: str) -> int | None:
    """A field of /proc/self/status in bytes; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _reset_high_water_mark() -> bool:
    """Lower the process's high-water mark to what it uses now; False where that is not allowed."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def _trimmer() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # another system or C library
        return None


def trim() -> None:
    """Give memory that was freed back to the system.

    Keys that grow from chunk to chunk never fit into the hole that the last ones left, and glibc
    keeps the holes: on a long sequence they come to several times what is in use.
    """
    trimmer = _trimmer()
    if trimmer is not None:
        trimmer(0)


def _resident_bytes() -> int:
    resident = _status_bytes("VmRSS")
    if resident is not None:
        return resident
    import resource  # without /proc: the whole life's peak is all there is

    # Bytes on macOS, kibibytes elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class PeakMemory:
    """Measures the largest amount of memory in use during a block.

    On CUDA that of the devices' allocators, added up; elsewhere the process's resident set, by the
    kernel's high-water mark where it can be reset, else by sampling.

    Attributes:
        peak_bytes: After the block, its peak.
    """

    def __init__(self, *devices: torch.device | str) -> None:
        """Measure the memory of some devices: those that a model is on."""
        found = [torch.device(device) for device in devices]
        self._gpus = [device for device in found if device.type == "cuda"]
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._sampler: threading.Thread | None = None
        self._exact = False

    def __enter__(self) -> Self:
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        if self._gpus:
            return self
        trim()  # what an earlier pass left behind is not this one's
        self._exact = _reset_high_water_mark()
        if not self._exact:
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.peak_bytes = max(self.peak_bytes, _resident_bytes())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._gpus:
            self.peak_bytes = sum(torch.cuda.max_memory_allocated(gpu) for gpu in self._gpus)
            return
        if self._sampler is not None:
            self._stop.set()
            self._sampler.join()
        high = _status_bytes("VmHWM") if self._exact else None
        self.peak_bytes = max(self.peak_bytes, high or _resident_bytes())
