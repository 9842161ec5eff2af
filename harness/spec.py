"""The sweep: one validated YAML file that says what is measured, with every default.

``load_sweep`` reads a file, ``sweep_from_dict`` takes the same from Python, ``dump_sweep`` writes
the file that says all of it. Defaults live in this module and its parts and nowhere else.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, ValidationError
from ruamel.yaml import YAML

from harness.errors import ConfigError
from harness.spec_errors import Problem, config_error, problem_error, problems_error, shown
from harness.spec_parts import (
    DatasetsData,
    DataSpec,
    MethodSpec,
    ModelSpec,
    Part,
    StdlibData,
    Text,
    TextData,
    Whole,
    whole,
)
from harness.spec_probes import PROBES, EntropyProbe, PasskeyProbe, PerplexityProbe, Probes
from harness.yaml_source import YamlSource, read_yaml

__all__ = [
    "DataSpec",
    "DatasetsData",
    "EntropyProbe",
    "MethodSpec",
    "ModelSpec",
    "PasskeyProbe",
    "PerplexityProbe",
    "Probes",
    "StdlibData",
    "Sweep",
    "TextData",
    "dump_sweep",
    "load_sweep",
    "sweep_from_dict",
]

_MULTIPLE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)x")
_SHORTEST = 2  # tokens: one to see and one to predict


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value) or value.endswith("."):
        raise problem_error(
            "names a folder: letters, digits, '.', '_' and '-' only, a letter or digit first, at "
            f"most 100 of them, not {shown(value)}"
        )
    return value


def _distinct_labels(models: list[ModelSpec]) -> list[ModelSpec]:
    seen: dict[str, int] = {}
    problems = []
    for index, model in enumerate(models):
        first = seen.setdefault(model.label, index)
        if first != index:
            message = f"models[{first}] is called '{model.label}' too; give one of them a name"
            problems.append(Problem((index,), message))
    if problems:
        raise problems_error(problems)
    return models


def _distinct_methods(methods: list[MethodSpec]) -> list[MethodSpec]:
    problems = []
    for index, method in enumerate(methods):
        for first, other in enumerate(methods[:index]):
            if other.patch == method.patch:
                problems.append(Problem((index,), f"the same method as methods[{first}]"))
            elif other.name == method.name:
                message = f"methods[{first}] is called '{method.name}' too; give it another name"
                problems.append(Problem((index,), message))
            else:
                continue
            break
    if problems:
        raise problems_error(problems)
    return methods


def _length_problem(value: Any) -> str | None:
    """What is wrong with one entry of ``context_lengths``; ``None`` if nothing is."""
    if type(value) is int:
        if value >= _SHORTEST:
            return None
        return f"must be at least {_SHORTEST} tokens, not {shown(value)}"
    match = _MULTIPLE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        wanted = "a whole number of tokens or a multiple of the trained length such as 4x"
        quoted = " (without quotes)" if isinstance(value, str) and value.isdecimal() else ""
        return f"must be {wanted}{quoted}, not {shown(value)}"
    return None if Fraction(match[1]) > 0 else f"must be above 0x, not {shown(value)}"


def _context_lengths(values: Any) -> list[int | str]:
    if not isinstance(values, list):
        raise problem_error(f"must be a list such as [1x, 2x, 4x], not {shown(values)}")
    if not values:
        raise problem_error("must not be empty")
    problems = []
    lengths = [whole(value) for value in values]
    seen: dict[str, int] = {}
    for index, length in enumerate(lengths):
        wrong = _length_problem(length)
        if wrong is None:
            # A number of tokens and a multiple can be equal only where a trained length is known.
            key = f"{Fraction(length[:-1])}x" if isinstance(length, str) else str(length)
            first = seen.setdefault(key, index)
            wrong = None if first == index else f"the same length as context_lengths[{first}]"
        if wrong is not None:
            problems.append(Problem((index,), wrong))
    if problems:
        raise problems_error(problems)
    return lengths


class Sweep(Part):
    """What a sweep file says.

    Attributes:
        name: Of the sweep and of its results folder.
        seed: Of everything drawn at random.
        models: At least one, with different labels.
        methods: At least one, all different, with different names.
        context_lengths: Whole numbers of tokens, and multiples (``4x``, ``1.5x``) of each model's
            trained length, in any order.
        data: The documents.
        probes: What is measured.
    """

    name: Annotated[Text, AfterValidator(_folder_name)]
    seed: Annotated[Whole, Field(ge=0)] = 0
    models: Annotated[list[ModelSpec], Field(min_length=1), AfterValidator(_distinct_labels)]
    methods: Annotated[list[MethodSpec], Field(min_length=1), AfterValidator(_distinct_methods)]
    context_lengths: Annotated[list[int | str], PlainValidator(_context_lengths)]
    data: DataSpec
    probes: Probes

    def lengths_for(self, trained_length: int) -> tuple[int, ...]:
        """The context lengths of one model.

        Args:
            trained_length: Of the model, in tokens.

        Returns:
            Tokens, ascending; a multiple that is no whole number is rounded.

        Raises:
            ConfigError: If two are equal, one is below 2, or a sliding window's stride is longer
                than all of them.
        """
        written: dict[int, int | str] = {}
        for entry in self.context_lengths:
            length = (
                entry if isinstance(entry, int) else round(Fraction(entry[:-1]) * trained_length)
            )
            if length < _SHORTEST:
                raise ConfigError(
                    f"context_lengths: {entry} of a trained length of {trained_length} tokens is "
                    f"{length}; at least {_SHORTEST} are needed"
                )
            if length in written:
                raise ConfigError(
                    f"context_lengths: {written[length]} and {entry} are both {length} tokens at "
                    f"a trained length of {trained_length}; remove one"
                )
            written[length] = entry
        stride = self.probes.perplexity.stride if self.probes.perplexity else None
        if stride is not None and stride > max(written):
            raise ConfigError(
                f"probes.perplexity.stride: {stride} tokens is more than the longest context "
                f"length, {max(written)}"
            )
        return tuple(sorted(written))


_KNOWN: dict[tuple[str, ...], type[BaseModel]] = {
    (): Sweep,
    ("models",): ModelSpec,
    ("methods",): MethodSpec,
    ("data", "stdlib"): StdlibData,
    ("data", "text"): TextData,
    ("data", "datasets"): DatasetsData,
    ("probes",): Probes,
    ("probes", "perplexity"): PerplexityProbe,
    ("probes", "entropy"): EntropyProbe,
    ("probes", "passkey"): PasskeyProbe,
}
_TAGS = {"data": ("stdlib", "text", "datasets")}


def _copied(value: Any) -> Any:
    """Dicts and lists anew, so that nothing of the caller's is changed; tuples as lists."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _switched(data: dict[str, Any]) -> dict[str, Any]:
    """Read ``perplexity:`` with nothing behind it as switched on, and ``false`` as switched off."""
    probes = data.get("probes")
    if isinstance(probes, dict):
        for name in PROBES:
            if name in probes and probes[name] is None:
                probes[name] = {}
            elif probes.get(name) is False:
                del probes[name]
    return data


