"""How a model's rotary module hands over its tables. Imported, with torch, by ``apply`` only.

Shape suffixes: b batch, n positions, r half the rotary dimensions, w the width of what a model's
rotary module returns (r or 2 r).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from patches.base import PatchError

Arrangement = Literal["half", "interleaved", "single", "complex"]
Output = tuple[Tensor, Tensor] | Tensor

_PROBE_POSITIONS = (0, 1, 3, 10)
_PROBE_TOLERANCE = 1e-4


@dataclass(frozen=True)
class RotaryLayout:
    """How a rotary module hands over its tables.

    Attributes:
        arrangement: ``half`` (cosines and sines of all frequencies, twice in a row: Llama),
            ``interleaved`` (each one twice: Cohere), ``single`` (once: GPT-OSS) or ``complex``
            (one complex tensor: Llama 4).
        follows_dtype: Whether the tables have the dtype of the hidden states; float32 if not.
    """

    arrangement: Arrangement
    follows_dtype: bool

    def pack(self, angles_bnr: Tensor, scale: float, dtype: torch.dtype) -> Output:
        """Compute and arrange cosines and sines, in the order in which transformers does it.

        Args:
            angles_bnr: Float32, in radians.
            scale: What cosines and sines are multiplied by.
            dtype: Of the hidden states.

        Returns:
            What the model's own module would return for these angles.
        """
        if self.arrangement == "complex":
            return torch.polar(torch.ones_like(angles_bnr), angles_bnr) * scale
        angles_bnw = angles_bnr
        if self.arrangement == "half":
            angles_bnw = torch.cat((angles_bnr, angles_bnr), dim=-1)
        elif self.arrangement == "interleaved":
            angles_bnw = torch.repeat_interleave(angles_bnr, 2, dim=-1)
        cos, sin = angles_bnw.cos() * scale, angles_bnw.sin() * scale
        kept = dtype if self.follows_dtype else torch.float32
        return cos.to(kept), sin.to(kept)

    def unpack(self, output: Output) -> tuple[Tensor, Tensor]:
        """Cosines and sines of a module's output, float64 on the CPU, each ``[B, N, R]``."""
        if isinstance(output, Tensor):
            return output.real.cpu().double(), output.imag.cpu().double()
        cos_bnw, sin_bnw = (part.cpu().double() for part in output)
        if self.arrangement == "half":
            width = cos_bnw.shape[-1] // 2
            return cos_bnw[..., :width], sin_bnw[..., :width]
        if self.arrangement == "interleaved":
            return cos_bnw[..., ::2], sin_bnw[..., ::2]
        return cos_bnw, sin_bnw


def call_rotary(
    module: nn.Module, x: Tensor, position_ids: Tensor, layer_type: str | None
) -> Output:
    """Call a rotary module of transformers, with a layer type only if there is one."""
    extra = {} if layer_type is None else {"layer_type": layer_type}
    output: Output = module(x, position_ids, **extra)
    return output


def detect_layout(module: nn.Module, layer_type: str | None, rotary_dim: int) -> RotaryLayout:
    """Find out how a rotary module hands over its tables by calling a copy of it.

    Args:
        module: A rotary module of transformers.
        layer_type: The layer type to call it for, ``None`` to call it without one.
        rotary_dim: Rotated dimensions that the config promises.

    Returns:
        The layout.

    Raises:
        PatchError: If what it returns is none of the known layouts, or of another size.
    """
    name = type(module).__name__
    device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
    if device.type == "meta":
        raise PatchError(f"{name} holds no numbers: the model's weights are not loaded")
    config = getattr(module, "config", None)
    probe = copy.deepcopy(module, {id(config): config})  # large, and read only
    positions = torch.tensor([_PROBE_POSITIONS], device=device)
    hidden = torch.zeros((1, len(_PROBE_POSITIONS), rotary_dim), device=device)
    try:
        with torch.no_grad():
            output = call_rotary(probe, hidden, positions, layer_type)
            rounded = call_rotary(probe, hidden.bfloat16(), positions, layer_type)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        raise PatchError(f"{name} cannot be called as rotary modules are: {error}") from error
    for arrangement in _arrangements(output, rotary_dim):
        follows = not isinstance(rounded, Tensor) and rounded[0].dtype == torch.bfloat16
        layout = RotaryLayout(arrangement, follows)
        if _is_rotation(output, layout):
            return layout
    raise PatchError(
        f"{name} returns rotary tables in a layout that is not understood "
        f"(expected {rotary_dim} rotated dimensions)"
    )


