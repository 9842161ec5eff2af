"""A sweep file is read with all defaults, or refused with a line for each fault."""

import glob
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.errors import ConfigError
from harness.spec import (
    DatasetsData,
    EntropyProbe,
    ModelSpec,
    PasskeyProbe,
    PerplexityProbe,
    Probes,
    StdlibData,
    Sweep,
    TextData,
    dump_sweep,
    load_sweep,
    sweep_from_dict,
)
from harness.spec_parts import MethodSpec
from patches import PATCHES, NoScaling, NTKByParts, Theta, YaRN

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))

GOOD = {
    "name": "small",
    "models": [{"path": "zoo:llama-10k"}],
    "methods": [{"kind": "none"}],
    "context_lengths": ["1x", "2x"],
    "data": {"source": "stdlib"},
    "probes": {"perplexity": {}},
}


def sweep_of(**changes):
    return sweep_from_dict(GOOD | changes)


def faults(**changes):
    with pytest.raises(ConfigError) as raised:
        sweep_of(**changes)
    return str(raised.value).splitlines()


def test_defaults():
    sweep = sweep_of(
        methods=[{"kind": "none"}, {"kind": "yarn"}],
        probes={"perplexity": None, "entropy": {}, "passkey": None},
    )
    assert sweep.seed == 0
    assert sweep.models == [
        ModelSpec(
            path="zoo:llama-10k",
            revision=None,
            gguf_file=None,
            dtype="auto",
            device="auto",
            device_map=None,
            chunk_tokens="auto",
            trained_length=None,
            name=None,
        )
    ]
    assert [m.patch for m in sweep.methods] == [NoScaling(), YaRN(factor="auto")]
    assert sweep.data == StdlibData(source="stdlib", documents=8)
    assert sweep.probes.perplexity == PerplexityProbe(protocol="full", stride=None)
    assert sweep.probes.entropy == EntropyProbe(queries="all", local_window=64, documents=None)
    assert sweep.probes.passkey == PasskeyProbe(
        depths=5, trials=4, digits=5, distractors=0, filler="sentences", generate=False
    )


def test_probes_are_on_when_their_key_is_there():
    assert sweep_of(probes={"passkey": None}).probes.enabled == ("passkey",)
    everything = {"entropy": {}, "passkey": {}, "perplexity": None}
    assert sweep_of(probes=everything).probes.enabled == ("perplexity", "entropy", "passkey")
    assert sweep_of(probes=everything | {"passkey": False}).probes.enabled == (
        "perplexity",
        "entropy",
    )
    assert Probes(perplexity=PerplexityProbe(), passkey=None).enabled == ("perplexity",)


def test_the_callers_dict_is_left_alone():
    probes = {"perplexity": None, "entropy": False}
    sweep_of(probes=probes)
    assert probes == {"perplexity": None, "entropy": False}


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("zoo:llama-10k", "llama-10k"),
        ("meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B"),
        ("./models/mine/", "mine"),
        ("gpt2", "gpt2"),
        ("/", "/"),
    ],
)
def test_labels(path, label):
    assert ModelSpec(path=path).label == label
    assert ModelSpec(path=path, name="other").label == "other"


def test_methods_are_built_with_their_fields():
    methods = sweep_of(
        methods=[
            {"kind": "yarn", "factor": 8, "layers": ["full_attention"]},
            {"kind": "ntk_by_parts", "variant": "paper", "name": "parts"},
            {"kind": "theta", "base": 5e6},
        ]
    ).methods
    assert [m.patch for m in methods] == [
        YaRN(factor=8, layers=("full_attention",)),
        NTKByParts(variant="paper"),
        Theta(base=5e6),
    ]
    assert [m.name for m in methods] == [
        "yarn(factor=8, layers=full_attention)",
        "parts",
        "theta(base=5000000)",
    ]
    assert [m.kind for m in methods] == ["yarn", "ntk_by_parts", "theta"]