def _validated(data: dict[str, Any], source: YamlSource | None) -> Sweep:
    try:
        return Sweep.model_validate(_switched(_copied(data)))
    except ValidationError as error:
        raise config_error(error, source, known=_KNOWN, tags=_TAGS) from None


def load_sweep(path: Path | str, overrides: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep file.

    Args:
        path: A YAML file.
        overrides: ``key.sub=value`` each, set over the file before it is checked; the value is
            YAML, numbers in the key are places in a list: ``models.0.path=zoo:llama-500k``.

    Returns:
        The sweep, with all defaults.

    Raises:
        ConfigError: If the file cannot be read or says anything that cannot be run; a line for
            each fault, with file, line, key and the nearest valid key.
    """
    source = read_yaml(path)
    if source.data is None:
        raise ConfigError(f"{path}: is empty; a sweep needs {_required()}")
    if not isinstance(source.data, dict):
        found = "a list" if isinstance(source.data, list) else "text or a single value"
        raise ConfigError(f"{path}:{source.line(())}: must be a mapping (key: value), not {found}")
    for override in overrides:
        source.override(override)
    sweep = _validated(source.data, source)
    if isinstance(sweep.data, TextData):
        sweep = sweep.model_copy(update={"data": sweep.data.inside(Path(path).parent)})
    return sweep


def sweep_from_dict(data: dict[str, Any]) -> Sweep:
    """Check a sweep that is given as the dict that its file would be.

    Raises:
        ConfigError: As ``load_sweep``, without file and line.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"a sweep must be a dict, not {shown(data)}")
    return _validated(data, None)


def _required() -> str:
    return ", ".join(name for name, field in Sweep.model_fields.items() if field.is_required())


def dump_sweep(sweep: Sweep) -> str:
    """Write a sweep as YAML with every default written out; ``load_sweep`` reads it back equal."""
    data = sweep.model_dump(exclude={"methods", "probes"})
    methods = []
    for method in sweep.methods:
        fields = {f.name: getattr(method.patch, f.name) for f in dataclasses.fields(method.patch)}
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in fields.items()}
        methods.append({"kind": method.kind, "name": method.name, **values})
    data["methods"] = methods
    data["probes"] = sweep.probes.model_dump(include=set(sweep.probes.enabled))
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)  # the other kind writes nothing for null
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    yaml.dump({name: data[name] for name in Sweep.model_fields}, stream)
    return stream.getvalue()
