"""What all figures share: a colour, marker and dash per method, sizes, and how files are saved.

Colours are Okabe and Ito's (2008), which people with any colour vision tell
apart; the marker and the dashes carry the same information in a grey print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.colors import hsv_to_rgb, to_hex, to_rgb
from matplotlib.figure import Figure

from harness.tables import atomic_write

Styles = Mapping[str, "MethodStyle"]

KIND_COLORS = {
    "none": "#000000",
    "native": "#7a7a7a",
    "linear": "#e69f00",
    "ntk": "#56b4e9",
    "dynamic_ntk": "#0072b2",
    "ntk_by_parts": "#009e73",
    "yarn": "#d55e00",
    "llama3": "#cc79a7",
    "theta": "#6a3d9a",
}
# For kinds without a colour of their own and for further variants of one kind.
SPARE_COLORS = ("#b3a100", "#8c510a", "#17becf", "#e31a72", "#4d9221", "#1f3a8a", "#a6761d")
SHADES = (-0.45, 0.45, -0.25)  # towards black, towards white

KIND_MARKERS = {
    "none": "o",
    "native": "s",
    "linear": "^",
    "ntk": "v",
    "dynamic_ntk": "D",
    "ntk_by_parts": "P",
    "yarn": "*",
    "llama3": "X",
    "theta": "p",
}
SPARE_MARKERS = ("<", ">", "h", "d", "8", "H", "$+$", "$x$", "$o$", "$=$", "$z$", "$u$")
MARKER_POINTS = {"*": 6.5, "P": 5.0, "X": 5.0, "p": 5.0, "h": 4.8, "H": 4.8}
DASHES = ("solid", (0, (5, 1.5)), (0, (3, 1.2, 1, 1.2)), (0, (1.2, 1.2)))

# CIE L*a*b* distance below which two lines could be mistaken for each other.
MIN_COLOR_DISTANCE = 24.0
# CIE L* above which a line is too pale on white paper.
MAX_LIGHTNESS = 78.0

_RC: dict[Any, object] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 200,
    "svg.hashsalt": "ropewalk",
}

DashPattern = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class MethodStyle:
    """How one method looks in every figure of a run.

    Attributes:
        color: Hexadecimal, ``#rrggbb``.
        marker: A matplotlib marker.
        marker_points: Its size in points; stars need more to look as large.
        dashes: A matplotlib line style.
        kind: The kind of method, as in YAML.
    """

    color: str
    marker: str
    marker_points: float
    dashes: DashPattern
    kind: str


def method_styles(tables: Mapping[str, pd.DataFrame]) -> dict[str, MethodStyle]:
    """Give every method of a run its looks; no two look the same.

    A kind has the same colour in every run. The second and further variants of a
    kind get shades of it, or a spare colour where a shade is too near to another.

    Args:
        tables: All the tables of the run; their ``method`` and ``kind`` count.

    Returns:
        Styles by the method's name, in the order in which methods are met.
    """
    names = ("passes", "perplexity", "attention", "passkey")
    kinds: dict[str, str] = {}
    for table in (tables[name] for name in names if name in tables and not tables[name].empty):
        pairs = table[["method", "kind"]].drop_duplicates()
        for method, kind in zip(pairs["method"], pairs["kind"], strict=True):
            kinds.setdefault(str(method), str(kind))
    colors, markers = _colors(kinds), _markers(kinds)
    seen: dict[str, int] = {}
    styles = {}
    for method, kind in kinds.items():
        variant = seen[kind] = seen.get(kind, -1) + 1
        styles[method] = MethodStyle(
            color=colors[method],
            marker=markers[method],
            marker_points=MARKER_POINTS.get(markers[method], 4.0),
            dashes=DASHES[variant % len(DASHES)],
            kind=kind,
        )
    return styles


def _first_of_kind(kinds: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The fixed looks: the first method of each kind that has some."""
    first: dict[str, str] = {}
    for method, kind in kinds.items():
        if kind in known and known[kind] not in first.values():
            first[method] = known[kind]
    return first


