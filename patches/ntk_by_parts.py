"""NTK-by-parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from patches.base import PatchError, RopeTables, StretchPatch
from patches.geometry import RopeGeometry
from patches.ntk import ntk_inv_freq
from patches.ramp import interpolation_ramp

_LINEAR_TURNS = (1.25, 0.75)
_PLAIN_TURNS = (16.0, 2.0)
_VARIANTS = ("repository", "paper")


@dataclass(frozen=True, kw_only=True)
class NTKByParts(StretchPatch):
    r"""NTK-by-parts (bloc97 2023; YaRN, arXiv:2309.00071, section 3.2).

    The two things of this name differ by up to 47% in a frequency at a trained length of 256 and a
    factor of 4:

    ``repository``, as in the code published with YaRN, goes from linear to NTK-aware scaling
    between 0.75 and 1.25 turns within the trained length, and on to plain RoPE between 2 and 16:

    .. math:: \theta'_i = \gamma_2 [\gamma_1 \theta_i / s + (1 - \gamma_1) (b s^{d/(d-2)})^{-2i/d}]
              + (1 - \gamma_2) \theta_i

    ``paper`` goes straight from linear to plain between 1 and 32 turns. It is YaRN without its
    attention factor:

    .. math:: \theta'_i = \gamma \theta_i / s + (1 - \gamma) \theta_i

    Each :math:`\gamma` is a ramp over the dimensions (see ``patches.ramp``).

    Attributes:
        factor: The stretch :math:`s`, at least 1, or ``"auto"``.
        variant: ``"repository"`` or ``"paper"``.
    """

    kind: ClassVar[str] = "ntk_by_parts"
    variant: Literal["repository", "paper"] = "repository"

    def __post_init__(self) -> None:
        """Check the variant.

        Raises:
            PatchError: If it is not one of the two.
        """
        super().__post_init__()
        if self.variant not in _VARIANTS:
            known = " or ".join(_VARIANTS)
            raise PatchError(f"ntk_by_parts: variant must be {known}, not {self.variant!r}")

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Interpolate slow frequencies and leave fast ones, by parts.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The frequencies and ``attention_factor`` 1.

        Raises:
            PatchError: If the variant is ``repository`` and only two dimensions are rotated.
        """
        factor = self.resolved_factor(geometry, context_length)
        plain = geometry.inv_freq()
        if self.variant == "paper":
            ramp = interpolation_ramp(geometry, rotations_fast=32.0, rotations_slow=1.0)
            return RopeTables(ramp * plain / factor + (1 - ramp) * plain)
        fast, slow = _LINEAR_TURNS
        linear = interpolation_ramp(geometry, rotations_fast=fast, rotations_slow=slow)
        stretched = linear * plain / factor + (1 - linear) * ntk_inv_freq(geometry, factor)
        fast, slow = _PLAIN_TURNS
        scaled = interpolation_ramp(geometry, rotations_fast=fast, rotations_slow=slow)
        return RopeTables(scaled * stretched + (1 - scaled) * plain)
