"""Dynamic NTK scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import RopePatch, RopeTables, stretch_factor, whole_number
from patches.geometry import RopeGeometry
from patches.ntk import ntk_inv_freq


@dataclass(frozen=True, kw_only=True)
class DynamicNTK(RopePatch):
    r"""NTK-aware scaling that grows with the length (emozilla 2023; arXiv:2309.00071, section 3.3).

    .. math:: \theta'_i = \left(b \left(a \frac{n}{L} - (a - 1)\right)^{d/(d-2)}\right)^{-2i/d}

    for a whole sequence of :math:`n` tokens (prompt and what is still to be generated) and the
    trained length :math:`L`; plain RoPE where :math:`n \le L`. The tables are chosen once for a
    sequence, before any key is cached. transformers calls this ``dynamic`` and chooses them anew
    as the cache grows, so that cached keys and new queries are rotated differently; that is not
    done here.

    Attributes:
        factor: The slope :math:`a`, at least 1. ``"auto"`` is refused: the method follows the
            length by itself.
    """

    kind: ClassVar[str] = "dynamic_ntk"
    factor: float = 1.0

    def __post_init__(self) -> None:
        """Check the factor.

        Raises:
            PatchError: If it is not a finite number of at least 1.
        """
        super().__post_init__()
        hint = '(it follows the length by itself, so there is no "auto")'
        object.__setattr__(self, "factor", stretch_factor(self.factor, self.kind, hint))

    @property
    def depends_on_length(self) -> bool:
        """Always."""
        return True

    def resolved_factor(self, geometry: RopeGeometry, context_length: int) -> float:
        """The stretch ``a n / L - (a - 1)`` at this length, 1 within the trained length.

        Args:
            geometry: Gives the trained length in tokens.
            context_length: Tokens in the whole sequence.

        Returns:
            The stretch of the slowest frequency, at least 1.
        """
        ratio = whole_number(context_length, "context_length") / geometry.trained_length
        return 1.0 if ratio <= 1 else self.factor * ratio - (self.factor - 1)

    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Raise the base as far as the whole length asks.

        Args:
            geometry: Rotary size, base and trained length of one layer type.
            context_length: Tokens in the whole sequence.

        Returns:
            The frequencies and ``attention_factor`` 1.

        Raises:
            PatchError: If only two dimensions are rotated: the base then has no effect.
        """
        return RopeTables(ntk_inv_freq(geometry, self.resolved_factor(geometry, context_length)))
