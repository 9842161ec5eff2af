"""The module that takes the place of a model's rotary embedding. Imported by ``apply`` only.

Shape suffixes: b batch, n positions, r half the rotary dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from patches.base import PatchError, RopeTables
from patches.layout import Output, RotaryLayout, call_rotary, replace_tables


class PatchedRotary(nn.Module):
    """Rotary tables of a method, in the layout of the module they replace.

    Angles, cosines and sines are computed in float32 whatever the model's dtype, in the order in
    which transformers does it, so equal frequencies give equal bits. An angle is then wrong by up
    to half a unit in the last place of its size: 1e-3 at position 32768, 4e-2 at a million.
    The frequencies are no buffers, so ``model.to(torch.bfloat16)`` cannot round them.

    Attributes:
        tables: New tables by layer type, under ``None`` where the module serves all layers.
        layouts: The layout for every layer type the model has, new tables or not.
        selective: Return the original's tables, for ``LayerSelector`` to exchange for the new ones
            in some layers.
        identity: Turn by no angle at all, with no scale (verification only).
        calls: While it is a list: layer type, positions ``[B, N]`` and output of each call.
        latest: The original's output and the new one of the last call, if ``selective``.
    """

    def __init__(
        self,
        original: nn.Module,
        tables: Mapping[str | None, RopeTables],
        layouts: Mapping[str | None, RotaryLayout],
        *,
        selective: bool = False,
    ) -> None:
        """Take the place of ``original``; see the attributes of the class."""
        super().__init__()
        # A copy, so that the model's own module and its state stay untouched. In a tuple, so that
        # it is no child: not moved, cast or found with the model's modules. The config is shared:
        # it is large, and read only.
        config = getattr(original, "config", None)
        self._original = (copy.deepcopy(original, {id(config): config}),)
        self.tables = dict(tables)
        self.layouts = dict(layouts)
        self.selective = selective
        self.identity = False
        self.calls: list[tuple[str | None, Tensor, Output]] | None = None
        self.latest: tuple[Output, Output] | None = None
        self._inv_freq: dict[tuple[str | None, torch.device], Tensor] = {}

    @property
    def original(self) -> nn.Module:
        """A private copy of the replaced module; it serves layers that keep their tables."""
        return self._original[0]

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Output:
        """Compute the tables as the original would.

        Args:
            x: Hidden states; only their dtype and device are used.
            position_ids: Positions, shape ``[B, N]``.
            layer_type: Given by models that keep separate tables for their layer types.

        Returns:
            Cosines and sines in the model's layout.

        Raises:
            PatchError: If the positions have several components, as in multimodal RoPE.
        """
        if position_ids.ndim > 2:
            shape = tuple(position_ids.shape)
            raise PatchError(f"positions of shape {shape} (multimodal RoPE) are not supported")
        output = self._output(x, position_ids, layer_type)
        if self.calls is not None:
            self.calls.append((layer_type, position_ids.detach(), output))
        return output

    def _output(self, x: Tensor, position_ids: Tensor, layer_type: str | None) -> Output:
        if self.identity:
            return self.unrotated(x, position_ids, layer_type)
        if self.selective:
            kept = call_rotary(self.original, x, position_ids, layer_type)
            self.latest = (kept, self.method_tables(x, position_ids, next(iter(self.tables))))
            return kept
        key = layer_type if layer_type in self.tables else None
        if key in self.tables:
            return self.method_tables(x, position_ids, key)
        return call_rotary(self.original, x, position_ids, layer_type)

    def layout(self, layer_type: str | None) -> RotaryLayout:
        """The layout of the tables that layers of this type are given."""
        return self.layouts[layer_type if layer_type in self.layouts else None]

    def unrotated(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None, scale: float = 1.0
    ) -> Output:
        """Tables that turn by no angle and multiply by ``scale``."""
        size = next(iter(self.tables.values())).inv_freq.size
        angles_bnr = torch.zeros((*position_ids.shape, size), device=x.device)
        return self.layout(layer_type).pack(angles_bnr, scale, x.dtype)

    def method_tables(self, x: Tensor, position_ids: Tensor, key: str | None) -> Output:
        """The method's cosines and sines for a key of ``tables``; else as in ``forward``."""
        tables = self.tables[key]
        where = (key, x.device)
        if where not in self._inv_freq:
            inv_freq = torch.from_numpy(tables.inv_freq.astype(np.float32))
            self._inv_freq[where] = inv_freq.to(x.device)
        with torch.no_grad():
            positions_bn1 = position_ids[..., None].to(device=x.device, dtype=torch.float32)
            angles_bnr = positions_bn1 * self._inv_freq[where]
            return self.layout(key).pack(angles_bnr, tables.attention_factor, x.dtype)


class LayerSelector:
    """Gives the new tables to some layers of a model whose layers share one rotary module.

    A forward pre-hook on each of those layers' attention modules exchanges the shared tables that
    come in for the new ones.
    """

    def __init__(self, rotary: PatchedRotary, attention_modules: Mapping[int, nn.Module]) -> None:
        """Hook the attention modules, given by their layer index."""
        self._rotary = rotary
        self._handles = [
            module.register_forward_pre_hook(self._exchange(layer), with_kwargs=True)
            for layer, module in attention_modules.items()
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()

    def _exchange(self, layer: int) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._rotary.latest is not None:
                kept, new = self._rotary.latest
                replaced = replace_tables(args, kwargs, kept, new)
                if replaced is not None:
                    return replaced
            raise PatchError(
                f"the attention of layer {layer} is not given the shared rotary tables, so a "
                "method cannot be limited to some layers of this model"
            )

        return hook
