"""Chunks, caches and slices change memory, never a result."""

import numpy as np
import pytest
import torch

import harness
from harness import head, prefill
from harness.abilities import abilities
from harness.engine import AttentionSettings, measure
from harness.errors import DataError, ModelError
from harness.memory import PeakMemory
from harness.prefill import Prefill, chunk_size, follows_length
from harness.prefix import SharedPrefix, answer_logits, can_share, running
from harness.rows import STATISTICS
from patches import YaRN, applied
from tests.models import HYBRIDS, MODELS, SHARED, make_model, random_ids


@pytest.mark.parametrize("chunk", [1, 7, 16, 47])
@pytest.mark.parametrize("name", list(MODELS))
def test_chunks_change_nothing(name, chunk):
    model, ids = make_model(name, 0, torch.float64), random_ids(0, 48)
    settings = AttentionSettings(local_window=5)
    whole = measure(model, ids, attention=settings, chunk_tokens=48)
    parts = measure(model, ids, attention=settings, chunk_tokens=chunk)
    assert np.abs(whole.nll - parts.nll).max() < 1e-8
    assert np.array_equal(whole.attention.positions, parts.attention.positions)
    for column in STATISTICS:
        np.testing.assert_allclose(
            whole.attention.values[column],
            parts.attention.values[column],
            atol=1e-8,
            err_msg=column,
        )


@pytest.mark.parametrize("name", list(HYBRIDS))
def test_chunks_change_nothing_where_other_layers_keep_a_state(name):
    model, ids = make_model(name, 0), random_ids(0, 48)
    chunks = []
    model.model.layers[0].register_forward_hook(lambda m, a, o: chunks.append(a[0].shape[1]))
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[0, :-1].double()
    wanted = -logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    chunks.clear()
    found = measure(model, ids, attention=AttentionSettings(), chunk_tokens=20)
    assert np.abs(found.nll - wanted).max() < 1e-4
    assert (20 in chunks) is abilities(model).continues
    assert abilities(model).continues is (name in ("lfm2", "bamba"))
    assert abilities(model).own_attention


def test_a_model_is_tried_once(monkeypatch):
    from harness import abilities as module

    model, tries = make_model("llama", 0), []
    own = module._try
    monkeypatch.setattr(module, "_try", lambda m: tries.append(m) or own(m))
    for _ in range(2):
        measure(model, random_ids(0, 40), chunk_tokens=20)
        answer_logits(model, random_ids(0, 40), torch.tensor([38]), shared_tokens=10)
    assert tries == [model]
    # What fits at once is in no need of it.
    measure(make_model("llama", 1), random_ids(0, 40))
    assert tries == [model]