def test_a_patch_made_in_python_is_a_method_too():
    method = MethodSpec.model_validate({"patch": YaRN(factor=2)})
    assert (method.kind, method.name) == ("yarn", "yarn(factor=2)")
    assert sweep_of(methods=[method, {"patch": NoScaling(), "name": "plain"}]).methods[0] == method


def test_whole_numbers_may_be_written_as_floats():
    sweep = sweep_of(seed=1e6, context_lengths=[1e3], probes={"entropy": {"queries": 2e2}})
    assert (sweep.seed, sweep.context_lengths, sweep.probes.entropy.queries) == (10**6, [1000], 200)
    assert all(type(n) is int for n in (sweep.seed, *sweep.context_lengths))


def test_context_lengths_of_a_model():
    sweep = sweep_of(context_lengths=["16x", 100, "0.25x", "1.5x", "1x"])
    assert sweep.lengths_for(256) == (64, 100, 256, 384, 4096)
    assert sweep.lengths_for(8192)[-1] == 131072


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([256, "1x"], "256 and 1x are both 256 tokens at a trained length of 256; remove one"),
        (["0.001x"], "0.001x of a trained length of 256 tokens is 0; at least 2 are needed"),
    ],
)
def test_context_lengths_that_do_not_fit_a_model(lengths, message):
    with pytest.raises(ConfigError, match=message):
        sweep_of(context_lengths=lengths).lengths_for(256)


def test_a_stride_is_not_longer_than_the_window():
    probes = {"perplexity": {"protocol": "sliding", "stride": 600}}
    assert sweep_of(probes=probes, context_lengths=["4x"]).lengths_for(256) == (1024,)
    with pytest.raises(ConfigError, match=r"stride: 600 tokens is more than the longest .*, 512"):
        sweep_of(probes=probes).lengths_for(256)


@given(st.lists(st.integers(1, 64), min_size=1, unique=True), st.integers(2, 10**6), st.randoms())
def test_the_order_of_context_lengths_does_not_matter(multiples, trained_length, random):
    lengths = [f"{m}x" for m in multiples]
    expected = sweep_of(context_lengths=list(lengths)).lengths_for(trained_length)
    random.shuffle(lengths)
    assert sweep_of(context_lengths=lengths).lengths_for(trained_length) == expected
    assert list(expected) == sorted(m * trained_length for m in multiples)


def round_trip(sweep, folder):
    path = folder / "resolved.yaml"
    path.write_text(dump_sweep(sweep), encoding="utf-8")
    return load_sweep(path)


def test_a_dumped_sweep_reads_back_equal(tmp_path):
    sweep = sweep_of(
        name="123",
        seed=5,
        models=[
            {"path": "zoo:llama-10k", "name": "4x", "revision": "1e5"},
            {"path": "off", "dtype": "float64", "chunk_tokens": 1e3},
            {"path": "spread", "device_map": "auto", "gguf_file": "a.gguf"},
            {"path": "2024-01-01", "trained_length": 77},
            {"path": "null"},
            {"path": "ü 日本 : #" + " x" * 200, "name": "a  b"},
        ],
        methods=[
            {"kind": "theta", "base": 123456.789},
            *({"kind": kind} for kind in PATCHES if kind != "theta"),
            {"kind": "yarn", "beta_slow": 1e-7, "truncate": False, "layers": ["a", "b"]},
        ],
        context_lengths=["4x", 32, "0.5x"],
        data={"source": "text", "files": ["/a/*.txt", "/'q'"], "documents": 3},
        probes={"entropy": {"queries": 9}, "passkey": {"depths": [0, 0.1, 1], "generate": True}},
    )
    assert round_trip(sweep, tmp_path) == sweep
    text = dump_sweep(sweep)
    assert "beta_fast: 32.0" in text
    assert "dtype: auto" in text
    assert "perplexity" not in text


