"""Passkey prompts are exactly as long, as deep and as repeatable as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import DataError
from harness.passkey import PasskeyTask, depth_values, split_answer
from harness.passkey_text import QUESTION


def make(tokenizer, **changes):
    arguments = {"digits": 5, "distractors": 0, "seed": 0} | changes
    return PasskeyTask(tokenizer, **arguments)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(100, 3000),
    depth=st.floats(0, 1),
    digits=st.integers(1, 9),
    trial=st.integers(0, 99),
)
def test_exactly_n_tokens_ending_in_the_answer(zoo_tokenizer, length, depth, digits, trial):
    prompt = make(zoo_tokenizer, digits=digits).prompt(length, depth, 0, trial)
    assert len(prompt.input_ids) == length
    assert prompt.input_ids[0] == zoo_tokenizer.bos_token_id
    text = zoo_tokenizer.decode(prompt.input_ids[1:].tolist())
    assert text.endswith(QUESTION + " " + prompt.answer)
    assert len(prompt.answer) == digits
    assert text.count(prompt.answer) >= 3  # twice in the needle, once as the answer
    answer = zoo_tokenizer.decode(prompt.input_ids[-prompt.answer_tokens :].tolist())
    assert answer == prompt.answer


def where(tokenizer, prompt):
    """The needle's place among the tokens, as a share of the prompt."""
    text = tokenizer.decode(prompt.input_ids[1:].tolist())
    before = text[: text.index("The pass key is")]
    return len(tokenizer(before, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_the_needle_lies_at_its_depth(zoo_tokenizer, depth):
    prompt = make(zoo_tokenizer).prompt(2000, depth, 0, 0)
    head, tail = 20, 2000 - 19 - 28
    expected = head + depth * (tail - head)
    assert abs(where(zoo_tokenizer, prompt) - expected) <= 30  # half a line of filler
    short = make(zoo_tokenizer).prompt(256, depth, 0, 0)
    assert abs(where(zoo_tokenizer, short) - (head + depth * (256 - 19 - 28 - head))) <= 1


def test_depths_are_ordered(zoo_tokenizer):
    task = make(zoo_tokenizer)
    places = [where(zoo_tokenizer, task.prompt(1500, d, 0, 0)) for d in depth_values(6)]
    assert places == sorted(places)
    assert len(set(places)) == 6


@pytest.mark.parametrize("length", [192, 256, 512, 1100, 1200, 4096])
def test_no_two_depths_fall_together(zoo_tokenizer, length):
    task = make(zoo_tokenizer)
    places = [where(zoo_tokenizer, task.prompt(length, d, 0, 0)) for d in depth_values(5)]
    steps = np.diff(places)
    assert (steps > 0).all()
    assert steps.max() <= 1.35 * steps.min()


def test_same_seed_same_prompt_other_seed_other_key(zoo_tokenizer):
    first = make(zoo_tokenizer).prompt(500, 0.5, 2, 3)
    again = make(zoo_tokenizer).prompt(500, 0.5, 2, 3)
    other = make(zoo_tokenizer, seed=1).prompt(500, 0.5, 2, 3)
    assert np.array_equal(first.input_ids, again.input_ids)
    assert first.answer != other.answer
    assert first.answer != make(zoo_tokenizer).prompt(500, 0.5, 2, 4).answer
    assert first.answer != make(zoo_tokenizer).prompt(500, 0.5, 1, 3).answer


def test_distractors_are_other_numbers(zoo_tokenizer):
    prompt = make(zoo_tokenizer, distractors=3, digits=2).prompt(600, 0.5, 0, 0)
    text = zoo_tokenizer.decode(prompt.input_ids[1:].tolist())
    assert text.count("locker opens with") == 3
    assert f"opens with {prompt.answer}" not in text
    assert len(prompt.input_ids) == 600


def test_a_text_can_be_the_haystack(zoo_tokenizer):
    filler = np.arange(300, 800)
    prompt = make(zoo_tokenizer, filler_ids=filler).prompt(400, 1.0, 0, 0)
    assert prompt.input_ids[20:200].tolist() == filler[:180].tolist()


def test_too_short_a_length_says_what_it_needs(zoo_tokenizer):
    with pytest.raises(DataError, match="needs 66 tokens"):
        make(zoo_tokenizer).prompt(65, 0.5, 0, 0)
    assert len(make(zoo_tokenizer).prompt(66, 0.5, 0, 0).input_ids) == 66


class Glued:
    """A tokenizer whose numbers are one token each, with their space; the rest is characters."""

    bos_token_id = None

    def __init__(self):
        self.words = []

    def _id(self, piece):
        if piece not in self.words:
            self.words.append(piece)
        return self.words.index(piece)

    def __call__(self, text, add_special_tokens):
        import re

        del add_special_tokens
        return {"input_ids": [self._id(p) for p in re.findall(r" ?\d+|.|\n", text)]}

    def decode(self, ids):
        return "".join(self.words[i] for i in ids)


def test_digits_glued_together_with_their_space():
    tokenizer = Glued()
    question, answer = split_answer(tokenizer, "40417")
    assert tokenizer.decode(answer) == " 40417"
    assert tokenizer.decode(question) == QUESTION
    prompt = make(tokenizer).prompt(700, 0.3, 0, 0)
    assert len(prompt.input_ids) == 700
    assert prompt.answer_tokens == 1


def test_a_space_of_its_own_belongs_to_the_question(zoo_tokenizer):
    question, answer = split_answer(zoo_tokenizer, "40417")
    assert zoo_tokenizer.decode(question.tolist()) == QUESTION + " "
    assert zoo_tokenizer.decode(answer.tolist()) == "40417"


def test_depth_values():
    assert depth_values(1) == [0.5]
    assert depth_values(5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert depth_values([0.1, 0.9]) == [0.1, 0.9]


def test_the_prompt_hash_follows_tokens_not_keys(zoo_tokenizer):
    assert make(zoo_tokenizer).prompt_hash() == make(zoo_tokenizer, seed=5).prompt_hash()
    other = make(zoo_tokenizer, filler_ids=np.arange(50))
    assert make(zoo_tokenizer).prompt_hash() != other.prompt_hash()
