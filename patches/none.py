"""Plain rotary embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import RopePatch, RopeTables
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class NoScaling(RopePatch):
    r"""Plain RoPE at the model's own base (Su et al. 2021, arXiv:2104.09864).

    .. math:: \theta_i = b^{-2i/d}

    Scaling that the model was saved with is taken away: on a Llama 3.1, saved with ``llama3``
    scaling by 8, this is base 500000 and nothing else. ``native`` leaves a model as it is.
    """

    kind: ClassVar[str] = "none"

    def tables(
        self,
        geometry: RopeGeometry,
        context_length: int,  # noqa: ARG002
    ) -> RopeTables:
        """Leave every frequency where plain RoPE has it.

        Args:
            geometry: Rotary size and base of one layer type.
            context_length: Unused: the tables are the same at every length.

        Returns:
            The plain frequencies and ``attention_factor`` 1.
        """
        return RopeTables(geometry.inv_freq())
