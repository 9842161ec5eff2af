"""What is installed is whole: both packages, their types, the zoo."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.zoo import ZOO

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_holds_packages_and_zoo(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("harness/py.typed", "patches/py.typed", "harness/cli.py", "patches/yarn.py"):
        assert name in names
    for model in ZOO:
        for file in ("model.safetensors", "config.json", "card.json"):
            assert f"harness/zoo/{model}/{file}" in names
    assert "harness/zoo/tokenizer/tokenizer.json" in names
    assert "harness/zoo/corpus_manifest.json" in names
    assert not [n for n in names if n.startswith(("tests/", "results/", "scripts/", "configs/"))]


def test_no_file_and_no_function_is_too_long():
    import ast

    for folder in ("harness", "patches", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            assert len(text.splitlines()) <= 300, path
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    # Docstrings do not count: they are as long as what they say.
                    first = node.body[0]
                    has_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                    start = first.end_lineno if has_text else node.lineno
                    assert node.end_lineno - start <= 50, f"{path}:{node.lineno} {node.name}"


def test_patches_never_imports_harness():
    for path in (ROOT / "patches").rglob("*.py"):
        assert "harness" not in path.read_text().replace("any harness", ""), path


def test_pinned_versions_satisfy_the_requirements():
    import tomllib

    from packaging.requirements import Requirement

    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            name, version = line.split("==")
            pins[name.lower().replace("_", "-")] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    for requirement in map(Requirement, requirements):
        version = pins[requirement.name.lower().replace("_", "-")]
        assert requirement.specifier.contains(version), requirement
