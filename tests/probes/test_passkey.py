"""Scores from one forward pass are those of real decoding, in any batch."""

import numpy as np
import pandas as pd
import pytest
import torch

from harness.passkey import PasskeyPrompt, PasskeyTask, depth_values
from harness.prefix import answer_logits
from harness.probes.passkey import _groups, _score, passkey_rows
from harness.rows import PASSKEY
from patches import Linear, YaRN, applied
from tests.models import HYBRIDS, MODELS, make_model, random_ids


def prompts_of(tokenizer, length, depths=3, trials=2, **changes):
    task = PasskeyTask(tokenizer, **({"digits": 5, "distractors": 0, "seed": 0} | changes))
    return [
        task.prompt(length, depth, index, trial)
        for index, depth in enumerate(depth_values(depths))
        for trial in range(trials)
    ]


def score(model, tokenizer, prompts, **changes):
    arguments = {"distractors": 0, "generate": False} | changes
    return pd.concat(list(passkey_rows(model, tokenizer, prompts, **arguments))).sort_index()


@pytest.mark.parametrize("length", [128, 256, 512])
@pytest.mark.parametrize("patch", [None, Linear(factor=2), YaRN(factor=4)])
def test_teacher_forcing_is_greedy_decoding(llama_10k, zoo_tokenizer, length, patch):
    prompts = prompts_of(zoo_tokenizer, length)
    if patch is None:
        forced, decoded = (
            score(llama_10k, zoo_tokenizer, prompts, generate=g) for g in (False, True)
        )
    else:
        with applied(llama_10k, patch):
            forced, decoded = (
                score(llama_10k, zoo_tokenizer, prompts, generate=g) for g in (False, True)
            )
    assert (forced["correct"] == decoded["correct"]).all()
    found = forced[forced["correct"]]
    assert (found["predicted"] == decoded.loc[found.index, "predicted"]).all()


def test_the_zoo_retrieves_within_its_trained_length_and_fails_past_it(llama_10k, zoo_tokenizer):
    inside = score(llama_10k, zoo_tokenizer, prompts_of(zoo_tokenizer, 256, 5, 4))
    outside = score(llama_10k, zoo_tokenizer, prompts_of(zoo_tokenizer, 2048, 3, 2))
    assert inside["correct"].mean() >= 0.95
    assert outside["correct"].mean() <= 0.4
    assert inside["answer_nll_nats"].mean() < outside["answer_nll_nats"].mean()


def test_rows_say_what_was_asked(llama_10k, zoo_tokenizer):
    prompts = prompts_of(zoo_tokenizer, 256, 3, 2, distractors=2)
    rows = score(llama_10k, zoo_tokenizer, prompts, distractors=2)
    assert list(rows.columns) == list(PASSKEY)
    assert rows["answer"].tolist() == [p.answer for p in prompts]
    assert rows["depth"].tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert rows["trial"].tolist() == [0, 1] * 3
    assert set(rows["prompt_tokens"]) == {256}
    assert set(rows["distractors"]) == {2}
    assert (rows["correct"] == (rows["answer"] == rows["predicted"])).all()
    assert (rows["answer_nll_nats"] >= 0).all()


@pytest.mark.parametrize("tokens", [1, 300, 2000, 100_000])
def test_the_batch_changes_nothing(llama_10k, zoo_tokenizer, tokens):
    prompts = prompts_of(zoo_tokenizer, 300, 3, 4)
    one = score(llama_10k, zoo_tokenizer, prompts, batch_tokens=1)
    other = score(llama_10k, zoo_tokenizer, prompts, batch_tokens=tokens)
    pd.testing.assert_frame_equal(one, other, atol=1e-4, rtol=1e-4)


def test_the_haystack_is_shared_up_to_each_needle(zoo_tokenizer):
    prompts = prompts_of(zoo_tokenizer, 1000, depths=[0.8, 0.0, 1.0, 0.6], trials=3)
    haystack, groups = _groups(prompts, share=True)
    assert [g.prompts[0].depth for g in groups] == [0.0, 0.6, 0.8, 1.0]
    assert sorted(i for g in groups for i in g.rows) == list(range(12))
    shared = [g.shared_tokens for g in groups]
    assert shared[0] < 100
    assert 500 < shared[1] < shared[2] < shared[3] < 1000 - 5 - 1
    for group in groups:
        for row, prompt in zip(group.rows, group.prompts, strict=True):
            assert prompt is prompts[row]
            at = group.shared_tokens
            assert (prompt.input_ids[:at] == haystack[:at]).all()
    assert [g.shared_tokens for g in _groups(prompts, share=False)[1]] == [0] * 4


