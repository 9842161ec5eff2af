"""Pass ids follow what changes the numbers and nothing else."""

import pytest

from harness.errors import ConfigError, DataError
from harness.plan import make_plan
from harness.spec import sweep_from_dict


def sweep_of(path, **changes):
    content = {
        "name": "plan",
        "models": [{"path": str(path)}],
        "methods": [{"kind": "none"}, {"kind": "yarn", "factor": "auto"}],
        "context_lengths": [64, 128],
        "data": {"source": "stdlib", "documents": 1},
        "probes": {"perplexity": {}},
    }
    return sweep_from_dict(content | changes)


def ids(path, **changes):
    return {p.pass_id for p in make_plan(sweep_of(path, **changes), path).passes}


def test_the_same_sweep_has_the_same_ids(tiny_folder):
    assert ids(tiny_folder) == ids(tiny_folder)
    assert ids(tiny_folder) == ids(tiny_folder, name="renamed")


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"data": {"source": "stdlib", "documents": 2}},
        {"methods": [{"kind": "linear", "factor": 2}]},
        {"probes": {"perplexity": {"protocol": "sliding", "stride": 16}}},
        {"context_lengths": [66, 130]},
    ],
)
def test_what_changes_the_numbers_changes_every_id(tiny_folder, changes):
    assert not ids(tiny_folder) & ids(tiny_folder, **changes)


def test_other_weights_other_ids(tiny_folder, tmp_path):
    import shutil

    copy = tmp_path / "tiny-llama"
    shutil.copytree(tiny_folder, copy)
    assert ids(copy) == ids(tiny_folder)
    path = copy / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not ids(copy) & ids(tiny_folder)


def test_a_dtype_is_part_of_the_identity(tiny_folder):
    models = [{"path": str(tiny_folder), "dtype": "bfloat16"}]
    assert not ids(tiny_folder) & ids(tiny_folder, models=models)


def test_names_of_methods_are_not_part_of_it(tiny_folder):
    methods = [{"kind": "none", "name": "a"}, {"kind": "yarn", "factor": "auto", "name": "b"}]
    assert ids(tiny_folder) == ids(tiny_folder, methods=methods)


def test_auto_at_the_trained_length_is_none(tiny_folder):
    plan = make_plan(sweep_of(tiny_folder, context_lengths=["1x", "2x", "4x"]), tiny_folder)
    cells = {(c.method, c.context_length): c.pass_id for c in plan.cells}
    assert cells["yarn", 32] == cells["none", 32] == cells["none", 128]
    assert cells["yarn", 64] != cells["none", 64]
    assert len(plan.passes) == 3


def test_cells_tell_factor_base_and_layers(tiny_folder):
    plan = make_plan(sweep_of(tiny_folder), tiny_folder)
    by_method = {(c.method, c.context_length): c for c in plan.cells}
    cell = by_method["yarn", 128]
    assert (cell.factor, cell.base, cell.layers, cell.trained_length) == (4.0, 1e4, "all", 32)
    assert by_method["none", 128].factor == 1.0


def test_gemma_changes_its_global_layers(tmp_path):
    plan = make_plan(sweep_of("zoo:gemma-local-global"), tmp_path)
    assert {c.layers for c in plan.cells} == {"full_attention"}
    assert {c.base for c in plan.cells} == {1e6}
    tables = plan.passes[0].identity["tables"]
    assert tables["sliding_attention"] == "native"


def test_a_trained_length_in_the_yaml_wins(tiny_folder):
    models = [{"path": str(tiny_folder), "trained_length": 64}]
    plan = make_plan(sweep_of(tiny_folder, models=models, context_lengths=["2x"]), tiny_folder)
    assert {c.context_length for c in plan.cells} == {128}
    assert {c.factor for c in plan.cells if c.method == "yarn"} == {2.0}


def test_layers_that_cannot_be_separated_are_refused_before_anything_runs(tiny_folder):
    methods = [{"kind": "linear", "factor": 2, "layers": ["sliding_attention"]}]
    with pytest.raises(ConfigError, match="tiny-llama"):
        make_plan(sweep_of(tiny_folder, methods=methods), tiny_folder)


def test_lengths_beyond_every_document_are_refused(tiny_folder):
    with pytest.raises(DataError, match="no document has 9000000 tokens"):
        make_plan(sweep_of(tiny_folder, context_lengths=[9_000_000]), tiny_folder)


def test_a_length_too_short_for_a_passkey_is_refused(tiny_folder):
    with pytest.raises(DataError, match="passkey prompt needs"):
        make_plan(sweep_of(tiny_folder, probes={"passkey": {}}, context_lengths=[16]), tiny_folder)


def test_a_native_scaling_that_follows_the_length_has_a_pass_a_length(tiny_folder, tmp_path):
    import json
    import shutil

    copy = tmp_path / "dynamic"
    shutil.copytree(tiny_folder, copy)
    config = json.loads((copy / "config.json").read_text())
    methods = [{"kind": "native"}]
    assert len(make_plan(sweep_of(copy, methods=methods), copy).passes) == 1
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    (copy / "config.json").write_text(json.dumps(config))
    assert len(make_plan(sweep_of(copy, methods=methods), copy).passes) == 2


def test_layers_that_keep_such_a_scaling_have_a_pass_a_length_too(tmp_path, zoo_tokenizer):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    from tests.models import SHARED

    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    config = Gemma2Config(**SHARED, sliding_window=11, rope_parameters=parameters)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    zoo_tokenizer.save_pretrained(tmp_path)
    for layers, passes in ((["full_attention"], 2), (["full_attention", "sliding_attention"], 1)):
        methods = [{"kind": "linear", "factor": 2, "layers": layers}]
        assert len(make_plan(sweep_of(tmp_path, methods=methods), tmp_path).passes) == passes


def test_cells_keep_the_order_of_the_file(tiny_folder):
    methods = [{"kind": "yarn"}, {"kind": "native"}, {"kind": "linear"}, {"kind": "none"}]
    plan = make_plan(sweep_of(tiny_folder, methods=methods), tiny_folder)
    assert [(c.method, c.context_length) for c in plan.cells] == [
        (m["kind"], n) for m in methods for n in (64, 128)
    ]


def test_chunks_and_devices_change_no_id(tiny_folder):
    model = {"path": str(tiny_folder), "chunk_tokens": 16, "device": "cpu"}
    assert ids(tiny_folder) == ids(tiny_folder, models=[model])
