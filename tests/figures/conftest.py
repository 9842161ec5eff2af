"""Fixtures of the figures' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from harness.figures.style import drawing
from tests.figures.common import HOLES, LENGTHS
from tests.synthetic import Synthetic, make_tables


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """Two models, four methods, three lengths, two cells missing."""
    spec = Synthetic(lengths=LENGTHS, documents=("a", "b"), heads=2, trials=2, holes=HOLES)
    return make_tables(spec)


@pytest.fixture(autouse=True)
def sized() -> Iterator[None]:
    """Draw as the figures are drawn."""
    with drawing():
        yield
