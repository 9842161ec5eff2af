"""Families that scale their logits or queries outside the rotary tables as well."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from harness.engine import AttentionSettings, measure
from patches import Native, NoScaling, PatchError, RopePatch, YaRN, applied
from patches.scales import native_logit_scale
from tests.families.reference import METHODS, eager, model_of, native_model, token_ids
from tests.patches.checks import unchanged
from tests.patches.tiny_models import logits, make_config, make_model

MLA = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "mscale": 0.8,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}


def saved_with(name: str = "deepseek_v3", **changes: Any) -> Any:
    """A tiny DeepSeek that was saved with YaRN and an ``mscale`` for all dimensions."""
    return make_model(name, {**MLA, **changes})


def scalings(model: Any) -> list[float]:
    return [layer.self_attn.scaling for layer in model.model.layers]


class TestLatentAttention:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
    def test_a_method_replaces_the_native_mscale(self, name: str, method: str) -> None:
        model = saved_with(name)
        wanted = logits(native_model(name, method))
        assert float((logits(model) - wanted).abs().max()) > 0.1
        before = scalings(model)
        with unchanged(model), applied(model, METHODS[method]):
            torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-4)
            assert scalings(model) == scalings(model_of(name))
        assert scalings(model) == before

    @pytest.mark.parametrize(
        "changes",
        [{}, {"rope_type": "linear"}, {"factor": 1.0}, {"mscale_all_dim": 0.0}, {"mscale": None}],
        ids=str,
    )
    def test_without_scaling_it_is_the_plain_model(self, changes: dict[str, Any]) -> None:
        model, plain = saved_with(**changes), logits(model_of("deepseek_v3"))
        with unchanged(model), applied(model, NoScaling()):
            torch.testing.assert_close(logits(model), plain, rtol=0, atol=1e-4)

    def test_native_keeps_it(self) -> None:
        model = saved_with()
        before = logits(model)
        with applied(model, Native()):
            assert torch.equal(logits(model), before)

    def test_it_is_put_back_after_an_exception_and_a_refusal(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = saved_with()
        before = scalings(model)
        with unchanged(model), pytest.raises(KeyboardInterrupt), applied(model, YaRN(factor=4)):
            raise KeyboardInterrupt
        assert scalings(model) == before
        monkeypatch.setattr("patches.apply.check_rotation", lambda *_: 1 / 0)
        with unchanged(model), pytest.raises(ZeroDivisionError), applied(model, YaRN(factor=4)):
            pytest.fail("the context was entered")
        assert scalings(model) == before

    def test_methods_inside_one_another(self) -> None:
        model = saved_with()
        with unchanged(model), applied(model, NoScaling()):
            plain = logits(model)
            with applied(model, YaRN(factor=4)):
                wanted = logits(native_model("deepseek_v3", "yarn"))
                torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-4)
            assert torch.equal(logits(model), plain)

    def test_verification_notices_what_was_left_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("patches.apply.native_logit_scale_removed", lambda *_: nullcontext())
        with (
            pytest.raises(PatchError, match="the native mscale of this model cannot be taken out"),
            applied(saved_with(), YaRN(factor=4)),
        ):
            pytest.fail("the context was entered")

    def test_a_scaling_that_is_not_understood_is_refused(self) -> None:
        model = saved_with()
        model.model.layers[1].self_attn.scaling = 0.123
        with (
            unchanged(model),
            pytest.raises(PatchError, match=r"0\.123, neither 0\.25 nor 0\.468"),
            applied(model, YaRN(factor=4)),
        ):
            pytest.fail("the context was entered")
        assert scalings(model)[0] == scalings(saved_with())[0]

    @pytest.mark.parametrize("patch", [Native(), YaRN(factor=4)], ids=["native", "yarn"])
    def test_the_probe_sees_the_scale_in_use(self, patch: RopePatch) -> None:
        model, ids = saved_with().double(), token_ids()
        model.config._experts_implementation = "eager"
        with applied(model, patch):
            losses, entropies = eager(model, ids)
            found = measure(model, ids, attention=AttentionSettings())
        assert found.attention is not None
        np.testing.assert_allclose(found.nll, losses.numpy(), rtol=0, atol=1e-5)
        values = found.attention.values["entropy_nats"]
        np.testing.assert_allclose(values, entropies.numpy(), rtol=0, atol=1e-5)

    def test_a_model_that_ignores_the_key(self) -> None:
        model = make_model("llama", {**MLA, "mscale": None})
        assert native_logit_scale(model.config) > 1.8
        before = scalings(model)
        with unchanged(model), applied(model, NoScaling()):
            torch.testing.assert_close(logits(model), logits(model_of("llama")), rtol=0, atol=1e-4)
            assert scalings(model) == before


class TestOthers:
    def test_granite_keeps_its_multiplier(self) -> None:
        model = model_of("granite")
        other = make_model("granite", attention_multiplier=0.3)
        assert not torch.allclose(logits(other), logits(model), atol=0.01)
        with applied(model, YaRN(factor=4)):
            assert scalings(model) == [0.6, 0.6]

    @pytest.mark.filterwarnings("ignore:.*normalises")
    def test_llama4_keeps_its_temperature_where_nothing_is_rotated(self) -> None:
        model = model_of("llama4")
        without = make_model("llama4", attn_temperature_tuning=False)
        assert not torch.allclose(logits(without), logits(model), atol=0.01)
        with (
            pytest.warns(UserWarning, match="scales its queries by their position"),
            applied(model, YaRN(factor=4)) as found,
        ):
            pass
        unrotated = [layer for layer, rope in enumerate(model.config.no_rope_layers) if not rope]
        assert not set(found.layers_changed) & set(unrotated)

    @pytest.mark.parametrize("name", ["short_mscale", "long_mscale"])
    def test_phimoe_loses_the_mscale_it_was_saved_with(self, name: str) -> None:
        scaling = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}
        mscales = {"short_mscale": 1.0, "long_mscale": 1.0, name: 1.5}
        trained = {"original_max_position_embeddings": 8 if name == "long_mscale" else 64}
        model = make_model("phimoe", {**scaling, **mscales, **trained})
        plain = logits(model_of("phimoe"))
        assert not torch.allclose(logits(model), plain, atol=0.01)
        with unchanged(model), applied(model, NoScaling()):
            torch.testing.assert_close(logits(model), plain, rtol=0, atol=1e-4)

    def test_configs_without_a_native_scale(self) -> None:
        assert native_logit_scale(make_config("gemma3")) == 1.0
        assert native_logit_scale(make_config("mistral")) == 1.0
