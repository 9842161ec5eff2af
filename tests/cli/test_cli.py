"""What a user types, and what a user gets wrong."""

import subprocess
import sys

import pytest

from harness.cli import main

SWEEP = """\
name: cli
models:
  - path: {path}
    device: cpu
methods:
  - kind: none
  - {{kind: yarn, factor: auto}}
context_lengths: [96, 128]
data: {{source: stdlib, documents: 1}}
probes:
  perplexity: {{}}
  entropy: {{}}
  passkey: {{depths: 2, trials: 1}}
"""


@pytest.fixture
def sweep(tiny_folder, tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(path=tiny_folder))
    return path


def fails(capsys, *arguments):
    """The one message of a command that must fail, and nothing else of it."""
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    assert captured.err.startswith("ropewalk: ")
    return captured.err


def test_run_plan_and_report(sweep, tmp_path, capsys):
    results = tmp_path / "r"
    assert main(["plan", str(sweep), "--results", str(results)]) == 0
    assert "tiny-llama" in capsys.readouterr().out
    assert not results.exists()
    assert main(["run", str(sweep), "--results", str(results)]) == 0
    captured = capsys.readouterr()
    assert "perplexity of the last eighth" in captured.out
    assert str(results / "figures") in captured.out.replace("\n", "")
    assert "passes" in captured.err
    assert main(["report", str(results)]) == 0
    assert "perplexity of the last eighth" in capsys.readouterr().out
    assert main(["plan", str(sweep), "--results", str(results)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "tiny-llama" in line)
    passes, done = row.split()[-2:]
    assert passes == done != "0"


def test_set_changes_the_sweep(sweep, tmp_path, capsys):
    arguments = ["run", sweep, "--results", tmp_path / "r", "--set", "context_lengths=[100]"]
    assert main([str(a) for a in [*arguments, "--set", "seed=3", "--quiet"]]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    summary = (tmp_path / "r" / "summary.csv").read_text()
    assert ",100," in summary
    assert "seed: 3" in (tmp_path / "r" / "sweep.yaml").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("models.0.path", "zoo:llama-1k"), "no zoo model 'llama-1k'"),
        (("models.0.path", "./nowhere"), "no such folder"),
        (("models.0.path", "somebody/no-such-model"), "cannot be loaded"),
        (("methods.1.kind", "yarm"), "yarn"),
        (("methods.1.factor", "0.5"), "factor"),
        (("methods.1.factor", "much"), "factor"),
        (("context_lengths", "[1, 8]"), "context_lengths"),
        (("context_lengths", "[96, 96]"), "96"),
        (("context_lengths", "[9000000]"), "no document has 9000000 tokens"),
        (("context_lengths", "[]"), "context_lengths"),
        (("data", "{source: text, files: ['*.none']}"), "no file matches"),
        (("data.documents", "0"), "documents"),
        (("probes", "{}"), "probes"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(sweep, tmp_path, capsys, change, message):
    results = tmp_path / "r"
    key, value = change
    text = fails(capsys, "run", sweep, "--results", results, "--set", f"{key}={value}")
    assert message in text
    assert not results.exists()


def test_a_model_without_rotary_embedding_is_refused(sweep, tmp_path, capsys, zoo_tokenizer):
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=2048))
    model.save_pretrained(folder)
    zoo_tokenizer.save_pretrained(folder)
    capsys.readouterr()  # what transformers says when it saves
    text = fails(capsys, "run", sweep, "--set", f"models.0.path={folder}")
    assert "rotary" in text


def test_files_that_are_no_sweep(tmp_path, capsys):
    assert "missing.yaml" in fails(capsys, "run", tmp_path / "missing.yaml")
    (tmp_path / "blob.yaml").write_bytes(b"\xff\xfe\x00")
    assert "blob.yaml" in fails(capsys, "run", tmp_path / "blob.yaml")
    assert "holds no results" in fails(capsys, "report", tmp_path)
    assert "holds no results" in fails(capsys, "report", tmp_path / "nowhere")
    (tmp_path / "tables").mkdir()
    text = fails(capsys, "report", tmp_path)
    assert "not the passes" in text
    assert f"ropewalk run {tmp_path / 'sweep.yaml'}" in text


