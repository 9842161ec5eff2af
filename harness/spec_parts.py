"""The parts of a sweep: models, methods and data, with their defaults (probes: ``spec_probes``).

Everything is strict: a number in quotes is not a number, ``true`` is not 1, and a key that is not
known is refused. Whole numbers may be written ``1e6``.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from unicodedata import category

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainValidator,
    model_validator,
)

from harness.spec_errors import (
    Problem,
    problem_error,
    problems_error,
    shown,
    unknown_key,
    unknown_value,
)
from patches import PATCHES, PatchError, RopePatch

# Unicode's control characters, halves of characters, and line and paragraph separators.
_NO_TEXT = {"Cc", "Cs", "Zl", "Zp"}


def whole(value: Any) -> Any:
    """Make ``1e6``, a float in YAML, the whole number that is meant."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and (
        value != value.strip() or any(category(c) in _NO_TEXT for c in value)
    ):
        raise problem_error(f"must be one line without spaces around it, not {shown(value)}")
    return value


def count_or(word: str) -> Callable[[Any], Any]:
    """A check for a whole number of at least 1, or one word in its place."""

    def check(value: Any) -> Any:
        number = whole(value)
        if value == word or (type(number) is int and number >= 1):
            return number
        raise problem_error(f"must be {word} or a whole number of at least 1, not {shown(value)}")

    return check


Whole = Annotated[int, BeforeValidator(whole)]
Count = Annotated[Whole, Field(ge=1)]
Text = Annotated[str, Field(min_length=1), BeforeValidator(_one_line)]


class Part(BaseModel):
    """What all parts have in common: strict, frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelSpec(Part):
    """A model to measure.

    Attributes:
        path: ``zoo:NAME``, a hub id, or a folder.
        revision: Commit, tag or branch of a hub id.
        gguf_file: A GGUF file in the repository or folder.
        dtype: ``auto`` is as it was saved.
        device: ``auto`` or what torch calls it, such as ``cpu`` or ``cuda:1``.
        device_map: ``auto`` spreads a model over all GPUs (accelerate does it), in place of
            `device`.
        chunk_tokens: Tokens that run at once, or ``auto`` for what fits a budget of memory; it
            changes no result.
        trained_length: In tokens, in place of what the model's config says.
        name: What tables and figures call it; by default the last part of the path.
    """

    path: Text
    revision: Text | None = None
    gguf_file: Text | None = None
    dtype: Literal["float32", "bfloat16", "float16", "float64", "auto"] = "auto"
    device: Text = "auto"
    device_map: Literal["auto"] | None = None
    chunk_tokens: Annotated[Literal["auto"] | int, PlainValidator(count_or("auto"))] = "auto"
    trained_length: Annotated[Whole, Field(ge=2)] | None = None
    name: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_text(cls, data: Any) -> Any:
        if isinstance(data, str):
            raise problem_error(f"must be a mapping, such as {{path: {data}}}")
        return data

    @property
    def label(self) -> str:
        """The name, or the last part of the path."""
        if self.name is not None:
            return self.name
        last = self.path.removeprefix("zoo:").replace("\\", "/").rstrip("/").rpartition("/")[2]
        return last or self.path


class MethodSpec(Part):
    """A method to measure: in YAML its kind, its fields, and a name if the default is not liked.

    Attributes:
        kind: A key of ``patches.PATCHES``.
        name: What tables and figures call it; by default the kind and its non-default fields.
        patch: The method with its fields, checked.
    """

    kind: str
    name: Text
    patch: InstanceOf[RopePatch]

    @model_validator(mode="before")
    @classmethod
    def _build(cls, data: Any) -> Any:
        """Make the patch from its kind and fields, and refuse what it does not know."""
        if isinstance(data, str):
            raise problem_error(f"must be a mapping, such as {{kind: {data}}}")
        if not isinstance(data, dict):
            return data
        patch = data.get("patch")
        if isinstance(patch, RopePatch):  # from Python
            return {"name": patch.default_name(), **data, "kind": patch.kind}
        if "kind" not in data:
            listed = ", ".join(PATCHES)
            raise problems_error([Problem(("kind",), f"is missing; it is one of {listed}")])
        kind = data["kind"]
        if not isinstance(kind, str) or kind not in PATCHES:
            raise problems_error([Problem(("kind",), unknown_value(kind, list(PATCHES)))])
        given = {key: value for key, value in data.items() if key not in ("kind", "name")}
        patch = build_patch(kind, given)
        name = data.get("name")
        if name is None:
            name = patch.default_name()
        return {"kind": kind, "name": name, "patch": patch}


def build_patch(kind: str, given: dict[str, Any]) -> RopePatch:
    """Make a method from its kind and fields.

    Args:
        kind: A key of ``patches.PATCHES``.
        given: Fields as YAML has them.

    Raises:
        PydanticCustomError: With a problem for every field that is unknown, missing or wrong.
    """
    fields = {field.name: field for field in dataclasses.fields(PATCHES[kind])}
    keys = ["kind", "name", *fields]
    problems = [Problem((key,), unknown_key(key, keys)) for key in given if key not in fields]
    problems += [
        Problem((name,), f"is missing; {kind} needs it")
        for name, field in fields.items()
        if name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if problems:
        raise problems_error(problems)
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
    try:
        return PATCHES[kind](**values)
    except PatchError as error:
        message = str(error).removeprefix(f"{kind}: ")
        named = [word for word in re.findall(r"\w+", message) if word in given]
        if not named:
            raise problem_error(message) from None
        message = message.removeprefix(f"{named[0]} ")
        raise problems_error([Problem((named[0],), message)]) from None


class StdlibData(Part):
    """Long modules of the running Python's own library: text that every machine has.

    Attributes:
        source: ``stdlib``.
        documents: How many.
    """

    source: Literal["stdlib"]
    documents: Count = 8


class TextData(Part):
    """Text files, one document each.

    Attributes:
        source: ``text``.
        files: Names or patterns (``*``, ``**``), relative to the sweep file.
        documents: How many of them, ``None`` for all.
    """

    source: Literal["text"]
    files: Annotated[list[Text], Field(min_length=1)]
    documents: Count | None = None

    def inside(self, folder: Path) -> TextData:
        """The same with absolute patterns, which mean the same wherever a sweep is run from."""
        root = Path(glob.escape(str(folder.absolute())))
        return self.model_copy(update={"files": [str(root / pattern) for pattern in self.files]})


class DatasetsData(Part):
    """A data set of the Hugging Face hub, one document a row.

    Attributes:
        source: ``datasets``.
        path: Hub id or folder.
        name: The configuration of the data set.
        split: Which split.
        column: The column that holds the text.
        documents: How many.
        revision: Commit, tag or branch.
    """

    source: Literal["datasets"]
    path: Text
    name: Text | None = None
    split: Text = "test"
    column: Text = "text"
    documents: Count = 8
    revision: Text | None = None


DataSpec = Annotated[StdlibData | TextData | DatasetsData, Field(discriminator="source")]
