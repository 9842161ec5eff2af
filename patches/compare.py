"""Comparing queries and keys with and without rotation. Imported, with torch, by ``apply`` only.

Shape suffixes: b batch, h heads, n positions, d size of a head, r half the rotary dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patches.base import RopeTables
from patches.layout import Output, RotaryLayout
from patches.observe import AttentionCall

POSITIONS = (0, 1, 2, 5, 17, 61, 257, 1021)
ANGLE_ERROR = max(POSITIONS) * 2.0**-22


@dataclass(frozen=True)
class Expected:
    """What one layer should be rotated by: float64 cosines and sines, with their scale."""

    cos_nr: Tensor
    sin_nr: Tensor
    scale: float
    changed: bool


def expected_of(tables: RopeTables, positions: Sequence[int]) -> Expected:
    """What tables turn by at some positions, in numpy."""
    angles = np.outer(np.asarray(positions, dtype=np.float64), tables.inv_freq)
    scale = tables.attention_factor
    cos_nr, sin_nr = (torch.from_numpy(turn(angles) * scale) for turn in (np.cos, np.sin))
    return Expected(cos_nr, sin_nr, scale, changed=True)


def table_error(layout: RotaryLayout, output: Output, want: Expected) -> tuple[float, float]:
    """How far a rotary module's output is from what is wanted, and how far it may be."""
    cos_bnr, sin_bnr = layout.unpack(output)
    dtype = output[0].dtype if isinstance(output, tuple) else torch.float32
    error = max(
        float((cos_bnr[0] - want.cos_nr).abs().max()), float((sin_bnr[0] - want.sin_nr).abs().max())
    )
    return error, want.scale * (torch.finfo(dtype).eps + ANGLE_ERROR)


def is_rotated(
    call: AttentionCall, plain: tuple[Tensor, Tensor], want: Expected, scale: float
) -> bool:
    """Whether query and key are the plain ones, turned; pairs and place of the turned part vary."""
    undo = scale / want.scale
    cos_nr, sin_nr = want.cos_nr * undo, want.sin_nr * undo
    size, width = call.query_bhnd.shape[-1], 2 * want.cos_nr.shape[-1]
    if width > size:
        return False
    found = (call.query_bhnd, call.key_bhnd)
    return any(
        all(
            _close_parts(state, _turn(before, cos_nr, sin_nr, start, interleaved), start, width)
            for state, before in zip(found, plain, strict=True)
        )
        for start in dict.fromkeys((0, size - width))
        for interleaved in (False, True)
    )


def _turn(
    states_bhnd: Tensor, cos_nr: Tensor, sin_nr: Tensor, start: int, interleaved: bool
) -> Tensor:
    """Rotate the dimensions from ``start`` on; float64 on the CPU."""
    turned = states_bhnd.cpu().double().clone()
    width = 2 * cos_nr.shape[-1]
    part = turned[..., start : start + width].clone()
    middle = width // 2
    first = slice(0, None, 2) if interleaved else slice(0, middle)
    second = slice(1, None, 2) if interleaved else slice(middle, None)
    into = turned[..., start : start + width]
    into[..., first] = part[..., first] * cos_nr - part[..., second] * sin_nr
    into[..., second] = part[..., second] * cos_nr + part[..., first] * sin_nr
    return turned


def _close_parts(found: Tensor, wanted: Tensor, start: int, width: int) -> bool:
    """Compare the rotated and the other dimensions, each against their own size."""
    precision = found.dtype
    parts = (slice(0, start), slice(start, start + width), slice(start + width, None))
    return all(close(found[..., part], wanted[..., part], precision) for part in parts)


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether every vector is as wanted, up to rounding of its length."""
    found_64, wanted_64 = found.cpu().double(), wanted.cpu().double()
    eps = torch.finfo(dtype or found.dtype).eps
    tolerance = 3 * eps + 1e-6 + ANGLE_ERROR
    error = (found_64 - wanted_64).norm(dim=-1)
    return bool((error <= tolerance * wanted_64.norm(dim=-1) + 1e-30).all())
