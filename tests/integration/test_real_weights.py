"""A small part of the runs on real weights, where they are at hand.

`ROPEWALK_REAL_MODELS` names a folder with `gemma-3-270m/gemma-3-270m-q4_k_m.gguf` and
`qwen2.5-coder-0.5b/qwen2.5-coder-0.5b-instruct-q4.gguf` in it.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.corpus import held_out_files
from harness.engine import AttentionSettings, measure
from harness.models import load_model, load_tokenizer, model_facts
from harness.spec import ModelSpec
from patches import Linear, YaRN, applied

pytestmark = pytest.mark.real
FILES = {
    "gemma-3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4.gguf",
}
TOKENS = 2048


@pytest.fixture(scope="module", params=list(FILES))
def real(request):
    folder = Path(os.environ.get("ROPEWALK_REAL_MODELS", "/nowhere")) / request.param
    if not (folder / FILES[request.param]).is_file():
        pytest.skip(f"no {FILES[request.param]} below ROPEWALK_REAL_MODELS")
    spec = ModelSpec(
        path=str(folder), gguf_file=FILES[request.param], dtype="float32", device="cpu"
    )
    text = next(f.text for f in held_out_files() if f.name == "typing.py")
    ids = load_tokenizer(spec)(text[:20_000])["input_ids"][:TOKENS]
    return spec, load_model(spec), torch.tensor([ids])


def test_losses_and_chunks(real):
    _, model, ids = real
    settings = AttentionSettings(queries=64)
    whole = measure(model, ids, attention=settings, chunk_tokens=TOKENS)
    parts = measure(model, ids, attention=settings, chunk_tokens=700)
    assert np.abs(whole.nll - parts.nll).max() < 1e-3
    assert 1.5 < np.exp(whole.nll.mean()) < 20
    entropy = whole.attention.values["entropy_nats"]
    assert np.abs(entropy - parts.attention.values["entropy_nats"]).max() < 1e-3
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, :-1].float()
    plain = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").numpy()
    assert np.abs(plain - whole.nll).max() < 1e-3


def test_what_a_method_costs_inside_the_trained_length(real):
    spec, model, ids = real
    assert model_facts(spec).trained_length == 32768
    found = {}
    for name, patch in (("yarn", YaRN(factor=2)), ("linear", Linear(factor=8))):
        with applied(model, patch):
            found[name] = measure(model, ids).nll.mean()
    plain = measure(model, ids).nll.mean()
    assert plain - 0.02 < found["yarn"] < plain + 0.2
    assert found["linear"] > plain + 0.05
