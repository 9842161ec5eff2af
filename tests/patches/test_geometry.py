"""Reading a model's rotary embedding from its config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from transformers import GPT2Config

from patches import PatchError, RopeGeometry, layer_types_of
from tests.patches.tiny_models import make_config, make_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 500000.0,
}


def geometry(**values: Any) -> RopeGeometry:
    return RopeGeometry(**{"rotary_dim": 128, "base": 500000.0, "trained_length": 4096, **values})


@pytest.mark.parametrize(
    "values",
    [
        {"rotary_dim": 3},
        {"rotary_dim": 0},
        {"rotary_dim": 4.0},
        {"rotary_dim": True},
        {"base": 1},
        {"base": 0},
        {"base": math.nan},
        {"base": "1e6"},
        {"base": True},
        {"trained_length": 0},
        {"trained_length": 256.0},
        {"trained_length": None},
    ],
)
def test_refuses_what_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(PatchError, match=next(iter(values))):
        geometry(**values)


def test_inv_freq() -> None:
    found = RopeGeometry(rotary_dim=4, base=100.0, trained_length=8).inv_freq()
    np.testing.assert_allclose(found, [1.0, 0.1])
    assert found.dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {}),
        ({"rope_theta": 10000}, {"base": 10000.0}),
        ({"rope_theta": None, "rope_scaling": None}, {"base": 10000.0}),
        ({"head_dim": 64}, {"rotary_dim": 64}),
        ({"head_dim": 64, "partial_rotary_factor": 0.5}, {"rotary_dim": 32}),
        ({"rotary_pct": 0.25}, {"rotary_dim": 32}),
        ({"rope_theta": None, "rotary_emb_base": 20000}, {"base": 20000.0}),
        ({"qk_rope_head_dim": 64, "head_dim": 192}, {"rotary_dim": 64}),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, {}),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, {}),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 1024,
                }
            },
            {"trained_length": 1024},
        ),
        ({"original_max_position_embeddings": 2048}, {"trained_length": 2048}),
        (
            {
                "rope_theta": None,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1e6,
                    "factor": 4.0,
                    "original_max_position_embeddings": 1024,
                    "partial_rotary_factor": 0.5,
                },
            },
            {"trained_length": 1024, "base": 1e6, "rotary_dim": 64},
        ),
    ],
)
def test_flat_dictionaries(changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert RopeGeometry.from_config({**LLAMA, **changes}) == {None: geometry(**wanted)}


def test_text_config_of_a_larger_model() -> None:
    assert RopeGeometry.from_config({"model_type": "x", "text_config": LLAMA}) == {None: geometry()}


def test_nested_dictionary() -> None:
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "chunked_attention": None,
    }
    config = {**LLAMA, "rope_theta": None, "rope_parameters": nested}
    wanted = {
        "sliding_attention": geometry(base=10000.0),
        "full_attention": geometry(base=1e6),
    }
    assert RopeGeometry.from_config(config) == wanted
    only = {**config, "layer_types": ["full_attention"] * 2}
    assert RopeGeometry.from_config(only) == {"full_attention": geometry(base=1e6)}


def test_gemma3_as_published() -> None:
    config = {**LLAMA, "rope_local_base_freq": 10000.0, "sliding_window": 8}
    assert RopeGeometry.from_config(config) == {
        "full_attention": geometry(),
        "sliding_attention": geometry(base=10000.0),
    }
    config = {**config, "num_hidden_layers": 4, "sliding_window_pattern": 2}
    assert layer_types_of(config) == ("sliding_attention", "full_attention") * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"hidden_size": None}, "size of its heads"),
        ({"rope_theta": None}, "llama has no rotary position embedding"),
        ({"rope_scaling": 8.0}, "not a mapping"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "proportional"),
        ({"rope_parameters": {"full_attention": None}}, "rotates none"),
    ],
)
def test_bad_dictionaries(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PatchError, match=message):
        RopeGeometry.from_config({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama", {None: (8, 10000.0, 64)}),
        ("phi", {None: (8, 10000.0, 64)}),
        ("gpt_neox", {None: (8, 10000.0, 64)}),
        ("gemma3", {"full_attention": (8, 1e6, 64), "sliding_attention": (8, 10000.0, 64)}),
        ("gpt_oss", {None: (8, 150000.0, 4096)}),
        ("deepseek_v3", {None: (8, 10000.0, 64)}),
    ],
)
def test_models_and_their_configs(name: str, wanted: dict[Any, tuple[int, float, int]]) -> None:
    found = RopeGeometry.from_model(make_model(name))
    assert {
        key: (value.rotary_dim, value.base, value.trained_length) for key, value in found.items()
    } == wanted
    config = make_config(name)
    assert RopeGeometry.from_config(config) == found
    if name != "gpt_neox":
        assert RopeGeometry.from_config(config.to_dict()) == found


def test_scaling_it_was_saved_with_changes_nothing() -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    (found,) = RopeGeometry.from_config(make_config("llama", scaling)).values()
    assert found == RopeGeometry(rotary_dim=8, base=10000.0, trained_length=32)


def test_no_rotary_embedding() -> None:
    with pytest.raises(PatchError, match="gpt2 has no rotary position embedding"):
        RopeGeometry.from_config(GPT2Config())
    with pytest.raises(PatchError, match="has no config"):
        RopeGeometry.from_model(object())


class TestLayerTypes:
    def test_declared(self) -> None:
        assert layer_types_of(make_config("gemma2")) == ("sliding_attention", "full_attention")
        assert layer_types_of({"text_config": {"layer_types": ["a", "b"]}}) == ("a", "b")

    def test_by_the_window(self) -> None:
        assert layer_types_of(make_config("llama")) == ("full_attention",) * 2
        assert layer_types_of(make_config("mistral")) == ("sliding_attention",) * 2
        assert (
            layer_types_of(make_config("mistral", sliding_window=None)) == ("full_attention",) * 2
        )

    def test_left_open(self) -> None:
        assert layer_types_of({**LLAMA, "sliding_window": 16}) is None
        assert (
            layer_types_of({**LLAMA, "sliding_window": 16, "use_sliding_window": False})
            == ("full_attention",) * 2
        )
        assert layer_types_of({}) is None