def same_tables(value: Any, output: Output) -> bool:
    """Whether a value is what a rotary module returned, or a copy on another device."""
    if isinstance(output, Tensor):
        return isinstance(value, Tensor) and _same_tensor(value, output)
    return (
        isinstance(value, tuple | list)
        and len(value) == len(output)
        and all(
            isinstance(part, Tensor) and _same_tensor(part, other)
            for part, other in zip(value, output, strict=True)
        )
    )


def replace_tables(
    args: tuple[Any, ...], kwargs: dict[str, Any], old: Output, new: Output
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Exchange rotary tables among the arguments of an attention module.

    Returns:
        The arguments with ``new`` in place of ``old``; ``None`` if ``old`` is not among them.
    """
    found = False
    replaced: list[Any] = []
    for value in (*args, *kwargs.values()):
        if same_tables(value, old):
            found = True
            replaced.append(_on_device_of(value, new))
        else:
            replaced.append(value)
    if not found:
        return None
    return tuple(replaced[: len(args)]), dict(zip(kwargs, replaced[len(args) :], strict=True))


def _same_tensor(first: Tensor, second: Tensor) -> bool:
    if first is second:
        return True
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first, second.to(first.device))


def _on_device_of(value: Any, new: Output) -> Output:
    if isinstance(new, Tensor):
        return new.to(value.device)
    return new[0].to(value[0].device), new[1].to(value[0].device)


def _arrangements(output: Any, rotary_dim: int) -> tuple[Arrangement, ...]:
    """The arrangements that a module's output could have by its shape."""
    parts = (output,) if isinstance(output, Tensor) else output
    if not isinstance(parts, tuple | list) or not all(isinstance(part, Tensor) for part in parts):
        return ()
    shape = (1, len(_PROBE_POSITIONS))
    if any(part.ndim != 3 or part.shape[:2] != shape for part in parts):
        return ()
    width = parts[0].shape[-1]
    if len(parts) == 1:
        return ("complex",) if parts[0].is_complex() and 2 * width == rotary_dim else ()
    if len(parts) != 2:
        return ()
    if width == rotary_dim:
        return ("half", "interleaved")
    return ("single",) if 2 * width == rotary_dim else ()


def _is_rotation(output: Output, layout: RotaryLayout) -> bool:
    """Whether the output, so arranged, turns every position by itself times fixed frequencies."""
    cos_bnr, sin_bnr = layout.unpack(output)
    scale_bnr = torch.hypot(cos_bnr, sin_bnr)
    scale = float(scale_bnr[0, 0, 0])
    positions_n1 = torch.tensor(_PROBE_POSITIONS, dtype=torch.float64)[:, None]
    angles_bnr = (positions_n1 * torch.atan2(sin_bnr[0, 1], cos_bnr[0, 1]))[None]
    again = layout.unpack(layout.pack(angles_bnr.float(), scale, torch.float32))
    repacked = layout.pack(torch.atan2(sin_bnr, cos_bnr).float(), scale, torch.float32)
    found = torch.cat([part.cpu() for part in _parts(output)], dim=-1)
    wanted = torch.cat(_parts(repacked), dim=-1)
    tolerance = _PROBE_TOLERANCE * scale
    turned = max(float((cos_bnr - again[0]).abs().max()), float((sin_bnr - again[1]).abs().max()))
    return turned <= tolerance and float((found - wanted).abs().max()) <= tolerance


def _parts(output: Output) -> tuple[Tensor, ...]:
    return (output,) if isinstance(output, Tensor) else output
