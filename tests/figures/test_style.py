"""Looks of methods, names of files, and labels that do not overlap."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.figures.layout import format_length, format_multiple, spread
from harness.figures.style import MIN_COLOR_DISTANCE, color_distance, file_names, method_styles
from tests.synthetic import MANY_METHODS, METHODS


def test_a_kind_has_its_colour_in_every_run() -> None:
    few, many = (
        method_styles({"passes": pd.DataFrame(list(methods), columns=["method", "kind"])})
        for methods in (METHODS, MANY_METHODS)
    )
    assert few == {method: many[method] for method in few}


def test_no_two_methods_look_the_same() -> None:
    unknown = [("longrope", "longrope"), ("mine", "mine")]
    variants = [(f"yarn(beta_fast={n})", "yarn") for n in range(3, 7)]
    table = pd.DataFrame([*MANY_METHODS, *unknown, *variants], columns=["method", "kind"])
    styles = method_styles({"passes": table})
    assert list(styles) == list(table["method"])
    assert len({style.marker for style in styles.values()}) == len(styles)
    for one, other in itertools.combinations(styles.values(), 2):
        assert color_distance(one.color, other.color) >= MIN_COLOR_DISTANCE


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(256, "256"), (1000, "1000"), (1024, "1k"), (1536, "1.5k"), (131072, "128k"), (2**20, "1M")],
)
def test_format_length(tokens: int, text: str) -> None:
    assert format_length(tokens) == text


@pytest.mark.parametrize(
    ("tokens", "text"), [(64, "1/4x"), (256, "1x"), (384, "1.5x"), (96, "0.375x")]
)
def test_format_multiple(tokens: int, text: str) -> None:
    assert format_multiple(tokens, 256) == text


@given(st.lists(st.floats(-0.2, 1.2), max_size=12), st.floats(0.01, 0.2))
def test_spread_keeps_gap_order_and_room(positions: list[float], gap: float) -> None:
    placed = spread(positions, gap=gap, low=0.0, high=1.0)
    assert placed.shape == (len(positions),)
    if not positions:
        return
    assert placed.min() >= -1e-9
    assert placed.max() <= 1 + 1e-9
    order = np.argsort(positions, kind="stable")
    least = min(gap, 1 / max(1, len(positions) - 1))
    assert (np.diff(placed[order]) >= least - 1e-9).all()


def test_spread_leaves_alone_what_has_room() -> None:
    np.testing.assert_allclose(spread([0.9, 0.1, 0.5], gap=0.2, low=0, high=1), [0.9, 0.1, 0.5])
    np.testing.assert_allclose(spread([0.5, 0.5], gap=0.2, low=0, high=1), [0.4, 0.6])


def test_file_names_differ_whatever_the_model_is_called() -> None:
    names = file_names("map", ["a/b", "a:b", "A-B", "../x", "zoo:llama-10k"])
    assert names["zoo:llama-10k"] == "map-zoo-llama-10k"
    assert len({name.lower() for name in names.values()}) == 5
    assert not any(set("/:") & set(name) for name in names.values())
