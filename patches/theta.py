"""Another base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import PatchError, RopePatch, RopeTables, positive_number
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class Theta(RopePatch):
    r"""Plain RoPE at another base (adjusted base frequency, Xiong et al. 2023, arXiv:2309.16039).

    .. math:: \theta_i = b'^{-2i/d}

    Attributes:
        base: The base :math:`b'` to use in place of the model's, above 1.
    """

    kind: ClassVar[str] = "theta"
    base: float

    def __post_init__(self) -> None:
        """Check the base.

        Raises:
            PatchError: If it is not a finite number above 1.
        """
        super().__post_init__()
        object.__setattr__(self, "base", positive_number(self.base, "theta: base"))
        if self.base <= 1:
            raise PatchError(f"theta: base must be above 1, not {self.base:g}")

    def tables(
        self,
        geometry: RopeGeometry,
        context_length: int,  # noqa: ARG002
    ) -> RopeTables:
        """Compute plain frequencies from the given base.

        Args:
            geometry: Rotary size of one layer type; its own base is not used.
            context_length: Unused: the tables are the same at every length.

        Returns:
            The frequencies and ``attention_factor`` 1.
        """
        return RopeTables(geometry.inv_freq(self.base))
