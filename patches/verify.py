"""Checking on the model itself that the meant rotation is in use. Imported by ``apply`` only.

Shape suffixes: b batch, h heads, n positions, d size of a head, r half the rotary dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from patches.base import PatchError, RopeTables
from patches.compare import POSITIONS, Expected, close, expected_of, is_rotated, table_error
from patches.geometry import FULL_ATTENTION, SLIDING_ATTENTION
from patches.layout import Output, call_rotary, replace_tables, same_tables
from patches.observe import AttentionCall, Observer, observed, run_probe
from patches.rotary import PatchedRotary
from patches.scales import check_logit_scale
from patches.state import rotary_state_kept


@dataclass(frozen=True)
class Verified:
    """What a forward pass showed.

    Attributes:
        layers_changed: The layers that are rotated by the new tables. Layers that do not rotate
            are not among them.
        normalising: Those that normalise queries and keys after the rotation, so that a scale in
            the tables has no effect.
    """

    layers_changed: tuple[int, ...]
    normalising: tuple[int, ...]


def verify_rotation(
    model: nn.Module,
    rotaries: Mapping[str, PatchedRotary],
    tables: Mapping[str | None, RopeTables],
    layer_types: Sequence[str] | None,
) -> Verified:
    """Check in a real forward pass that each layer is rotated as meant.

    For every layer: the tables that its attention was given are the method's, computed anew in
    numpy, or the model's own where it keeps them; the query and the key that reached the attention
    function are turned by just these angles against those of the same call without rotation; and
    without rotation, equal tokens give equal queries and keys at all positions, so nothing else
    turns them (a model may make its queries longer by position). No native logit scale is left in
    a layer that changes.

    Args:
        model: The model, with the new modules in place.
        rotaries: The new modules by path.
        tables: The meant tables by layer type, under ``None`` for all.
        layer_types: The type of each layer, if the config says.

    Returns:
        What was found.

    Raises:
        PatchError: If a layer is rotated otherwise, or it cannot be told.
    """
    changed: set[int] = set()
    normalising: set[int] = set()
    for rotary in rotaries.values():
        rotary.calls = []
    try:
        with torch.no_grad(), rotary_state_kept(model), observed(model) as observer:
            run_probe(model, POSITIONS)
            _check_called(rotaries, tables)
            _check_seen(model, observer, layer_types)
            for call in list(observer.calls):
                kind = _type_of(call.layer, layer_types)
                found, normalises = _check_layer(observer, call, kind, rotaries, tables)
                if found:
                    check_logit_scale(call, model.config)
                    changed.add(call.layer)
                if normalises:
                    normalising.add(call.layer)
    finally:
        for rotary in rotaries.values():
            rotary.calls = None
            rotary.latest = None
    if not changed:
        raise PatchError("no layer of the model is rotated by the new tables")
    return Verified(tuple(sorted(changed)), tuple(sorted(normalising)))


def _type_of(layer: int, layer_types: Sequence[str] | None) -> str | None:
    return layer_types[layer] if layer_types and layer < len(layer_types) else None


def _check_called(
    rotaries: Mapping[str, PatchedRotary], tables: Mapping[str | None, RopeTables]
) -> None:
    """Every new module must have been called, and for every layer type that is meant."""
    for path, rotary in rotaries.items():
        if not rotary.calls:
            raise PatchError(f"{path} was not called in a forward pass: the model does not use it")
    called = {kind for rotary in rotaries.values() for kind, _, _ in rotary.calls or ()}
    for kind in tables:
        if not any(rotary.selective for rotary in rotaries.values()) and kind not in called:
            wanted = "without a layer type" if kind is None else f"for {kind} layers"
            raise PatchError(f"the rotary module was not called {wanted}")


def _check_seen(model: nn.Module, observer: Observer, layer_types: Sequence[str] | None) -> None:
    """Every attention layer must have been seen."""
    seen = {call.layer for call in observer.calls}
    for layer, kind in enumerate(layer_types or ()):
        if kind in (FULL_ATTENTION, SLIDING_ATTENTION) and layer not in seen:
            raise PatchError(
                f"the attention of layer {layer} of {type(model).__name__} cannot be observed: it "
                "does not go through transformers' attention interface"
            )


def _check_layer(
    observer: Observer,
    call: AttentionCall,
    kind: str | None,
    rotaries: Mapping[str, PatchedRotary],
    tables: Mapping[str | None, RopeTables],
) -> tuple[bool, bool]:
    """Check one layer: whether it is rotated by new tables, and normalises after a scaled turn."""
    rotary, given = _tables_given(call, rotaries)
    expected = _expected(rotary, kind, tables, call.query_bhnd.dtype)
    if given is not None:
        _check_given(call, rotary, given, kind, expected)
    elif not _inside(call.module, rotary):
        _check_still(observer, call, call.args, call.kwargs, rotaries)
        return False, False
    args, kwargs = _without_rotation(call, rotary, given, kind, 1.0)
    _check_still(observer, call, args, kwargs, rotaries)
    # An attention that normalises after rotating undoes any scale, so the same scale is tried
    # without the rotation as well.
    for scale in dict.fromkeys((1.0, expected.scale)):
        args, kwargs = _without_rotation(call, rotary, given, kind, scale)
        plain = _call_again(observer, call, args, kwargs, rotaries)
        if is_rotated(call, plain, expected, expected.scale / scale):
            return expected.changed, scale != 1.0
        if close(call.query_bhnd, plain[0]) and close(call.key_bhnd, plain[1]):
            return False, False
        if given is None:
            break
    raise PatchError(
        f"layer {call.layer}: its queries and keys are not rotated by the meant angles"
    )


def _tables_given(
    call: AttentionCall, rotaries: Mapping[str, PatchedRotary]
) -> tuple[PatchedRotary, Output | None]:
    """The module whose tables the attention was called with, and the tables."""
    values = (*call.args, *call.kwargs.values())
    for rotary in rotaries.values():
        outputs = [output for _, _, output in rotary.calls or ()]
        if rotary.latest is not None:
            outputs.append(rotary.latest[1])
        for output in outputs:
            if any(same_tables(value, output) for value in values):
                return rotary, output
    inner = [rotary for rotary in rotaries.values() if _inside(call.module, rotary)]
    return (inner[0] if inner else next(iter(rotaries.values()))), None


def _inside(module: nn.Module, rotary: PatchedRotary) -> bool:
    return any(child is rotary for child in module.modules())


def _expected(
    rotary: PatchedRotary,
    kind: str | None,
    tables: Mapping[str | None, RopeTables],
    dtype: torch.dtype,
) -> Expected:
    """What a layer of this type should be rotated by."""
    calls = rotary.calls or []
    own = [positions for called, positions, _ in calls if called in (kind, None)]
    positions = (own or [calls[0][1]])[0]
    key = kind if kind in tables else None
    if key in tables:
        return expected_of(tables[key], positions[0].tolist())
    named = kind if any(called is not None for called, _, _ in calls) else None
    hidden = torch.zeros((1, positions.shape[-1], 1), dtype=dtype, device=positions.device)
    own_output = call_rotary(copy.deepcopy(rotary.original), hidden, positions, named)
    cos_bnr, sin_bnr = rotary.layout(kind).unpack(own_output)
    scale = float(torch.hypot(cos_bnr[0, 0, 0], sin_bnr[0, 0, 0]))
    return Expected(cos_bnr[0], sin_bnr[0], scale, changed=False)


def _check_given(
    call: AttentionCall, rotary: PatchedRotary, given: Output, kind: str | None, want: Expected
) -> None:
    """The tables that came in must be the meant ones."""
    error, tolerance = table_error(rotary.layout(kind), given, want)
    if not error <= tolerance:
        raise PatchError(
            f"layer {call.layer}: its attention is given other rotary tables than meant (off by "
            f"{error:.2g})"
        )


def _without_rotation(
    call: AttentionCall,
    rotary: PatchedRotary,
    given: Output | None,
    kind: str | None,
    scale: float,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with tables that do not turn."""
    if given is None:
        return call.args, call.kwargs
    hidden = _hidden_states(call.args, call.kwargs)
    positions = (rotary.calls or [])[0][1]
    still = rotary.unrotated(hidden, positions, kind, scale)
    replaced = replace_tables(call.args, call.kwargs, given, still)
    assert replaced is not None
    return replaced


