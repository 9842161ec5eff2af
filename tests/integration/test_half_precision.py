"""In bfloat16 a loss does not depend on which probes ran beside it."""

import pytest

import harness
from harness.spec import sweep_from_dict


def losses(folder, results, probes):
    sweep = sweep_from_dict(
        {
            "name": "half",
            "models": [{"path": str(folder), "device": "cpu", "dtype": "bfloat16"}],
            "methods": [{"kind": "none"}],
            "context_lengths": [96, 128],
            "data": {"source": "stdlib", "documents": 2},
            "probes": probes,
        }
    )
    tables = harness.read_tables(harness.run_sweep(sweep, results, quiet=True))
    backends = tables["passes"].set_index("probe")["attention_backend"].to_dict()
    return tables["perplexity"]["nll_nats"].tolist(), backends


@pytest.mark.parametrize("queries", ["all", 16])
def test_losses_are_the_same_with_and_without_entropy(tiny_folder, tmp_path, queries):
    alone, own = losses(tiny_folder, tmp_path / "a", {"perplexity": {}})
    beside, both = losses(
        tiny_folder, tmp_path / "b", {"perplexity": {}, "entropy": {"queries": queries}}
    )
    assert alone == beside
    assert own["perplexity"] == both["perplexity"] == "ropewalk_attention"
    assert both["entropy"] == "ropewalk_attention"
