"""Exact attention statistics of every layer and head while a model runs as it is.

A function of ours takes the place of the model's attention while something is measured. The output
comes from PyTorch's fused operators (`harness.fused`) or, where they cannot give it, from tiles;
the statistics come from tiles (`harness.tiles`). No mask and no matrix of N x N is ever made.

Shapes: B sequences, H query heads, K key heads, L queries and S keys of a call, Q measured
queries, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from harness.attention_data import AttentionSettings, Consumer, LayerStatistics
from harness.errors import ModelError
from harness.fused import fused_output
from harness.layer_call import LayerCall, layer_call
from harness.masks import TileMask, tile_mask
from harness.rows import STATISTICS
from harness.tiles import attend
from harness.workers import TileWorkers
from patches import layer_types_of
from patches.geometry import FULL_ATTENTION
from patches.observe import attention_configs

NAME = "ropewalk_attention"

# Arguments that some models' attention takes and that would change its scores.
_UNKNOWN = ("position_bias", "sinks", "indices", "block_indices")


class UnsupportedAttentionError(ModelError):
    """The attention of this model does not go through transformers' interface, or not all of it."""


@dataclass(eq=False)
class _Recorder:
    """What the attention function needs and leaves while one model is measured.

    Attributes:
        workers: Who works on tiles.
        settings: What is measured; None for nothing.
        positions: Measured query positions, ascending, int64 ``(Q,)``.
        consumer: Who is given the statistics.
        layer_types: Of the model's layers.
        seen: Layer and first position of each call that was measured.
    """

    workers: TileWorkers
    settings: AttentionSettings | None = None
    positions: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    consumer: Consumer | None = None
    layer_types: tuple[str, ...] = ()
    seen: set[tuple[int, int]] = field(default_factory=set)

    def positions_in(self, mask: TileMask) -> Tensor:
        """The measured positions among the queries of a call, on the CPU."""
        start, stop = mask.query_offset, mask.query_offset + len(mask.starts)
        low, high = np.searchsorted(self.positions, [start, stop])
        return torch.from_numpy(self.positions[low:high])

    def keep(self, module: Any, start: int, positions: Tensor, found: dict[str, Tensor]) -> None:
        """Hand on a layer's statistics, each ``(K, G, Q)``."""
        index = getattr(module, "layer_idx", None)
        if index is None or (int(index), start) in self.seen:
            raise UnsupportedAttentionError(
                f"{type(module).__name__} does not say which layer it is, or runs twice; its "
                "attention cannot be measured"
            )
        index = int(index)
        self.seen.add((index, start))
        if self.consumer is not None and len(positions):
            known = index < len(self.layer_types)
            self.consumer(
                LayerStatistics(
                    layer=index,
                    layer_type=self.layer_types[index] if known else FULL_ATTENTION,
                    positions=positions.numpy(),
                    values={
                        n: value.flatten(0, 1).cpu().double().numpy() for n, value in found.items()
                    },
                )
            )


# The attention function is registered once and for all models; which measurement it feeds is that
# of the thread that runs the model.
_recorder: ContextVar[_Recorder | None] = ContextVar("ropewalk_recorder", default=None)


