"""YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from patches.base import PatchError, RopeTables, StretchPatch, positive_number
from patches.geometry import RopeGeometry
from patches.ramp import interpolation_ramp


@dataclass(frozen=True, kw_only=True)
class YaRN(StretchPatch):
    r"""YaRN (Peng et al. 2023, arXiv:2309.00071, definition 3).

    .. math:: \theta'_i = \gamma_i \theta_i / s + (1 - \gamma_i) \theta_i
    .. math:: f = 0.1 \ln s + 1

    with a ramp :math:`\gamma` over the dimensions, from 0 where a frequency turns ``beta_fast``
    times within the trained length to 1 where it turns ``beta_slow`` times, as in the code
    published with the paper. Cosine and sine are multiplied by :math:`f`, so the attention logits
    by :math:`f^2`; with a partial rotary embedding only the rotated dimensions get it.

    Attributes:
        factor: The stretch :math:`s`, at least 1, or ``"auto"``.
        beta_fast: Turns from which on a frequency is left alone.
        beta_slow: Turns up to which it is divided by the factor, below ``beta_fast``.
        attention_factor: The factor :math:`f`; ``None`` for the formula above.
        truncate: Whether the ends of the ramp are moved outwards to whole dimensions.
    """

    kind: ClassVar[str] = "yarn"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            PatchError: If a number is not above 0 or the ramp has no direction.
        """
        super().__post_init__()
        for name in ("beta_fast", "beta_slow", "attention_factor"):
            value = getattr(self, name)
            if value is not None or name != "attention_factor":
                object.__setattr__(self, name, positive_number(value, f"yarn: {name}"))
        if self.beta_fast <= self.beta_slow:
            raise PatchError(
                f"yarn: beta_fast must be above beta_slow, not {self.beta_fast:g} and "
                f"{self.beta_slow:g}"
            )
        if not isinstance(self.truncate, bool):
            raise PatchError(f"yarn: truncate must be true or false, not {self.truncate!r}")

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Interpolate the slow frequencies only, and sharpen the attention.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The frequencies and the attention factor.
        """
        factor = self.resolved_factor(geometry, context_length)
        ramp = interpolation_ramp(
            geometry,
            rotations_fast=self.beta_fast,
            rotations_slow=self.beta_slow,
            truncate=self.truncate,
        )
        plain = geometry.inv_freq()
        attention_factor = self.attention_factor
        if attention_factor is None:
            attention_factor = 0.1 * math.log(factor) + 1.0
        return RopeTables(ramp * plain / factor + (1 - ramp) * plain, attention_factor)
