"""A YAML 1.2 text as a tree of nodes, and from it plain values and the lines of keys."""

from __future__ import annotations

import math
import warnings
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.errors import ConfigError

KeyPath = tuple[str | int, ...]

# Aliases of aliases grow without bound; no sweep has as many values as this.
_MOST_VALUES = 100_000
_TAGS = "tag:yaml.org,2002:"


class YamlTree:
    """One YAML document.

    Attributes:
        data: Dicts, lists, text, numbers, booleans and None; nothing is shared, aliases are copies.
    """

    def __init__(self, text: str, label: str, *, with_lines: bool = True) -> None:
        """Parse a text.

        Args:
            text: YAML 1.2, one document.
            label: What messages call it, such as the path of the file.
            with_lines: Whether the line stands behind the label, as it does for a file.

        Raises:
            ConfigError: If it is not YAML, or uses of it what a plain document does not need.
        """
        self._label = label
        self._with_lines = with_lines
        self._root = self._compose(text)
        self._values = 0
        self.data: Any = None if self._root is None else self._plain(self._root, ())

    def line(self, path: KeyPath) -> int:
        """The line, from 1, of a key or list item; of the nearest one around it if it is absent."""
        line = 1 if self._root is None else self._root.start_mark.line + 1
        node = self._root
        for part in path:
            found = None if node is None else _child(node, part)
            if found is None:
                break
            mark, node = found
            line = mark.line + 1
        return line

    def _fail(self, line: int, message: str) -> ConfigError:
        place = f"{self._label}:{line}" if self._with_lines else self._label
        return ConfigError(f"{place}: {message}")

    def _compose(self, text: str) -> Node | None:
        for number, written in enumerate(text.splitlines(), start=1):
            if not written.startswith(("%", "#")) and written.strip():
                break
            if written.startswith("%YAML") and written.split()[1:2] != ["1.2"]:
                raise self._fail(number, "only YAML 1.2 is read; remove this line")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ReusedAnchorWarning)  # it is allowed
                node: Node | None = YAML(typ="rt", pure=True).compose(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._fail(mark.line + 1 if mark else 1, _yaml_problem(error)) from None
        except YAMLError as error:
            position = getattr(error, "position", None)
            before = text[:position] if isinstance(position, int) else ""
            reason = str(getattr(error, "reason", error)).splitlines()[0]
            raise self._fail(before.count("\n") + 1, f"not valid YAML: {reason}") from None
        except RecursionError:
            raise self._fail(1, "nested too deeply") from None
        return node

    def _plain(self, node: Node, around: tuple[Node, ...]) -> Any:
        """A node as plain values; ``around`` holds the nodes that it stands in."""
        line = node.start_mark.line + 1
        self._values += 1
        if self._values > _MOST_VALUES:
            raise self._fail(line, f"more than {_MOST_VALUES} values, with aliases written out")
        if any(node is outer for outer in around):
            raise self._fail(line, f"the anchor &{node.anchor} contains itself")
        if isinstance(node, ScalarNode):
            return self._scalar(node, line)
        if node.tag not in (_TAGS + "map", _TAGS + "seq"):
            raise self._fail(line, f"the tag {_tag_text(node)} is not understood here")
        inside = (*around, node)
        if isinstance(node, SequenceNode):
            return [self._plain(item, inside) for item in node.value]
        assert isinstance(node, MappingNode)
        return self._mapping(node, inside)

    def _mapping(self, node: MappingNode, inside: tuple[Node, ...]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            merge = _is_merge(key_node)
            key = "<<" if merge else self._key(key_node, line)
            if key in lines:
                raise self._fail(line, f"the key '{key}' is already given on line {lines[key]}")
            lines[key] = line
            if merge:
                merged = self._merged(value_node, inside, line)
            else:
                own[key] = self._plain(value_node, inside)
        return merged | own

    def _key(self, node: Node, line: int) -> str:
        if not isinstance(node, ScalarNode) or node.tag != _TAGS + "str":
            shown = node.value if isinstance(node, ScalarNode) else "of several values"
            raise self._fail(line, f"the key {shown} is not text")
        return str(node.value)

    def _merged(self, node: Node, inside: tuple[Node, ...], line: int) -> dict[str, Any]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        values: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, MappingNode):
                raise self._fail(line, "<< must be followed by an alias of a mapping")
            values = self._plain(source, inside) | values  # the first one wins
        return values

    def _scalar(self, node: ScalarNode, line: int) -> Any:
        kind, text = str(node.tag).removeprefix(_TAGS), str(node.value)
        try:
            if kind in ("str", "timestamp", "value"):  # a date is text as it is written
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return _integer(text)
            if kind == "float":
                return _floating(text)
        except (ValueError, KeyError):
            raise self._fail(line, f"{text[:40]!r} is not a valid {kind}") from None
        raise self._fail(line, f"the tag {_tag_text(node)} is not understood here")


def _child(node: Node, part: str | int) -> tuple[Any, Node] | None:
    """The mark of an entry (its key, or itself in a list) and its node; ``None`` if absent."""
    if isinstance(node, SequenceNode):
        if isinstance(part, int) and part < len(node.value):
            item = node.value[part]
            return item.start_mark, item
        return None
    if not isinstance(node, MappingNode):
        return None
    for key_node, value_node in node.value:
        if not _is_merge(key_node) and key_node.value == part:
            return key_node.start_mark, value_node
    for key_node, value_node in node.value:
        if _is_merge(key_node):
            sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            for source in sources:
                found = _child(source, part)
                if found is not None:
                    return found
    return None


def _is_merge(key_node: Node) -> bool:
    return bool(key_node.tag == _TAGS + "merge")


def _tag_text(node: Node) -> str:
    return str(node.tag).replace(_TAGS, "!!")


def _yaml_problem(error: MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context or error).split())
    if "'\\t'" in problem:
        return "a tab cannot indent in YAML; use spaces"
    if "another document" in problem:
        return "a second document (---); one file holds one sweep"
    return f"not valid YAML: {problem}"


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    for prefix, base in (("0x", 16), ("0o", 8), ("0b", 2)):
        if digits.lstrip("+-").startswith(prefix):
            return int(digits, base)
    return int(digits)


def _floating(text: str) -> float:
    digits = text.replace("_", "").lower()
    if digits.lstrip("+-") == ".inf":
        return -math.inf if digits.startswith("-") else math.inf
    return math.nan if digits == ".nan" else float(digits)
