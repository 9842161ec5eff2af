"""Every family: losses and entropies under the attention probe against eager attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from harness.engine import AttentionSettings, measure
from patches import YaRN, applied, layer_types_of
from tests.families.reference import FAMILIES, MIXED, TOKENS, eager, model_of, token_ids

pytestmark = [
    pytest.mark.filterwarnings("ignore:this model also scales its queries"),
    pytest.mark.filterwarnings("ignore:.*normalises"),
]
SETTINGS = AttentionSettings(local_window=5)
WINDOWED = (*MIXED, "mistral", "mixtral")


def patched(model: Any, patch: str) -> AbstractContextManager[Any]:
    return applied(model, YaRN(factor=4)) if patch == "yarn" else nullcontext()


@pytest.mark.parametrize("patch", ["as saved", "yarn"])
@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_entropies_are_those_of_eager_attention(name: str, patch: str) -> None:
    model, ids = model_of(name, torch.float64), token_ids()
    with patched(model, patch):
        losses, entropies = eager(model, ids)
        found = measure(model, ids, attention=SETTINGS)
        sliced = measure(model, ids, head_chunk_tokens=11)
    assert found.nll is not None
    assert found.attention is not None
    # Some families take their softmax or their rotary tables in float32 whatever the dtype.
    np.testing.assert_allclose(found.nll, losses.numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(sliced.nll, losses.numpy(), rtol=0, atol=1e-5)
    values = found.attention.values["entropy_nats"]
    assert values.shape == (model.config.num_hidden_layers, len(entropies[0]), TOKENS)
    np.testing.assert_allclose(values, entropies.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_chunked_prefill_is_the_same(name: str) -> None:
    model, ids = model_of(name, torch.float64), token_ids()
    with applied(model, YaRN(factor=4)):
        whole = measure(model, ids, attention=SETTINGS)
        chunked = measure(model, ids, attention=SETTINGS, chunk_tokens=7)
    assert whole.nll is not None
    assert whole.attention is not None
    assert chunked.attention is not None
    np.testing.assert_allclose(chunked.nll, whole.nll, rtol=0, atol=1e-5)
    for column, wanted in whole.attention.values.items():
        found = chunked.attention.values[column]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=column)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_attention_is_worth_measuring(name: str) -> None:
    """Otherwise an even attention, or one without its window, would pass the tests above."""
    model = model_of(name, torch.float64)
    _, entropies = eager(model, token_ids())
    most = torch.arange(1, TOKENS + 1).double().log()
    assert 0.02 < float((most - entropies).mean()) < 3
    last = entropies[:, :, -1].exp()
    assert float(last.max() - last.min()) > 1
    if name in WINDOWED:
        types = layer_types_of(model.config) or ()
        narrow = [layer for layer, found in enumerate(types) if found != "full_attention"]
        assert narrow
        assert float(last[narrow].max()) <= 16


@torch.no_grad()
def test_a_sink_takes_part_of_the_weight() -> None:
    """So the entropies above are those of the keys alone, and the losses count the sink."""
    model = model_of("gpt_oss", torch.float64)
    assert model.config._attn_implementation == "eager"  # PyTorch's fused attention has no sinks
    output = model(input_ids=token_ids(), use_cache=False, output_attentions=True)
    kept = torch.stack(output.attentions).sum(-1)
    assert float(kept.min()) < 0.7
