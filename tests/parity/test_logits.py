"""Logits of patched models against models that transformers builds with the same scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from patches import (
    Linear,
    Llama3,
    NoScaling,
    RopeGeometry,
    RopePatch,
    RopeTables,
    YaRN,
    applied,
)
from tests.patches.tiny_models import logits, make_config, make_model

TRAINED_LENGTH = 64
NUM_TOKENS = 200
MODELS = ("llama", "qwen3", "mistral", "gemma3", "gpt_neox", "phi")
SCALINGS: dict[str, tuple[dict[str, Any], RopePatch]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, Linear(factor=4)),
    "yarn": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": TRAINED_LENGTH,
            "beta_fast": 8.0,
        },
        YaRN(factor=4, beta_fast=8),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": TRAINED_LENGTH,
        },
        Llama3(factor=4),
    ),
}


@dataclass(frozen=True, kw_only=True)
class GivenTables(RopePatch):
    """A method whose tables are given as numbers."""

    kind: ClassVar[str] = "given"
    inv_freq: tuple[float, ...]
    attention_factor: float

    def tables(
        self,
        geometry: RopeGeometry,
        context_length: int,
    ) -> RopeTables:
        return RopeTables(np.array(self.inv_freq), self.attention_factor)


def rope_parameters(name: str, scaling: dict[str, Any]) -> dict[str, Any]:
    flat = {"rope_theta": 10000.0, **scaling}
    if name == "gemma3":
        local = {"rope_type": "default", "rope_theta": 1000.0}
        return {"full_attention": flat, "sliding_attention": local}
    return flat


def tables_of(model: torch.nn.Module) -> GivenTables:
    rotary = model.model.rotary_emb if hasattr(model, "model") else model.gpt_neox.rotary_emb
    prefix = "full_attention_" if hasattr(rotary, "full_attention_inv_freq") else ""
    return GivenTables(
        inv_freq=tuple(getattr(rotary, f"{prefix}inv_freq").tolist()),
        attention_factor=getattr(rotary, f"{prefix}attention_scaling"),
    )


def build(name: str, scaling: dict[str, Any], dtype: torch.dtype) -> torch.nn.Module:
    return make_model(name, rope_parameters(name, scaling), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", SCALINGS)
@pytest.mark.parametrize("name", MODELS)
def test_same_as_built_natively(name: str, method: str, dtype: torch.dtype) -> None:
    scaling, patch = SCALINGS[method]
    native = build(name, scaling, dtype)
    wanted = logits(native, NUM_TOKENS)
    plain = build(name, {"rope_type": "default"}, dtype)
    assert not torch.equal(logits(plain, NUM_TOKENS), wanted)
    with applied(plain, tables_of(native)):
        assert torch.equal(logits(plain, NUM_TOKENS), wanted)
    with applied(plain, patch):
        found = logits(plain, NUM_TOKENS)
    if dtype == torch.float32:
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    else:
        # Two float32 angles that round to different bfloat16 numbers move the logits by a few ulp.
        size = wanted.float().abs().max()
        assert (found.float() - wanted.float()).abs().max() <= 4 * torch.finfo(dtype).eps * size


@pytest.mark.parametrize("name", MODELS)
def test_native_scaling_is_replaced(name: str) -> None:
    plain = build(name, {"rope_type": "default"}, torch.float32)
    wanted = logits(plain, NUM_TOKENS)
    for method in SCALINGS:
        scaled = build(name, SCALINGS[method][0], torch.float32)
        assert not torch.equal(logits(scaled, NUM_TOKENS), wanted)
        with applied(scaled, NoScaling()) as patch:
            torch.testing.assert_close(logits(scaled, NUM_TOKENS), wanted, rtol=0, atol=1e-4)
        assert {tables.attention_factor for tables in patch.tables.values()} == {1.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", SCALINGS)
def test_phi3_against_the_same_tables(method: str, dtype: torch.dtype) -> None:
    scaling, patch = SCALINGS[method]
    # The config of Phi-3 takes neither linear nor llama3, so its buffers are set instead.
    other = make_config("llama", {"rope_theta": 10000.0, **scaling})
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[method](other)
    given = GivenTables(inv_freq=tuple(inv_freq.tolist()), attention_factor=attention_factor)
    native, plain = make_model("phi3", dtype=dtype), make_model("phi3", dtype=dtype)
    assert native.model.rotary_emb.inv_freq.shape == inv_freq.shape
    native.model.rotary_emb.inv_freq = inv_freq
    native.model.rotary_emb.attention_scaling = attention_factor
    wanted = logits(native, NUM_TOKENS)
    assert not torch.equal(logits(plain, NUM_TOKENS), wanted)
    with applied(plain, given):
        assert torch.equal(logits(plain, NUM_TOKENS), wanted)
    if dtype == torch.float32:
        with applied(plain, patch):
            torch.testing.assert_close(logits(plain, NUM_TOKENS), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_cached_generation_is_the_same(name: str) -> None:
    scaling, patch = SCALINGS["yarn"]
    native = build(name, scaling, torch.float32)
    plain = build(name, {"rope_type": "default"}, torch.float32)
    prompt = torch.arange(1, 61)[None]
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = native.generate(prompt, **settings)
    with applied(plain, patch):
        assert torch.equal(plain.generate(prompt, **settings), wanted)


@pytest.mark.filterwarnings("ignore:this model also scales its queries")
@pytest.mark.filterwarnings("ignore:.*normalises")
@pytest.mark.parametrize("name", ["olmo2", "olmo3", "cohere", "glm4", "gpt_oss", "llama4"])
def test_other_layouts_keep_their_bits(name: str) -> None:
    plain = make_model(name)
    rotary = plain.model.rotary_emb
    prefix = "full_attention_" if hasattr(rotary, "full_attention_inv_freq") else ""
    wanted = logits(plain, NUM_TOKENS)
    with applied(plain, tables_of(plain)) as patch:
        assert torch.equal(logits(plain, NUM_TOKENS), wanted)
    assert set(patch.tables) == ({"full_attention"} if prefix else {None})
    with applied(plain, SCALINGS["yarn"][1]):
        assert not torch.equal(logits(plain, NUM_TOKENS), wanted)
