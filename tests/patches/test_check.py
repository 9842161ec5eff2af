"""The whole check runs once for a way of patching a model, that of the numbers each time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from patches import Linear, NoScaling, PatchError, RopePatch, YaRN, applied
from patches.rotary import PatchedRotary
from tests.patches.tiny_models import logits, make_model


@contextmanager
def forwards(model: nn.Module) -> Iterator[list[int]]:
    """Lists the forward passes of a model."""
    runs: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda *_: runs.append(1))
    yield runs
    handle.remove()


def change(model: nn.Module, patch: RopePatch) -> tuple[int, ...]:
    with applied(model, patch) as found:
        return found.layers_changed


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3"])
def test_other_numbers_need_no_second_pass(name: str) -> None:
    model, fresh = make_model(name), make_model(name)
    with forwards(model) as runs:
        first = change(model, Linear(factor=4))
        assert runs
        runs.clear()
        assert change(model, Linear(factor=8)) == change(model, NoScaling()) == first
        assert not runs
        # A scale is another way: some models normalise it away.
        assert change(model, YaRN(factor=4)) == first
        assert runs
    with applied(model, YaRN(factor=8)), applied(fresh, YaRN(factor=8), verify=False):
        assert torch.equal(logits(model), logits(fresh))


def test_other_layers_need_one() -> None:
    model = make_model("gemma2")
    for layers, changed in ((("full_attention",), (1,)), (("sliding_attention",), (0,))):
        with forwards(model) as runs:
            assert change(model, Linear(factor=4, layers=layers)) == changed
            assert runs
            runs.clear()
            assert change(model, Linear(factor=2, layers=layers)) == changed
            assert not runs


def test_another_dtype_needs_one() -> None:
    model = make_model("llama")
    change(model, Linear(factor=4))
    with forwards(model.to(torch.bfloat16)) as runs:
        change(model, Linear(factor=4))
        assert runs


def test_another_attention_is_not_trusted() -> None:
    model = make_model("llama")
    change(model, Linear(factor=4))
    layer = model.model.layers[1]
    layer.self_attn = copy.deepcopy(layer.self_attn)
    own = layer.self_attn.forward

    def stuck(hidden_states: torch.Tensor, position_embeddings: object, **others: object) -> object:
        return own(hidden_states, tables, **others)

    positions = torch.arange(8)[None]
    tables = model.model.rotary_emb(torch.zeros(1, 8, 1), positions)
    layer.self_attn.forward = stuck
    with pytest.raises(PatchError, match="layer 1"):
        change(model, Linear(factor=4))


def test_another_rotary_module_is_not_trusted() -> None:
    model = make_model("llama")
    change(model, Linear(factor=4))
    model.model.rotary_emb = copy.deepcopy(model.model.rotary_emb)
    with forwards(model) as runs:
        change(model, Linear(factor=4))
        assert runs


def test_wrong_numbers_are_found_without_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama")
    change(model, Linear(factor=4))
    right = PatchedRotary.method_tables

    def wrong(
        self: PatchedRotary, x: torch.Tensor, position_ids: torch.Tensor, key: str | None
    ) -> object:
        return right(self, x, position_ids + 1, key)

    monkeypatch.setattr(PatchedRotary, "method_tables", wrong)
    with pytest.raises(PatchError, match="other tables than the method's"):
        change(model, Linear(factor=8))


def test_a_method_within_another_is_followed_each_time() -> None:
    model = make_model("gemma3")
    with applied(model, Linear(factor=2)):
        for _ in range(2):
            with forwards(model) as runs:
                change(model, Linear(factor=4))
                assert runs


@pytest.mark.filterwarnings("ignore:.*mscale")
def test_a_scale_that_is_taken_out_is_looked_for_each_time() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "mscale": 1.0}
    model = make_model("deepseek_v3", yarn | {"mscale_all_dim": 1.0})
    for _ in range(2):
        with forwards(model) as runs:
            change(model, Linear(factor=4))
            assert runs


@pytest.mark.filterwarnings("ignore:this model also scales its queries")
def test_a_normalising_attention_is_told_each_time() -> None:
    model = make_model("llama4", attn_temperature_tuning=False)
    for _ in range(2):
        with pytest.warns(UserWarning, match="normalises"):
            change(model, YaRN(factor=4))
