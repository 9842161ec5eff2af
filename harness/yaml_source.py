"""A sweep file as plain values that know where they come from: a line, or an override.

The file is read as YAML 1.2 (``off`` is text, ``1e6`` a number). A later complaint about a value
can then say where to look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.yaml_tree import KeyPath, YamlTree


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that a mistyped one is nearest to, ``None`` if none is near."""
    spelled = {name.lower().replace("-", "_"): name for name in known}
    found = get_close_matches(word.lower().replace("-", "_"), list(spelled), n=1, cutoff=0.6)
    return spelled[found[0]] if found else None


def key_text(path: KeyPath) -> str:
    """A path as it is printed: ``methods[2].factor``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


@dataclass(frozen=True)
class _Override:
    """One ``key=value`` that was set over the file."""

    path: KeyPath
    text: str


class YamlSource:
    """The values of a YAML text and where each of them comes from.

    Attributes:
        data: The document as dicts, lists, text, numbers, booleans and None; nothing is shared.
    """

    def __init__(self, text: str, label: str) -> None:
        """Parse a text.

        Args:
            text: YAML 1.2, one document.
            label: What messages call it: the path of the file.

        Raises:
            ConfigError: If it is not YAML, or uses of it what a plain document does not need.
        """
        self._label = label
        self._tree = YamlTree(text, label)
        self._overrides: list[_Override] = []
        self.data = self._tree.data

    def where(self, path: KeyPath) -> str:
        """What stands before a message: ``file.yaml:12``, or the override that set the value."""
        for override in reversed(self._overrides):
            if path[: len(override.path)] == override.path:
                return f"--set {override.text}"
        return f"{self._label}:{self.line(path)}"

    def line(self, path: KeyPath) -> int:
        """The line, from 1, of a key or list item; of the nearest one around it if it is absent."""
        return self._tree.line(path)

    def override(self, text: str) -> None:
        """Set one value over the file's.

        Args:
            text: ``key.sub=value``; numbers in the key are places in a list, from 0
                (``models.0.path=zoo:llama-10k``); the value is YAML.

        Raises:
            ConfigError: If it cannot be read, or there is nothing at the key to set.
        """
        key, equals, value = text.partition("=")
        parts = re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")
        if not equals or not all(parts):
            raise ConfigError(f"--set {text}: write key=value, such as --set seed=1")
        new = YamlTree(value, f"--set {text}", with_lines=False).data
        if not isinstance(self.data, dict):
            raise ConfigError(f"--set {text}: the file is not a mapping")
        path, place = self._descend(parts, text)
        place[path[-1]] = new
        self._overrides.append(_Override(path, text))

    def _descend(self, parts: list[str], text: str) -> tuple[KeyPath, Any]:
        """Follow an override's key; its path, and the container that holds its last part."""
        place: Any = self.data
        path: KeyPath = ()
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            name = key_text(path) or "the file"
            if isinstance(place, list):
                if not part.isdecimal() or int(part) >= len(place):
                    known = f"0 to {len(place) - 1}" if place else "none, the list is empty"
                    raise ConfigError(f"--set {text}: no item '{part}' in {name} (items: {known})")
                step: str | int = int(part)
            elif isinstance(place, dict):
                step = part
                if left and place.get(part) is None:
                    place[part] = {}
            else:
                raise ConfigError(f"--set {text}: {name} is a single value and has no '{part}'")
            path = (*path, step)
            if left:
                place = place[step]
        return path, place


def read_yaml(path: Path | str) -> YamlSource:
    """Read a YAML file.

    Args:
        path: The file; messages name it as it is given.

    Raises:
        ConfigError: If there is no such file, or it is no YAML text in UTF-8.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        siblings = sorted(p.name for p in file.parent.glob("*.y*ml"))
        hint = nearest(file.name, siblings)
        more = f"; did you mean '{file.parent / hint}'?" if hint else ""
        raise ConfigError(f"{path}: no such file{more}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; give a YAML file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from None
    return YamlSource(text, str(path))
