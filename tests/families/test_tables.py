"""Every family: tables go in, give the logits of a native model, and come out without a trace."""

from __future__ import annotations

import pytest
import torch

from patches import Linear, PatchError, RopeGeometry, YaRN, applied
from tests.families.reference import (
    FAMILIES,
    METHODS,
    MIXED,
    TOKENS,
    UNROTATED,
    changed_layers,
    model_of,
    native_model,
    native_tables_in,
)
from tests.patches.checks import unchanged
from tests.patches.tiny_models import logits

pytestmark = [
    pytest.mark.filterwarnings("ignore:this model also scales its queries"),
    pytest.mark.filterwarnings("ignore:.*normalises"),
]


def assert_same(found: torch.Tensor, wanted: torch.Tensor, before: torch.Tensor) -> None:
    """Equal, measured by what the method changes at all."""
    change = float((wanted - before).abs().max())
    assert change > 0.01
    assert float((found - wanted).abs().max()) < 1e-3 * change


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_a_model_built_natively(name: str, method: str) -> None:
    model, patch = model_of(name), METHODS[method]
    before, wanted = logits(model, TOKENS), logits(native_model(name, method), TOKENS)
    with applied(model, patch) as found:
        assert_same(logits(model, TOKENS), wanted, before)
    geometries = RopeGeometry.from_model(model)
    key = None if None in geometries else "full_attention"
    assert found.tables == {key: patch.tables(geometries[key], 1)}
    assert found.layers_changed == changed_layers(name)
    assert torch.equal(logits(model, TOKENS), before)


@pytest.mark.parametrize("layer_type", ["full_attention", "other"])
@pytest.mark.parametrize("name", MIXED)
def test_layers_of_one_type(name: str, layer_type: str) -> None:
    model = model_of(name)
    types = model.config.layer_types
    if layer_type == "other":
        (layer_type,) = set(types) - {"full_attention"}
    patch = Linear(factor=4, layers=(layer_type,))
    if (name, layer_type) in UNROTATED:
        with (
            unchanged(model),
            pytest.raises(PatchError, match="no layer of the model is rotated by the new tables"),
            applied(model, patch),
        ):
            pytest.fail("the context was entered")
        return
    layers = tuple(layer for layer, found in enumerate(types) if found == layer_type)
    before = logits(model, TOKENS)
    native = native_model(name, "linear", layer_type)
    if None in RopeGeometry.from_model(model):
        with native_tables_in(model, native, layers):
            wanted = logits(model, TOKENS)
    else:
        wanted = logits(native, TOKENS)
    with unchanged(model), applied(model, patch) as found:
        assert found.layers_changed == layers
        assert set(found.tables) == {layer_type}
        assert_same(logits(model, TOKENS), wanted, before)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in MIXED])
def test_a_family_of_one_type(name: str) -> None:
    model = model_of(name)
    windows = name in ("mistral", "mixtral")
    here, missing = ("sliding_attention", "full_attention")[:: 1 if windows else -1]
    with applied(model, Linear(factor=4)):
        wanted = logits(model, TOKENS)
    with applied(model, Linear(factor=4, layers=(here,))) as found:
        assert torch.equal(logits(model, TOKENS), wanted)
    assert found.layers_changed == changed_layers(name)
    with (
        pytest.raises(PatchError, match=f"no layers of type '{missing}'"),
        applied(model, Linear(factor=4, layers=(missing,))),
    ):
        pytest.fail("the context was entered")


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_left_after_an_exception(name: str) -> None:
    model = model_of(name)
    before = logits(model, TOKENS)
    with unchanged(model):
        with pytest.raises(KeyboardInterrupt), applied(model, YaRN(factor=4)):
            raise KeyboardInterrupt
        assert torch.equal(logits(model, TOKENS), before)
