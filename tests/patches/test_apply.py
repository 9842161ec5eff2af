"""Putting methods into models and taking them out again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from patches import (
    NTK,
    PATCHES,
    DynamicNTK,
    Linear,
    Native,
    NoScaling,
    PatchError,
    RopeGeometry,
    RopePatch,
    Theta,
    YaRN,
    applied,
)
from patches.rotary import PatchedRotary
from tests.patches.checks import unchanged
from tests.patches.tiny_models import logits, make_model


@pytest.mark.parametrize("kind", PATCHES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi"])
def test_every_method_goes_in_and_out(name: str, kind: str) -> None:
    model = make_model(name)
    patch = Theta(base=5e5) if kind == "theta" else PATCHES[kind]()
    with unchanged(model):
        before = logits(model, 200)
        with applied(model, patch, context_length=200) as found:
            same = torch.allclose(logits(model, 200), before, rtol=0, atol=1e-4)
        assert same == (kind in ("none", "native"))
        if kind != "native":
            layer_type = "full_attention" if name == "gemma3" else None
            geometry = RopeGeometry.from_model(model)[layer_type]
            assert found.tables == {layer_type: patch.tables(geometry, 200)}


def test_restored_after_an_exception() -> None:
    model = make_model("llama")
    with unchanged(model), pytest.raises(KeyboardInterrupt), applied(model, YaRN(factor=4)):
        raise KeyboardInterrupt


def test_native_changes_nothing() -> None:
    model = make_model("llama", {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    rotary = model.model.rotary_emb
    with applied(model, Native()) as found:
        assert model.model.rotary_emb is rotary
    assert (found.tables, found.layers_changed) == ({}, ())


@pytest.mark.parametrize("patch", [YaRN(), DynamicNTK(), NTK()])
def test_length_is_needed_where_tables_depend_on_it(patch: RopePatch) -> None:
    model = make_model("llama")
    with (
        unchanged(model),
        pytest.raises(PatchError, match="needs a context_length"),
        applied(model, patch),
    ):
        pytest.fail("the context was entered")


def test_geometry_can_be_given() -> None:
    model = make_model("llama")
    shorter = {None: RopeGeometry(rotary_dim=8, base=10000.0, trained_length=32)}
    with applied(model, Linear(), context_length=128, geometry=shorter) as found:
        pass
    assert found.tables == {None: Linear(factor=4).tables(shorter[None], 1)}
    for wrong, message in (
        ({"full_attention": shorter[None]}, "geometry must be given for"),
        ({None: RopeGeometry(rotary_dim=4, base=1e4, trained_length=32)}, "not understood"),
    ):
        with (
            unchanged(model),
            pytest.raises(PatchError, match=message),
            applied(model, Linear(factor=2), geometry=wrong),
        ):
            pytest.fail("the context was entered")


def test_a_model_without_rotary_embedding() -> None:
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2))
    model = make_model("llama")
    model.model.rotary_emb = nn.Identity()
    for stranger in (gpt2, model):
        with (
            pytest.raises(PatchError, match="no rotary"),
            applied(stranger, NoScaling()),
        ):
            pytest.fail("the context was entered")


def test_an_unknown_layout_is_refused() -> None:
    class SineFirstRotaryEmbedding(nn.Module):
        def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
            angles = position_ids[..., None].to(x.dtype) * torch.ones(8)
            return angles.sin(), angles.cos()

    model = make_model("llama")
    model.model.rotary_emb = SineFirstRotaryEmbedding()
    with (
        pytest.raises(PatchError, match="layout that is not understood"),
        applied(model, NoScaling()),
    ):
        pytest.fail("the context was entered")


def test_a_module_held_in_two_places() -> None:
    model = make_model("llama")
    model.model.layers[0].self_attn.rotary_emb = model.model.rotary_emb
    with unchanged(model), applied(model, YaRN(factor=4)):
        assert isinstance(model.model.rotary_emb, PatchedRotary)
        assert model.model.layers[0].self_attn.rotary_emb is model.model.rotary_emb


def test_base_model_alone() -> None:
    model = make_model("llama").model
    rotary = model.rotary_emb
    with applied(model, YaRN(factor=4)) as found:
        assert found.layers_changed == (0, 1)
    assert model.rotary_emb is rotary


def test_state_of_stock_dynamic_scaling_is_kept() -> None:
    model = make_model("llama", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    logits(model, 200)
    grown = model.model.rotary_emb.inv_freq.clone()
    with applied(model, NoScaling()):
        logits(model, 8)
    assert torch.equal(model.model.rotary_emb.inv_freq, grown)
    assert model.model.rotary_emb.max_seq_len_cached == 200


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_results_do_not_depend_on_the_order(name: str) -> None:
    model = make_model(name)

    def under(length: int) -> torch.Tensor:
        with applied(model, DynamicNTK(), context_length=length):
            return logits(model, 48)

    short, long = under(64), under(512)
    assert not torch.equal(short, long)
    assert torch.equal(under(64), short)


def test_tables_stay_float32_when_the_model_is_cast() -> None:
    model = make_model("llama")
    positions, hidden = torch.tensor([[0, 1, 30000]]), torch.zeros(1, 3, 32)
    with applied(model, YaRN(factor=4)) as found:
        before = model.model.rotary_emb(hidden, positions)
        model.to(torch.bfloat16)
        after = model.model.rotary_emb(hidden, positions)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    tables = found.tables[None]
    exact = torch.cos(30000 * torch.tensor(tables.inv_freq)) * tables.attention_factor
    torch.testing.assert_close(after[0][0, 2, :4].double(), exact, rtol=0, atol=2e-3)
