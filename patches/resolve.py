"""Which layers a method changes, and to which tables. No model is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patches.base import PatchError, RopePatch, RopeTables, whole_number
from patches.geometry import FULL_ATTENTION, RopeGeometry
from patches.native import Native


def resolve(
    patch: RopePatch,
    geometries: Mapping[str | None, RopeGeometry],
    context_length: int | None,
    *,
    layer_types: Sequence[str] | None = None,
) -> dict[str | None, RopeTables]:
    """Compute the tables of every layer type that a method changes.

    Args:
        patch: The method.
        geometries: What the model's layers have, as from ``RopeGeometry.from_config``.
        context_length: Tokens in the evaluated sequence. ``None`` is allowed where the tables do
            not depend on it.
        layer_types: The type of each layer, as from ``layer_types_of``. Needed only to limit a
            method to some types of a model whose layers share one table.

    Returns:
        The new tables by layer type, under ``None`` if all layers share one and all change.
        Layer types that are not there keep their own; ``native`` gives an empty dictionary.

    Raises:
        PatchError: If the length is missing or wrong, or the layers asked for cannot be separated.
    """
    if context_length is not None:
        whole_number(context_length, "context_length")
    if isinstance(patch, Native):
        return {}
    if context_length is None and patch.depends_on_length:
        raise PatchError(f"{patch.default_name()} needs a context_length: its tables depend on it")
    chosen = _chosen_types(patch, geometries, layer_types)
    tables: dict[str | None, RopeTables] = {}
    for layer_type in chosen:
        geometry = geometries[layer_type if None not in geometries else None]
        tokens = geometry.trained_length if context_length is None else context_length
        try:
            tables[layer_type] = patch.tables(geometry, tokens)
        except OverflowError:
            raise PatchError(
                f"{patch.default_name()} at {tokens} tokens: the numbers are too large for a table"
            ) from None
    return tables


def _chosen_types(
    patch: RopePatch,
    geometries: Mapping[str | None, RopeGeometry],
    layer_types: Sequence[str] | None,
) -> list[str | None]:
    """The keys of the result: ``None`` for all layers of a model that has one table."""
    if None not in geometries:
        known = [str(layer_type) for layer_type in geometries]
        if patch.layers is None:
            if FULL_ATTENTION not in geometries:
                raise PatchError(
                    f"the model has no full_attention layers; say which of its types to change "
                    f"with layers: {known}"
                )
            return [FULL_ATTENTION]
        _refuse_unknown(patch.layers, known)
        return list(patch.layers)
    if patch.layers is None:
        return [None]
    if layer_types is None:
        raise PatchError(
            f"layers {list(patch.layers)}: all layers of this model share one rotary table and it "
            "does not say which type each layer has"
        )
    known = sorted(set(layer_types))
    _refuse_unknown(patch.layers, known)
    return [None] if set(known) <= set(patch.layers) else list(patch.layers)


def _refuse_unknown(layers: Sequence[str], known: Sequence[str]) -> None:
    unknown = [layer_type for layer_type in layers if layer_type not in known]
    if unknown:
        raise PatchError(f"the model has no layers of type {unknown[0]!r}, only {list(known)}")
