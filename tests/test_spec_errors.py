"""Every fault of a sweep file: its line, its key, and what to do about it."""

import typing

import pytest
from pydantic import BaseModel

from harness.errors import ConfigError
from harness.spec import _KNOWN, load_sweep

FILE = """\
name: small
seed: 0
models:
  - path: zoo:llama-10k
    dtype: float32
  - path: zoo:llama-500k
methods:
  - kind: none
  - {kind: linear, factor: auto}
  - kind: yarn
    factor: 8
    beta_fast: 16
context_lengths: [256,
  512,
  4x]
data:
  source: stdlib
  documents: 4
probes:
  perplexity:
  entropy: {queries: all}
  passkey:
    depths: 5
    trials: 4
"""
KINDS = "none, native, theta, linear, ntk, dynamic_ntk, ntk_by_parts, yarn, llama3"


@pytest.fixture
def faults(tmp_path):
    """The messages of a changed file, without the path in front."""

    def find(old, new, overrides=()):
        assert old in FILE
        path = tmp_path / "file.yaml"
        path.write_text(FILE.replace(old, new, 1))
        with pytest.raises(ConfigError) as raised:
            load_sweep(path, overrides)
        return str(raised.value).replace(str(path), "file.yaml").splitlines()

    return find


def test_the_file_itself_is_good(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(FILE)
    assert load_sweep(path).lengths_for(256) == (256, 512, 1024)


ONE_FAULT = [
    # keys
    ("factor: 8", "facotr: 8", "11: methods[2].facotr: unknown key; did you mean 'factor'?"),
    ("beta_fast:", "beta-fast:", "12: methods[2].beta-fast: unknown key; did you mean 'beta_fast'"),
    ("seed", "sede", "2: sede: unknown key; did you mean 'seed'?"),
    ("    dtype", "    dtpye", "5: models[0].dtpye: unknown key; did you mean 'dtype'?"),
    ("documents", "count", "18: data.count: unknown key; the keys here are source, documents"),
    ("  entropy", "  entropie", "21: probes.entropie: unknown key; did you mean 'entropy'?"),
    ("trials", "trails", "24: probes.passkey.trails: unknown key; did you mean 'trials'?"),
    ("queries", "query", "21: probes.entropy.query: unknown key; did you mean 'queries'?"),
    ("{kind: linear,", "{kind: linear, patch: 3,", "9: methods[1].patch: unknown key"),
    ("seed: 0", "name: again", "2: the key 'name' is already given on line 1"),
    # missing
    ("name: small\n", "", "1: name: is missing"),
    ("path: zoo:llama-500k", "name: x", "6: models[1].path: is missing"),
    ("kind: yarn\n    f", "f", f"10: methods[2].kind: is missing; it is one of {KINDS}"),
    ("kind: none", "kind: theta", "8: methods[0].base: is missing; theta needs it"),
    ("  source: stdlib\n", "", "16: data.source: is missing; it is one of stdlib, text, datasets"),
    ("source: stdlib", "source: datasets", "16: data.path: is missing"),
    ("perplexity:\n", "perplexity: {protocol: sliding}\n", "20: probes.perplexity.stride: is miss"),
    # names and kinds
    ("name: small", "name: a/b", "1: name: names a folder: letters, digits"),
    ("name: small", "name: .hidden", "1: name: names a folder"),
    ("name: small", "name: ''", "1: name: must not be empty"),
    ("name: small", "name: 2024", '1: name: must be text, not 2024; write "2024"'),
    ("kind: yarn", "kind: yarm", f"10: methods[2].kind: must be one of {KINDS}, not 'yarm'; did"),
    ("kind: yarn", "kind: zzz", f"10: methods[2].kind: must be one of {KINDS}, not 'zzz'"),
    ("kind: none", "kind:", f"8: methods[0].kind: must be one of {KINDS}, not nothing (null)"),
    ("kind: none", "name: [a]\n    kind: none", "8: methods[0].name: must be text, not a list"),
    ("kind: none", 'kind: none\n    name: "a\\nb"', "9: methods[0].name: must be one line"),
    ("stdlib", "stlib", "17: data.source: must be one of stdlib, text, datasets, not 'stlib'; did"),
    ("float32", "float31", "5: models[0].dtype: must be one of float32, bfloat16, float16, float6"),
    # numbers
    ("seed: 0", "seed: '0'", "2: seed: must be a whole number (without quotes), not '0'"),
    ("seed: 0", "seed: true", "2: seed: must be a whole number, not true"),
    ("seed: 0", "seed: 0.5", "2: seed: must be a whole number, not 0.5"),
    ("seed: 0", "seed: .inf", "2: seed: must be a whole number, not inf"),
    ("seed: 0", "seed: -1", "2: seed: must be at least 0, not -1"),
    ("seed: 0", "seed:", "2: seed: must be a whole number, not nothing (null)"),
    ("documents: 4", "documents: 0", "18: data.documents: must be at least 1, not 0"),
    ("dtype: float32", "trained_length: 1", "5: models[0].trained_length: must be at least 2, no"),
    ("dtype: float32", "revision: 12", '5: models[0].revision: must be text, not 12; write "12"'),
    ("queries: all", "queries: some", "21: probes.entropy.queries: must be all or a whole number"),
    ("queries: all", "queries: '8'", "21: probes.entropy.queries: must be all or a whole number"),
    ("queries: all", "queries: 0", "21: probes.entropy.queries: must be all or a whole number"),
    ("depths: 5", "depths: [0, 2]", "23: probes.passkey.depths[1]: must be a number from 0 (the s"),
    ("depths: 5", "depths: [.nan]", "23: probes.passkey.depths[0]: must be a number from 0"),
    ("depths: 5", "depths: [1, 1.0]", "23: probes.passkey.depths[1]: the depth 1.0 is given twice"),
    ("depths: 5", "depths: []", "23: probes.passkey.depths: must not be empty"),
    (
        "depths: 5",
        "depths: 0",
        "23: probes.passkey.depths: must be a whole number of at least 1 or",
    ),
    ("trials: 4", "generate: 1", "24: probes.passkey.generate: must be true or false, not 1"),
    ("trials: 4", "filler: txt", "24: probes.passkey.filler: must be one of sentences, text, not"),
    # methods' fields
    ("factor: 8", "factor: 0.5", '11: methods[2].factor: must be a number of at least 1 or "auto"'),
    ("factor: 8", "factor: much", "11: methods[2].factor: must be a number of at least 1"),
    ("factor: 8", "factor: '8'", "11: methods[2].factor: must be a number of at least 1"),
    ("factor: 8", "factor: true", "11: methods[2].factor: must be a number of at least 1"),
    ("factor: 8", "factor: .nan", "11: methods[2].factor: must be a number of at least 1"),
    ("beta_fast: 16", "beta_fast: 0.5", "12: methods[2].beta_fast: must be above beta_slow, not"),
    ("beta_fast: 16", "truncate: off", "12: methods[2].truncate: must be true or false, not 'off'"),
    ("beta_fast: 16", "layers: all", "12: methods[2].layers: must be a list of layer types"),
    ("beta_fast: 16", "layers: [1]", "12: methods[2].layers: must be a list of layer types"),
    ("{kind: linear,", "{kind: dynamic_ntk,", "9: methods[1].factor: must be a number of at le"),
    # lengths
    ("[256,", "[1,", "13: context_lengths[0]: must be at least 2 tokens, not 1"),
    ("  512,", "  '512',", "14: context_lengths[1]: must be a whole number of tokens or a multipl"),
    ("  512,", "  256,", "14: context_lengths[1]: the same length as context_lengths[0]"),
    ("  512,", "  4.0x,", "15: context_lengths[2]: the same length as context_lengths[1]"),
    ("  512,", "  0x,", "14: context_lengths[1]: must be above 0x, not '0x'"),
    ("  512,", "  2.5,", "14: context_lengths[1]: must be a whole number of tokens or a multiple"),
    ("[256,\n  512,\n  4x]", "[]", "13: context_lengths: must not be empty"),
    ("[256,\n  512,\n  4x]", "4x", "13: context_lengths: must be a list such as [1x, 2x, 4x]"),
    # shapes
    ("- path: zoo:llama-500k", "- zoo:x", "6: models[1]: must be a mapping, such as {path: zoo:x}"),
    ("- kind: none", "- none", "8: methods[0]: must be a mapping, such as {kind: none}"),
    ("- kind: none", "-", "8: methods[0]: must be a mapping (key: value), not nothing (null)"),
    (
        "{queries: all}",
        "off",
        "21: probes.entropy: must be a mapping of its settings, which",
    ),
    ("{queries: all}", "[1]", "21: probes.entropy: must be a mapping (key: value), not a list"),
    ("perplexity:\n", "perplexity: {stride: 3}\n", "20: probes.perplexity.stride: is for protoco"),
    (
        "  source: stdlib\n  documents: 4",
        "  - 3",
        "16: data: must be a mapping (key: value), not a",
    ),
    ("stdlib\n  documents: 4", "text\n  files: '*'", "18: data.files: must be a list, not '*'"),
    ("stdlib\n  documents: 4", "text\n  files: []", "18: data.files: must not be empty"),
    # things that must differ
    ("path: zoo:llama-500k", "path: x/llama-10k", "6: models[1]: models[0] is called 'llama-10k'"),
    ("kind: none", "kind: linear", "9: methods[1]: the same method as methods[0]"),
    ("kind: none", "{kind: linear, name: b}", "9: methods[1]: the same method as methods[0]"),
    ("- kind: none", "- {kind: ntk, name: linear}", "9: methods[1]: methods[0] is called 'linear'"),
]


@pytest.mark.parametrize(("old", "new", "message"), ONE_FAULT)
def test_one_fault_is_one_line(faults, old, new, message):
    (line,) = faults(old, new)
    assert line.startswith(f"file.yaml:{message}")


def test_all_faults_are_listed_in_the_order_of_the_file(faults):
    changed = FILE.replace("seed: 0", "seed: x").replace("dtype: float32", "dtype: 3")
    changed = changed.replace("factor: 8", "facotr: 8").replace("beta_fast", "beta_fats")
    changed = changed.replace("trials: 4", "trials: 0")
    assert faults(FILE, changed) == [
        "file.yaml:2: seed: must be a whole number, not 'x'",
        "file.yaml:5: models[0].dtype: must be one of float32, bfloat16, float16, float64, auto, "
        "not 3",
        "file.yaml:11: methods[2].facotr: unknown key; did you mean 'factor'?",
        "file.yaml:12: methods[2].beta_fats: unknown key; did you mean 'beta_fast'?",
        "file.yaml:24: probes.passkey.trials: must be at least 1, not 0",
    ]


def test_ten_faults_are_enough(faults):
    lines = faults("seed: 0", "\n".join(f"unknown{i}: 0" for i in range(14)))
    assert len(lines) == 11
    assert lines[-1] == "... and 4 more"


def test_a_fault_in_a_merged_mapping_has_the_line_where_it_is_written(faults):
    new = "- &m {kind: linear,\n     facotr: 3}\n  - {<<: *m, kind: ntk}"
    assert faults("- kind: none", new) == [
        "file.yaml:9: methods[0].facotr: unknown key; did you mean 'factor'?",
        "file.yaml:9: methods[1].facotr: unknown key; did you mean 'factor'?",
    ]


def test_faults_of_overrides_name_the_override(faults):
    overrides = ["methods.2.factor=0.5", "probes.passkey={trails: 3}", "models.1={name: x}"]
    assert faults("seed: 0", "seed: x", overrides) == [
        "file.yaml:2: seed: must be a whole number, not 'x'",
        "--set models.1={name: x}: models[1].path: is missing",
        '--set methods.2.factor=0.5: methods[2].factor: must be a number of at least 1 or "auto", '
        "not 0.5",
        "--set probes.passkey={trails: 3}: probes.passkey.trails: unknown key; did you mean "
        "'trials'?",
    ]
    assert faults("seed: 0", "seed: 1", ["sede=3"]) == [
        "--set sede=3: sede: unknown key; did you mean 'seed'?"
    ]


def test_overrides_are_applied_before_the_check(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(FILE.replace("seed: 0", "seed: x"))
    overrides = ["seed=1e3", "probes.passkey=false", "methods.2.layers=[a, b]", "data.documents=2"]
    sweep = load_sweep(path, overrides)
    assert sweep.seed == 1000
    assert sweep.probes.enabled == ("perplexity", "entropy")
    assert sweep.methods[2].patch.layers == ("a", "b")
    assert sweep.data.documents == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": is empty; a sweep needs name, models, methods, context_lengths, data, probes"),
        ("# nothing\n", ": is empty"),
        ("\n- 1\n", ":2: must be a mapping (key: value), not a list"),
        ("just text\n", ":1: must be a mapping (key: value), not text or a single value"),
    ],
)
def test_files_that_hold_no_mapping(tmp_path, text, message):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    for overrides in ([], ["seed=1"]):
        with pytest.raises(ConfigError) as raised:
            load_sweep(path, overrides)
        assert str(raised.value).startswith(f"{path}{message}")


def parts_of(annotation):
    """Every model of ours inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from parts_of(field.annotation)
    for argument in typing.get_args(annotation):
        yield from parts_of(argument)


def test_every_part_of_a_sweep_can_say_its_keys():
    assert set(parts_of(_KNOWN[()])) == set(_KNOWN.values())
