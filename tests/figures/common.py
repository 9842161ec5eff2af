"""The sweep that the figures' tests draw."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from harness.figures.style import method_styles

LLAMA, GEMMA = "zoo:llama-10k", "zoo:gemma-local-global"
LENGTHS = (256, 512, 1024)
HOLES = frozenset({(LLAMA, "ntk", 512), (LLAMA, "linear", 1024)})


def drawn(module: object, tables: Mapping[str, pd.DataFrame]) -> list[Figure]:
    """The figures that a module makes of some tables."""
    return list(module.draw(tables, method_styles(tables)).values())  # type: ignore[attr-defined]
