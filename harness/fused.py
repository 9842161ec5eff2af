"""The output of attention by PyTorch's fused operators, without an N x N mask.

They know one mask, the causal square. What else a layer needs is put together from it: behind a
cache, the past (seen whole) and the square are merged by their log-sum-exp; a sliding window is
cut into short blocks of queries, which share one small mask; a learnt sink scales the output.

Shapes: B sequences, H query heads, K key heads, L queries, S keys, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import pad, scaled_dot_product_attention

from harness.layer_call import on_cpu
from harness.masks import TileMask

_BLOCK_QUERIES = (64, 512)  # of a window, at least and at most

Attended = tuple[Tensor, Tensor | None]  # output (B, H, L, D) and log-sum-exp (B, H, L), if known


def fused_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: TileMask,
    scaling: float,
    sinks: Tensor | None = None,
) -> Tensor | None:
    """Attend from all queries.

    Args:
        query: ``(B, H, L, D)``.
        key: ``(B, K, S, D)``.
        value: ``(B, K, S, E)``, E at most D.
        mask: Who sees whom.
        scaling: Of the scores.
        sinks: Logits of learnt sinks, one a query head.

    Returns:
        ``(B, H, L, E)``; None where no fused operator gives it.
    """
    width, size = value.shape[-1], query.shape[-1]
    # Only the CPU's operator gives the log-sum-exp, which a sink's share is made of.
    sinks_unknown = sinks is not None and not on_cpu(query)
    if mask.kind not in ("causal", "window") or width > size or sinks_unknown:
        return None
    behind_cache = mask.kind == "causal" and 1 < query.shape[2] < key.shape[2]
    if behind_cache and query.device.type not in ("cpu", "cuda"):
        return None  # on Apple's, say, PyTorch would make the whole mask
    if width < size:  # latent attention: the operators want one size
        value = pad(value, (0, size - width))
    if mask.kind == "causal":
        out, lse = _causal(query, key, value, scaling)
    else:
        out, lse = _windowed(query, key, value, mask, scaling)
    if sinks is not None:
        assert lse is not None
        share = torch.sigmoid(lse - sinks.to(lse.dtype)[None, :, None])
        out = out * share[..., None].to(out.dtype)
    return out[..., :width]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None, causal: bool
) -> Attended:
    """One call of a fused operator; `mask` is bool, ``(L, S)``."""
    if on_cpu(query):
        added = None
        if mask is not None:
            added = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
            added = added[None, None]
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=added, scale=scaling
        )
        return out, lse
    return _operator(query, key, value, scaling, mask, causal), None


def _operator(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Any, causal: bool
) -> Tensor:
    """PyTorch's own choice of operator; `mask` as it takes it."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and not _flash_takes(query, key, value, mask, causal):
        # The other operators want as many key heads as query heads; without them PyTorch would
        # fall back to all scores at once.
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _flash_takes(query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool) -> bool:
    """Whether PyTorch would choose its flash operator, which knows groups of heads."""
    if mask is not None and not isinstance(mask, CausalBias):
        return False
    given = SDPAParams(query, key, value, None, 0.0, causal, True)
    return bool(can_use_flash_attention(given))


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Attended:
    tokens, keys = query.shape[2], key.shape[2]
    if tokens == keys:
        return _attend(query, key, value, scaling, None, True)
    if tokens == 1:
        return _attend(query, key, value, scaling, None, False)
    if not on_cpu(query):
        # They know the causal mask that is aligned at its end.
        aligned = causal_lower_right(tokens, keys)
        return _operator(query, key, value, scaling, aligned, False), None
    past = keys - tokens
    far, far_lse = _attend(query, key[:, :, :past], value[:, :, :past], scaling, None, False)
    near, near_lse = _attend(query, key[:, :, past:], value[:, :, past:], scaling, None, True)
    assert far_lse is not None
    assert near_lse is not None
    lse = torch.logaddexp(far_lse, near_lse)
    far_share, near_share = (
        (part - lse).exp()[..., None].to(far.dtype) for part in (far_lse, near_lse)
    )
    return far * far_share + near * near_share, lse


def _windowed(
    query: Tensor, key: Tensor, value: Tensor, mask: TileMask, scaling: float
) -> Attended:
    """Blocks of queries, each with the keys that any of them sees."""
    tokens = query.shape[2]
    rows = min(max(mask.window // 2, _BLOCK_QUERIES[0]), _BLOCK_QUERIES[1])
    out = torch.empty_like(query)
    ahead = mask.query_offset - mask.key_offset  # column of the first query's own key
    shared: dict[tuple[int, int], Tensor] = {}
    sums: list[Tensor] = []
    for start in range(0, tokens, rows):
        stop = min(start + rows, tokens)
        first = mask.first_visible(mask.query_offset + start) - mask.key_offset
        shape = (stop - start, ahead + stop - first)
        if shape not in shared:
            column = torch.arange(shape[1], device=query.device)[None]
            own = torch.arange(shape[1] - shape[0], shape[1], device=query.device)[:, None]
            shared[shape] = (column <= own) & (column > own - mask.window)
        keys = slice(first, ahead + stop)
        own_query = query[:, :, start:stop]
        out[:, :, start:stop], lse = _attend(
            own_query, key[:, :, keys], value[:, :, keys], scaling, shared[shape], False
        )
        if lse is not None:
            sums.append(lse)
    return out, torch.cat(sums, -1) if sums else None
