"""A pass is whole or not there."""

import json

import pandas as pd
import pytest

from harness.store import Store, write_atomic

ROWS = pd.DataFrame({"x": [1, 2], "y": [0.5, float("nan")]})
DONE = {"status": "done", "seconds": 1.5}


def test_what_is_committed_is_read_back(tmp_path):
    store = Store(tmp_path)
    assert not store.is_done("abc")
    assert store.record("abc") is None
    store.commit("abc", DONE, ROWS)
    assert store.is_done("abc")
    assert store.record("abc") == DONE
    pd.testing.assert_frame_equal(store.rows("abc"), ROWS)


def test_a_pass_without_its_marker_does_not_exist(tmp_path):
    store = Store(tmp_path)
    store.commit("abc", DONE, ROWS)
    (tmp_path / "passes" / "abc" / "complete").unlink()
    assert not store.is_done("abc")
    store.commit("abc", DONE, ROWS)
    assert store.is_done("abc")


@pytest.mark.parametrize("text", ["", "{", "[1"])
def test_a_damaged_record_does_not_count(tmp_path, text):
    store = Store(tmp_path)
    store.commit("abc", DONE, ROWS)
    (tmp_path / "passes" / "abc" / "pass.json").write_text(text)
    assert not store.is_done("abc")


def test_a_failed_pass_is_kept_and_is_not_done(tmp_path):
    store = Store(tmp_path)
    store.commit("abc", {"status": "out_of_memory", "error": "too large"}, None)
    assert store.record("abc")["error"] == "too large"
    assert not store.is_done("abc")
    store.commit("abc", DONE, ROWS)
    assert store.is_done("abc")


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("moment", ["to_parquet", "rename", "touch"])
def test_killed_at_any_moment_leaves_the_old_pass_or_none(tmp_path, monkeypatch, moment):
    store = Store(tmp_path)

    def kill(*args, **kwargs):
        raise Killed

    owner = pd.DataFrame if moment == "to_parquet" else type(tmp_path)
    monkeypatch.setattr(owner, moment, kill)
    with pytest.raises(Killed):
        store.commit("abc", DONE, ROWS)
    monkeypatch.undo()
    assert not store.is_done("abc")
    store.clean()
    assert not list((tmp_path / "passes").glob(".partial-*"))
    store.commit("abc", DONE, ROWS)
    assert store.is_done("abc")


def test_clean_removes_only_leftovers(tmp_path):
    store = Store(tmp_path)
    store.clean()  # nothing there yet
    store.commit("abc", DONE, ROWS)
    (tmp_path / "passes" / ".partial-x").mkdir()
    store.clean()
    assert store.is_done("abc")
    assert [p.name for p in (tmp_path / "passes").iterdir()] == ["abc"]


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_atomic(path, json.dumps(1))

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, json.dumps(2))
    assert json.loads(path.read_text()) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_pass_whose_rows_are_gone_is_not_done(tmp_path):
    store = Store(tmp_path)
    store.commit("abc", DONE, ROWS)
    (tmp_path / "passes" / "abc" / "rows.parquet").unlink()
    assert not store.is_done("abc")
