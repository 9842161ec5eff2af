"""What all methods have in common."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from patches import (
    PATCHES,
    Linear,
    NoScaling,
    PatchError,
    RopeGeometry,
    RopeTables,
    StretchPatch,
    Theta,
    YaRN,
)

STRETCHING = [patch for patch in PATCHES.values() if issubclass(patch, StretchPatch)]
GEOMETRY = RopeGeometry(rotary_dim=16, base=10000.0, trained_length=256)


def test_the_stretching_methods() -> None:
    kinds = {patch.kind for patch in STRETCHING}
    assert kinds == {"linear", "ntk", "ntk_by_parts", "yarn", "llama3"}


@pytest.mark.parametrize("patch", STRETCHING)
@pytest.mark.parametrize(
    "factor", [0.5, 0, -1, True, False, None, "4", "Auto", math.nan, math.inf, [4], 1j]
)
def test_factor_must_be_a_number_of_at_least_1_or_auto(
    patch: type[StretchPatch], factor: object
) -> None:
    with pytest.raises(PatchError, match='factor must be a number of at least 1 or "auto"'):
        patch(factor=factor)  # type: ignore[arg-type]


@pytest.mark.parametrize("patch", STRETCHING)
def test_auto_factor(patch: type[StretchPatch]) -> None:
    auto = patch()
    assert auto.factor == "auto"
    assert auto.depends_on_length
    assert auto.resolved_factor(GEOMETRY, 1024) == 4.0
    assert auto.resolved_factor(GEOMETRY, 256) == 1.0
    assert auto.resolved_factor(GEOMETRY, 10) == 1.0
    assert auto.tables(GEOMETRY, 1024) == patch(factor=4).tables(GEOMETRY, 7)


@pytest.mark.parametrize("length", [0, -5, 2.0, True, "256", None, math.nan])
def test_auto_needs_a_length(length: object) -> None:
    with pytest.raises(PatchError, match="context_length must be a whole number"):
        Linear().tables(GEOMETRY, length)  # type: ignore[arg-type]


def test_numbers_of_any_type_are_taken() -> None:
    assert (
        YaRN(factor=8) == YaRN(factor=8.0) == YaRN(factor=np.float64(8)) == YaRN(factor=np.int64(8))
    )  # type: ignore[arg-type]
    assert hash(YaRN(factor=8)) == hash(YaRN(factor=8.0))
    assert YaRN(factor=8) != YaRN(factor=8, beta_fast=2)
    assert YaRN(factor=8) != Linear(factor=8)


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        (NoScaling(), "none"),
        (YaRN(), "yarn"),
        (YaRN(factor=8), "yarn(factor=8)"),
        (YaRN(factor=2.5, truncate=False), "yarn(factor=2.5, truncate=False)"),
        (YaRN(beta_fast=2), "yarn(beta_fast=2)"),
        (Theta(base=500000), "theta(base=500000)"),
        (Theta(base=1234567.5), "theta(base=1234567.5)"),
        (
            Linear(layers=("full_attention", "sliding_attention"), factor=4),
            "linear(factor=4, layers=full_attention+sliding_attention)",
        ),
    ],
)
def test_default_name(patch: YaRN, name: str) -> None:
    assert patch.default_name() == name


def test_layers_may_be_a_list() -> None:
    assert Linear(layers=["full_attention"]).layers == ("full_attention",)  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", ["full_attention", [], [1], [""], ["a", "a"], 3])
def test_layers_must_be_names(layers: object) -> None:
    with pytest.raises(PatchError, match="layers"):
        Linear(layers=layers)  # type: ignore[arg-type]


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        Linear(4)  # type: ignore[misc]


class TestTables:
    def test_equal_by_value(self) -> None:
        one, same = RopeTables(np.array([1.0, 0.1]), 1.5), RopeTables(np.array([1.0, 0.1]), 1.5)
        assert one == same
        assert hash(one) == hash(same)
        assert one != RopeTables(np.array([1.0, 0.1]))
        assert one != RopeTables(np.array([1.0, 0.2]), 1.5)
        assert one != RopeTables(np.array([1.0]), 1.5)
        assert one != 1.5

    def test_cannot_be_changed(self) -> None:
        given = np.array([1.0, 0.1])
        tables = RopeTables(given)
        given[0] = 2
        assert tables.inv_freq[0] == 1
        with pytest.raises(ValueError, match="read-only"):
            tables.inv_freq[0] = 2
        with pytest.raises(dataclasses.FrozenInstanceError):
            tables.attention_factor = 2.0  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("inv_freq", "factor"),
        [
            ([], 1.0),
            ([[1.0]], 1.0),
            ([math.nan], 1.0),
            ([math.inf], 1.0),
            ([-1.0], 1.0),
            ([1.0], 0.0),
            ([1.0], math.nan),
            ([1.0], True),
        ],
    )
    def test_must_be_a_rotation(self, inv_freq: list[float], factor: float) -> None:
        with pytest.raises(PatchError):
            RopeTables(np.array(inv_freq), factor)
