"""RoPE scaling methods, and how to put one into a loaded model.

Every method is a frozen dataclass that computes rotary tables in numpy; ``applied`` puts them into
a transformers model and takes them out again::

    from patches import YaRN, applied

    with applied(model, YaRN(factor=8)):
        ...

``applied`` is the only part that needs torch, which is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patches.base import PatchError, RopePatch, RopeTables, StretchPatch
from patches.dynamic_ntk import DynamicNTK
from patches.geometry import RopeGeometry, layer_types_of
from patches.linear import Linear
from patches.llama3 import Llama3
from patches.native import Native
from patches.none import NoScaling
from patches.ntk import NTK
from patches.ntk_by_parts import NTKByParts
from patches.resolve import resolve
from patches.theta import Theta
from patches.yarn import YaRN

if TYPE_CHECKING:
    from patches.apply import AppliedPatch, applied

PATCHES: dict[str, type[RopePatch]] = {
    patch.kind: patch
    for patch in (NoScaling, Native, Theta, Linear, NTK, DynamicNTK, NTKByParts, YaRN, Llama3)
}

__all__ = [
    "NTK",
    "PATCHES",
    "AppliedPatch",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "NTKByParts",
    "Native",
    "NoScaling",
    "PatchError",
    "RopeGeometry",
    "RopePatch",
    "RopeTables",
    "StretchPatch",
    "Theta",
    "YaRN",
    "applied",
    "layer_types_of",
    "resolve",
]


def __getattr__(name: str) -> Any:
    """Import ``applied`` and ``AppliedPatch``, and with them torch, when first asked for."""
    if name in ("AppliedPatch", "applied"):
        from patches import apply

        return getattr(apply, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
