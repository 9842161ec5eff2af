"""What a GGUF file says of its rotary scaling, and transformers' loader drops, is put back."""

import math
import warnings

import numpy as np
import pytest
import torch

from harness.errors import ModelError
from harness.models import load_model, model_facts
from harness.spec import ModelSpec
from patches import Llama3, RopeGeometry

gguf = pytest.importorskip("gguf")
HEADS, SIZE, HIDDEN, INNER, LAYERS, WORDS = 2, 64, 128, 96, 2, 50


def write(folder, *, keys=(), divisors=None):
    """A tiny random Llama as a GGUF file."""
    rng = np.random.default_rng(0)
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(WORDS)
    for name, value in keys:
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"llama.rope.scaling.{name}", value)
    shapes = {"token_embd": (WORDS, HIDDEN), "output": (WORDS, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {block + n: (HIDDEN, HIDDEN) for n in ("attn_q", "attn_k", "attn_v")}
        shapes |= {block + "attn_output": (HIDDEN, HIDDEN), block + "attn_norm": (HIDDEN,)}
        shapes |= {block + n: (INNER, HIDDEN) for n in ("ffn_gate", "ffn_up")}
        shapes |= {block + "ffn_down": (HIDDEN, INNER), block + "ffn_norm": (HIDDEN,)}
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", rng.normal(0, 0.3, shape).astype(np.float32))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(divisors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelSpec(path=str(folder), gguf_file="tiny.gguf", dtype="float32", device="cpu")


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(2, 42)[None]).logits


def native(model, parameters):
    """The same weights in a model built with these rotary parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config.to_dict() | {"rope_parameters": parameters}
    other = LlamaForCausalLM(LlamaConfig(**config)).eval()
    other.load_state_dict(model.state_dict())
    return other


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([("type", "linear"), ("factor", 4.0)], {"rope_type": "linear", "factor": 4.0}),
        (
            [("type", "yarn"), ("factor", 4.0), ("original_context_length", 128)],
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        (
            [
                ("type", "yarn"),
                ("factor", 4.0),
                ("original_context_length", 128),
                ("attn_factor", 0.5),
                ("yarn_beta_fast", 16.0),
            ],
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "attention_factor": 0.5 * (0.1 * math.log(4) + 1),
                "beta_fast": 16.0,
            },
        ),
    ],
)
def test_scaling_keys_are_put_back(tmp_path, keys, expected):
    spec = write(tmp_path, keys=keys)
    with pytest.warns(UserWarning, match="drops; ropewalk puts it back"):
        facts = model_facts(spec)
    parameters = facts.config["rope_parameters"]
    assert {key: parameters[key] for key in expected} == expected
    if "original_max_position_embeddings" in expected:
        assert facts.trained_length == 128
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once, not again at loading
        model = load_model(spec)
    assert torch.equal(logits(model), logits(native(model, {"rope_theta": 1e4, **expected})))
    assert not torch.allclose(logits(model), logits(native(model, {"rope_theta": 1e4})), atol=1e-3)


def test_llama3_divisors_are_put_back(tmp_path):
    geometry = RopeGeometry(rotary_dim=SIZE, base=10000.0, trained_length=8192)
    divisors = geometry.inv_freq() / Llama3(factor=8).tables(geometry, 1).inv_freq
    spec = write(tmp_path, divisors=divisors)
    with pytest.warns(UserWarning, match="llama3 scaling"):
        facts = model_facts(spec)
    assert facts.config["rope_parameters"] == {"rope_theta": 10000.0, **LLAMA3}
    assert facts.trained_length == 8192
    model = load_model(spec)
    assert torch.equal(logits(model), logits(native(model, {"rope_theta": 1e4, **LLAMA3})))


def test_a_file_without_scaling_is_as_it_is(tmp_path):
    spec = write(tmp_path, keys=[("type", "none")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        facts = model_facts(spec)
    assert facts.config["rope_parameters"]["rope_type"] == "default"
    assert facts.trained_length == 512


def test_scaling_without_an_equal_is_refused(tmp_path):
    with pytest.raises(ModelError, match="longrope"):
        model_facts(write(tmp_path, keys=[("type", "longrope"), ("factor", 4.0)]))
    with pytest.raises(ModelError, match="not those of Llama"):
        model_facts(write(tmp_path, divisors=np.linspace(1, 8, SIZE // 2)))


def test_no_gguf_file_at_all(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"nothing of the kind")
    spec = ModelSpec(path=str(tmp_path), gguf_file="tiny.gguf")
    with pytest.raises(ModelError, match="config cannot be loaded"):
        model_facts(spec)