def test_a_grid_runs_its_haystack_once(llama_10k, zoo_tokenizer):
    prompts = prompts_of(zoo_tokenizer, 1000, 5, 4)
    tokens = []
    layer = llama_10k.model.layers[0]
    handle = layer.register_forward_hook(lambda m, args, out: tokens.append(args[0].shape[:2]))
    score(llama_10k, zoo_tokenizer, prompts)
    handle.remove()
    run = sum(rows * n for rows, n in tokens)
    # Behind needles at 0, 1/4, ... 1 of the haystack half of it is left, and once the whole.
    assert run < 0.6 * 20 * 1000


@pytest.mark.parametrize("chunk", [64, 333, 1000])
def test_chunks_change_no_trial(llama_10k, zoo_tokenizer, chunk):
    prompts = prompts_of(zoo_tokenizer, 600, 3, 2)
    whole = score(llama_10k, zoo_tokenizer, prompts, share=False)
    chunked = score(llama_10k, zoo_tokenizer, prompts, chunk_tokens=chunk)
    pd.testing.assert_frame_equal(whole, chunked, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [*MODELS, *HYBRIDS])
def test_logits_behind_a_shared_prefix_are_those_of_the_whole(name):
    model = make_model(name, 0)
    ids = random_ids(0, 40, batch=3)
    ids[:, :25] = ids[:1, :25]
    positions = torch.tensor([30, 38])
    whole = answer_logits(model, ids, positions)
    shared = answer_logits(model, ids, positions, shared_tokens=25)
    assert torch.allclose(whole, shared, atol=1e-4)


class Words:
    """A tokenizer of given words; the answer "12345" is always split as 12|345."""

    words = ("12", "345", "123", "45", " ", "\n", "9", "99", "1", "12345", "123456")

    def decode(self, ids):
        return "".join(self.words[i] for i in ids)

    def ids(self, *words):
        return torch.tensor([self.words.index(w) for w in words])


class Decoder:
    """A stand-in for a prefix: what greedy decoding would say is given."""

    num_tokens = 1

    def __init__(self, decoded):
        self.decoded = decoded
        self.calls = 0

    def greedy(self, ids, num_tokens):
        self.calls += 1
        assert ids.tolist() == [[4, 4]]  # behind the prefix and before the answer
        assert num_tokens == 6
        return self.decoded


@pytest.mark.parametrize(
    ("guess", "decoded", "hit", "decodes"),
    [
        (("12", "345"), (), True, False),  # our tokens
        (("123", "345"), ("123", "45", "9"), True, True),  # another split of the right digits
        (("123", "345"), ("123", "99"), False, True),  # a good start, a wrong end
        ((" ", "345"), (" ", "12", "345"), True, True),  # a space of its own first
        (("12345", "9"), ("12345", "\n"), True, True),  # all in one token
        (("123456", "9"), (), False, False),  # the key's digits within a longer number
        (("9", "345"), (), False, False),  # a wrong digit
        (("\n", "345"), (), False, False),  # no answer
        (("12", "99"), (), False, False),
    ],
)
def test_the_right_digits_in_other_tokens_are_a_hit_if_decoding_confirms_them(
    guess, decoded, hit, decodes
):
    tokenizer = Words()
    ids = np.concatenate([[4, 4, 4], tokenizer.ids("12", "345").numpy()])
    prompt = PasskeyPrompt(input_ids=ids, answer_tokens=2, answer="12345", depth=0.5, trial=0)
    prefix = Decoder(tokenizer.ids(*decoded))
    logits = torch.nn.functional.one_hot(tokenizer.ids(*guess), 11).float()
    row = _score(prefix, tokenizer, prompt, logits, generate=False)
    assert row["correct"] is hit
    assert prefix.calls == decodes


def test_decoding_is_greedy_whatever_the_checkpoint_prefers(llama_10k, zoo_tokenizer, monkeypatch):
    prompts = prompts_of(zoo_tokenizer, 256, 3, 1)
    plain = score(llama_10k, zoo_tokenizer, prompts, generate=True)
    monkeypatch.setattr(llama_10k.generation_config, "repetition_penalty", 1.9)
    monkeypatch.setattr(llama_10k.generation_config, "no_repeat_ngram_size", 2)
    penalised = score(llama_10k, zoo_tokenizer, prompts, generate=True)
    assert plain["correct"].all()
    pd.testing.assert_frame_equal(plain, penalised)
