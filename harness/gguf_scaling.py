"""Rotary scaling that a GGUF file carries and transformers' loader leaves out.

llama.cpp keeps linear and YaRN scaling as keys (``ARCH.rope.scaling.*``), Llama 3's as a tensor of
divisors (``rope_freqs.weight``) and LongRoPE's as two (``rope_factors_long.weight``, ``_short``).
A model loaded without them is another model: past its original length it falls apart, and nothing
says why. What cannot be put back is therefore refused.
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
_LONGROPE = ("rope_factors_long.weight", "rope_factors_short.weight")
_LOG_MULTIPLIER = "yarn_log_multiplier"
_PREFIX = ".rope.scaling."
_OLD_FACTOR = ".rope.scale_linear"
_KEYS = {  # of GGUF, and what transformers calls them
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_LLAMA3_LENGTH = 8192  # of Llama 3.1 and 3.2; a file keeps only the divisors that follow from it


def read_scaling(path: Path) -> dict[str, Any] | None:
    """The scaling in a file, as transformers' ``rope_parameters`` would say it; None if none.

    Llama 3's divisors come as they are, ``{"divisors": float64 (rotary_dim / 2,)}``.

    Raises:
        ModelError: If the file cannot be read, or its scaling is of a kind that has no equal.
    """
    status = path.stat()
    return _read_scaling(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_scaling(path: Path, size: int, modified_ns: int) -> dict[str, Any] | None:
    """The same, once a file: planning and loading both ask, and parsing takes many seconds."""
    del size, modified_ns  # only so that a changed file is read again
    reader = _open(path)
    tensors = {t.name: t.data for t in reader.tensors if t.name in (_DIVISORS, *_LONGROPE)}
    longrope = [name for name in _LONGROPE if name in tensors]
    if longrope:
        raise _refusal(path, f"LongRoPE's factors ({', '.join(longrope)})")
    fields = reader.fields
    keys = {n.split(_PREFIX, 1)[1]: fields[n].contents() for n in fields if _PREFIX in n}
    for name in fields:
        if name.endswith(_OLD_FACTOR):
            keys.setdefault("factor", fields[name].contents())
    if float(keys.get(_LOG_MULTIPLIER) or 0) != 0:
        # DeepSeek's: it changes the scale of the attention logits, which is no rotary parameter.
        raise _refusal(path, f"a scale of attention ({_LOG_MULTIPLIER} {keys[_LOG_MULTIPLIER]:g})")
    if _DIVISORS in tensors:
        divisors = np.array(tensors[_DIVISORS], dtype=np.float64)
        if not np.allclose(divisors, 1, rtol=0, atol=1e-5):
            if _from_keys(keys, path) is not None:
                raise _refusal(path, f"a factor beside its own rotary divisors ({_DIVISORS})")
            return {"divisors": divisors}
    return _from_keys(keys, path)


def _open(path: Path) -> Any:
    """A reader of the file; ModelError if there is no package for it or it is no GGUF file."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ModelError(
            f"{path.name} is a GGUF file; reading it needs the package gguf: pip install "
            "'ropewalk[gguf]'"
        ) from None
    try:
        return GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise ModelError(f"{path} is no GGUF file that can be read: {error}") from None


def _refusal(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path.name} carries {what}, which transformers' loader drops and ropewalk cannot put "
        "back; use the model's safetensors"
    )


def _from_keys(keys: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Linear or YaRN scaling, by llama.cpp's rules for what a file leaves out.

    Without a type it is linear; without a factor, or with 0, there is none.
    """
    kind = keys.get("type", "linear")
    factor = float(keys.get("factor") or 1)
    if kind == "none" or factor == 1:
        return None
    if kind not in ("linear", "yarn"):
        raise _refusal(path, f"'{kind}' scaling")
    parameters: dict[str, Any] = {"rope_type": kind}
    parameters |= {ours: keys[theirs] for theirs, ours in _KEYS.items() if theirs in keys}
    attention = float(keys.get("yarn_attn_factor", keys.get("attn_factor", 1.0)))
    if kind == "linear" and attention != 1:
        raise _refusal(path, f"linear scaling with an attention factor of {attention:g}")
    # Negative stands for the default. A mix other than YaRN's own has no name in transformers.
    mix = float(keys.get("yarn_ext_factor", -1))
    if mix >= 0 and mix != (1 if kind == "yarn" else 0):
        raise _refusal(path, f"{kind} scaling with yarn_ext_factor {mix:g}")
    if attention != 1:
        # llama.cpp's factor comes on top of YaRN's own.
        parameters["attention_factor"] = float(attention * (0.1 * np.log(factor) + 1))
    return parameters


def _from_divisors(
    divisors: np.ndarray[Any, Any], geometry: RopeGeometry, path: Path
) -> dict[str, Any]:
    """Llama 3's parameters, if they give these divisors, (rotary_dim / 2,); else ModelError."""
    own = replace(geometry, trained_length=_LLAMA3_LENGTH)
    same = False
    if divisors.shape == own.inv_freq().shape and divisors.max() >= 1:
        patch = Llama3(factor=float(divisors.max()))
        same = np.allclose(own.inv_freq() / divisors, patch.tables(own, 1).inv_freq, rtol=1e-5)
    if not same:
        raise _refusal(path, f"rotary divisors ({_DIVISORS}) that are not those of Llama 3.1")
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
    are meant, as in llama.cpp. A config that already has a scaling of its own stays as it is, and
    its file is not asked: nothing was dropped then, so nothing in the file is refused either.

    Args:
        config: Changed in place.
        path: Of the GGUF file.
        quiet: Do not warn.

    Raises:
        ModelError: As in `read_scaling`.
    """
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    if _own_type(parameters) is not None:
        return
    scaling = read_scaling(path)
    if scaling is None:
        return
    if "divisors" in scaling:
        geometry = RopeGeometry.from_config(config)
        scaling = _from_divisors(scaling["divisors"], next(iter(geometry.values())), path)
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
