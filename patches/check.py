"""The check of a model's rotation: in full once, by its numbers afterwards. For ``apply`` only."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from patches.base import PatchError, RopeTables
from patches.compare import POSITIONS, expected_of, table_error
from patches.observe import attention_modules
from patches.rotary import PatchedRotary
from patches.scales import native_logit_scale
from patches.verify import Verified, verify_rotation

# The modules that were there, and what was found, by what else the way of the tables hangs on.
_Seen = tuple[tuple[nn.Module, ...], dict[Any, Verified]]
_seen: weakref.WeakKeyDictionary[nn.Module, _Seen] = weakref.WeakKeyDictionary()


def check_rotation(
    model: nn.Module,
    originals: Sequence[nn.Module],
    rotaries: Mapping[str, PatchedRotary],
    tables: Mapping[str | None, RopeTables],
    layer_types: Sequence[str] | None,
) -> tuple[int, ...]:
    """Make sure that each layer is rotated as meant.

    The way from the rotary module to the attention of each layer does not depend on the numbers in
    the tables. So a forward pass follows it once for a model, for the layers that change and for a
    scale other than 1; as long as the same modules are in the same places, other tables are then
    checked by their values alone.

    Args:
        model: The model, with the new modules in place.
        originals: The modules that they took the place of.
        rotaries: The new modules by path.
        tables: The meant tables by layer type, under ``None`` for all.
        layer_types: The type of each layer, if the config says.

    Returns:
        The layers that are rotated by the new tables.

    Raises:
        PatchError: If a layer is rotated otherwise, or it cannot be told.
    """
    modules = (*originals, *attention_modules(model))
    structure = _structure(model, rotaries, tables)
    known_modules, known = _seen.get(model, ((), {}))
    same = len(modules) == len(known_modules) and all(map(_is_same, modules, known_modules))
    if not same:
        known = {}
    if structure in known:
        for path, rotary in rotaries.items():
            _check_numbers(path, rotary)
    else:
        known[structure] = verify_rotation(model, rotaries, tables, layer_types)
        # What lies under another method, or a scale that was taken out, is looked at each time.
        nested = any(isinstance(module, PatchedRotary) for module in originals)
        if not nested and native_logit_scale(getattr(model, "config", None)) == 1.0:
            _seen[model] = (modules, known)
    found = known[structure]
    for layer in found.normalising:
        warnings.warn(
            f"layer {layer} normalises queries and keys after their rotation, so an attention "
            "factor has no effect there",
            stacklevel=4,
        )
    return found.layers_changed


def _is_same(one: nn.Module, other: nn.Module) -> bool:
    return one is other


def _structure(
    model: nn.Module,
    rotaries: Mapping[str, PatchedRotary],
    tables: Mapping[str | None, RopeTables],
) -> Any:
    """What decides how tables reach the layers, their numbers left out."""
    first = next(model.parameters())
    return (
        first.dtype,
        first.device,
        tuple((path, rotary.selective) for path, rotary in rotaries.items()),
        tuple((key, t.inv_freq.size, t.attention_factor == 1.0) for key, t in tables.items()),
    )


def _check_numbers(path: str, rotary: PatchedRotary) -> None:
    """The tables that a module makes must be those of the method, computed anew in numpy."""
    positions = torch.tensor([POSITIONS])
    hidden = torch.zeros((1, len(POSITIONS), 1))
    for key, tables in rotary.tables.items():
        want = expected_of(tables, POSITIONS)
        output = rotary.method_tables(hidden, positions, key)
        error, tolerance = table_error(rotary.layout(key), output, want)
        if not error <= tolerance:
            raise PatchError(f"{path} makes other tables than the method's (off by {error:.2g})")
