"""Training documents ask for what they hid."""

import numpy as np
import pytest

from harness.corpus import SourceFile
from harness.passkey_text import QUESTION
from harness.zoo.documents import IGNORED, Schedule, TrainingText


@pytest.fixture(scope="module")
def text(zoo_tokenizer):
    source = "\n".join(f"def function_{i}(x): return x + {i}" for i in range(400))
    files = [SourceFile(name="a.py", text=source, sha256="")]
    return TrainingText(zoo_tokenizer, files, 256)


@pytest.mark.parametrize("seed", range(30))
def test_every_answer_is_the_hidden_key(text, zoo_tokenizer, seed):
    ids, labels = text.passkey_window(np.random.default_rng(seed), longest_gap=256)
    assert ids.shape == labels.shape == (256,)
    words = zoo_tokenizer.decode(ids[1:].tolist())
    key = words.split("The pass key is ")[1].split(".")[0]
    assert key.isdigit()
    answers = words.split(QUESTION)[1:]
    assert answers
    assert all(answer.startswith(f" {key}") for answer in answers)
    assert words.endswith(key)


@pytest.mark.parametrize("seed", range(10))
def test_only_the_first_appearance_of_the_key_is_not_scored(text, zoo_tokenizer, seed):
    ids, labels = text.passkey_window(np.random.default_rng(seed), longest_gap=256)
    hidden = np.flatnonzero(labels == IGNORED)
    key = zoo_tokenizer.decode(ids[hidden].tolist())
    assert key.isdigit()
    assert (np.diff(hidden) == 1).all()
    before = zoo_tokenizer.decode(ids[1 : hidden[0]].tolist())
    assert before.endswith("The pass key is ")
    scored = labels != IGNORED
    assert np.array_equal(ids[scored], labels[scored])


def test_gaps_grow_and_the_share_falls():
    schedule = Schedule(first_share=0.5, later_share=0.25, growth_steps=100)
    assert schedule.longest_gap(0, 256) < schedule.longest_gap(50, 256) < 256
    assert schedule.longest_gap(100, 256) == 256
    assert (schedule.passkey_share(99), schedule.passkey_share(100)) == (0.5, 0.25)


def test_a_batch_depends_on_seed_and_step_alone(text):
    first = text.batch(0, 7, 8, Schedule())
    again = text.batch(0, 7, 8, Schedule())
    other = text.batch(0, 8, 8, Schedule())
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert first[0].shape == (8, 256)
    assert first[2] == 4


def test_text_windows_start_with_bos(text, zoo_tokenizer):
    ids, labels = text.text_window(np.random.default_rng(0))
    assert ids[0] == zoo_tokenizer.bos_token_id
    assert np.array_equal(ids, labels)


def test_final_answers_spread_the_key_over_all_depths(text, zoo_tokenizer):
    ids, digits = text.final_answers(0, trials=5)
    places = []
    for row in ids:
        words = zoo_tokenizer.decode(row[1:].tolist())
        places.append(words.index("The pass key is"))
        key = zoo_tokenizer.decode(row[-digits:].tolist())
        assert words.count(key) == 3
    assert places == sorted(places)
    assert len(set(places)) == 5
