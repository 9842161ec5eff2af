"""Models that cannot be patched, or whose attention cannot be measured, are refused with a reason.

What one of the two cannot do, the other may: positions that are learnt leave the attention as it
is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from harness.engine import AttentionSettings, measure
from harness.errors import ModelError
from patches import PatchError, YaRN, applied
from tests.families.reference import eager, token_ids

SIZES: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {**SIZES, "num_attention_heads": 4}
GPT: dict[str, Any] = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}


def _model(name: str, config: dict[str, Any], head: str = "ForCausalLM") -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Config")(**config)
    return getattr(transformers, f"{name}{head}")(made).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: _model("GPT2", GPT, "LMHeadModel"),
    "opt": lambda: _model("OPT", {**HEADS, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "mamba": lambda: _model("Mamba", {**SIZES, "state_size": 4}),
    "bloom": lambda: _model("Bloom", {**HEADS, "n_layer": 2, "n_head": 4}),
    "falcon": lambda: _model("Falcon", HEADS),
    "gptj": lambda: _model("GPTJ", {**GPT, "rotary_dim": 4}),
    "codegen": lambda: _model("CodeGen", {**GPT, "rotary_dim": 4}),
}
NOT_PATCHED = {
    "gpt2": "gpt2 has no rotary position embedding",
    "opt": "opt has no rotary position embedding",
    "mamba": "mamba has no rotary position embedding",
    "bloom": "bloom has no rotary position embedding",
    "falcon": "the attention of layer 0 of FalconForCausalLM cannot be observed: it does not go",
    "gptj": "GPTJRotaryEmbedding returns rotary tables in a layout that is not understood",
    "codegen": "CodeGenRotaryEmbedding returns rotary tables in a layout that is not understood",
}
NOT_MEASURED = ("mamba", "bloom", "falcon")


@pytest.mark.parametrize("name", MODELS)
def test_it_is_not_patched(name: str) -> None:
    model, ids = MODELS[name](), token_ids(20)
    with torch.no_grad():
        before = model(input_ids=ids).logits
    with pytest.raises(PatchError, match=NOT_PATCHED[name]), applied(model, YaRN(factor=4)):
        pytest.fail("the context was entered")
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("name", MODELS)
def test_its_attention_is_measured_right_or_not_at_all(name: str) -> None:
    model, ids = MODELS[name](), token_ids(20)
    if name in NOT_MEASURED:
        with pytest.raises(ModelError, match="does not use transformers' attention interface"):
            measure(model, ids, nll=False, attention=AttentionSettings())
        return
    found = measure(model, ids, nll=False, attention=AttentionSettings()).attention
    assert found is not None
    _, entropies = eager(model, ids)
    wanted = torch.from_numpy(found.values["entropy_nats"])
    torch.testing.assert_close(wanted, entropies, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_losses_in_slices_are_right_or_refused(name: str) -> None:
    """OPT's head runs the decoder inside its base model, so a slice would forget its past."""
    model, ids = MODELS[name](), token_ids(20)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
        logits = model(input_ids=ids).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
    try:
        found = measure(model, ids, head_chunk_tokens=7).nll
    except ModelError:
        assert name == "opt"
        return
    assert found is not None
    torch.testing.assert_close(torch.from_numpy(found).float(), wanted, rtol=0, atol=1e-4)