def test_results_must_be_a_folder(sweep, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert "is a file" in fails(capsys, "run", sweep, "--results", tmp_path / "file")


def test_stopping_says_how_to_go_on(sweep, tmp_path, capsys, monkeypatch):
    import harness.runner

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.runner, "make_plan", stop)
    assert main(["run", str(sweep), "--results", str(tmp_path / "r")]) == 130
    assert "goes on from there" in capsys.readouterr().err


def test_methods_lists_every_method(capsys):
    from patches import PATCHES

    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(kind in out for kind in PATCHES)
    assert "beta_fast=32" in out


def test_zoo_lists_every_model(capsys):
    from harness.zoo import ZOO

    assert main(["zoo"]) == 0
    out = capsys.readouterr().out
    assert all(f"zoo:{name}" in out for name in ZOO)


def test_without_a_command_the_help_is_shown(capsys):
    assert main([]) == 2
    assert "ropewalk run configs/quickstart.yaml" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()


def test_help_needs_no_torch():
    code = (
        "import sys, harness, patches\n"
        "from harness.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "main(['methods'])\n"
        "bad = [m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_python_dash_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "harness", "--help"], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("usage: ropewalk")


@pytest.mark.parametrize("name", ["llama3-8b", "gemma3", "zoo", "quickstart", "entropy_collapse"])
def test_every_shipped_config_can_be_planned(name, tmp_path, capsys):
    from pathlib import Path

    path = Path(__file__).parents[2] / "configs" / f"{name}.yaml"
    assert main(["plan", str(path), "--results", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert "passes" in out
    if name in ("llama3-8b", "gemma3"):
        assert "not reachable now" in out
        assert "at most" in out
    else:
        assert "not reachable" not in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("models.0.path=zoo:nope", "no zoo model"),
        ("context_lengths=[9000000]", "no document has"),
        ("methods=[{kind: ntk, factor: 1e300}]", "too large"),
    ],
)
def test_plan_fails_where_run_would(sweep, capsys, change, message):
    assert message in fails(capsys, "plan", sweep, "--set", change)


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(sweep, tmp_path, capsys):
    for device in ("banana", "cuda:99"):
        text = fails(
            capsys, "run", sweep, "--results", tmp_path / "r", "--set", f"models.0.device={device}"
        )
        assert f"device '{device}'" in text
    assert not (tmp_path / "r").exists()


def test_a_folder_without_weights_is_refused(sweep, tmp_path, capsys, tiny_folder):
    import shutil

    copy = tmp_path / "empty"
    shutil.copytree(tiny_folder, copy)
    (copy / "model.safetensors").unlink()
    text = fails(
        capsys, "run", sweep, "--results", tmp_path / "r", "--set", f"models.0.path={copy}"
    )
    assert "has no weights" in text
    (copy / "config.json").write_text("[]")
    (copy / "model.safetensors").write_bytes(b"x")
    fails(capsys, "run", sweep, "--results", tmp_path / "r", "--set", f"models.0.path={copy}")
    assert not (tmp_path / "r").exists()


def test_a_users_own_sweep_file_is_not_written_over(sweep, capsys):
    before = sweep.read_text()
    assert "holds other files" in fails(capsys, "run", sweep, "--results", sweep.parent)
    assert sweep.read_text() == before


def test_a_full_disk_is_one_line(sweep, tmp_path, capsys, monkeypatch):
    import harness.runner

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(harness.runner, "save_cells", full)
    text = fails(capsys, "run", sweep, "--results", tmp_path / "r")
    assert "somewhere: No space left on device" in text
