"""What is wrong with a sweep file, in plain words, one line for each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from harness.errors import ConfigError
from harness.yaml_source import YamlSource, key_text, nearest
from harness.yaml_tree import KeyPath

_MOST_LINES = 10


@dataclass(frozen=True)
class Problem:
    """One fault: where, from the value that is being validated, and what."""

    path: KeyPath
    message: str


def problems_error(problems: Iterable[Problem]) -> PydanticCustomError:
    """An error that a pydantic validator raises for faults at several places at once."""
    found = list(problems)
    text = "; ".join(f"{key_text(p.path)}: {p.message}".removeprefix(": ") for p in found)
    return PydanticCustomError("problems", "{text}", {"text": text, "problems": found})


def problem_error(message: str) -> PydanticCustomError:
    """An error that a pydantic validator raises for the value it looks at."""
    return problems_error([Problem((), message)])


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Say that a key is unknown and what it may have been meant to be."""
    return f"unknown key; {_suggest(key, known, 'keys')}"


def unknown_value(value: Any, known: Sequence[str]) -> str:
    """Say that a value is none of the known ones."""
    if not isinstance(value, str):
        return f"must be one of {', '.join(known)}, not {shown(value)}"
    hint = nearest(value, known)
    meant = f"; did you mean '{hint}'?" if hint else ""
    return f"must be one of {', '.join(known)}, not {shown(value)}{meant}"


def _suggest(word: str, known: Sequence[str], what: str) -> str:
    hint = nearest(word, known)
    return f"did you mean '{hint}'?" if hint else f"the {what} here are {', '.join(known)}"


def shown(value: Any) -> str:
    """A value as a message shows it: as YAML has it, short."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else f"{value}"
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: Any, wanted: str) -> str:
    quoted = ""
    if isinstance(value, str):
        try:
            float(value)
            quoted = " (without quotes)"
        except ValueError:
            pass
    return f"must be {wanted}{quoted}, not {shown(value)}"


def _text(value: Any) -> str:
    quotes = isinstance(value, bool | int | float)
    return f"must be text, not {shown(value)}" + (f'; write "{shown(value)}"' if quotes else "")


def _at_least(value: Any, context: Mapping[str, Any]) -> str:
    return f"must be at least {context['ge']}, not {shown(value)}"


_Writer = Callable[[Any, Mapping[str, Any]], str]
_WORDS: dict[str, _Writer] = {
    "missing": lambda _value, _context: "is missing",
    "string_type": lambda value, _context: _text(value),
    "string_too_short": lambda _value, _context: "must not be empty",
    "bool_type": lambda value, _context: f"must be true or false, not {shown(value)}",
    "int_type": lambda value, _context: _number(value, "a whole number"),
    "int_from_float": lambda value, _context: _number(value, "a whole number"),
    "float_type": lambda value, _context: _number(value, "a number"),
    "finite_number": lambda value, _context: _number(value, "a finite number"),
    "list_type": lambda value, _context: f"must be a list, not {shown(value)}",
    "too_short": lambda _value, _context: "must not be empty",
    "greater_than_equal": _at_least,
}
_NO_MAPPING = {"model_type", "model_attributes_type", "dict_type"}


def _literals(context: Mapping[str, Any]) -> list[str]:
    """The allowed texts of a ``Literal`` or of a tagged union, from pydantic's own account."""
    listed = str(context.get("expected") or context.get("expected_tags") or "")
    return [word.strip(" '\"") for word in listed.replace(" or ", ", ").split(",")]


def _key_of(discriminator: Any) -> str:
    return str(discriminator).strip("'\"")


def _problems(
    error: ErrorDetails,
    known: Mapping[tuple[str, ...], type[BaseModel]],
    tags: Mapping[str, Sequence[str]],
) -> list[Problem]:
    """Put one of pydantic's errors into our words, at its place in the file."""
    location, kind, value = error["loc"], error["type"], error["input"]
    context = error.get("ctx", {})
    # pydantic puts the tag of a tagged union into the path; the file has no such key.
    tagged = len(location) > 1 and location[1] in tags.get(str(location[0]), ())
    path = (location[0], *location[2:]) if tagged else location
    if kind == "problems":
        return [Problem((*path, *p.path), p.message) for p in context["problems"]]
    if kind == "extra_forbidden":
        parent = tuple(part for part in location[:-1] if isinstance(part, str))
        keys = list(known[parent].model_fields)
        return [Problem(path, unknown_key(str(path[-1]), keys))]
    if kind in _NO_MAPPING:
        return [Problem(path, f"must be a mapping (key: value), not {shown(value)}")]
    if kind == "literal_error":
        return [Problem(path, unknown_value(value, _literals(context)))]
    if kind == "union_tag_not_found":
        listed = ", ".join(tags[str(path[-1])])
        key = _key_of(context["discriminator"])
        return [Problem((*path, key), f"is missing; it is one of {listed}")]
    if kind == "union_tag_invalid":
        key = _key_of(context["discriminator"])
        written = value.get(key) if isinstance(value, dict) else context["tag"]
        return [Problem((*path, key), unknown_value(written, tags[str(path[-1])]))]
    words = _WORDS.get(kind)
    return [Problem(path, words(value, context) if words else error["msg"])]


def config_error(
    error: ValidationError,
    source: YamlSource | None,
    *,
    known: Mapping[tuple[str, ...], type[BaseModel]],
    tags: Mapping[str, Sequence[str]],
) -> ConfigError:
    """List every fault of a sweep file, in the order of the file.

    Args:
        error: What pydantic found.
        source: Where the values come from; ``None`` if they come from Python.
        known: The model at each place of a sweep, list positions left out of the place.
        tags: The tags of the tagged unions, by the key that holds one.

    Returns:
        The error to raise: a line per fault, at most ten, each with its file and line.
    """
    found: list[Problem] = []
    for details in error.errors(include_url=False):
        found += _problems(details, known, tags)
    if source is not None:
        found.sort(key=lambda problem: source.line(problem.path))
    lines = []
    for problem in found[:_MOST_LINES]:
        place = "" if source is None else f"{source.where(problem.path)}: "
        key = f"{key_text(problem.path)}: " if problem.path else ""
        lines.append(f"{place}{key}{problem.message}")
    if len(found) > _MOST_LINES:
        lines.append(f"... and {len(found) - _MOST_LINES} more")
    return ConfigError("\n".join(lines))
