"""What goes wrong late in a long sequence does not spoil the lengths before it."""

import numpy as np

import harness
from harness import runner as runner_module
from harness.spec import sweep_from_dict

OVERFLOW = 150


def run(path, folder):
    sweep = sweep_from_dict(
        {
            "name": "late",
            "models": [{"path": str(path), "device": "cpu"}],
            "methods": [{"kind": "none"}],
            "context_lengths": [96, 128, 192],
            "data": {"source": "stdlib", "documents": 2},
            "probes": {"perplexity": {}, "entropy": {}},
        }
    )
    return harness.read_tables(harness.run_sweep(sweep, folder, quiet=True))


def test_shorter_lengths_run_alone(tiny_folder, tmp_path, monkeypatch):
    clean = run(tiny_folder, tmp_path / "clean")
    load = runner_module.load_model

    def overflowing(spec):
        model = load(spec)

        def hook(module, args, output):
            # One input of one layer, as where a half-precision sum overflows.
            output[:, OVERFLOW:] = float("nan")
            return output

        model.model.layers[0].register_forward_hook(hook)
        return model

    monkeypatch.setattr(runner_module, "load_model", overflowing)
    late = run(tiny_folder, tmp_path / "late")
    for name, column in (("perplexity", "nll_nats"), ("attention", "entropy_nats")):
        keys = [k for k in ("document", "layer", "head", "position_start") if k in clean[name]]
        for length in (96, 128):
            one, other = (
                t[name].query(f"context_length == {length}").sort_values(keys)[column].to_numpy()
                for t in (clean, late)
            )
            np.testing.assert_allclose(other, one, rtol=1e-5)
        behind = late[name].query("context_length == 192 and position_stop > 150")
        assert behind[column].isna().any()
        assert len(late[name]) == len(clean[name])
    tokens = late["passes"].query("probe == 'perplexity'")["tokens"].tolist()
    assert tokens == [2 * (192 + 128)]
