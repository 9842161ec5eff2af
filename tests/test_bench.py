"""The benchmark's parts run, at sizes that tell nothing of speed."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from benchmark import jobs, more_jobs, report, rows, shapes
from benchmark.run import ROOT, Row, Run

TINY = "llama"
SWEEP = """
name: tiny
models: [{path: "zoo:llama-10k", device: cpu}]
methods: [{kind: none}]
context_lengths: [64]
data: {source: stdlib, documents: 1}
probes: {perplexity: {}, entropy: {queries: 8}, passkey: {depths: 1, trials: 1, digits: 3}}
"""


@pytest.fixture
def run(monkeypatch):
    """A run whose jobs are ours: their times are given, their arguments kept."""
    one = Run(quick=True)
    one.asked = []

    def job(name, **arguments):
        one.asked.append((name, arguments))
        return {
            "attention": {"sampled": 2.1, "all": 3.0, "plain": 2.0},
            "eager_attention": {"ours": 30.0, "plain": 2.0},
            "memory": {"peak": 100.0},
            "loss_memory": {"above": float(1 << 29)},
            "lengths": {"ours": 11.0, "plain": 10.0},
            "method_change": {"ours": 0.01, "plain": 2.0, "unchecked": 0.001, "first": 0.3},
            "passkey": {"ours": 4.0, "plain": 10.0},
            "overhead": {"wall": 110.0, "model": 99.0, "draw": 10.0},
        }[name]

    one.job = job
    monkeypatch.setattr(shapes, "save_whole_qwen", lambda folder: None)
    return one


def test_attention_is_timed_beside_the_plain_pass():
    found = jobs.attention(TINY, 64, ["all", "sampled"], "float32", 1, "cpu")
    assert set(found) == {"all", "sampled", "plain"}
    assert min(found.values()) > 0


def test_sampled_positions_give_each_length_its_queries():
    positions = jobs._settings("sampled", 1024).positions(1024)
    for length in (512, 1024):
        assert 256 <= (positions < length).sum() <= 256 * 5
    assert positions[-1] == 1023


def test_the_usual_way_and_peaks():
    assert jobs.eager_attention(TINY, 64, "cpu")["peak"] > 1 << 20
    for what in ("plain", "eager", "sampled", "all"):
        assert jobs.memory(TINY, 64, what, "cpu", 97)["peak"] > 1 << 20
    assert jobs.growth(TINY, 256, "all", "float32", "cpu")["seconds"] > 0
    for peer in (False, True):
        assert jobs.lengths(TINY, 128, 1, "cpu", peer)["ours"] > 0


def test_changing_methods_and_decoding(tmp_path):
    shapes.make(TINY).save_pretrained(tmp_path)
    found = more_jobs.method_change(str(tmp_path), 1)
    assert found["first"] > found["ours"] > found["unchecked"] > 0
    grid = more_jobs.passkey(shapes.LLAMA, 128, "cpu", 3, 1)
    assert min(grid.values()) > 0


def test_a_sweep_spends_its_time_in_the_model_or_elsewhere(tmp_path):
    sweep = tmp_path / "tiny.yaml"
    sweep.write_text(SWEEP)
    code = (
        "import sys, json; sys.path[:0] = sys.argv[2:]; from benchmark.more_jobs import overhead;"
        "print(json.dumps(overhead(sys.argv[1], False)))"
    )
    scripts = ROOT / "scripts"
    done = subprocess.run(  # it replaces functions of the process for good
        [sys.executable, "-c", code, sweep, scripts, ROOT],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert 0 < found["model"] < found["wall"]
    assert 0 < found["draw"] < found["wall"]


def test_every_row_says_ratio_bound_and_the_usual_way(run):
    groups = rows.GROUPS.values()
    found = [row for group in groups for measured in group(run) for row in measured()]
    assert {r.what.split(",")[0] for r in found} >= {"entropy and masses", "every column"}
    for row in found:
        assert row.ratio is not None
        assert row.holds == (None if row.bound is None else row.ratio <= row.bound)
    by_what = {row.what: row for row in found}
    assert by_what["loss over 262,144 words, above model and hidden states"].ratio == 0.5
    assert by_what["quickstart: all that is not the model"].ratio == pytest.approx(0.01)
    assert by_what["passkey grid, 10 depths x 4 trials"].ratio == 0.4
    text = report.markdown(found, {"processor": "P", "threads": 2, "torch": "t"})
    assert "MISSED" in text
    assert "holds" in text
    assert "30 s at 1,024 (15.00 x plain)" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_job_that_fails_says_why():
    with pytest.raises(RuntimeError, match="no_such_model"):
        Run().job("eager_attention", model="no_such_model", length=8, device="cpu")
    row = Row(what="w", model="", context_length_tokens=0, error="too large")
    assert "too large" in report.markdown([row], {"processor": "P", "threads": 2, "torch": "t"})


def test_growth_is_drawn(run, tmp_path, monkeypatch):
    monkeypatch.delenv("ROPEWALK_REAL_MODELS", raising=False)
    run.job = lambda name, **a: {"seconds": a["length"] / 1e3, "peak": 5e8, "above": 1e8}
    records = pd.DataFrame(rows.growth_records(run))
    assert list(records["context_length_tokens"]) == [1024, 2048, 4096] * 2
    report.write_growth_figure(records, tmp_path)
    assert {p.suffix for p in Path(tmp_path).iterdir()} >= {".png", ".svg"}
