"""Scales of attention logits that a model keeps outside its rotary tables. For ``apply`` only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from patches.base import PatchError, RopeTables
from patches.observe import AttentionCall, attention_modules

# Both sides are computed from the same numbers in float64, perhaps in another order.
_TOLERANCE = 1e-6


def native_logit_scale(config: Any) -> float:
    """What the native scaling of a model multiplies its attention logits by, tables left out.

    Models with latent attention (the DeepSeek family) multiply the scaling of their attention,
    once and for all dimensions of a head, by the square of YaRN's ``mscale``, where their
    ``rope_parameters`` hold ``mscale_all_dim`` and any ``rope_type`` but ``default``.

    Args:
        config: The config of a model of transformers.

    Returns:
        The square; 1.0 where the config asks for none.
    """
    parameters = _rope_parameters(config)
    weight, factor = parameters.get("mscale_all_dim"), parameters.get("factor")
    if parameters.get("rope_type", "default") == "default" or not weight or not factor:
        return 1.0
    return float((0.1 * weight * math.log(factor) + 1.0) ** 2) if factor > 1 else 1.0


@contextmanager
def native_logit_scale_removed(
    model: nn.Module,
    layer_types: Sequence[str] | None,
    tables: Mapping[str | None, RopeTables],
) -> Iterator[None]:
    """Take the native logit scale out of the attention of those layers that change.

    It belongs to the scaling that the model was saved with, which a method replaces. What the
    method puts in its place is in its tables.

    Args:
        model: A model of transformers.
        layer_types: The type of each layer, if the config says.
        tables: The new tables by layer type, under ``None`` for all.

    Yields:
        Nothing. The scaling of every attention is put back at the end, bit for bit.

    Raises:
        PatchError: If the scaling of an attention is neither with nor without the native scale.
    """
    extra = native_logit_scale(model.config)
    kept: list[tuple[nn.Module, float]] = []
    try:
        for module in attention_modules(model) if extra != 1.0 else ():
            plain = _plain_scaling(module)
            if plain is None or not _changes(module, layer_types, tables):
                continue
            found = float(module.scaling)  # type: ignore[arg-type]
            if math.isclose(found, plain * extra, rel_tol=_TOLERANCE):
                kept.append((module, module.scaling))  # type: ignore[arg-type]
                module.scaling = plain  # type: ignore[assignment]
            elif not math.isclose(found, plain, rel_tol=_TOLERANCE):
                raise PatchError(
                    f"the config of {type(model).__name__} asks for a native mscale in the scaling "
                    f"of its attention, but that is {found:.6g}, neither {plain:.6g} nor "
                    f"{plain * extra:.6g}, so it cannot be taken out"
                )
        yield
    finally:
        for module, scaling in kept:
            module.scaling = scaling  # type: ignore[assignment]


def check_logit_scale(call: AttentionCall, config: Any) -> None:
    """Make sure that no native logit scale reached the attention function.

    Raises:
        PatchError: If one did.
    """
    if native_logit_scale(config) == 1.0 or call.scaling is None:
        return
    plain = call.query_bhnd.shape[-1] ** -0.5
    if not math.isclose(call.scaling, plain, rel_tol=_TOLERANCE):
        raise PatchError(
            f"layer {call.layer}: its attention logits are scaled by {call.scaling:.6g} where "
            f"{plain:.6g} was expected: the native mscale of this model cannot be taken out"
        )


def warn_of_query_scale(config: Any) -> None:
    """Say that a model scales its queries by their position, outside its rotary tables."""
    config = getattr(config, "text_config", config)
    beta = _rope_parameters(config).get("llama_4_scaling_beta")
    if beta or getattr(config, "attn_temperature_tuning", None):
        warnings.warn(
            "this model also scales its queries by their position; a method leaves that as it is",
            stacklevel=4,
        )


def _rope_parameters(config: Any) -> Mapping[str, Any]:
    config = getattr(config, "text_config", config)
    return getattr(config, "rope_parameters", None) or {}


def _plain_scaling(module: nn.Module) -> float | None:
    """One over the root of a head's size; ``None`` for a module that has no scaling."""
    size = getattr(module, "qk_head_dim", None) or getattr(module, "head_dim", None)
    scaling = getattr(module, "scaling", None)
    if not isinstance(scaling, int | float) or not isinstance(size, int):
        return None
    return float(size**-0.5)


def _changes(
    module: nn.Module,
    layer_types: Sequence[str] | None,
    tables: Mapping[str | None, RopeTables],
) -> bool:
    """Whether a module belongs to a layer that gets new tables."""
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        return False
    if None in tables or layer_types is None:
        return True
    return layer < len(layer_types) and layer_types[layer] in tables
