"""The scaling of Llama 3.1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from patches.base import PatchError, RopeTables, StretchPatch, positive_number
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class Llama3(StretchPatch):
    r"""The scaling of Llama 3.1 (Dubey et al. 2024, arXiv:2407.21783, and its reference code).

    .. math:: \theta'_i = (1 - t_i) \theta_i / s + t_i \theta_i, \qquad
              t_i = \mathrm{clip}\left(\frac{r_i - l}{h - l}, 0, 1\right), \qquad
              r_i = \frac{L \theta_i}{2 \pi}

    where :math:`r_i` is the number of turns within the trained length :math:`L`.

    Attributes:
        factor: The stretch :math:`s`, at least 1, or ``"auto"``.
        low_freq_factor: Turns :math:`l` up to which a frequency is divided by the factor.
        high_freq_factor: Turns :math:`h` from which on it is left alone, above ``low_freq_factor``.
    """

    kind: ClassVar[str] = "llama3"
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            PatchError: If a number is not above 0 or the two are not in order.
        """
        super().__post_init__()
        for name in ("low_freq_factor", "high_freq_factor"):
            value = positive_number(getattr(self, name), f"llama3: {name}")
            object.__setattr__(self, name, value)
        if self.high_freq_factor <= self.low_freq_factor:
            raise PatchError(
                "llama3: high_freq_factor must be above low_freq_factor, not "
                f"{self.high_freq_factor:g} and {self.low_freq_factor:g}"
            )

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Interpolate slow frequencies, leave fast ones, and go over smoothly in turns.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The frequencies and ``attention_factor`` 1.
        """
        factor = self.resolved_factor(geometry, context_length)
        plain = geometry.inv_freq()
        turns = geometry.trained_length * plain / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = np.clip((turns - self.low_freq_factor) / span, 0.0, 1.0)
        return RopeTables((1 - kept) * plain / factor + kept * plain)
