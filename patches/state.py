"""What rotary modules remember of the inputs they have seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from patches.rotary import PatchedRotary


def _rotary_modules(model: nn.Module) -> Iterator[nn.Module]:
    """A model's own rotary modules, those that wait behind tables of ours included."""
    for module in model.modules():
        found = module
        while isinstance(found, PatchedRotary):
            found = found.original
        if "RotaryEmbedding" in type(found).__name__:
            yield found


@contextmanager
def rotary_state_kept(model: nn.Module) -> Iterator[None]:
    """Undo what rotary modules that follow the length do to themselves.

    Stock ``dynamic`` and ``longrope`` scaling keep the tables of the longest input so far, so that
    a shorter one behind it would be measured with a longer one's.

    Args:
        model: A model, or a rotary module itself.
    """
    kept = [
        (m, dict(m._buffers), {k: v for k, v in vars(m).items() if k[0] != "_"})
        for m in _rotary_modules(model)
    ]
    try:
        yield
    finally:
        for module, buffers, attributes in kept:
            module._buffers.update(buffers)
            vars(module).update(attributes)
