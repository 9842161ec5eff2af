"""What every method has in common: its fields, its tables and its errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from patches.geometry import RopeGeometry

FloatArray = npt.NDArray[np.float64]
Factor = float | Literal["auto"]


class PatchError(ValueError):
    """A method, a geometry or a model asks for something that cannot be done as asked."""


@dataclass(frozen=True, eq=False)
class RopeTables:
    """The rotation of one kind of layer.

    Attributes:
        inv_freq: Float64, shape ``(rotary_dim / 2,)``, in radians per token; read-only.
        attention_factor: What cosine and sine are multiplied by, so that the attention logits are
            multiplied by its square.
    """

    inv_freq: FloatArray
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        """Copy the frequencies and refuse what is not a rotation."""
        inv_freq = np.array(self.inv_freq, dtype=np.float64)
        if inv_freq.ndim != 1 or inv_freq.size == 0:
            raise PatchError(f"inv_freq must be a vector, not of shape {inv_freq.shape}")
        if not np.all(np.isfinite(inv_freq)) or np.any(inv_freq < 0):
            raise PatchError("inv_freq must hold finite numbers that are not negative")
        inv_freq.setflags(write=False)
        object.__setattr__(self, "inv_freq", inv_freq)
        factor = positive_number(self.attention_factor, "attention_factor")
        object.__setattr__(self, "attention_factor", factor)

    def __eq__(self, other: object) -> bool:
        """Equal when every number is equal, bit for bit."""
        if not isinstance(other, RopeTables):
            return NotImplemented
        same_factor = self.attention_factor == other.attention_factor
        return same_factor and np.array_equal(self.inv_freq, other.inv_freq)

    def __hash__(self) -> int:
        """Hash of the numbers."""
        return hash((self.inv_freq.tobytes(), self.attention_factor))


@dataclass(frozen=True, kw_only=True)
class RopePatch(ABC):
    """A method: from a layer's geometry and the evaluated length to rotary tables.

    A method is a frozen dataclass in the file of its own name. It replaces whatever scaling the
    model was saved with, knows nothing of torch, and is checked when it is made.

    Attributes:
        kind: The name in YAML, of the file and in ``PATCHES``.
        layers: The layer types to change, ``None`` for the method's default: the full-attention
            layers where a model keeps separate tables for its layer types, all layers otherwise.
    """

    kind: ClassVar[str]
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse fields that mean nothing.

        Raises:
            PatchError: If a field has a wrong type or value.
        """
        object.__setattr__(self, "layers", _layer_names(self.layers))

    @abstractmethod
    def tables(self, geometry: RopeGeometry, context_length: int) -> RopeTables:
        """Compute the rotary tables for one layer type.

        Args:
            geometry: Rotary size, base and trained length of the layer type.
            context_length: Tokens in the whole evaluated sequence, those still to be generated
                included.

        Returns:
            The frequencies and the attention factor.

        Raises:
            PatchError: If the method is not defined for this geometry.
        """

    @property
    def depends_on_length(self) -> bool:
        """Whether the tables change with ``context_length``."""
        return False

    def resolved_factor(
        self,
        geometry: RopeGeometry,  # noqa: ARG002
        context_length: int,  # noqa: ARG002
    ) -> float:
        """How many times the method stretches the trained length; 1 if it does not stretch."""
        return 1.0

    def default_name(self) -> str:
        """The kind and, in brackets, the fields that differ from their defaults.

        For example ``yarn``, ``yarn(factor=8)`` or ``yarn(beta_fast=2, layers=sliding_attention)``.
        """
        shown = []
        for field in sorted(fields(self), key=lambda field: field.name == "layers"):
            value = getattr(self, field.name)
            if field.default is MISSING or value != field.default:
                shown.append(f"{field.name}={_text(value)}")
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind


@dataclass(frozen=True, kw_only=True)
class StretchPatch(RopePatch):
    """A method that stretches the trained length by a factor.

    Attributes:
        factor: A number of at least 1, or ``"auto"``: ``context_length / trained_length``, at
            least 1, for each length on its own.
    """

    factor: Factor = "auto"

    def __post_init__(self) -> None:
        """Check the factor.

        Raises:
            PatchError: If it is neither ``"auto"`` nor a finite number of at least 1.
        """
        super().__post_init__()
        if isinstance(self.factor, str) and self.factor == "auto":
            return
        object.__setattr__(self, "factor", stretch_factor(self.factor, self.kind, 'or "auto"'))

    @property
    def depends_on_length(self) -> bool:
        """Whether the factor is taken from the length."""
        return self.factor == "auto"

    def resolved_factor(self, geometry: RopeGeometry, context_length: int) -> float:
        """The factor as a number.

        Args:
            geometry: Gives the trained length in tokens.
            context_length: Tokens in the evaluated sequence; used by ``"auto"`` only.

        Returns:
            The factor, at least 1.

        Raises:
            PatchError: If ``context_length`` is needed and is not a whole number of at least 1.
        """
        if self.factor != "auto":
            return float(self.factor)
        return max(1.0, whole_number(context_length, "context_length") / geometry.trained_length)


def stretch_factor(value: Any, kind: str, alternative: str = "") -> float:
    """Check a stretch factor.

    Args:
        value: What the user gave.
        kind: The method, for the message.
        alternative: What else is allowed, for the message.

    Returns:
        The factor as a float.

    Raises:
        PatchError: If it is not a finite number of at least 1.
    """
    allowed = " ".join(f"a number of at least 1 {alternative}".split())
    if not _is_finite_number(value) or value < 1:
        raise PatchError(f"{kind}: factor must be {allowed}, not {value!r}")
    return float(value)


def positive_number(value: Any, what: str) -> float:
    """Return ``value`` as a float, or raise ``PatchError`` if it is not finite and above 0."""
    if not _is_finite_number(value) or value <= 0:
        raise PatchError(f"{what} must be a number above 0, not {value!r}")
    return float(value)


def whole_number(value: Any, what: str, minimum: int = 1) -> int:
    """Return ``value`` as an int, or raise ``PatchError`` if it is not whole or too low."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise PatchError(f"{what} must be a whole number of at least {minimum}, not {value!r}")
    return int(value)


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _layer_names(layers: Any) -> tuple[str, ...] | None:
    if layers is None:
        return None
    expected = "layers must be a list of layer types such as [full_attention]"
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise PatchError(f"{expected}, not {layers!r}")
    names = tuple(layers)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise PatchError(f"{expected}, not {layers!r}")
    if len(set(names)) < len(names):
        raise PatchError(f"layers names a layer type twice: {list(names)}")
    return names


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
