"""Position interpolation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import RopeTables, StretchPatch
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class Linear(StretchPatch):
    r"""Position interpolation (Chen et al. 2023, arXiv:2306.15595, eq. 4).

    .. math:: \theta'_i = \theta_i / s

    Attributes:
        factor: The stretch :math:`s`, at least 1, or ``"auto"``.
    """

    kind: ClassVar[str] = "linear"

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Slow every rotary frequency down by the same factor.

        Position ``factor * m`` then has the angle that the model learnt for ``m``.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The frequencies and ``attention_factor`` 1.
        """
        return RopeTables(geometry.inv_freq() / self.resolved_factor(geometry, context_length))
