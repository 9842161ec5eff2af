"""What a model's rotary embedding is made of, read from its config without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from patches.base import FloatArray, PatchError, positive_number, whole_number

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
# Kinds of scaling in transformers whose tables are chosen by the length of each input.
LENGTH_DEPENDENT = frozenset({"dynamic", "longrope", "su"})

_ROTARY_KEYS = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_pct",
    "rotary_dim",
    "rotary_emb_base",
    "partial_rotary_factor",
)
_UNKNOWN_ROPE_TYPES = ("proportional", "axial")
_DEFAULT_BASE = 10000.0


@dataclass(frozen=True, kw_only=True)
class RopeGeometry:
    """The rotary embedding of one layer type, before any scaling.

    Attributes:
        rotary_dim: Dimensions of a head that are rotated, an even number.
        base: The plain base (``rope_theta``), whatever scaling the model was saved with.
        trained_length: Tokens of the longest sequence the model was trained on.
    """

    rotary_dim: int
    base: float
    trained_length: int

    def __post_init__(self) -> None:
        """Refuse what no rotary embedding can have.

        Raises:
            PatchError: If the size is odd or the numbers are out of range.
        """
        if whole_number(self.rotary_dim, "rotary_dim", minimum=2) % 2:
            raise PatchError(f"rotary_dim must be even, not {self.rotary_dim}")
        object.__setattr__(self, "base", positive_number(self.base, "base"))
        if self.base <= 1:
            raise PatchError(f"base must be above 1, not {self.base:g}")
        whole_number(self.trained_length, "trained_length")

    def inv_freq(self, base: float | None = None) -> FloatArray:
        """Frequencies of plain RoPE, ``base ** (-2 i / rotary_dim)`` (arXiv:2104.09864, eq. 15).

        Args:
            base: Another base than the model's.

        Returns:
            Float64, shape ``(rotary_dim / 2,)``, in radians per token, from fast to slow.
        """
        exponent = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        return np.asarray((self.base if base is None else base) ** -exponent, dtype=np.float64)

    @staticmethod
    def from_model(model: Any) -> dict[str | None, RopeGeometry]:
        """Read the geometry of a loaded transformers model from ``model.config``.

        Args:
            model: Anything with a ``config``.

        Returns:
            As ``from_config``.

        Raises:
            PatchError: If the model has no config or no rotary embedding.
        """
        config = getattr(model, "config", None)
        if config is None:
            raise PatchError(f"{type(model).__name__} has no config to read its rotary embedding")
        return RopeGeometry.from_config(config)

    @staticmethod
    def from_config(config: Any) -> dict[str | None, RopeGeometry]:
        """Read the geometry from a transformers config or the dictionary in a ``config.json``.

        Today's ``rope_parameters`` (flat, or one set per layer type) and yesterday's
        ``rope_theta``, ``rope_scaling``, ``rotary_pct`` and ``rope_local_base_freq`` are read. The
        trained length is ``original_max_position_embeddings`` if it is there, else
        ``max_position_embeddings``.

        Args:
            config: The config of a language model, or of a larger model that holds one.

        Returns:
            One geometry under ``None`` where all layers share one table, else one per layer type.

        Raises:
            PatchError: If there is no rotary embedding, or a number that is needed is missing.
        """
        config = _text_config(config)
        if all(_read(config, key) is None for key in _ROTARY_KEYS) and not (
            isinstance(config, Mapping) and "rope_scaling" in config
        ):
            raise PatchError(f"{_describe(config)} has no rotary position embedding")
        parameters = _rope_parameters(config)
        declared = _read(config, "layer_types") or ()
        used = {key: value for key, value in parameters.items() if key in declared} or parameters
        geometries = {
            layer_type: _geometry(config, values)
            for layer_type, values in used.items()
            if values is not None
        }
        if not geometries:
            raise PatchError(f"{_describe(config)} rotates none of its layers")
        return geometries


def layer_types_of(config: Any) -> tuple[str, ...] | None:
    """The type of each layer.

    Args:
        config: As for ``RopeGeometry.from_config``.

    Returns:
        A name per layer, from the first: the config's own ``layer_types``; else all
        ``full_attention``, or all ``sliding_attention`` if there is a window. ``None`` where the
        config leaves it open.
    """
    config = _text_config(config)
    declared = _read(config, "layer_types")
    if declared:
        return tuple(str(name) for name in declared)
    num_layers = _read(config, "num_hidden_layers", "n_layer")
    if not isinstance(num_layers, int):
        return None
    if _read(config, "rope_local_base_freq") is not None:
        pattern = int(_read(config, "sliding_window_pattern") or 6)
        return tuple(
            FULL_ATTENTION if (index + 1) % pattern == 0 else SLIDING_ATTENTION
            for index in range(num_layers)
        )
    window = _read(config, "sliding_window")
    if window is None or _read(config, "use_sliding_window") is False:
        return (FULL_ATTENTION,) * num_layers
    # A bare config.json may leave the pattern of its windows to the model's code.
    return None if isinstance(config, Mapping) else (SLIDING_ATTENTION,) * num_layers


def _read(config: Any, *names: str) -> Any:
    """The first of the named values that is there and not ``None``."""
    for name in names:
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if value is not None:
            return value
    return None


def _text_config(config: Any) -> Any:
    """The language model's part of a config."""
    text = _read(config, "text_config")
    return config if text is None else text


