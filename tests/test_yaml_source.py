"""A YAML file becomes plain values, and every fault in it has a line."""

import math

import pytest

from harness.errors import ConfigError
from harness.yaml_source import YamlSource, key_text, nearest, read_yaml


def read(text):
    return YamlSource(text, "file.yaml")


def fault(text):
    with pytest.raises(ConfigError) as raised:
        read(text)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e6", 1e6),
        ("1E+6", 1e6),
        ("1.5e-3", 0.0015),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("-3", -3),
        ("1_000", 1000),
        ("12:30", "12:30"),
        ("4x", "4x"),
        ("2024-01-01", "2024-01-01"),
        ("'8'", "8"),
        ("!!str 8", "8"),
        ("zoo:llama-10k", "zoo:llama-10k"),
        ("[1, [2], {a: 3}]", [1, [2], {"a": 3}]),
    ],
)
def test_values_are_those_of_yaml_1_2(written, value):
    read_value = read(f"key: {written}\n").data["key"]
    assert read_value == value
    assert type(read_value) is type(value)


def test_nan_is_a_number():
    assert math.isnan(read("key: .nan").data["key"])


def test_anchors_and_merges():
    text = "base: &b {p: 1, q: [2]}\nother: &o {p: 3, r: 4}\nuse: {<<: [*o, *b], q: 5}\nagain: *b\n"
    data = read(text).data
    assert data["use"] == {"p": 3, "q": 5, "r": 4}
    assert data["again"] == data["base"]
    assert data["again"]["q"] is not data["base"]["q"]


@pytest.mark.filterwarnings("error")
def test_an_anchor_may_be_used_again():
    assert read("a: &x 1\nb: &x 2\nc: *x\n").data == {"a": 1, "b": 2, "c": 2}


def test_text_without_a_document_is_nothing():
    assert [read(text).data for text in ("", "# a comment\n", "---\n")] == [None, None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "file.yaml:3: the key 'a' is already given on line 1"),
        ("x:\n  'a': 1\n  \"a\": 2\n", "file.yaml:3: the key 'a' is already given on line 2"),
        ("a: &x {}\nb:\n  <<: *x\n  <<: *x\n", "file.yaml:4: the key '<<' is already given"),
        ("a:\n\tb: 1\n", "file.yaml:2: a tab cannot indent in YAML; use spaces"),
        ("a: 1\n---\nb: 2\n", "file.yaml:2: a second document (---)"),
        ("%YAML 1.1\n---\na: off\n", "file.yaml:1: only YAML 1.2 is read"),
        ("a: 1\nb: [1, 2\nc: 3\n", "file.yaml:3: not valid YAML: expected ',' or ']'"),
        ("a: b: c\n", "file.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: *nowhere\n", "file.yaml:1: not valid YAML: found undefined alias 'nowhere'"),
        ("a: 1\nb: \x07\n", "file.yaml:2: not valid YAML: special characters"),
        ("a: 1\n2: 3\n", "file.yaml:2: the key 2 is not text"),
        ("? [1, 2]\n: 3\n", "file.yaml:1: the key of several values is not text"),
        ("a:\n  b: &r [*r]\n", "file.yaml:2: the anchor &r contains itself"),
        ("a: 1\n<<: 3\n", "file.yaml:2: << must be followed by an alias of a mapping"),
        ("a: !!python/object:os.system x\n", "file.yaml:1: the tag !!python/object:os.system is"),
        ("a: !own {b: 1}\n", "file.yaml:1: the tag !own is not understood here"),
        ("a: !!int x\n", "file.yaml:1: 'x' is not a valid int"),
        ("a: !!bool yes\n", "file.yaml:1: 'yes' is not a valid bool"),
        ("a: " + "[" * 600, "file.yaml:1: nested too deeply"),
    ],
)
def test_faults_have_their_line(text, message):
    assert fault(text).startswith(message)


def test_aliases_of_aliases_do_not_fill_the_memory():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "more than 100000 values" in fault("\n".join(lines))


