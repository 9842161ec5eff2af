"""A model saved with stock dynamic scaling is measured at each length as if it were the first."""

import json
import shutil

import pandas as pd
import pytest
import torch

import harness
from harness.models import load_model
from harness.passkey import PasskeyTask
from harness.probes.passkey import passkey_rows
from harness.spec import ModelSpec, sweep_from_dict
from patches import Native, applied
from tests.models import random_ids


@pytest.fixture
def folder(tiny_folder, tmp_path):
    copy = tmp_path / "dynamic"
    shutil.copytree(tiny_folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_a_long_input_leaves_nothing_behind(folder):
    model = load_model(ModelSpec(path=str(folder), device="cpu"))
    short, long = random_ids(0, 40), random_ids(1, 200)
    fresh = harness.token_nll(model, short)
    model = load_model(ModelSpec(path=str(folder), device="cpu"))
    before = model.model.rotary_emb.inv_freq.clone()
    with applied(model, Native()):
        model(long)  # what a user runs there is undone behind it
        assert not torch.equal(model.model.rotary_emb.inv_freq, before)
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    assert not (harness.token_nll(model, long)[:39] == fresh).all()
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
    assert (harness.token_nll(model, short) == fresh).all()


def test_decoding_one_trial_leaves_nothing_to_the_next(folder, zoo_tokenizer):
    model = load_model(ModelSpec(path=str(folder), device="cpu"))
    task = PasskeyTask(zoo_tokenizer, digits=5, distractors=0, seed=0)
    prompts = [task.prompt(200, 0.5, 0, trial) for trial in range(3)]

    def decoded(some):
        rows = passkey_rows(model, zoo_tokenizer, some, distractors=0, generate=True)
        return pd.concat(list(rows))[["predicted", "answer_nll_nats"]].to_numpy().tolist()

    assert decoded(prompts) == [row for prompt in prompts for row in decoded([prompt])]


def test_a_sweep_is_a_run_per_length(folder, tmp_path):
    def run(lengths, name):
        sweep = sweep_from_dict(
            {
                "name": name,
                "models": [{"path": str(folder), "device": "cpu"}],
                "methods": [{"kind": "native"}],
                "context_lengths": lengths,
                "data": {"source": "stdlib", "documents": 1},
                "probes": {"perplexity": {}, "passkey": {"depths": [0.9], "trials": 3}},
            }
        )
        return harness.read_tables(harness.run_sweep(sweep, tmp_path / name, quiet=True))

    together, alone = run([192, 400], "both"), run([192], "one")
    own = together["perplexity"].query("context_length == 192")["nll_nats"].sum()
    assert own == pytest.approx(alone["perplexity"]["nll_nats"].sum(), rel=1e-6)
    keys = together["passkey"].query("context_length == 192")["answer_nll_nats"].to_numpy()
    assert keys == pytest.approx(alone["passkey"]["answer_nll_nats"].to_numpy(), rel=1e-5)
