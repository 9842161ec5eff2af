"""The model as it was saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patches.base import PatchError, RopePatch, RopeTables
from patches.geometry import RopeGeometry


@dataclass(frozen=True, kw_only=True)
class Native(RopePatch):
    """The model left as it is, with whatever scaling it was saved with.

    It has no tables of its own, and ``applied`` changes nothing. ``layers`` cannot be given: there
    is nothing to limit. A model saved with stock ``dynamic`` scaling stays stateful, as it is, and
    one with YaRN's ``mscale`` in the scaling of its attention (the DeepSeek family) keeps that.
    """

    kind: ClassVar[str] = "native"

    def __post_init__(self) -> None:
        """Refuse ``layers``.

        Raises:
            PatchError: If ``layers`` is given.
        """
        super().__post_init__()
        if self.layers is not None:
            raise PatchError("native: changes no layer, so layers cannot be given")

    def tables(
        self,
        geometry: RopeGeometry,  # noqa: ARG002
        context_length: int,  # noqa: ARG002
    ) -> RopeTables:
        """Refuse: the tables are the model's.

        Args:
            geometry: Unused.
            context_length: Unused.

        Raises:
            PatchError: Always.
        """
        raise PatchError("native has no tables of its own: the model keeps those it was saved with")