TEXT = """\
# a comment
name: x

models:
  - path: a
    dtype: float32
  -
    path: b
base: &b
  first: 1
merged:
  <<: *b
  second:
    - 1
    - {deep: 2}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("name",), 2),
        (("models",), 4),
        (("models", 0), 5),
        (("models", 0, "path"), 5),
        (("models", 0, "dtype"), 6),
        (("models", 1), 8),
        (("merged", "first"), 10),
        (("merged", "second", 1, "deep"), 15),
        (("models", 0, "revision"), 5),
        (("models", 7), 4),
        (("name", "below"), 2),
        (("nothing", "at", "all"), 2),
    ],
)
def test_the_line_of_a_key_or_of_what_is_around_it(path, line):
    source = read(TEXT)
    assert source.line(path) == line
    assert source.where(path) == f"file.yaml:{line}"


def test_files_that_cannot_be_read(tmp_path):
    def message(path):
        with pytest.raises(ConfigError) as raised:
            read_yaml(path)
        return str(raised.value)

    (tmp_path / "quickstart.yaml").write_text("a: 1\n")
    wanted = tmp_path / "quikstart.yaml"
    assert message(wanted) == (
        f"{wanted}: no such file; did you mean '{tmp_path / 'quickstart.yaml'}'?"
    )
    assert message(tmp_path / "zzz") == f"{tmp_path / 'zzz'}: no such file"
    assert message(tmp_path / "no" / "x.yaml").endswith("no such file")
    assert message(tmp_path) == f"{tmp_path}: is a folder; give a YAML file"
    assert "cannot be read" in message(tmp_path / "quickstart.yaml" / "x")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("a: 1\nb: \xe9t\xe9\n".encode("latin-1"))
    assert message(latin) == f"{latin}:2: not UTF-8 text; save the file as UTF-8"
    latin.write_bytes("a: 1\n".encode("utf-16"))
    assert message(latin).startswith(f"{latin}:1: not UTF-8 text")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes("a: 1\r\nb: ü\r\n".encode("utf-8-sig"))
    source = read_yaml(path)
    assert source.data == {"a": 1, "b": "ü"}
    assert source.line(("b",)) == 2


def test_overrides_set_values_and_are_named_as_their_place():
    source = read(TEXT)
    for text in (
        "name=y",
        "seed=1e3",
        "models.0.path=zoo:llama-10k",
        "models[1].dtype=off",
        "probes.passkey.trials=3",
        "merged={p: [1x, 2x]}",
        "base.first=",
    ):
        source.override(text)
    assert source.data == {
        "name": "y",
        "models": [
            {"path": "zoo:llama-10k", "dtype": "float32"},
            {"path": "b", "dtype": "off"},
        ],
        "base": {"first": None},
        "merged": {"p": ["1x", "2x"]},
        "seed": 1000.0,
        "probes": {"passkey": {"trials": 3}},
    }
    assert source.where(("models", 0, "path")) == "--set models.0.path=zoo:llama-10k"
    assert source.where(("merged", "p", 1)) == "--set merged={p: [1x, 2x]}"
    assert source.where(("models", 0, "dtype")) == "file.yaml:6"


def test_an_override_changes_one_of_two_aliases():
    source = read("a: &a {x: 1}\nb: *a\n")
    source.override("b.x=2")
    assert source.data == {"a": {"x": 1}, "b": {"x": 2}}


def test_the_last_override_of_a_key_wins():
    source = read("a: 1\n")
    source.override("a=2")
    source.override("a=3")
    assert source.data == {"a": 3}
    assert source.where(("a",)) == "--set a=3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "--set name: write key=value"),
        ("=3", "--set =3: write key=value"),
        ("a..b=3", "--set a..b=3: write key=value"),
        ("models.2.path=x", "--set models.2.path=x: no item '2' in models (items: 0 to 1)"),
        ("models.path=x", "--set models.path=x: no item 'path' in models (items: 0 to 1)"),
        ("name.sub=x", "--set name.sub=x: name is a single value and has no 'sub'"),
        ("seed=[1", "--set seed=[1: not valid YAML"),
        ("seed={a: 1, a: 2}", "--set seed={a: 1, a: 2}: the key 'a' is already given"),
    ],
)
def test_bad_overrides(text, message):
    with pytest.raises(ConfigError) as raised:
        read(TEXT).override(text)
    assert str(raised.value).startswith(message)


def test_nearest_and_key_text():
    assert nearest("facotr", ["kind", "factor", "layers"]) == "factor"
    assert nearest("Beta-Fast", ["beta_fast", "beta_slow"]) == "beta_fast"
    assert nearest("zzz", ["kind"]) is None
    assert nearest("zzz", []) is None
    assert key_text(("methods", 2, "factor")) == "methods[2].factor"
    assert key_text(()) == ""
