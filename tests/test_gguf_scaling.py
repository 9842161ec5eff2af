"""What a GGUF file says of its rotary scaling, and transformers' loader drops, is put back."""

import math
import warnings

import numpy as np
import pytest
import torch

from harness.errors import ModelError
from harness.gguf_scaling import put_back
from harness.models import load_model, model_facts
from harness.spec import ModelSpec
from patches import Llama3, RopeGeometry

gguf = pytest.importorskip("gguf")
HEADS, SIZE, HIDDEN, INNER, LAYERS, WORDS = 2, 64, 128, 96, 2, 50


def write(folder, *, keys=(), scale_linear=None, divisors=None, longrope=()):
    """A tiny random Llama as a GGUF file; `longrope` names its tensors of factors."""
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
    if scale_linear is not None:
        writer.add_float32("llama.rope.scale_linear", scale_linear)
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
    for name in longrope:
        writer.add_tensor(name, np.linspace(1, 8, SIZE // 2, dtype=np.float32))
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


@pytest.mark.parametrize(
    ("keys", "scale_linear", "kind", "factor"),
    [
        ([("factor", 4.0)], None, "linear", 4.0),  # llama.cpp: without a type, linear
        ([], 4.0, "linear", 4.0),  # the old key of the factor
        ([("factor", 2.0)], 4.0, "linear", 2.0),  # which the new one goes before
        ([("type", "yarn"), ("original_context_length", 128)], 4.0, "yarn", 4.0),
    ],
)
def test_a_factor_without_a_type_and_by_its_old_key(tmp_path, keys, scale_linear, kind, factor):
    spec = write(tmp_path, keys=keys, scale_linear=scale_linear)
    with pytest.warns(UserWarning, match=f"tiny.gguf is stretched by {kind} scaling"):
        parameters = model_facts(spec).config["rope_parameters"]
    assert (parameters["rope_type"], parameters["factor"]) == (kind, factor)


@pytest.mark.parametrize(
    "contents",
    [
        {"keys": [("type", "none")]},
        {"keys": [("type", "none"), ("factor", 4.0)]},
        {"keys": [("type", "none")], "scale_linear": 4.0},
        {"keys": [("type", "linear")]},
        {"keys": [("factor", 1.0)]},
        {"keys": [("factor", 0.0)]},
        {"keys": [("type", "yarn"), ("factor", 0.0)], "scale_linear": 4.0},  # 0 is a factor, too
        {"scale_linear": 1.0},
        {"keys": [("yarn_log_multiplier", 0.0)]},
        {"divisors": np.ones(SIZE // 2)},
    ],
)
def test_a_file_without_scaling_is_as_it_is(tmp_path, contents):
    spec = write(tmp_path, **contents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        facts = model_facts(spec)
    assert facts.config["rope_parameters"]["rope_type"] == "default"
    assert facts.trained_length == 512


def test_divisors_of_one_leave_the_keys(tmp_path):
    spec = write(tmp_path, keys=[("factor", 4.0)], divisors=np.ones(SIZE // 2))
    with pytest.warns(UserWarning, match="linear scaling"):
        assert model_facts(spec).config["rope_parameters"]["factor"] == 4.0


LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
YARN = [("type", "yarn"), ("factor", 4.0), ("original_context_length", 128)]
REFUSED = {
    "a type": ({"keys": [("type", "longrope"), ("factor", 4.0)]}, "'longrope' scaling"),
    "divisors": ({"divisors": np.linspace(1, 8, SIZE // 2)}, "not those of Llama 3.1"),
    "divisors and a factor": (
        {"keys": [("factor", 2.0)], "divisors": np.linspace(1, 8, SIZE // 2)},
        "a factor beside its own rotary divisors",
    ),
    "attention of linear": ({"keys": [("factor", 2.0), ("attn_factor", 1.5)]}, "factor of 1.5"),
    "yarn's mix": ({"keys": [*YARN, ("yarn_ext_factor", 0.5)]}, "yarn_ext_factor 0.5"),
    "linear's mix": ({"keys": [("factor", 2.0), ("yarn_ext_factor", 1.0)]}, "ext_factor 1"),
    "longrope": ({"longrope": [LONG, SHORT]}, f"LongRoPE's factors .{LONG}, {SHORT}."),
    "longrope's type": ({"keys": [("type", "longrope")], "longrope": [LONG]}, f".{LONG}."),
    "longrope's short": ({"longrope": [SHORT]}, f".{SHORT}."),
    "a log multiplier": (
        {"keys": [*YARN, ("yarn_log_multiplier", 0.0707)]},
        "yarn_log_multiplier 0.0707",
    ),
}


@pytest.mark.parametrize(("contents", "what"), REFUSED.values(), ids=REFUSED)
def test_scaling_without_an_equal_is_refused(tmp_path, contents, what):
    spec = write(tmp_path, **contents)
    with pytest.raises(
        ModelError, match=f"tiny.gguf carries .*{what}.*use the model's safetensors"
    ):
        model_facts(spec)


@pytest.mark.parametrize("contents", [c for c, _ in REFUSED.values()], ids=REFUSED)
def test_a_config_with_its_own_scaling_stays_as_it_is(tmp_path, contents):
    from transformers import LlamaConfig

    write(tmp_path, **contents)
    config = LlamaConfig(rope_parameters={"rope_theta": 1e4, **LLAMA3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put_back(config, tmp_path / "tiny.gguf")
    assert config.rope_parameters == {"rope_theta": 1e4, **LLAMA3}


def test_no_gguf_file_at_all(tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(b"nothing of the kind")
    spec = ModelSpec(path=str(tmp_path), gguf_file="tiny.gguf")
    with pytest.raises(ModelError, match="config cannot be loaded"):
        model_facts(spec)
