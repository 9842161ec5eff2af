"""What is known of a model before it is loaded is what the loaded model is."""

import json

import numpy as np
import pytest
import torch

import harness
from harness.errors import ModelError
from harness.models import check_device, devices_of, load_model, load_tokenizer, model_facts
from harness.spec import ModelSpec
from patches import RopeGeometry, YaRN, applied
from tests.models import MODELS, make_model, random_ids


def save(model, folder, drop=()):
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps(config))
    return ModelSpec(path=str(folder), device="cpu")


def olmo3():
    from transformers import Olmo3Config, Olmo3ForCausalLM

    from tests.models import SHARED

    config = Olmo3Config(
        **SHARED, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    )
    return Olmo3ForCausalLM(config)


@pytest.mark.parametrize("name", [n for n in MODELS if n != "cohere"])
def test_facts_from_the_config_are_the_models(name, tmp_path):
    spec = save(make_model(name, 0), tmp_path)
    facts = model_facts(spec)
    assert facts.geometry == RopeGeometry.from_model(load_model(spec))
    # GPT-OSS is stretched from 4096 by its class's own default.
    assert facts.trained_length == (4096 if name == "gpt_oss" else 64)


def test_what_a_config_leaves_out_its_class_fills_in(tmp_path):
    """Old Llama configs have no rope_theta, Gemma 2's no layer types."""
    spec = save(make_model("llama", 0), tmp_path / "llama", drop=("rope_parameters", "rope_theta"))
    assert model_facts(spec).geometry == RopeGeometry.from_model(load_model(spec))
    spec = save(make_model("gemma2", 0), tmp_path / "gemma2", drop=("layer_types",))
    assert set(model_facts(spec).layer_types) == {"sliding_attention", "full_attention"}


def test_olmo3_has_the_trained_length_of_its_full_layers(tmp_path):
    torch.manual_seed(0)
    spec = save(olmo3(), tmp_path)
    facts = model_facts(spec)
    assert facts.geometry == RopeGeometry.from_model(load_model(spec))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    yarn = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0}
    config["rope_parameters"] = {
        "full_attention": {**yarn, "original_max_position_embeddings": 64},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
    }
    config["max_position_embeddings"] = 512
    path.write_text(json.dumps(config))
    assert model_facts(spec).trained_length == 64


def test_a_trained_length_in_the_yaml_wins(tiny_folder):
    spec = ModelSpec(path=str(tiny_folder), trained_length=77)
    assert model_facts(spec).trained_length == 77


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
    spec = save(make_model("llama", 0), tmp_path)
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        load_tokenizer(spec)


def test_fingerprints_follow_the_files(tmp_path):
    spec = save(make_model("llama", 0), tmp_path)
    first = model_facts(spec).fingerprint
    assert first == model_facts(spec).fingerprint
    save(make_model("llama", 1), tmp_path)
    assert model_facts(spec).fingerprint != first


def test_a_device_map_loads_through_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    spec = save(make_model("llama", 0), tmp_path)
    plain = load_model(spec)
    spread = spec.model_copy(update={"device_map": "auto"})
    check_device(spread)
    model = load_model(spread)
    ids = random_ids(0, 40)
    assert harness.token_nll(model, ids, chunk_tokens=16) == pytest.approx(
        harness.token_nll(plain, ids), abs=1e-5
    )
    with applied(model, YaRN(factor=4)):
        assert np.isfinite(harness.token_nll(model, ids)).all()
    assert [str(d) for d in devices_of(model)] == ["cpu"]


def test_what_accelerate_keeps_elsewhere_is_on_no_device():
    model = make_model("llama", 0)
    model.model.layers[1].to("meta")
    assert [str(d) for d in devices_of(model)] == ["cpu"]


def test_a_device_map_needs_accelerate(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    spec = ModelSpec(path=str(tmp_path), device_map="auto")
    with pytest.raises(ModelError, match="accelerate"):
        check_device(spec)