def _hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(hidden, Tensor):
        raise PatchError("the attention of the model is not called with hidden states")
    return hidden


def _check_still(
    observer: Observer,
    call: AttentionCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rotaries: Mapping[str, PatchedRotary],
) -> None:
    """Without rotation, equal tokens must give equal queries and keys at all positions."""
    hidden = _hidden_states(args, kwargs)
    equal = hidden[:, :1].expand_as(hidden).contiguous()
    if args:
        args = (equal, *args[1:])
    else:
        kwargs = {**kwargs, "hidden_states": equal}
    query_bhnd, key_bhnd = _call_again(observer, call, args, kwargs, rotaries)
    # Llama 4 multiplies queries by a number that grows with the position. That is no rotation.
    for states in (_of_one_length(query_bhnd), key_bhnd):
        if not close(states, states[:, :, :1].expand_as(states)):
            raise PatchError(
                f"layer {call.layer}: its queries and keys are rotated by something else than the "
                "rotary module that was replaced"
            )


def _of_one_length(states_bhnd: Tensor) -> Tensor:
    """Give the vectors of all positions the length of the first."""
    length_bhn1 = states_bhnd.norm(dim=-1, keepdim=True)
    ratio_bhn1 = length_bhn1[:, :, :1] / length_bhn1
    return states_bhnd * torch.where(ratio_bhn1.isfinite(), ratio_bhn1, 1.0)


def _call_again(
    observer: Observer,
    call: AttentionCall,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    rotaries: Mapping[str, PatchedRotary],
) -> tuple[Tensor, Tensor]:
    for rotary in rotaries.values():
        rotary.identity = True
    try:
        return observer.call_again(call, args, kwargs)
    finally:
        for rotary in rotaries.values():
            rotary.identity = False