@pytest.mark.parametrize("queries", ["all", 9])
def test_a_long_context_shares_its_prefix_with_the_short_ones(queries):
    """One static pass serves all lengths: equal to separate runs."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-8)):
        model, ids = make_model("gemma3", 3, dtype), random_ids(3, 64)
        with applied(model, YaRN(factor=4)):
            long = measure(model, ids, attention=AttentionSettings(), chunk_tokens=20)
            for n in (8, 16, 32):
                short = measure(model, ids[:, :n], attention=AttentionSettings(queries=queries))
                assert np.abs(long.nll[: n - 1] - short.nll).max() < tolerance
                for column in STATISTICS:
                    np.testing.assert_allclose(
                        short.attention.values[column],
                        long.attention.values[column][:, :, short.attention.positions],
                        atol=tolerance,
                        rtol=tolerance,
                    )


def test_the_chunk_follows_a_budget(monkeypatch):
    model = make_model("llama", 0)
    assert chunk_size(model, 1000) == 1000
    monkeypatch.setitem(prefill.ACTIVATION_BYTES, "cpu", 1)
    assert chunk_size(model, 1000) == 256
    assert chunk_size(model, 200) == 200
    monkeypatch.setitem(prefill.ACTIVATION_BYTES, "cpu", 2 << 20)
    tokens = chunk_size(model, 100_000)
    assert tokens % 256 == 0
    assert 256 < tokens < 2000
    assert chunk_size(model, 1000, tokens=77) == 77
    calls = []
    abilities(model)
    model.model.layers[0].register_forward_hook(lambda m, a, o: calls.append(a[0].shape[1]))
    harness.token_nll(model, random_ids(0, 50), chunk_tokens=20)
    assert calls == [20, 20, 10]


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_scaling_that_follows_the_length_never_runs_in_chunks(kind):
    from transformers import LlamaConfig, LlamaForCausalLM

    parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind == "longrope":
        parameters |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        parameters["original_max_position_embeddings"] = 64
    model = LlamaForCausalLM(LlamaConfig(**{**SHARED, "rope_parameters": parameters})).eval()
    ids = random_ids(0, 200)
    assert follows_length(model)
    assert chunk_size(model, 200, tokens=50) == 200
    whole, asked = (harness.token_nll(model, ids, chunk_tokens=c) for c in (None, 50))
    assert np.array_equal(whole, asked)
    # A method replaces that scaling, and chunks are safe again.
    with applied(model, YaRN(factor=4)):
        assert not follows_length(model)
        assert chunk_size(model, 200, tokens=50) == 50


@pytest.mark.parametrize("name", ["chunk_tokens", "head_chunk_tokens"])
@pytest.mark.parametrize("tokens", [0, 2.5, "all", True])
def test_a_chunk_of_nothing_is_refused(name, tokens):
    with pytest.raises(DataError, match=f"{name} must be a whole number of at least 1"):
        measure(make_model("llama", 0), random_ids(0, 20), **{name: tokens})


@pytest.mark.parametrize("name", ["llama", *HYBRIDS])
def test_greedy_decoding_is_that_of_the_model_itself(name):
    model, ids = make_model(name, 2), random_ids(2, 30)
    wanted = ids
    with torch.inference_mode():
        for _ in range(5):
            best = model(wanted, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            wanted = torch.cat([wanted, best], 1)
    shared = 20 if can_share(model) else 0
    with running(model):
        prefix = SharedPrefix(model, chunk_tokens=8)
        prefix.grow(ids[:, :shared])
        for _ in range(2):
            assert prefix.greedy(ids[:, shared:], 5).tolist() == wanted[0, 30:].tolist()


@pytest.mark.parametrize("name", [*MODELS, "lfm2", "bamba"])
def test_branches_leave_the_prefix_as_it_was(name):
    model, ids = make_model(name, 1), random_ids(1, 60, batch=3)
    ids[:, :20] = ids[:1, :20]
    at = torch.tensor([5, 38])
    with running(model):
        prefix = SharedPrefix(model, chunk_tokens=8)
        prefix.grow(ids[:1, :20])
        first = prefix.logits_behind(ids[:, 20:], at)
        again = prefix.logits_behind(ids[1:2, 20:], at)
        assert prefix.num_tokens == 20
        prefix.grow(ids[:1, 20:30])
        grown = prefix.logits_behind(ids[:1, 30:], at[1:] - 10)
    whole = answer_logits(model, ids, at + 20)
    assert torch.allclose(first, whole, atol=1e-4)
    assert torch.allclose(again, whole[1:2], atol=1e-4)
    assert torch.allclose(grown, whole[:1, 1:], atol=1e-4)


def test_a_branch_copies_what_changes_in_place():
    model, ids = make_model("lfm2", 0), random_ids(0, 40)
    with running(model):
        whole = model.model(input_ids=ids, use_cache=False).last_hidden_state
        one = Prefill(model)
        one.run(ids[:, :20])
        for _ in range(2):  # the first must leave the state as it was for the second
            behind = one.branch().run(ids[:, 20:]).last_hidden_state
            torch.testing.assert_close(behind, whole[:, 20:], atol=1e-5, rtol=1e-4)


def test_losses_over_many_words_stay_in_their_buffer():
    from transformers import LlamaConfig, LlamaForCausalLM

    words = 120_000
    config = LlamaConfig(**{**SHARED, "vocab_size": words})
    model, ids = LlamaForCausalLM(config).eval(), random_ids(0, 2000)
    with PeakMemory("cpu") as before:
        harness.token_nll(model, ids[:, :2])
    with PeakMemory("cpu") as peak:
        losses = harness.token_nll(model, ids)
    assert np.isfinite(losses).all()
    # All logits would be 960 MB, and their softmax as much again.
    assert peak.peak_bytes - before.peak_bytes < 400e6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [50, 2000])
def test_log_normalizers(dtype, words, monkeypatch):
    monkeypatch.setattr(head, "_BUFFER_NUMBERS", 4100)
    logits = 5 * torch.randn(2, 7, words, dtype=torch.float64)
    logits = logits.to(dtype)
    found = head._log_normalizers(logits)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (found.double() - logits.double().logsumexp(-1)).abs().max() < tolerance


def test_a_head_that_goes_round_its_base_model_is_refused():
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
    )
    with pytest.raises(ModelError, match="cannot be measured"):
        harness.token_nll(OPTForCausalLM(config).eval(), random_ids(0, 40))


def test_statistics_are_streamed_to_a_consumer():
    model, ids = make_model("gemma3", 0), random_ids(0, 48)
    parts = []
    result = measure(
        model, ids, attention=AttentionSettings(), consumer=parts.append, chunk_tokens=20
    )
    assert result.attention is None
    assert [(p.layer, p.positions[0]) for p in parts] == [
        (0, 0),
        (1, 0),
        (0, 20),
        (1, 20),
        (0, 40),
        (1, 40),
    ]
    whole = measure(model, ids, attention=AttentionSettings()).attention
    for part in parts:
        np.testing.assert_allclose(
            part.values["entropy_nats"],
            whole.values["entropy_nats"][part.layer][:, part.positions],
            atol=1e-5,
        )


def test_a_window_makes_no_square_mask(monkeypatch):
    from transformers import masking_utils

    def refuse(*args, **kwargs):
        raise AssertionError("a mask of all queries and keys was made")

    known = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    for name in ("sdpa", "eager"):
        monkeypatch.setitem(known, name, refuse)
    model = make_model("mistral", 0)
    assert np.isfinite(harness.token_nll(model, random_ids(0, 60), chunk_tokens=25)).all()
