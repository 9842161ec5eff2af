"""Losses equal those of all logits at once, for every head and slice."""

import numpy as np
import pytest
import torch

import harness
from harness.engine import AttentionSettings, measure
from harness.errors import DataError, ModelError
from harness.prefix import answer_logits
from tests.models import MODELS, make_model, random_ids


def plain_losses(model, ids):
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits.double()
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="none").numpy()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", list(MODELS))
def test_losses_are_those_of_all_logits(name, seed):
    model, ids = make_model(name, seed), random_ids(seed, 60)
    losses = harness.token_nll(model, ids)
    assert losses.shape == (59,)
    assert losses.dtype == np.float64
    assert np.abs(losses - plain_losses(model, ids)).max() < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, 59, 60, 1000])
def test_losses_do_not_depend_on_the_slice(chunk):
    model, ids = make_model("gemma2", 0), random_ids(0, 60)
    losses = harness.token_nll(model, ids, head_chunk_tokens=chunk)
    assert losses == pytest.approx(harness.token_nll(model, ids), abs=1e-5)


def test_a_prefix_has_the_same_losses():
    model, ids = make_model("gemma3", 0), random_ids(0, 60)
    assert harness.token_nll(model, ids[:, :30]) == pytest.approx(
        harness.token_nll(model, ids)[:29], abs=1e-4
    )


def test_all_logits_are_never_there_at_once():
    model, ids = make_model("llama", 0), random_ids(0, 60)
    sizes = []
    model.lm_head.register_forward_hook(lambda module, args, out: sizes.append(out.shape[1]))
    harness.token_nll(model, ids, head_chunk_tokens=16)
    assert sizes == [16, 16, 16, 11]


def test_the_base_model_runs_once():
    model, ids = make_model("llama", 0), random_ids(0, 60)
    calls = []
    model.model.layers[0].register_forward_hook(lambda *args: calls.append(1))
    measure(model, ids, head_chunk_tokens=16)
    assert len(calls) == 1


def test_training_mode_and_forward_are_put_back():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    model.train()
    harness.token_nll(model, ids)
    assert model.training
    assert "forward" not in model.model.__dict__


def test_parts_at_rest_stay_at_rest():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    model.train()
    model.model.layers[0].eval()
    harness.token_nll(model, ids)
    assert model.training
    assert not model.model.layers[0].training


def test_unknown_tokens_of_a_prompt_are_refused():
    with pytest.raises(DataError, match="vocabulary of 97"):
        answer_logits(make_model("llama", 0), torch.full((2, 5), 97), torch.tensor([1]))


def test_a_forward_of_somebody_else_is_put_back():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    own = model.model.forward
    calls = []

    def hooked(*args, **kwargs):
        calls.append(1)
        return own(*args, **kwargs)

    model.model.forward = hooked
    losses = harness.token_nll(model, ids)
    assert model.model.forward is hooked
    assert calls == [1]
    del model.model.forward
    assert np.array_equal(losses, harness.token_nll(model, ids))


def test_nan_is_passed_on():
    model, ids = make_model("llama", 0), random_ids(0, 20)
    with torch.no_grad():
        model.model.embed_tokens.weight[ids[0, 10]] = float("nan")
    result = measure(model, ids, attention=AttentionSettings(), chunk_tokens=10)
    assert np.isfinite(result.nll[:9]).all()
    assert np.isnan(result.nll[10:]).all()
    entropy = result.attention.values["entropy_nats"]
    assert np.isfinite(entropy[:, :, :10]).all()
    assert np.isnan(entropy[:, :, 10:]).all()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "cohere"])
def test_answer_logits_are_those_of_the_whole(name):
    model, ids = make_model(name, 0), random_ids(0, 40, batch=3)
    with torch.inference_mode():
        whole = model(ids, use_cache=False).logits
    some = answer_logits(model, ids, torch.tensor([3, 20, 38]))
    assert some.shape == (3, 3, 97)
    assert torch.allclose(some, whole[:, [3, 20, 38]], atol=1e-5)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(5, dtype=torch.int64), r"shape \[1, n\]"),
        (torch.zeros(2, 5, dtype=torch.int64), r"shape \[1, n\]"),
        ([1, 2, 3], r"shape \[1, n\]"),
        (torch.zeros(1, 1, dtype=torch.int64), "at least 2"),
        (torch.zeros(1, 0, dtype=torch.int64), "at least 2"),
        (torch.zeros(1, 5), "whole numbers"),
        (torch.full((1, 5), 97), "vocabulary of 97"),
        (torch.full((1, 5), -1), "vocabulary of 97"),
    ],
)
def test_bad_ids_are_refused(ids, message):
    with pytest.raises(DataError, match=message):
        harness.token_nll(make_model("llama", 0), ids)


def test_a_base_model_without_head_is_refused():
    model = make_model("llama", 0)
    with pytest.raises(ModelError, match="AutoModelForCausalLM"):
        harness.token_nll(model.model, random_ids(0, 8))


def test_memory_is_that_of_the_block_alone():
    from harness.memory import PeakMemory

    with PeakMemory("cpu") as large:
        block = np.ones(40_000_000)
        block.sum()
        del block
    with PeakMemory("cpu") as small:
        np.ones(1000).sum()
    assert large.peak_bytes - small.peak_bytes > 250e6
    assert small.peak_bytes > 10e6


def test_memory_is_sampled_where_the_kernel_gives_no_mark(monkeypatch):
    import time

    from harness import memory

    monkeypatch.setattr(memory, "_reset_high_water_mark", lambda: False)
    with memory.PeakMemory("cpu") as large:
        block = np.ones(40_000_000)
        time.sleep(0.3)
        del block
    with memory.PeakMemory("cpu") as small:
        time.sleep(0.1)
    assert large.peak_bytes - small.peak_bytes > 250e6


def test_memory_of_several_gpus_is_added_up(monkeypatch):
    from harness.memory import PeakMemory

    reset = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda gpu: 10 + gpu.index)
    with PeakMemory("cuda:0", "cuda:1", "cpu") as peak:
        pass
    assert peak.peak_bytes == 21
    assert [gpu.index for gpu in reset] == [0, 1]
