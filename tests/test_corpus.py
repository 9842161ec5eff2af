"""Training and evaluation never read the same module."""

import pytest

from harness import corpus
from harness.errors import DataError


def test_held_out_modules_are_not_trained_on():
    training = {f.name for f in corpus.training_files()}
    held_out = {f.name for f in corpus.held_out_files()}
    assert held_out
    assert not training & held_out
    assert not training & corpus.held_out_names()


def test_held_out_texts_are_nowhere_in_the_training_text():
    training = {f.sha256 for f in corpus.training_files()}
    assert not training & {f.sha256 for f in corpus.held_out_files()}


def test_at_least_ten_documents_of_sixteen_times_the_trained_length(zoo_tokenizer):
    lengths = [
        len(zoo_tokenizer(f.text, add_special_tokens=False)["input_ids"])
        for f in corpus.held_out_files()
    ]
    assert sum(n >= 16 * 256 for n in lengths) >= 10


def test_a_python_without_sources_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(corpus, "_library_root", lambda: tmp_path)
    with pytest.raises(DataError, match="source: text"):
        corpus.held_out_files()


def test_a_moved_module_is_found_and_held_out_under_both_names(monkeypatch, tmp_path):
    (tmp_path / "datetime.py").write_text("from _pydatetime import *\n")
    (tmp_path / "_pydatetime.py").write_text("x = 1\n" * 100)
    (tmp_path / "other.py").write_text("y = 2\n")
    monkeypatch.setattr(corpus, "_library_root", lambda: tmp_path)
    assert [f.name for f in corpus.held_out_files()] == ["_pydatetime.py"]
    assert [f.name for f in corpus.training_files()] == ["other.py"]


def test_files_that_are_not_utf8_are_passed_over(monkeypatch, tmp_path):
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin-1"))
    (tmp_path / "plain.py").write_text("x = 1\n")
    monkeypatch.setattr(corpus, "_library_root", lambda: tmp_path)
    assert [f.name for f in corpus.training_files()] == ["plain.py"]
