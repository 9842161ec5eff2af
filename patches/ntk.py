"""NTK-aware scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import FloatArray, PatchError, RopeTables, StretchPatch
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class NTK(StretchPatch):
    r"""NTK-aware scaling of the base (bloc97 2023; YaRN, arXiv:2309.00071, section 3.1).

    .. math:: \theta'_i = (b \, s^{d/(d-2)})^{-2i/d}

    The fastest frequency stays, the slowest is divided by :math:`s`.

    Attributes:
        factor: The stretch :math:`s`, at least 1, or ``"auto"``.
    """

    kind: ClassVar[str] = "ntk"

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Raise the base so that the slowest frequency is stretched by the factor.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The frequencies and ``attention_factor`` 1.

        Raises:
            PatchError: If only two dimensions are rotated: the base then has no effect.
        """
        return RopeTables(ntk_inv_freq(geometry, self.resolved_factor(geometry, context_length)))


def ntk_inv_freq(geometry: RopeGeometry, factor: float) -> FloatArray:
    """Frequencies of the base times ``factor ** (d / (d - 2))``.

    Args:
        geometry: Rotary size ``d`` and base.
        factor: The stretch of the slowest frequency.

    Returns:
        Float64, shape ``(d / 2,)``, in radians per token.

    Raises:
        PatchError: If ``d`` is 2.
    """
    dim = geometry.rotary_dim
    if dim <= 2:
        raise PatchError("NTK scaling needs more than two rotary dimensions")
    return geometry.inv_freq(geometry.base * factor ** (dim / (dim - 2)))
