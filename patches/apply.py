"""Putting a method into a loaded model and taking it out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from patches.base import PatchError, RopePatch, RopeTables
from patches.check import check_rotation
from patches.geometry import RopeGeometry, layer_types_of
from patches.layout import detect_layout
from patches.native import Native
from patches.observe import attention_modules
from patches.resolve import resolve
from patches.rotary import LayerSelector, PatchedRotary
from patches.scales import native_logit_scale_removed, warn_of_query_scale
from patches.state import rotary_state_kept

_OTHER_MODALITIES = ("vision", "visual", "audio")


@dataclass(frozen=True)
class AppliedPatch:
    """What a method has changed.

    Attributes:
        tables: The new tables by layer type, under ``None`` where all layers share one.
        layers_changed: Indices of the layers that are rotated by them.
    """

    tables: dict[str | None, RopeTables]
    layers_changed: tuple[int, ...]


@dataclass
class _Place:
    """A rotary module and the attributes that hold it."""

    path: str
    module: nn.Module
    holders: list[tuple[nn.Module, str]] = field(default_factory=list)


@contextmanager
def applied(
    model: nn.Module,
    patch: RopePatch,
    *,
    context_length: int | None = None,
    geometry: Mapping[str | None, RopeGeometry] | None = None,
    verify: bool = True,
) -> Iterator[AppliedPatch]:
    """Use a method in a loaded transformers model for a while.

    The model's rotary modules are exchanged for others that hold the method's tables, in float32
    whatever the model's dtype. At the end, also after an exception, the model's own modules are
    put back; they are not touched meanwhile. The method replaces any scaling the model was saved
    with. Contexts can be nested: the inner method holds, for the layers it changes.

    Part of that scaling may be outside the tables: models with latent attention (the DeepSeek
    family) that were saved with ``mscale_all_dim`` have the square of YaRN's ``mscale`` in the
    ``scaling`` of their attention. It is taken out for as long, in the layers that change, and put
    back; a method's own attention factor is in its tables, so it acts on the rotated dimensions.
    ``native`` keeps the model's ``mscale``. A temperature by which queries are multiplied by their
    position (Llama 4) is no part of the rotation; it stays, and a warning says so.

    Args:
        model: A causal language model of transformers, or its base model.
        patch: The method.
        context_length: Tokens in the whole evaluated sequence, those still to be generated
            included. Needed where the tables depend on it.
        geometry: In place of what the config says, with the same keys.
        verify: Whether to check that each layer is rotated as meant: in a short forward pass the
            first time that a model is patched in some way, by the tables' numbers afterwards.

    Yields:
        The tables in use and the layers they changed.

    Raises:
        PatchError: If the length is missing, the rotary embedding is not there or not understood,
            the layers cannot be separated, or the check fails. The model is then as it was.
    """
    if isinstance(patch, Native):
        with rotary_state_kept(model):
            yield AppliedPatch(tables={}, layers_changed=())
        return
    geometries = _geometries(model, geometry)
    layer_types = layer_types_of(model.config)
    tables = resolve(patch, geometries, context_length, layer_types=layer_types)
    warn_of_query_scale(model.config)
    selective = None in geometries and None not in tables
    places = _find(model)
    new = _replacements(places, geometries, tables, selective)
    with ExitStack() as undo:
        undo.enter_context(native_logit_scale_removed(model, layer_types, tables))
        undo.callback(_restore, places, new)
        _put(places, new)
        if selective:
            undo.callback(_select(model, new, layer_types or (), tables).remove)
        if verify:
            originals = [place.module for place in places]
            layers_changed = check_rotation(model, originals, new, tables, layer_types)
        else:
            layers_changed = _layers_of(model.config, layer_types, tables)
        yield AppliedPatch(tables=tables, layers_changed=layers_changed)


def _geometries(
    model: nn.Module, given: Mapping[str | None, RopeGeometry] | None
) -> dict[str | None, RopeGeometry]:
    """What the config says, or what is given in its place."""
    found = RopeGeometry.from_model(model)
    if given is None:
        return found
    if set(given) != set(found):
        raise PatchError(
            f"geometry must be given for {sorted(map(str, found))}, not {sorted(map(str, given))}"
        )
    return dict(given)


def _find(model: nn.Module) -> list[_Place]:
    """Find the rotary modules of the language model and every attribute that holds one."""
    places: dict[int, _Place] = {}
    for parent_path, parent in model.named_modules():
        for name, child in parent._modules.items():
            kind = type(child).__name__
            if "RotaryEmbedding" not in kind and not isinstance(child, PatchedRotary):
                continue
            path = f"{parent_path}.{name}".lstrip(".")
            if any(word in f"{path} {kind}".lower() for word in _OTHER_MODALITIES):
                continue
            place = places.setdefault(id(child), _Place(path, child))
            place.holders.append((parent, name))
    if not places:
        raise PatchError(f"{type(model).__name__} has no rotary embedding module")
    return list(places.values())


def _replacements(
    places: list[_Place],
    geometries: Mapping[str | None, RopeGeometry],
    tables: Mapping[str | None, RopeTables],
    selective: bool,
) -> dict[str, PatchedRotary]:
    """Make the new module for each place."""
    if selective and len(places) > 1:
        paths = [place.path for place in places]
        raise PatchError(f"a method cannot be limited to some layers here: there are {paths}")
    new: dict[str, PatchedRotary] = {}
    for place in places:
        if isinstance(place.module, PatchedRotary) and place.module.selective:
            raise PatchError(
                "a method is already in use in some of the layers that share one rotary module; "
                "another one cannot be put on top of it"
            )
        layouts = {
            key: detect_layout(place.module, key, geometry.rotary_dim)
            for key, geometry in geometries.items()
        }
        new[place.path] = PatchedRotary(place.module, tables, layouts, selective=selective)
    return new


def _put(places: list[_Place], new: Mapping[str, PatchedRotary]) -> None:
    for place in places:
        for parent, name in place.holders:
            parent._modules[name] = new[place.path]


def _restore(places: list[_Place], new: Mapping[str, PatchedRotary]) -> None:
    """Put the model's own modules back, and say so if they were not ours to take out."""
    out_of_order = []
    for place in places:
        for parent, name in place.holders:
            found = parent._modules[name]
            if found is not new[place.path] and found is not place.module:
                out_of_order.append(place.path)
                if not isinstance(found, PatchedRotary):
                    # An outer context was left before this one: the model's own module is back.
                    continue
            parent._modules[name] = place.module
    if out_of_order:
        raise PatchError(
            f"{out_of_order[0]} was exchanged by another method meanwhile. Leave nested contexts "
            "from the innermost outwards"
        )


def _select(
    model: nn.Module,
    new: Mapping[str, PatchedRotary],
    layer_types: tuple[str, ...],
    tables: Mapping[str | None, RopeTables],
) -> LayerSelector:
    """Give the new tables to the attention of those layers only that change."""
    chosen: dict[int, nn.Module] = {}
    for module in attention_modules(model):
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and layer < len(layer_types) and layer_types[layer] in tables:
            chosen[layer] = module
    meant = [layer for layer, kind in enumerate(layer_types) if kind in tables]
    missing = [layer for layer in meant if layer not in chosen]
    if missing:
        raise PatchError(f"the attention modules of layers {missing} cannot be found")
    (rotary,) = new.values()
    return LayerSelector(rotary, chosen)


def _layers_of(
    config: Any, layer_types: tuple[str, ...] | None, tables: Mapping[str | None, RopeTables]
) -> tuple[int, ...]:
    """The layers that the tables are meant for, by the config alone."""
    if layer_types is None:
        return tuple(range(config.num_hidden_layers))
    return tuple(
        layer for layer, kind in enumerate(layer_types) if None in tables or kind in tables
    )
