"""ropewalk: how far a language model's rotary embedding stretches, and what stretches it best.

    import harness

    sweep = harness.load_sweep("configs/quickstart.yaml")
    folder = harness.run_sweep(sweep)
    tables = harness.read_tables(folder)

and, on any loaded model and a ``[1, n]`` tensor of token ids, the measurements alone:

    harness.token_nll(model, input_ids)
    harness.attention_statistics(model, input_ids)

Names are loaded when they are used, so that ``import harness`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.engine import attention_statistics, token_nll
    from harness.runner import run_sweep
    from harness.spec import load_sweep
    from harness.tables import read_tables

_PUBLIC = {
    "attention_statistics": "harness.engine",
    "load_sweep": "harness.spec",
    "read_tables": "harness.tables",
    "run_sweep": "harness.runner",
    "token_nll": "harness.engine",
}

__all__ = ["attention_statistics", "load_sweep", "read_tables", "run_sweep", "token_nll"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)
