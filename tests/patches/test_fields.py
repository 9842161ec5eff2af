"""Fields and formulas of single methods."""

from __future__ import annotations

import math

import numpy as np
import pytest

from patches import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    Native,
    NoScaling,
    NTKByParts,
    PatchError,
    RopeGeometry,
    Theta,
    YaRN,
)
from patches.ramp import interpolation_ramp

GEOMETRY = RopeGeometry(rotary_dim=64, base=10000.0, trained_length=256)
PLAIN = 10000.0 ** (-np.arange(0, 64, 2) / 64)


def test_none_is_plain() -> None:
    tables = NoScaling().tables(GEOMETRY, 4096)
    np.testing.assert_allclose(tables.inv_freq, PLAIN, rtol=1e-15)
    assert tables.attention_factor == 1
    assert NoScaling().resolved_factor(GEOMETRY, 4096) == 1
    assert not NoScaling().depends_on_length


def test_native_takes_no_layers() -> None:
    with pytest.raises(PatchError, match="native"):
        Native(layers=("full_attention",))


def test_theta_is_plain_at_its_base() -> None:
    other = RopeGeometry(rotary_dim=64, base=500000.0, trained_length=256)
    assert Theta(base=500000).tables(GEOMETRY, 1) == NoScaling().tables(other, 1)


@pytest.mark.parametrize("base", [1, 0, -10, True, "1e6", None, math.nan, math.inf])
def test_theta_needs_a_base(base: object) -> None:
    with pytest.raises(PatchError, match="theta: base"):
        Theta(base=base)  # type: ignore[arg-type]


def test_linear_divides() -> None:
    np.testing.assert_allclose(Linear(factor=8).tables(GEOMETRY, 1).inv_freq, PLAIN / 8)


def test_ntk_needs_more_than_two_dimensions() -> None:
    two = RopeGeometry(rotary_dim=2, base=10000.0, trained_length=256)
    for patch in (NTK(factor=2), NTKByParts(factor=2), DynamicNTK()):
        with pytest.raises(PatchError, match="more than two rotary dimensions"):
            patch.tables(two, 512)
    assert NTKByParts(factor=2, variant="paper").tables(two, 512).inv_freq.size == 1


@pytest.mark.parametrize("factor", ["auto", 0.99, True, None, math.nan])
def test_dynamic_ntk_refuses(factor: object) -> None:
    with pytest.raises(PatchError, match='there is no "auto"'):
        DynamicNTK(factor=factor)  # type: ignore[arg-type]


def test_dynamic_ntk_by_hand() -> None:
    patch = DynamicNTK(factor=2)
    assert patch.depends_on_length
    assert patch.resolved_factor(GEOMETRY, 256) == 1
    assert patch.resolved_factor(GEOMETRY, 1024) == 7
    base = 10000.0 * 7 ** (64 / 62)
    wanted = base ** (-np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(patch.tables(GEOMETRY, 1024).inv_freq, wanted, rtol=1e-14)
    assert DynamicNTK().resolved_factor(GEOMETRY, 1024) == 4
    assert DynamicNTK().default_name() == "dynamic_ntk"


def test_variant_of_ntk_by_parts() -> None:
    with pytest.raises(PatchError, match="variant must be repository or paper"):
        NTKByParts(variant="code")  # type: ignore[arg-type]
    yarn = YaRN(factor=4, attention_factor=1).tables(GEOMETRY, 1)
    assert NTKByParts(factor=4, variant="paper").tables(GEOMETRY, 1) == yarn
    assert NTKByParts(factor=4).tables(GEOMETRY, 1) != yarn


class TestYaRN:
    @pytest.mark.parametrize("name", ["beta_fast", "beta_slow"])
    @pytest.mark.parametrize("value", [0, -1, None, "2", True, math.nan])
    def test_betas(self, name: str, value: object) -> None:
        with pytest.raises(PatchError, match=f"yarn: {name}"):
            YaRN(**{name: value})  # type: ignore[arg-type]

    def test_betas_are_in_order(self) -> None:
        with pytest.raises(PatchError, match="beta_fast must be above beta_slow"):
            YaRN(beta_fast=1, beta_slow=1)

    @pytest.mark.parametrize("value", [0, -1.0, "1", True, math.inf])
    def test_attention_factor_must_be_positive(self, value: object) -> None:
        with pytest.raises(PatchError, match="yarn: attention_factor"):
            YaRN(attention_factor=value)  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", [0, "no", None])
    def test_truncate_must_be_a_truth_value(self, value: object) -> None:
        with pytest.raises(PatchError, match="truncate must be true or false"):
            YaRN(truncate=value)  # type: ignore[arg-type]

    def test_attention_factor(self) -> None:
        assert YaRN(factor=8).tables(GEOMETRY, 1).attention_factor == pytest.approx(
            0.1 * math.log(8) + 1
        )
        assert YaRN(factor=1).tables(GEOMETRY, 1).attention_factor == 1
        assert YaRN(factor=8, attention_factor=1.5).tables(GEOMETRY, 1).attention_factor == 1.5

    def test_truncate_moves_the_ends_outwards(self) -> None:
        exact = YaRN(factor=8, truncate=False).tables(GEOMETRY, 1).inv_freq
        moved = YaRN(factor=8).tables(GEOMETRY, 1).inv_freq
        assert not np.array_equal(exact, moved)
        turns = 256 * PLAIN / (2 * np.pi)
        np.testing.assert_array_equal(exact[turns >= 32], PLAIN[turns >= 32])
        np.testing.assert_allclose(exact[turns <= 1], PLAIN[turns <= 1] / 8)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 4), (-1, 4), (4, 4), (5, 4), (None, 4), (1, "4"), (1, True)]
)
def test_llama3_refuses(low: object, high: object) -> None:
    with pytest.raises(PatchError, match="llama3"):
        Llama3(low_freq_factor=low, high_freq_factor=high)  # type: ignore[arg-type]


class TestRamp:
    def test_rises_from_0_to_1(self) -> None:
        ramp = interpolation_ramp(GEOMETRY, rotations_fast=32, rotations_slow=1)
        assert ramp[0] == 0
        assert ramp[-1] == 1
        assert np.all(np.diff(ramp) >= 0)

    def test_all_frequencies_fast(self) -> None:
        fast = RopeGeometry(rotary_dim=8, base=2.0, trained_length=2**20)
        ramp = interpolation_ramp(fast, rotations_fast=32, rotations_slow=1)
        np.testing.assert_array_equal(ramp, 0)

    def test_all_frequencies_slow(self) -> None:
        slow = RopeGeometry(rotary_dim=8, base=10000.0, trained_length=4)
        ramp = interpolation_ramp(slow, rotations_fast=32, rotations_slow=1)
        np.testing.assert_array_equal(ramp, [0, 1, 1, 1])
