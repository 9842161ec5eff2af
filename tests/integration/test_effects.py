"""What the zoo is for: extrapolation fails, and some methods repair it. Effects, not values."""

import math

import numpy as np
import pytest
import torch

import harness
from harness.bins import tail_start
from harness.corpus import held_out_files
from harness.data import Document, tokenize
from harness.engine import AttentionSettings, measure
from harness.models import load_model
from harness.passkey import PasskeyTask, depth_values
from harness.probes.passkey import passkey_rows
from harness.spec import ModelSpec
from patches import NoScaling, YaRN, applied

LONG = 16 * 256
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["llama-10k", "llama-500k", "gemma-local-global"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return load_model(ModelSpec(path=f"zoo:{name}", device="cpu"))


@pytest.fixture(scope="module")
def documents(zoo_tokenizer):
    found = [Document(name=f.name, text=f.text) for f in held_out_files()[:4]]
    return [tokenize(d, zoo_tokenizer, LONG).input_ids for d in found]


def tail_perplexity(model, documents, patch, n):
    with applied(model, patch, context_length=n):
        losses = [
            harness.token_nll(model, torch.from_numpy(d[:n])[None])[tail_start(n) - 1 :]
            for d in documents
        ]
    return math.exp(np.concatenate(losses).mean())


def passkeys(model, tokenizer, patch, n):
    task = PasskeyTask(tokenizer, digits=5, distractors=0, seed=3)
    prompts = [task.prompt(n, d, i, t) for i, d in enumerate(depth_values(3)) for t in range(7)]
    with applied(model, patch, context_length=n):
        parts = list(passkey_rows(model, tokenizer, prompts, distractors=0, generate=False))
    return float(np.mean(np.concatenate([p["correct"] for p in parts])))


def tail_entropy(model, documents, patch, n):
    queries = tuple(range(tail_start(n), n, 16))
    with applied(model, patch, context_length=n):
        ids = torch.from_numpy(documents[0][:n])[None]
        found = measure(model, ids, nll=False, attention=AttentionSettings(queries=queries))
    is_full = np.array(found.attention.layer_types) == "full_attention"
    return float(found.attention.values["entropy_nats"][is_full].mean())


def test_perplexity_explodes_without_scaling_and_yarn_holds_it(name, model, documents):
    inside = tail_perplexity(model, documents, NoScaling(), 256)
    outside = tail_perplexity(model, documents, NoScaling(), LONG)
    repaired = tail_perplexity(model, documents, YaRN(), LONG)
    if name == "gemma-local-global":  # its local layers carry the perplexity through
        assert outside < 1.5 * inside
    else:
        assert outside >= 3 * inside
    assert repaired < 1.5 * inside
    assert repaired < outside


def test_retrieval_fails_without_scaling_and_yarn_repairs_it(model, zoo_tokenizer):
    assert passkeys(model, zoo_tokenizer, NoScaling(), 256) >= 0.95
    assert passkeys(model, zoo_tokenizer, NoScaling(), LONG) <= 0.4
    assert passkeys(model, zoo_tokenizer, YaRN(), LONG) >= 0.6


def test_attention_spreads_without_scaling_and_far_less_with_yarn(model, documents):
    inside = tail_entropy(model, documents, NoScaling(), 256)
    outside = tail_entropy(model, documents, NoScaling(), LONG)
    repaired = tail_entropy(model, documents, YaRN(), LONG)
    assert outside > inside + 1.5
    assert repaired < outside - 1
