"""The ramp over frequencies that YaRN and NTK-by-parts share."""

from __future__ import annotations

import math

import numpy as np

from patches.base import FloatArray
from patches.geometry import RopeGeometry


def interpolation_ramp(
    geometry: RopeGeometry, *, rotations_fast: float, rotations_slow: float, truncate: bool = True
) -> FloatArray:
    """How far each frequency is interpolated: 0 not at all, 1 fully, straight in between.

    A frequency that turns ``r`` times within the trained length sits at dimension
    ``rotary_dim ln(trained_length / (2 pi r)) / (2 ln base)`` (YaRN, arXiv:2309.00071, section
    3.2 and its reference code, which this follows: the ramp is straight in the dimension, not in
    the number of turns as in eq. 13 of the paper).

    Args:
        geometry: Rotary size, base and trained length of one layer type.
        rotations_fast: Turns within the trained length from which on nothing is interpolated.
        rotations_slow: Turns up to which everything is.
        truncate: Whether the ends are moved outwards to whole dimensions.

    Returns:
        Float64, shape ``(rotary_dim / 2,)``, between 0 and 1, never falling.
    """
    low = _dimension(geometry, rotations_fast)
    high = _dimension(geometry, rotations_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low = max(low, 0)
    # Where the whole ramp lies outside the dimensions, it becomes a step at its fast end.
    high = max(min(high, geometry.rotary_dim - 1), low)
    if low == high:
        high += 0.001
    dimensions = np.arange(geometry.rotary_dim // 2, dtype=np.float64)
    return np.clip((dimensions - low) / (high - low), 0.0, 1.0)


def _dimension(geometry: RopeGeometry, rotations: float) -> float:
    turns = geometry.trained_length / (rotations * 2 * math.pi)
    return geometry.rotary_dim * math.log(turns) / (2 * math.log(geometry.base))