def test_file_patterns_are_relative_to_the_sweep_file_wherever_it_is_run_from(tmp_path):
    sweep = sweep_of(data={"source": "text", "files": ["*.txt", "/a/b.txt"]})
    loaded = round_trip(sweep, tmp_path)
    assert loaded.data.files == [str(tmp_path / "*.txt"), "/a/b.txt"]
    (tmp_path / "elsewhere").mkdir()
    assert round_trip(loaded, tmp_path / "elsewhere") == loaded
    (tmp_path / "odd[1]").mkdir()
    (tmp_path / "odd[1]" / "a.txt").write_text("x")
    odd = round_trip(sweep_of(data={"source": "text", "files": ["*.txt"]}), tmp_path / "odd[1]")
    assert len(glob.glob(odd.data.files[0])) == 1  # noqa: PTH207 - what the reader does


ONE_LINE = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])


@given(st.floats(1, 1e300), st.text(ONE_LINE, max_size=20).map(str.strip))
def test_any_factor_and_path_read_back_equal(tmp_path_factory, factor, path):
    sweep = sweep_of(
        models=[{"path": "x" + path, "name": "m"}], methods=[{"kind": "linear", "factor": factor}]
    )
    assert round_trip(sweep, tmp_path_factory.mktemp("dump")) == sweep


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs(path, tmp_path):
    sweep = load_sweep(path)
    assert sweep.name == path.stem
    lengths = sweep.lengths_for(sweep.models[0].trained_length or 256)
    assert len(lengths) == len(sweep.context_lengths)
    assert round_trip(sweep, tmp_path) == sweep


def test_what_the_shipped_configs_promise():
    loaded = {path.stem: load_sweep(path) for path in CONFIGS}
    assert set(loaded) == {
        "quickstart",
        "zoo",
        "entropy_collapse",
        "llama3-8b",
        "gemma3",
        "gemma-3-270m-past",
        "gemma-3-270m-inside",
        "qwen2.5-coder-0.5b-inside",
    }
    quickstart = loaded["quickstart"]
    assert [m.label for m in quickstart.models] == ["llama-10k", "gemma-local-global"]
    assert [m.kind for m in quickstart.methods] == ["none", "linear", "ntk", "yarn"]
    assert quickstart.lengths_for(256) == (256, 512, 1024, 2048, 4096)
    assert quickstart.probes.enabled == ("perplexity", "entropy", "passkey")
    assert quickstart.probes.passkey.trials >= 10
    zoo = loaded["zoo"]
    assert {m.kind for m in zoo.methods} == set(PATCHES)
    assert {m.patch.beta_fast for m in zoo.methods if m.kind == "yarn"} == {2, 8, 32}
    assert loaded["llama3-8b"].lengths_for(8192)[-1] == 131072
    assert all(m.patch.layers is None for m in loaded["gemma3"].methods)


def test_datasets_data():
    data = sweep_of(data={"source": "datasets", "path": "a/b"}).data
    assert data == DatasetsData(
        source="datasets", path="a/b", name=None, split="test", column="text", documents=8
    )
    assert TextData(source="text", files=["*.txt"]).documents is None


def test_parts_are_frozen_and_strict_from_python_too():
    sweep = sweep_of()
    with pytest.raises(ValidationError):
        sweep.seed = 3
    with pytest.raises(ValidationError):
        StdlibData(source="stdlib", documents="8")
    with pytest.raises(ValidationError, match="at least one"):
        Probes()
    assert isinstance(sweep.model_copy(update={"models": []}), Sweep)


def test_a_dict_is_refused_without_file_and_line():
    assert faults(seed="3", sede=3) == [
        "seed: must be a whole number (without quotes), not '3'",
        "sede: unknown key; did you mean 'seed'?",
    ]
    with pytest.raises(ConfigError, match="a sweep must be a dict, not a list"):
        sweep_from_dict([])


def test_reading_a_sweep_does_not_import_torch():
    code = "import sys, harness.spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
