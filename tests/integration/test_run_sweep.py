"""A whole sweep on a tiny random model: tables, sharing, resume, failures."""

import json

import numpy as np
import pandas as pd
import pytest

import harness
from harness import runner as runner_module
from harness.errors import DataError, RopewalkError
from harness.rows import ATTENTION, IDENTITY, PASSES, PASSKEY, PERPLEXITY
from harness.spec import sweep_from_dict

LENGTHS = [96, 128, 192]


def make_sweep(path, **changes):
    content = {
        "name": "tiny",
        "models": [{"path": str(path), "device": "cpu"}],
        "methods": [
            {"kind": "none"},
            {"kind": "linear", "factor": "auto"},
            {"kind": "ntk", "factor": 4},
            {"kind": "yarn", "factor": "auto"},
        ],
        "context_lengths": LENGTHS,
        "data": {"source": "stdlib", "documents": 2},
        "probes": {"perplexity": {}, "entropy": {}, "passkey": {"depths": 2, "trials": 2}},
    }
    return sweep_from_dict(content | changes)


@pytest.fixture(scope="module")
def finished(tiny_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "tiny"
    harness.run_sweep(make_sweep(tiny_folder), folder, quiet=True)
    return folder


def test_every_table_has_its_columns_and_every_cell_its_rows(finished):
    tables = harness.read_tables(finished)
    for name, columns in (
        ("perplexity", PERPLEXITY),
        ("attention", ATTENTION),
        ("passkey", PASSKEY),
    ):
        assert list(tables[name].columns) == [*IDENTITY, *columns]
        cells = tables[name].groupby(["method", "context_length"]).size()
        assert len(cells) == 4 * len(LENGTHS)
    assert list(tables["passes"].columns) == list(PASSES)
    assert set(tables["passes"]["status"]) == {"done"}
    assert set(tables["passes"]["layers_changed"]) == {"0,1"}
    assert (tables["passes"]["peak_memory_bytes"] > 0).all()
    perplexity = tables["perplexity"].groupby(["method", "context_length"])["tokens"].sum()
    assert all(perplexity[m, n] == 2 * (n - 1) for m, n in perplexity.index)
    passkey = tables["passkey"]
    assert (passkey["prompt_tokens"] == passkey["context_length"]).all()
    assert passkey.groupby(["method", "context_length"]).size().eq(4).all()


def test_the_same_prompts_for_every_method(finished):
    passkey = harness.read_tables(finished)["passkey"]
    answers = passkey.groupby(["context_length", "depth", "trial"])["answer"].nunique()
    assert (answers == 1).all()


def test_chunks_change_no_table(finished, tiny_folder, tmp_path):
    models = [{"path": str(tiny_folder), "device": "cpu", "chunk_tokens": 50}]
    harness.run_sweep(make_sweep(tiny_folder, models=models), tmp_path / "chunked", quiet=True)
    chunked, whole = harness.read_tables(tmp_path / "chunked"), harness.read_tables(finished)
    for name in ("perplexity", "attention", "passkey"):
        pd.testing.assert_frame_equal(chunked[name], whole[name], atol=1e-4, rtol=1e-4)


def test_everything_is_written(finished):
    for name in ("perplexity", "attention", "passkey", "passes"):
        for suffix in ("parquet", "csv"):
            assert (finished / "tables" / f"{name}.{suffix}").is_file()
    for name in ("summary.csv", "summary.md", "sweep.yaml", "environment.json"):
        assert (finished / name).is_file()
    figures = {p.suffix for p in (finished / "figures").iterdir()}
    assert figures == {".png", ".svg"}
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["versions"]["torch"]


def test_a_static_method_has_one_forward_an_auto_method_one_a_length(finished):
    passes = harness.read_tables(finished)["passes"].query("probe == 'perplexity'")
    count = passes.groupby("method").size()
    assert count["none"] == count["ntk(factor=4)"] == 1
    assert count["linear"] == count["yarn"] == len(LENGTHS)


def test_numbers_are_those_of_a_run_per_length(finished, tiny_folder, tmp_path):
    """One forward serves all lengths of a static method: the same as one forward each."""
    together = harness.read_tables(finished)
    for n in LENGTHS[:2]:
        sweep = make_sweep(
            tiny_folder, context_lengths=[n], methods=[{"kind": "none"}], probes={"perplexity": {}}
        )
        folder = harness.run_sweep(sweep, tmp_path / str(n), quiet=True)
        alone = harness.read_tables(folder)["perplexity"]
        own = together["perplexity"].query("method == 'none' and context_length == @n")
        assert alone["nll_nats"].sum() == pytest.approx(own["nll_nats"].sum(), abs=1e-4 * 2 * n)


def test_running_again_measures_nothing_and_changes_nothing(finished, tiny_folder, monkeypatch):
    before = (finished / "tables" / "perplexity.csv").read_text()
    monkeypatch.setattr(runner_module, "load_model", lambda spec: pytest.fail("measured again"))
    harness.run_sweep(make_sweep(tiny_folder), finished, quiet=True)
    assert (finished / "tables" / "perplexity.csv").read_text() == before


def test_an_interrupted_sweep_goes_on_and_ends_with_the_same_tables(
    finished, tiny_folder, tmp_path, monkeypatch
):
    folder = tmp_path / "interrupted"
    original = runner_module.Bench.run
    calls = []

    def interrupted(self, passes):
        calls.append(passes)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(self, passes)

    monkeypatch.setattr(runner_module.Bench, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        harness.run_sweep(make_sweep(tiny_folder), folder, quiet=True)
    done = len(calls) - 1
    harness.run_sweep(make_sweep(tiny_folder), folder, quiet=True)
    calls_in_all = len(calls) - 1
    assert done == 3
    whole = harness.read_tables(finished)
    resumed = harness.read_tables(folder)
    for name in ("perplexity", "attention", "passkey"):
        pd.testing.assert_frame_equal(resumed[name], whole[name])
    assert calls_in_all == len({tuple(p.pass_id for p in c) for c in calls})


def test_a_pass_that_fails_is_a_row_and_the_rest_goes_on(tiny_folder, tmp_path, monkeypatch):
    original = runner_module.Bench.run

    def failing(self, passes):
        if passes[0].probe == "passkey" and passes[0].longest == 128:
            raise MemoryError("too large")
        return original(self, passes)

    monkeypatch.setattr(runner_module.Bench, "run", failing)
    sweep = make_sweep(tiny_folder, methods=[{"kind": "none"}])
    folder = harness.run_sweep(sweep, tmp_path / "r", quiet=True)
    passes = harness.read_tables(folder)["passes"].set_index(["probe", "context_lengths"])
    failed = passes.loc[("passkey", "128")]
    assert failed["status"] == "out_of_memory"
    assert "too large" in failed["error"]
    assert (passes["status"] == "done").sum() == len(passes) - 1
    summary = harness.read_tables(folder)["summary"].set_index("context_length")
    assert np.isnan(summary.loc[128, "passkey_accuracy"])
    assert summary.loc[192, "passkey_trials"] == 4
    # The same command tries it again.
    monkeypatch.undo()
    harness.run_sweep(sweep, folder, quiet=True)
    assert set(harness.read_tables(folder)["passes"]["status"]) == {"done"}


def test_methods_with_equal_tables_share_a_pass(tiny_folder, tmp_path):
    sweep = make_sweep(
        tiny_folder,
        methods=[{"kind": "none"}, {"kind": "yarn", "factor": 1}, {"kind": "linear", "factor": 1}],
    )
    folder = harness.run_sweep(sweep, tmp_path / "r", quiet=True)
    tables = harness.read_tables(folder)
    ids = tables["passes"].groupby("probe")["pass_id"].nunique()
    assert ids["perplexity"] == ids["entropy"] == 1
    assert set(tables["perplexity"]["method"]) == {"none", "yarn(factor=1)", "linear(factor=1)"}


def test_nan_losses_are_recorded(tiny_folder, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(tmp_path / "broken")
    sweep = make_sweep(tmp_path / "broken", methods=[{"kind": "none"}], probes={"perplexity": {}})
    folder = harness.run_sweep(sweep, tmp_path / "r", quiet=True)
    tables = harness.read_tables(folder)
    assert tables["perplexity"]["nll_nats"].isna().all()
    assert tables["summary"]["perplexity"].isna().all()


def test_sliding_windows_cover_the_documents_at_every_length(tiny_folder, tmp_path):
    sweep = make_sweep(
        tiny_folder,
        methods=[{"kind": "none"}],
        probes={"perplexity": {"protocol": "sliding", "stride": 32}},
    )
    tables = harness.read_tables(harness.run_sweep(sweep, tmp_path / "r", quiet=True))
    tokens = tables["perplexity"].groupby("context_length")["tokens"].sum()
    assert tokens.to_dict() == {n: 2 * (max(LENGTHS) - 1) for n in LENGTHS}
    assert set(tables["perplexity"]["protocol"]) == {"sliding"}
    assert tables["summary"]["perplexity"].notna().all()


def test_sampled_queries_are_measured_at_every_length(tiny_folder, tmp_path):
    sweep = make_sweep(tiny_folder, probes={"entropy": {"queries": 24}})
    tables = harness.read_tables(harness.run_sweep(sweep, tmp_path / "r", quiet=True))
    assert tables["summary"]["entropy_nats_full_attention"].notna().all()
    per_length = tables["attention"].query("layer == 0 and head == 0 and method == 'none'")
    assert (per_length.groupby("context_length")["queries"].sum() < 2 * 96).all()


def test_files_of_others_are_not_mixed_with_results(tiny_folder, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="holds other files"):
        harness.run_sweep(make_sweep(tiny_folder), tmp_path, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_is_written_when_the_plan_fails(tmp_path):
    with pytest.raises(RopewalkError, match="no such folder"):
        harness.run_sweep(make_sweep(tmp_path / "missing"), tmp_path / "r", quiet=True)
    assert not (tmp_path / "r").exists()


def test_results_can_be_remade_without_the_model(finished, tmp_path):
    import shutil

    from harness.outputs import write_outputs

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    shutil.rmtree(copy / "tables")
    shutil.rmtree(copy / "figures")
    write_outputs(copy)
    for name in ("perplexity", "attention", "passkey", "passes"):
        assert (copy / "tables" / f"{name}.csv").read_text() == (
            finished / "tables" / f"{name}.csv"
        ).read_text()


@pytest.mark.parametrize("stride", [32, 96, 500])
def test_sliding_losses_are_those_of_naive_windows(tiny_folder, tmp_path, stride):
    import torch

    from harness.models import load_model
    from harness.plan import make_plan

    n = 96
    sweep = make_sweep(
        tiny_folder,
        methods=[{"kind": "native"}],
        context_lengths=[n, 500],
        probes={"perplexity": {"protocol": "sliding", "stride": stride}},
    )
    tables = harness.read_tables(harness.run_sweep(sweep, tmp_path / "r", quiet=True))
    found = tables["perplexity"].query("context_length == @n")["nll_nats"].sum()
    spec = sweep.models[0]
    model = load_model(spec)
    step = min(stride, n - 1)
    expected = 0.0
    for document in make_plan(sweep, tmp_path).models[spec.label].corpus.documents:
        ids = torch.from_numpy(document.input_ids)
        for i in range(1, 500):
            # The window that scores token i ends at the first of n, n + step, ... behind it.
            stop = n if i < n else min(500, n + -(-(i + 1 - n) // step) * step)
            window = ids[max(0, stop - n) : i + 1]
            with torch.inference_mode():
                logits = model(window[None, :-1]).logits[0, -1]
            expected += float(torch.nn.functional.cross_entropy(logits, window[-1]))
    assert found == pytest.approx(expected, rel=1e-5)


def test_two_entries_of_one_model_each_have_their_passes(tiny_folder, tmp_path):
    models = [
        {"path": str(tiny_folder), "device": "cpu", "name": name} for name in ("first", "second")
    ]
    sweep = make_sweep(
        tiny_folder, models=models, methods=[{"kind": "none"}], probes={"perplexity": {}}
    )
    tables = harness.read_tables(harness.run_sweep(sweep, tmp_path / "r", quiet=True))
    assert tables["passes"]["model"].tolist() == ["first", "second"]
    assert tables["passes"]["pass_id"].nunique() == 1
    assert tables["summary"]["seconds"].notna().all()
    assert tables["summary"]["model"].drop_duplicates().tolist() == ["first", "second"]