def _attention_function(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that models call: query ``(B, H, L, D)``, key and value ``(B, K, S, D)``.

    The window is not read from the arguments: the mask's rule knows it.
    """
    recorder = _recorder.get()
    if recorder is None or not isinstance(attention_mask, TileMask):
        raise UnsupportedAttentionError(
            f"{type(module).__name__} builds its own attention mask; its attention cannot be "
            "measured"
        )
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise UnsupportedAttentionError(
                f"{type(module).__name__} uses '{name}', which cannot be measured"
            )
    scaling = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    with torch.autocast(query.device.type, enabled=False):
        call = _Call(query, key, value, attention_mask, scaling, softcap, s_aux)
        out = call.run(module, recorder)
    return out.transpose(1, 2).to(query.dtype).contiguous(), None


@dataclass(eq=False)
class _Call:
    """One layer's attention, as a model asks for it; see `_attention_function`."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: TileMask
    scaling: float
    softcap: float | None
    sinks: Tensor | None

    def run(self, module: Any, recorder: _Recorder) -> Tensor:
        """Measure what is wanted; the output ``(B, H, L, E)``."""
        positions = recorder.positions_in(self.mask)
        if recorder.settings is not None:
            if len(self.query) != 1:
                raise ModelError("attention statistics take one sequence at a time, not a batch")
            # Where all queries are measured in full precision, the output is a by-product. In half
            # precision it would be another than that of a run without the statistics.
            exact = self.query.dtype in (torch.float32, torch.float64)
            tiles_give_output = exact and len(positions) == self.query.shape[2]
            found, out = self._measure(positions, recorder, tiles_give_output)
            recorder.keep(module, self.mask.query_offset, positions, found)
            if out is not None:
                return out
        fused = None
        if self.softcap is None:
            fused = fused_output(
                self.query, self.key, self.value, self.mask, self.scaling, self.sinks
            )
        return self._tiled_output(recorder.workers) if fused is None else fused

    def _laid_out(self, row: int, with_value: bool) -> LayerCall:
        """One sequence of the batch."""
        return layer_call(
            self.query[row],
            self.key[row],
            self.value[row] if with_value else None,
            self.mask,
            scaling=self.scaling,
            softcap=self.softcap,
            sinks=self.sinks,
        )

    def _measure(
        self, positions: Tensor, recorder: _Recorder, with_output: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Statistics ``(K, G, Q)`` and, if asked for, the output."""
        assert recorder.settings is not None
        call = self._laid_out(0, with_output)
        groups = call.query.shape[:2]
        found = {name: call.columns.new_empty(*groups, len(positions)) for name in STATISTICS}
        out = None
        if with_output:
            out = call.columns.new_empty(*call.query.shape[:3], self.value.shape[-1])
        attend(
            call,
            positions,
            recorder.workers,
            output=out,
            statistics=found,
            local_window=recorder.settings.local_window,
        )
        return found, None if out is None else out.flatten(0, 1)[None]

    def _tiled_output(self, workers: TileWorkers) -> Tensor:
        """The output where no fused operator knows the mask or the scores."""
        rows = []
        start = self.mask.query_offset
        positions = torch.arange(start, start + self.query.shape[2])
        for row in range(len(self.query)):
            call = self._laid_out(row, True)
            out = call.columns.new_empty(*call.query.shape[:3], self.value.shape[-1])
            attend(call, positions, workers, output=out, statistics=None, local_window=1)
            rows.append(out.flatten(0, 1))
        return torch.stack(rows)


def _follows_interface(model: Any) -> bool:
    able = getattr(model, "_can_set_attn_implementation", None)
    return able is None or bool(able())


def attention_backend(model: Any) -> str:
    """What a model's attention is while it is measured: ours, or its own where it cannot be."""
    return NAME if _follows_interface(model) else str(model.config._attn_implementation)


def _adopt(model: Any) -> None:
    """Let a model use our function.

    Raises:
        UnsupportedAttentionError: If it does not use transformers' attention interface.
    """
    AttentionInterface.register(NAME, _attention_function)
    AttentionMaskInterface.register(NAME, tile_mask)
    name = type(model).__name__
    if not _follows_interface(model):
        raise UnsupportedAttentionError(
            f"{name} does not use transformers' attention interface; its attention cannot be "
            "measured"
        )
    try:
        model.set_attn_implementation(NAME)
    except (AttributeError, ImportError, ValueError) as error:
        raise UnsupportedAttentionError(
            f"the attention of {name} cannot be measured: {error}"
        ) from error


@contextmanager
def own_attention(
    model: Any,
    *,
    settings: AttentionSettings | None = None,
    num_tokens: int = 0,
    consumer: Consumer | None = None,
) -> Iterator[None]:
    """Let a model use our attention for a while, measured or not.

    Args:
        model: A causal language model of transformers.
        settings: What is measured; None for nothing.
        num_tokens: Of the measured pass.
        consumer: Given the statistics of each layer, once for each chunk of the pass.

    Yields:
        Nothing. The model's attention is put back in any case.

    Raises:
        UnsupportedAttentionError: If the model's attention does not go through transformers'
            interface.
    """
    with TileWorkers(next(model.parameters()).device) as workers:
        recorder = _Recorder(workers)
        if settings is not None:
            recorder.settings = settings
            recorder.positions = settings.positions(num_tokens)
            recorder.consumer = consumer
            recorder.layer_types = tuple(layer_types_of(model.config) or ())
        token = _recorder.set(recorder)
        before = [(config, config._attn_implementation) for config in attention_configs(model)]
        try:
            _adopt(model)
            yield
        finally:
            # Setting a config sets those inside it, too: the outermost first.
            for config, implementation in before:
                config._attn_implementation = implementation
            _recorder.reset(token)
    if settings is not None and not recorder.seen:
        raise UnsupportedAttentionError(
            f"{type(model).__name__} does not use transformers' attention interface; its "
            "attention cannot be measured"
        )
