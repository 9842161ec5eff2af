"""Verification must fail for models, and for replacements, that rotate otherwise than meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from patches import Linear, NoScaling, PatchError, RopeTables, YaRN, applied
from patches.observe import observed
from patches.rotary import PatchedRotary
from tests.patches.rigged_models import RIGGED
from tests.patches.tiny_models import CHANGED, CONFIGS, logits, make_model


@pytest.mark.parametrize("name", RIGGED)
def test_rigged_models_fail(name: str) -> None:
    make, message = RIGGED[name]
    model = make()
    rotary, before = model.model.rotary_emb, logits(model)
    with pytest.raises(PatchError, match=message), applied(model, YaRN(factor=4)):
        pytest.fail("the context was entered")
    assert model.model.rotary_emb is rotary
    assert torch.equal(logits(model), before)


def test_without_verification_nothing_is_noticed() -> None:
    model = RIGGED["own tables"][0]()
    with applied(model, YaRN(factor=4), verify=False) as patch:
        assert patch.layers_changed == (0, 1)


def _wrong_tables(change: Callable[[RopeTables], RopeTables]) -> Callable[..., None]:
    original = PatchedRotary.__init__

    def init(self: PatchedRotary, module: nn.Module, tables: Any, *args: Any, **kw: Any) -> None:
        changed = {key: change(value) for key, value in tables.items()}
        original(self, module, changed, *args, **kw)

    return init


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        lambda tables: RopeTables(tables.inv_freq),
        lambda tables: RopeTables(tables.inv_freq, tables.attention_factor**2),
        lambda tables: RopeTables(tables.inv_freq * 1.02, tables.attention_factor),
        lambda tables: RopeTables(tables.inv_freq[::-1], tables.attention_factor),
    ],
    ids=["factor dropped", "factor squared", "2% off", "reversed"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "cohere"])
def test_a_wrong_replacement_fails(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[RopeTables], RopeTables],
    dtype: torch.dtype,
) -> None:
    model = make_model(name, dtype=dtype)
    monkeypatch.setattr(PatchedRotary, "__init__", _wrong_tables(change))
    with (
        pytest.raises(PatchError, match="other rotary tables than meant"),
        applied(model, YaRN(factor=4)),
    ):
        pytest.fail("the context was entered")


def test_a_replacement_that_changes_other_layers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("gemma3")
    original = PatchedRotary._output

    def output(self: PatchedRotary, x: Tensor, position_ids: Tensor, layer_type: str | None) -> Any:
        return original(self, x, position_ids, layer_type and "full_attention")

    monkeypatch.setattr(PatchedRotary, "_output", output)
    with (
        pytest.raises(PatchError, match="layer 0"),
        applied(model, YaRN(factor=4)),
    ):
        pytest.fail("the context was entered")


@pytest.mark.filterwarnings("ignore:this model also scales its queries")
@pytest.mark.filterwarnings("ignore:.*normalises")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_real_architectures_pass(name: str, dtype: torch.dtype) -> None:
    model = make_model(name, dtype=dtype)
    for patch in (NoScaling(), Linear(factor=8), YaRN(factor=4)):
        with applied(model, patch) as found:
            assert found.layers_changed == CHANGED.get(name, (0, 1))


def test_a_normalising_attention_is_told() -> None:
    model = make_model("llama4", attn_temperature_tuning=False)
    with pytest.warns(UserWarning, match="normalises"), applied(model, YaRN(factor=4)):
        pass


def test_a_failing_forward_is_one_message() -> None:
    model = make_model("llama")
    model.model.layers[0].mlp.forward = lambda _: 1 / 0
    with (
        pytest.raises(PatchError, match=r"fails in a short forward pass.*division by zero"),
        applied(model, YaRN(factor=4)),
    ):
        pytest.fail("the context was entered")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_observing_leaves_no_trace(attention: str) -> None:
    model = make_model("llama")
    model.set_attn_implementation(attention)
    before = logits(model)
    with observed(model) as observer:
        logits(model, 5)
        assert [call.layer for call in observer.calls] == [0, 1]
        assert observer.calls[0].query_bhnd.shape == (1, 4, 5, 8)
        assert observer.calls[0].key_bhnd.shape == (1, 2, 5, 8)
    assert model.config._attn_implementation == attention
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(logits(model), before)
    assert len(observer.calls) == 2
