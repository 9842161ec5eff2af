"""Threads for tiles: a whole tile a core, instead of every small operation on all cores."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor


def _run_without_gradients(job: Callable[[], None]) -> None:
    with torch.inference_mode():  # each thread has its own mode
        job()


class TileWorkers:
    """As many threads as PyTorch uses, each with one core.

    PyTorch splits an operation over its threads and waits for the slowest. A layer's tiles are
    hundreds of small operations, and on a machine whose cores are busy with something else too,
    each wait lasts a time slice: measured, ten times as long in all. Whole tiles per thread wait
    once a layer.
    """

    def __init__(self, device: torch.device) -> None:
        """Make threads for tiles on a CPU; on other devices all is done by the caller's."""
        self._num_threads = torch.get_num_threads() if device.type == "cpu" else 1
        self._pool: ThreadPoolExecutor | None = None
        self._own = threading.local()

    def scratch(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of the calling thread for one step of a tile, whatever was in it before.

        Fresh memory for every block would cost more than what is computed in it.
        """
        size = math.prod(shape)
        kept: dict[tuple[str, torch.dtype], Tensor] = self._own.__dict__.setdefault("kept", {})
        buffer = kept.get((name, like.dtype))
        if buffer is None or buffer.numel() < size or buffer.device != like.device:
            buffer = kept[name, like.dtype] = like.new_empty(size)
        return buffer[:size].view(shape)

    def __enter__(self) -> Self:
        if self._num_threads > 1:
            self._pool = ThreadPoolExecutor(
                self._num_threads, "tiles", initializer=partial(torch.set_num_threads, 1)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            # What a thread sets for itself is also what threads made later begin with.
            torch.set_num_threads(self._num_threads)

    def run(self, jobs: Iterable[Callable[[], None]]) -> None:
        """Do all jobs, which must not write to the same place; the first error is raised."""
        if self._pool is None:
            for job in jobs:
                job()
        else:
            list(self._pool.map(_run_without_gradients, jobs))