def _describe(config: Any) -> str:
    name = _read(config, "model_type")
    return f"a model of type {name}" if name else "the model"


def _rope_parameters(config: Any) -> dict[str | None, Mapping[str, Any] | None]:
    """The rotary parameters by layer type, under ``None`` where all layers share them."""
    parameters = _read(config, "rope_parameters", "rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise PatchError(f"rope_parameters of {_describe(config)} is not a mapping: {parameters!r}")
    local_base = _read(config, "rope_local_base_freq")
    nested: dict[str | None, Mapping[str, Any] | None] = {
        str(key): value
        for key, value in parameters.items()
        if isinstance(value, Mapping) or (value is None and str(key).endswith("_attention"))
    }
    if nested:
        return nested
    if local_base is not None:
        return {FULL_ATTENTION: parameters, SLIDING_ATTENTION: {"rope_theta": local_base}}
    return {None: parameters}


def _geometry(config: Any, parameters: Mapping[str, Any]) -> RopeGeometry:
    rope_type = parameters.get("rope_type") or parameters.get("type")
    if rope_type in _UNKNOWN_ROPE_TYPES:
        raise PatchError(f"{_describe(config)} uses {rope_type} rotary embeddings: not supported")
    trained_length = (
        _read(config, "original_max_position_embeddings")
        or parameters.get("original_max_position_embeddings")
        or _read(config, "max_position_embeddings", "n_positions")
    )
    if trained_length is None:
        raise PatchError(f"the config of {_describe(config)} lacks max_position_embeddings")
    base = parameters.get("rope_theta")
    if base is None:
        base = _read(config, "rope_theta", "rotary_emb_base")
    return RopeGeometry(
        rotary_dim=_rotary_dim(config, parameters),
        base=_DEFAULT_BASE if base is None else base,
        trained_length=trained_length,
    )


def _rotary_dim(config: Any, parameters: Mapping[str, Any]) -> int:
    explicit = _read(config, "qk_rope_head_dim", "rotary_dim")
    if explicit is not None:
        return int(explicit)
    head_dim = _read(config, "head_dim")
    if head_dim is None:
        hidden, heads = (
            _read(config, "hidden_size", "n_embd"),
            _read(config, "num_attention_heads", "n_head"),
        )
        if hidden is None or heads is None:
            raise PatchError(f"the config of {_describe(config)} lacks the size of its heads")
        head_dim = int(hidden) // int(heads)
    fraction = parameters.get("partial_rotary_factor")
    if fraction is None:
        fraction = _read(config, "partial_rotary_factor", "rotary_pct")
    return int(int(head_dim) * (1.0 if fraction is None else float(fraction)))
