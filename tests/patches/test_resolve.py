"""Which layer types get which tables."""

from __future__ import annotations

import pytest

from patches import DynamicNTK, Linear, Native, NoScaling, PatchError, RopeGeometry, YaRN, resolve

SHARED = {None: RopeGeometry(rotary_dim=8, base=10000.0, trained_length=256)}
SEPARATE = {
    "sliding_attention": RopeGeometry(rotary_dim=8, base=10000.0, trained_length=256),
    "full_attention": RopeGeometry(rotary_dim=8, base=1e6, trained_length=256),
}
MIXED = ("sliding_attention", "full_attention")


def test_one_table_for_all() -> None:
    assert resolve(YaRN(), SHARED, 1024) == {None: YaRN(factor=4).tables(SHARED[None], 1)}


def test_full_attention_by_default() -> None:
    found = resolve(Linear(), SEPARATE, 512)
    assert found == {"full_attention": Linear(factor=2).tables(SEPARATE["full_attention"], 1)}


def test_named_layers() -> None:
    found = resolve(Linear(layers=MIXED), SEPARATE, 512)
    assert found == {key: Linear(factor=2).tables(SEPARATE[key], 1) for key in MIXED}
    only = resolve(Linear(layers=("sliding_attention",)), SEPARATE, 512)
    assert set(only) == {"sliding_attention"}


def test_part_of_a_shared_table() -> None:
    patch = Linear(factor=2, layers=("sliding_attention",))
    found = resolve(patch, SHARED, 512, layer_types=MIXED)
    assert found == {"sliding_attention": patch.tables(SHARED[None], 1)}
    whole = resolve(patch, SHARED, 512, layer_types=("sliding_attention",) * 2)
    assert set(whole) == {None}
    both = Linear(factor=2, layers=MIXED)
    assert set(resolve(both, SHARED, 512, layer_types=MIXED)) == {None}


def test_native_changes_nothing() -> None:
    assert resolve(Native(), SEPARATE, None) == {}


def test_length_where_needed() -> None:
    assert resolve(NoScaling(), SHARED, None) == resolve(NoScaling(), SHARED, 9)
    assert resolve(Linear(factor=2), SHARED, None) == resolve(Linear(factor=2), SHARED, 9)
    for patch in (Linear(), DynamicNTK()):
        with pytest.raises(PatchError, match="needs a context_length"):
            resolve(patch, SHARED, None)
    for length in (0, -1, 2.5, True, "1024"):
        with pytest.raises(PatchError, match="context_length must be a whole number"):
            resolve(NoScaling(), SHARED, length)  # type: ignore[arg-type]


def test_layers_that_cannot_be_separated() -> None:
    patch = Linear(factor=2, layers=("full_attention",))
    with pytest.raises(PatchError, match="share one rotary table"):
        resolve(patch, SHARED, 512)
    with pytest.raises(PatchError, match="no layers of type 'full_attention'"):
        resolve(patch, SHARED, 512, layer_types=("sliding_attention",))
    with pytest.raises(PatchError, match="no layers of type 'globl'"):
        resolve(Linear(factor=2, layers=("globl",)), SEPARATE, 512)
    local = {"sliding_attention": SEPARATE["sliding_attention"]}
    with pytest.raises(PatchError, match="no full_attention layers"):
        resolve(Linear(factor=2), local, 512)
