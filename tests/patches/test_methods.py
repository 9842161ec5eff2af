"""What every method must do, and what holds for all geometries."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import patches
from patches import (
    NTK,
    PATCHES,
    DynamicNTK,
    Linear,
    Llama3,
    NTKByParts,
    PatchError,
    RopeGeometry,
    RopePatch,
    YaRN,
)

GEOMETRY = RopeGeometry(rotary_dim=64, base=10000.0, trained_length=256)
calm = settings(deadline=None)
NEEDED = {"theta": {"base": 500000.0}}
geometries = st.builds(
    RopeGeometry,
    rotary_dim=st.integers(2, 128).map(lambda half: 2 * half),
    base=st.floats(10, 1e8),
    trained_length=st.integers(64, 2**20),
)
factors = st.floats(1, 256)
stretching = st.one_of(
    st.builds(Linear, factor=factors),
    st.builds(NTK, factor=factors),
    st.builds(NTKByParts, factor=factors, variant=st.sampled_from(["repository", "paper"])),
    st.builds(
        YaRN,
        factor=factors,
        beta_fast=st.floats(2, 64),
        beta_slow=st.floats(0.5, 1.9),
        truncate=st.booleans(),
    ),
    st.builds(Llama3, factor=factors),
)


def make(kind: str, **fields: object) -> RopePatch:
    return PATCHES[kind](**NEEDED.get(kind, {}), **fields)


@pytest.mark.parametrize("kind", PATCHES)
class TestEveryMethod:
    def test_names_agree(self, kind: str) -> None:
        assert PATCHES[kind].kind == kind
        assert PATCHES[kind].__module__ == f"patches.{kind}"
        assert getattr(patches, PATCHES[kind].__name__) is PATCHES[kind]

    def test_is_a_frozen_value(self, kind: str) -> None:
        patch = make(kind)
        assert patch == make(kind)
        assert hash(patch) == hash(make(kind))
        with pytest.raises(dataclasses.FrozenInstanceError):
            patch.layers = ("full_attention",)  # type: ignore[misc]

    def test_says_what_it_is(self, kind: str) -> None:
        text = PATCHES[kind].__doc__ or ""
        assert kind == "native" or (".. math::" in text and "20" in text)
        for field in dataclasses.fields(PATCHES[kind]):
            assert field.name in ("layers",) or f"{field.name}:" in text

    def test_tables(self, kind: str) -> None:
        if kind == "native":
            with pytest.raises(PatchError, match="no tables of its own"):
                make(kind).tables(GEOMETRY, 1024)
            return
        tables = make(kind).tables(GEOMETRY, 1024)
        assert tables.inv_freq.shape == (32,)
        assert tables.inv_freq.dtype == np.float64
        assert np.all(np.diff(tables.inv_freq) < 0)
        assert tables.attention_factor >= 1

    def test_depends_on_length_tells_the_truth(self, kind: str) -> None:
        if kind == "native":
            return
        patch = make(kind)
        changes = patch.tables(GEOMETRY, 256) != patch.tables(GEOMETRY, 1024)
        assert patch.depends_on_length == changes


def test_importing_needs_no_torch() -> None:
    code = (
        "import sys, patches\n"
        "geometry = patches.RopeGeometry(rotary_dim=8, base=1e4, trained_length=64)\n"
        "patches.YaRN().tables(geometry, 128)\n"
        "patches.resolve(patches.YaRN(), {None: geometry}, 128)\n"
        "assert not {'torch', 'transformers', 'harness'} & set(sys.modules)\n"
        "patches.applied, patches.AppliedPatch\n"
        "assert 'torch' in sys.modules and 'harness' not in sys.modules\n"
    )
    root = Path(patches.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'apply_all'"):
        patches.apply_all  # noqa: B018


@calm
@given(geometry=geometries, patch=stretching)
def test_between_plain_and_interpolated(geometry: RopeGeometry, patch: RopePatch) -> None:
    plain = geometry.inv_freq()
    factor = patch.resolved_factor(geometry, 1)
    found = patch.tables(geometry, 1).inv_freq
    assert np.all(found > 0)
    assert np.all(found <= plain * (1 + 1e-12))
    assert np.all(found >= plain / factor * (1 - 1e-12))


@calm
@given(geometry=geometries, patch=stretching)
def test_fast_frequencies_stay_the_fastest(geometry: RopeGeometry, patch: RopePatch) -> None:
    found = patch.tables(geometry, 1).inv_freq
    assert np.all(np.diff(found) <= 0)


@calm
@given(
    geometry=geometries,
    patch=stretching,
    length=st.integers(1, 2**22),
)
def test_factor_1_is_plain(geometry: RopeGeometry, patch: RopePatch, length: int) -> None:
    tables = dataclasses.replace(patch, factor=1).tables(geometry, length)  # type: ignore[call-arg]
    np.testing.assert_allclose(tables.inv_freq, geometry.inv_freq(), rtol=1e-12)
    assert tables.attention_factor == 1


@calm
@given(geometry=geometries, patch=stretching, more=st.floats(1, 4))
def test_a_larger_factor_turns_slower(
    geometry: RopeGeometry, patch: RopePatch, more: float
) -> None:
    factor = patch.resolved_factor(geometry, 1) * more
    slower = dataclasses.replace(patch, factor=factor).tables(geometry, 1)  # type: ignore[call-arg]
    faster = patch.tables(geometry, 1)
    assert np.all(slower.inv_freq <= faster.inv_freq * (1 + 1e-12))
    assert slower.attention_factor >= faster.attention_factor


@calm
@given(geometry=geometries, factor=factors)
def test_yarn_leaves_fast_frequencies_and_interpolates_slow_ones(
    geometry: RopeGeometry, factor: float
) -> None:
    found = YaRN(factor=factor).tables(geometry, 1).inv_freq
    plain = geometry.inv_freq()
    turns = geometry.trained_length * plain / (2 * np.pi)
    # The ends of the ramp are moved outwards to whole dimensions, by less than one.
    step = geometry.base ** (2 / geometry.rotary_dim)
    np.testing.assert_array_equal(found[turns > 32 * step], plain[turns > 32 * step])
    # The first dimension is never inside the ramp, however slow it is.
    slow = (turns < 1 / step) & (np.arange(len(turns)) > 0)
    if np.any(turns >= 1):
        np.testing.assert_allclose(found[slow], plain[slow] / factor, rtol=1e-12)


@calm
@given(geometry=geometries, factor=factors)
def test_llama3_leaves_fast_frequencies_and_interpolates_slow_ones(
    geometry: RopeGeometry, factor: float
) -> None:
    found = Llama3(factor=factor).tables(geometry, 1).inv_freq
    plain = geometry.inv_freq()
    turns = geometry.trained_length * plain / (2 * np.pi)
    np.testing.assert_array_equal(found[turns > 4], plain[turns > 4])
    np.testing.assert_array_equal(found[turns < 1], plain[turns < 1] / factor)


@calm
@given(geometry=geometries, factor=factors)
def test_ntk_keeps_the_fastest_and_stretches_the_slowest(
    geometry: RopeGeometry, factor: float
) -> None:
    found, plain = NTK(factor=factor).tables(geometry, 1).inv_freq, geometry.inv_freq()
    assert found[0] == plain[0] == 1
    np.testing.assert_allclose(found[-1], plain[-1] / factor, rtol=1e-9)


@calm
@given(geometry=geometries, slope=st.floats(1, 8), length=st.integers(1, 2**22))
def test_dynamic_ntk(geometry: RopeGeometry, slope: float, length: int) -> None:
    patch = DynamicNTK(factor=slope)
    found = patch.tables(geometry, length)
    if length <= geometry.trained_length:
        np.testing.assert_array_equal(found.inv_freq, geometry.inv_freq())
        return
    ratio = length / geometry.trained_length
    stretch = slope * ratio - (slope - 1)
    assert patch.resolved_factor(geometry, length) == pytest.approx(stretch)
    assert found == NTK(factor=patch.resolved_factor(geometry, length)).tables(geometry, 1)
    assert stretch >= ratio * (1 - 1e-12)
