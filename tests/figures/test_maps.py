"""Maps per method: entropy changes by layer and head, passkeys by depth and length."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from harness.figures import (
    entropy_map,
    passkey_map,
)
from harness.summary import last_eighth
from tests.figures.common import LLAMA, drawn
from tests.synthetic import METHODS, Synthetic, make_tables


def test_entropy_changes_count_from_plain_rope_at_the_trained_length(
    tables: dict[str, pd.DataFrame],
) -> None:
    tail = tables["attention"][last_eighth(tables["attention"])]
    rows = tail[tail["model"] == LLAMA]
    assert entropy_map.reference_cell(rows) == ("none", 256)
    changes = entropy_map.entropy_changes(rows, ["none", "linear", "yarn"])
    head = rows[(rows["layer"] == 3) & (rows["head"] == 1)]
    cell = head.set_index(["method", "context_length", "position_stop"])["entropy_nats"]
    change = cell["yarn", 1024, 1024] - cell["none", 256, 256]
    assert changes["yarn"].shape == (4, 2)
    assert changes["yarn"][3, 1] == pytest.approx(change)
    assert np.isnan(changes["linear"]).all()


@pytest.mark.parametrize(
    ("kept", "reference"), [(["native", "yarn"], ("native", 256)), (["yarn"], ("yarn", 256))]
)
def test_without_plain_rope_changes_count_from_another(
    kept: list[str], reference: tuple[str, int]
) -> None:
    methods = [(name, name) for name in kept]
    attention = make_tables(Synthetic(methods=methods, lengths=(512, 256)))["attention"]
    assert entropy_map.reference_cell(attention) == reference
    longer = attention[attention["context_length"] == 512]
    assert entropy_map.reference_cell(longer) == (reference[0], 512)


def test_entropy_maps_share_a_scale_centred_at_nought(tables: dict[str, pd.DataFrame]) -> None:
    for figure in drawn(entropy_map, tables):
        panels = [axes for axes in figure.axes if axes.get_label() != "colorbar"]
        assert [axes.get_title(loc="left") for axes in panels] == [m for m, _ in METHODS]
        limits = {axes.collections[0].get_clim() for axes in panels}
        ((low, high),) = limits
        assert low == -high
        (bar,) = (axes for axes in figure.axes if axes.get_label() == "colorbar")
        assert "nats" in bar.get_xlabel()


def test_passkey_maps_hatch_what_was_not_measured(tables: dict[str, pd.DataFrame]) -> None:
    llama, _ = drawn(passkey_map, tables)
    none, linear, ntk, yarn = llama.axes[:4]
    for axes in (none, linear, ntk, yarn):
        assert axes.collections[0].get_clim() == (0, 1)
        assert [t.get_text() for t in axes.get_xticklabels()] == ["256", "512", "1k"]
        assert [t.get_text() for t in axes.get_yticklabels()][::4] == ["0%", "100%"]
    assert [len(axes.patches) for axes in (none, linear, ntk, yarn)] == [0, 5, 5, 0]
    assert {patch.get_x() for patch in ntk.patches} == {1}  # type: ignore[attr-defined]
    assert all(patch.get_hatch() for patch in ntk.patches)
    assert [len(axes.texts) for axes in (none, linear, ntk, yarn)] == [15, 10, 10, 15]
    assert "not measured" in [text.get_text() for text in llama.texts]


def test_accuracies_by_hand() -> None:
    table = pd.DataFrame(
        {
            "method": ["a", "a", "a", "b"],
            "depth": [0.0, 0.0, 1.0, 0.0],
            "context_length": [8, 8, 8, 16],
            "correct": [True, False, True, True],
        }
    )
    grid = passkey_map.accuracies(table, "a")
    np.testing.assert_array_equal(grid, [[0.5, np.nan], [1.0, np.nan]])


def test_titles_of_maps_do_not_overlap() -> None:
    long = tuple(
        (f"yarn(beta_fast={n}, attention_factor=1.0, truncate=False)", "yarn") for n in (2, 8)
    )
    spec = Synthetic(models=(LLAMA,), methods=long, lengths=(256,), documents=("a",))
    (figure,) = drawn(passkey_map, make_tables(spec))
    first, second = figure.axes[:2]
    left_title = first._left_title.get_window_extent()  # type: ignore[attr-defined]
    assert left_title.x1 < second._left_title.get_window_extent().x0  # type: ignore[attr-defined]
