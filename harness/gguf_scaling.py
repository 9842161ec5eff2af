"""Rotary scaling that a GGUF file carries and transformers' loader leaves out.

llama.cpp keeps linear and YaRN scaling as keys (``ARCH.rope.scaling.*``) and Llama 3's as a tensor
of divisors (``rope_freqs.weight``). A model loaded without them is another model: past its original
length it falls apart, and nothing says why.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ModelError
from patches import Llama3, RopeGeometry
from patches.geometry import FULL_ATTENTION

_DIVISORS = "rope_freqs.weight"
_KEYS = {  # of GGUF, and what transformers calls them
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_LLAMA3_LENGTH = 8192  # of Llama 3.1 and 3.2; a file keeps only the divisors that follow from it


def read_scaling(path: Path) -> dict[str, Any] | None:
    """The scaling in a file, as transformers' ``rope_parameters`` would say it; None if none.

    Raises:
        ModelError: If the file cannot be read, or its scaling is of a kind that has no equal.
    """
    status = path.stat()
    return _read_scaling(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_scaling(path: Path, size: int, modified_ns: int) -> dict[str, Any] | None:
    """The same, once a file: planning and loading both ask, and parsing takes many seconds."""
    del size, modified_ns  # only so that a changed file is read again
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError(
            f"{path.name} is a GGUF file; reading it needs the package gguf: pip install "
            "'ropewalk[gguf]'"
        ) from None
    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise ModelError(f"{path} is no GGUF file that can be read: {error}") from None
    prefix = ".rope.scaling."
    found = {
        name.split(prefix, 1)[1]: field.contents()
        for name, field in reader.fields.items()
        if prefix in name
    }
    divisors = next((t.data for t in reader.tensors if t.name == _DIVISORS), None)
    if divisors is not None:
        return {"divisors": np.array(divisors, dtype=np.float64)}
    kind = found.get("type", "none")
    if kind == "none" or float(found.get("factor") or 1) == 1:
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(
            f"{path.name} is stretched by '{kind}' scaling, which transformers' loader drops and "
            "ropewalk cannot put back; use the model's safetensors"
        )
    parameters: dict[str, Any] = {"rope_type": kind}
    parameters |= {ours: found[theirs] for theirs, ours in _KEYS.items() if theirs in found}
    attention = float(found.get("yarn_attn_factor", found.get("attn_factor", 1.0)))
    if kind == "yarn" and attention != 1:
        # llama.cpp's factor comes on top of YaRN's own.
        own = 0.1 * np.log(parameters["factor"]) + 1
        parameters["attention_factor"] = float(attention * own)
    return parameters


def _from_divisors(divisors: np.ndarray[Any, Any], geometry: RopeGeometry) -> dict[str, Any]:
    """Llama 3's parameters, if they give these divisors."""
    own = replace(geometry, trained_length=_LLAMA3_LENGTH)
    same = False
    if divisors.shape == own.inv_freq().shape and divisors.max() >= 1:
        patch = Llama3(factor=float(divisors.max()))
        same = np.allclose(own.inv_freq() / divisors, patch.tables(own, 1).inv_freq, rtol=1e-5)
    if not same:
        raise ModelError(
            f"the file's own rotary divisors ({_DIVISORS}) are not those of Llama 3.1; use the "
            "model's safetensors"
        )
    return {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": patch.low_freq_factor,
        "high_freq_factor": patch.high_freq_factor,
        "original_max_position_embeddings": _LLAMA3_LENGTH,
    }


def _own_type(parameters: dict[str, Any]) -> str | None:
    kinds = [parameters, *(p for p in parameters.values() if isinstance(p, dict))]
    named = (p.get("rope_type") for p in kinds)
    return next((kind for kind in named if kind not in (None, "default")), None)


def put_back(config: Any, path: Path, *, quiet: bool = False) -> None:
    """Put a file's scaling into the config that transformers made of it.

    Where a model has rotary tables for several layer types, those of the full-attention layers
    are meant, as in llama.cpp.

    Args:
        config: Changed in place.
        path: Of the GGUF file.
        quiet: Do not warn.

    Raises:
        ModelError: As in `read_scaling`.
    """
    scaling = read_scaling(path)
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    if scaling is None or _own_type(parameters) is not None:
        return
    if "divisors" in scaling:
        geometry = RopeGeometry.from_config(config)
        scaling = _from_divisors(scaling["divisors"], next(iter(geometry.values())))
    nested = FULL_ATTENTION in parameters
    own = dict(parameters[FULL_ATTENTION] if nested else parameters) | scaling
    config.rope_parameters = {**parameters, FULL_ATTENTION: own} if nested else own
    if not quiet:
        said = ", ".join(f"{key} {value}" for key, value in scaling.items() if key != "rope_type")
        warnings.warn(
            f"{path.name} is stretched by {scaling['rope_type']} scaling ({said}), which "
            "transformers' GGUF loader drops; ropewalk puts it back",
            stacklevel=2,
        )
