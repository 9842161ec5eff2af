"""What the figures show, and that the same tables give the same files."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from harness.figures import (
    entropy_position,
    make_figures,
    nll_position,
    perplexity,
)
from harness.figures.style import (
    method_styles,
)
from harness.summary import summarize
from tests.figures.common import GEMMA, LENGTHS, LLAMA, drawn
from tests.synthetic import MANY_METHODS, METHODS, Synthetic, make_tables


def method_lines(axes: Axes) -> dict[str, Line2D]:
    return {str(x.get_label()): x for x in axes.lines if not str(x.get_label()).startswith("_")}


def xs(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_xdata(), dtype=float)


def ys(line: Line2D) -> np.ndarray:
    return np.asarray(line.get_ydata(), dtype=float)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.fixture(scope="module")
def paths(tables: dict[str, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_figures(tables, tmp_path_factory.mktemp("made") / "figures")


def test_every_figure_as_png_and_svg(paths: list[Path]) -> None:
    names = ["perplexity", "nll_position", "entropy_position"]
    names += [
        f"{kind}_map-zoo-{model}"
        for kind in ("entropy", "passkey")
        for model in ("llama-10k", "gemma-local-global")
    ]
    assert [path.name for path in paths] == [f"{n}.{end}" for n in names for end in ("png", "svg")]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(
        path.name for path in paths
    )
    for path in paths:
        start = path.read_bytes()[:8]
        assert start == (b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"<?xml ve")


def test_the_same_tables_give_the_same_bytes(
    tables: dict[str, pd.DataFrame], paths: list[Path], tmp_path: Path
) -> None:
    for one, other in zip(paths, make_figures(tables, tmp_path), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert b"dc:date" not in paths[1].read_bytes()


def test_settings_of_matplotlib_are_left_alone(
    tables: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    with mpl.rc_context({"font.size": 31.0, "lines.linewidth": 9.0}):
        make_figures({"passkey": tables["passkey"]}, tmp_path)
        assert mpl.rcParams["font.size"] == 31.0
        assert mpl.rcParams["lines.linewidth"] == 9.0


def test_neither_torch_nor_pyplot_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys, harness.figures, harness.summary, harness.tables, harness.statistics\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from tests.synthetic import Synthetic, make_tables\n"
        "tables = make_tables(Synthetic(lengths=(256,), documents=('a',), layers=1, heads=1))\n"
        f"harness.figures.make_figures(tables, {str(tmp_path)!r})\n"
        "for name in ('torch', 'transformers', 'matplotlib.pyplot'):\n"
        "    assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_no_table_no_figure(tables: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    assert make_figures({"passes": tables["passes"]}, tmp_path) == []
    empty = {name: table.iloc[:0] for name, table in tables.items()}
    assert make_figures(empty, tmp_path) == []


def test_perplexity_axes(tables: dict[str, pd.DataFrame]) -> None:
    (figure,) = drawn(perplexity, tables)
    assert len(figure.axes) == 4  # two models, window and tail
    for axes in figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert list(method_lines(axes)) == [method for method, _ in METHODS]
        assert list(axes.get_xticks()) == list(LENGTHS)
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["256\n1x", "512\n2x", "1k\n4x"]
        assert "trained length" in texts(axes)
        assert any(list(xs(line)) == [256, 256] for line in axes.lines)
        for method, _ in METHODS:
            assert method in texts(axes)


def test_perplexity_shows_the_summary_with_holes_as_gaps(tables: dict[str, pd.DataFrame]) -> None:
    (figure,) = drawn(perplexity, tables)
    summary = summarize(tables)
    for axes, value in zip(figure.axes[:2], ("perplexity", "tail_perplexity"), strict=True):
        for method, line in method_lines(axes).items():
            rows = summary[(summary["model"] == LLAMA) & (summary["method"] == method)]
            np.testing.assert_array_equal(ys(line), rows[value])
        assert np.isnan(ys(method_lines(axes)["ntk"])[1])
        assert np.isnan(ys(method_lines(axes)["linear"])[2])


def test_intervals_are_drawn_for_the_window(tables: dict[str, pd.DataFrame]) -> None:
    (figure,) = drawn(perplexity, tables)
    assert len(figure.axes[0].collections) == len(METHODS)
    none = summarize(tables).query("model == @LLAMA and method == 'none'")
    segments = figure.axes[0].collections[0].get_segments()  # type: ignore[attr-defined]
    ends = np.array([segment[:, 1] for segment in segments])
    np.testing.assert_allclose(ends, none[["perplexity_low", "perplexity_high"]])


def test_infinite_perplexity_is_a_hollow_mark_at_the_edge(
    tables: dict[str, pd.DataFrame],
) -> None:
    table = tables["perplexity"].copy()
    bad = (table["method"] == "none") & (table["context_length"] == 1024)
    table.loc[bad, "nll_nats"] = np.inf
    (figure,) = drawn(perplexity, {"perplexity": table})
    axes = figure.axes[0]
    assert np.isnan(ys(method_lines(axes)["none"])[2])
    marks = [line for line in axes.lines if line.get_label() == "_infinite"]
    assert [(list(xs(m)), list(ys(m))) for m in marks] == [([1024], [1.0])]


def test_nothing_finite_at_all_still_draws(tables: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    broken = {
        "perplexity": tables["perplexity"].assign(nll_nats=np.nan),
        "attention": tables["attention"].assign(entropy_nats=np.nan, normalized_entropy=np.nan),
    }
    assert len(make_figures(broken, tmp_path)) == 10
    (figure,) = drawn(nll_position, broken)
    assert "yarn: no data" in texts(figure.axes[0])


def test_nll_by_position(tables: dict[str, pd.DataFrame]) -> None:
    (figure,) = drawn(nll_position, tables)
    llama, gemma = figure.axes
    assert list(method_lines(llama)) == ["none", "linear", "ntk", "yarn"]
    assert "linear: no data" in texts(llama)
    assert "linear" in texts(gemma)
    assert gemma.get_xscale() == "log"
    assert "nats" in gemma.get_ylabel()
    rows = tables["perplexity"].query(
        "model == @GEMMA and method == 'none' and context_length == 1024 and position_stop == 1024"
    )
    last = rows["nll_nats"].sum() / rows["tokens"].sum()
    assert ys(method_lines(gemma)["none"])[-1] == pytest.approx(last)
    assert xs(method_lines(gemma)["none"])[-1] == (896 + 1023) / 2


def test_one_nan_loss_is_a_gap_at_its_bin(tables: dict[str, pd.DataFrame]) -> None:
    table = tables["perplexity"].copy()
    hit = table.query(
        "model == @GEMMA and method == 'yarn' and context_length == 1024 and position_stop == 512"
    ).index[0]
    table.loc[hit, "nll_nats"] = np.nan
    (figure,) = drawn(nll_position, {"perplexity": table})
    values = ys(method_lines(figure.axes[1])["yarn"])
    assert np.isnan(values).sum() == 1


def test_entropy_has_a_panel_per_layer_type_and_its_bound(
    tables: dict[str, pd.DataFrame],
) -> None:
    (figure,) = drawn(entropy_position, tables)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        f"{LLAMA}, full attention, 1k tokens",
        f"{GEMMA}, full attention, 1k tokens",
        f"{GEMMA}, sliding attention, 1k tokens",
    ]
    for axes, most in zip(figure.axes, (np.log(1024), np.log(1024), np.log(64)), strict=True):
        (bound,) = (line for line in axes.lines if line.get_label() == "_bound")
        assert ys(bound)[-1] == pytest.approx(most, rel=0.01)
        for line in method_lines(axes).values():
            assert np.nanmax([0.0, *ys(line)]) <= most
    rows = tables["attention"].query(
        "model == @GEMMA and method == 'yarn' and context_length == 1024"
        " and layer_type == 'sliding_attention' and position_stop == 1024"
    )
    last = ys(method_lines(figure.axes[2])["yarn"])[-1]
    assert last == pytest.approx(rows["entropy_nats"].mean())


def test_a_method_has_the_same_looks_everywhere(tables: dict[str, pd.DataFrame]) -> None:
    styles = method_styles(tables)
    for module in (perplexity, nll_position, entropy_position):
        for figure in drawn(module, tables):
            for axes in figure.axes:
                for method, line in method_lines(axes).items():
                    assert to_hex(line.get_color()) == styles[method].color
                    assert line.get_marker() == styles[method].marker


def test_many_methods_are_named_without_overlap() -> None:
    spec = Synthetic(models=(LLAMA,), methods=MANY_METHODS, lengths=LENGTHS, documents=("a", "b"))
    (figure,) = drawn(perplexity, make_tables(spec))
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text() != "trained length"]
        assert len(names) == len(MANY_METHODS)
        boxes = sorted(text.get_window_extent().intervaly.tolist() for text in names)
        assert all(upper[0] >= lower[1] - 1 for lower, upper in itertools.pairwise(boxes))
        right = max(text.get_window_extent().x1 for text in names)
        assert right <= figure.bbox.x1


def test_axes_reach_a_trained_length_that_was_not_evaluated() -> None:
    spec = Synthetic(models=(LLAMA,), trained_length=4096, lengths=(256, 300, 512))
    (figure,) = drawn(perplexity, make_tables(spec))
    low, high = figure.axes[0].get_xlim()
    assert low < 256
    assert high > 4096
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["", "300\n0.0732x", "512\n1/8x"]