def _colors(kinds: Mapping[str, str]) -> dict[str, str]:
    """A colour per method, the fixed ones first and the others far from all taken."""
    colors = _first_of_kind(kinds, KIND_COLORS)
    for method, kind in kinds.items():
        if method in colors:
            continue
        base = KIND_COLORS.get(kind)
        shades = [_shade(base, amount) for amount in SHADES] if base else []
        taken = list(colors.values())
        distances = {
            color: min((color_distance(color, other) for other in taken), default=np.inf)
            for color in (*shades, *SPARE_COLORS, *_color_circle())
            if _lab(color)[0] <= MAX_LIGHTNESS
        }
        far = [color for color, distance in distances.items() if distance >= MIN_COLOR_DISTANCE]
        colors[method] = far[0] if far else max(distances, key=lambda color: distances[color])
    return colors


def _markers(kinds: Mapping[str, str]) -> dict[str, str]:
    """A marker per method, no two the same (beyond twenty methods: letters)."""
    markers = _first_of_kind(kinds, KIND_MARKERS)
    letters = tuple(f"${letter}$" for letter in "abcdefghijklmnpqrstvwy")
    spare = [*SPARE_MARKERS, *(m for m in KIND_MARKERS.values() if m not in markers.values())]
    free = iter([*spare, *letters])
    for method in kinds:
        if method not in markers:
            markers[method] = next(free, "o")
    return markers


def color_distance(first: str, second: str) -> float:
    """Distance of two colours in CIE L*a*b* (CIE76), about 2 being just noticeable."""
    return float(np.linalg.norm(_lab(first) - _lab(second)))


def _lab(color: str) -> npt.NDArray[np.float64]:
    """sRGB to CIE L*a*b* under D65."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _shade(color: str, amount: float) -> str:
    """Mix with black (negative amount) or with white (positive)."""
    target = 0.0 if amount < 0 else 1.0
    red, green, blue = (part + (target - part) * abs(amount) for part in to_rgb(color))
    return to_hex((red, green, blue))


def _color_circle() -> list[str]:
    """Sixty-four saturated hues, light and dark by turns."""
    steps = [(step * 0.618 % 1, 0.85, 0.45 + 0.3 * (step % 2)) for step in range(64)]
    return [to_hex(tuple(hsv_to_rgb(step))) for step in steps]


@contextmanager
def drawing() -> Iterator[None]:
    """Within it figures have our sizes; matplotlib's settings come back after."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``, atomically and without a date.

    Args:
        figure: What to write; its size is in inches, the PNG has 200 dots each.
        directory: An existing folder.
        name: File name without its ending.

    Returns:
        The two paths.
    """
    kinds: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "svg": {"Date": None, "Creator": None},
    }
    paths = []
    for kind, metadata in kinds.items():
        path = directory / f"{name}.{kind}"
        atomic_write(
            path,
            lambda stream, kind=kind, metadata=metadata: figure.savefig(  # type: ignore[misc]
                stream, format=kind, metadata=metadata, bbox_inches="tight", pad_inches=0.04
            ),
        )
        paths.append(path)
    return paths


def file_names(prefix: str, models: Sequence[str]) -> dict[str, str]:
    """A file name per model, without characters that a file system may refuse.

    Args:
        prefix: Start of the name.
        models: Names, for instance ``zoo:llama-10k`` or ``meta-llama/Llama-3-8B``.

    Returns:
        Names by model, all different even on a file system that ignores case.
    """
    names: dict[str, str] = {}
    for model in models:
        base = f"{prefix}-{re.sub(r'[^A-Za-z0-9.]+', '-', model).strip('-.')}"
        name, number = base, 2
        while name.lower() in {other.lower() for other in names.values()}:
            name, number = f"{base}-{number}", number + 1
        names[model] = name
    return names
