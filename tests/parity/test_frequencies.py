"""Rotary frequencies against those of transformers and of the code published with YaRN."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patches import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    NTKByParts,
    RopeGeometry,
    RopePatch,
    YaRN,
)

VECTORS = Path(__file__).parent / "data" / "rope_frequencies.jsonl.gz"
NUM_VECTORS = 210


def read_vectors() -> list[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def make_patch(method: str, factor: float) -> RopePatch:
    if method == "dynamic":
        return DynamicNTK(factor=factor)
    classes = {
        "linear": Linear,
        "ntk": NTK,
        "ntk_by_parts": NTKByParts,
        "yarn": YaRN,
        "llama3": Llama3,
    }
    return classes[method](factor=factor)


def name_of(vector: dict[str, Any]) -> str:
    source = vector["source"].split("/")[0].split()[0]
    return f"{source}-{vector['method']}-{vector['shape']}-{vector['factor']:g}"


def test_all_vectors_are_there() -> None:
    assert len(read_vectors()) == NUM_VECTORS


@pytest.mark.parametrize("vector", read_vectors(), ids=name_of)
def test_frequencies(vector: dict[str, Any]) -> None:
    geometry = RopeGeometry(
        rotary_dim=vector["head_dim"], base=vector["base"], trained_length=vector["train_length"]
    )
    patch = make_patch(vector["method"], vector["factor"])
    # Tables that do not depend on the length ignore this one.
    context_length = vector.get("seq_len") or vector["train_length"]
    tables = patch.tables(geometry, context_length)
    np.testing.assert_allclose(tables.inv_freq, vector["inv_freq"], rtol=1e-6, atol=0)
    assert tables.attention_factor == pytest.approx(vector["attention_factor"], rel=1e-6)


def test_variants_of_ntk_by_parts_differ_as_documented() -> None:
    toy = RopeGeometry(rotary_dim=64, base=10000.0, trained_length=256)
    repository = NTKByParts(factor=4).tables(toy, 1024).inv_freq
    paper = NTKByParts(factor=4, variant="paper").tables(toy, 1024).inv_freq
    assert np.abs(paper / repository - 1).max() == pytest.approx(0.47, abs=0.005)
