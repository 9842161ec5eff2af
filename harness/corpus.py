"""The text every machine has: the running Python's own standard library.

Training (``scripts/train_zoo.py``) reads everything here except ``HELD_OUT``; evaluation
(``data: {source: stdlib}``) reads ``HELD_OUT`` and nothing else. Another Python version has
other text: the manifest of hashes says so, and the token hash of the evaluated data is part of
every result's identity.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DataError

# Long modules, never trained on, in the order in which `documents: N` takes them. The first ten
# have at least 16 x 256 tokens of the zoo's tokenizer in every supported Python (a test counts).
HELD_OUT: tuple[str, ...] = (
    "typing.py",
    "argparse.py",
    "inspect.py",
    "tarfile.py",
    "_pydecimal.py",
    "turtle.py",
    "unittest/mock.py",
    "doctest.py",
    "urllib/request.py",
    "subprocess.py",
    "zipfile.py",
    "difflib.py",
    "datetime.py",
    "mailbox.py",
    "http/cookiejar.py",
    "ipaddress.py",
)

# A module that moved between Python versions is found, and held out, under both names.
_MOVED: dict[str, tuple[str, ...]] = {
    "datetime.py": ("_pydatetime.py",),
    "zipfile.py": ("zipfile/__init__.py",),
}

# Tests are twice the size of the library and mostly tables; the others are not everywhere.
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib", "lib2to3"}
)


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of the standard library, with the hash of its text."""

    name: str
    text: str
    sha256: str


def _library_root() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _read(root: Path, path: Path) -> SourceFile | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError):  # a few modules are Latin-1 on purpose
        return None
    digest = hashlib.sha256(text.encode()).hexdigest()
    return SourceFile(name=path.relative_to(root).as_posix(), text=text, sha256=digest)


def held_out_names() -> frozenset[str]:
    """Every path under which a held-out module can lie."""
    return frozenset(HELD_OUT).union(*(_MOVED.get(name, ()) for name in HELD_OUT))


def training_files() -> list[SourceFile]:
    """Read the standard library without its tests and without ``HELD_OUT``, sorted by name."""
    root = _library_root()
    skipped = held_out_names()
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _SKIPPED_FOLDERS.intersection(relative.parts) or relative.as_posix() in skipped:
            continue
        source = _read(root, path)
        if source is not None and source.text.strip():
            found.append(source)
    return found


def held_out_files() -> list[SourceFile]:
    """Read the held-out modules that this Python has, in the order of ``HELD_OUT``.

    Raises:
        DataError: If none is there (a Python without its library's sources).
    """
    root = _library_root()
    found = []
    for name in HELD_OUT:
        present = [n for n in (name, *_MOVED.get(name, ())) if (root / n).is_file()]
        # The larger of two is the module; the smaller re-exports it (datetime in Python 3.12).
        candidates = [s for s in (_read(root, root / n) for n in present) if s is not None]
        if candidates:
            found.append(max(candidates, key=lambda source: len(source.text)))
    if not found:
        raise DataError(
            f"no source of Python's standard library found in {root}; use `data: {{source: text, "
            "files: [...]}` with files of your own"
        )
    return found
