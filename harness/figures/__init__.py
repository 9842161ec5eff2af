"""The figures of a sweep, made from its tables alone.

matplotlib is imported when the first figure is drawn, not with this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

__all__ = ["make_figures"]


def make_figures(tables: Mapping[str, pd.DataFrame], directory: Path | str) -> list[Path]:
    """Draw every figure that the tables have data for, as PNG and SVG.

    Args:
        tables: What ``read_tables`` returned. ``summary`` is computed if absent.
        directory: Where the files go; made if there is none.

    Returns:
        The files written, in the order drawn. The same tables give the same
        bytes, whatever the day.
    """
    from harness.figures import (
        entropy_map,
        entropy_position,
        nll_position,
        passkey_map,
        perplexity,
    )
    from harness.figures.style import drawing, method_styles, save

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    styles = method_styles(tables)
    written: list[Path] = []
    with drawing():
        for module in (perplexity, nll_position, entropy_position, entropy_map, passkey_map):
            for name, figure in module.draw(tables, styles).items():
                written += save(figure, directory, name)
    return written
