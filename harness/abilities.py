"""What a model can do that not every model can, found by a short trial, once a model.

Neither is told by a config or a class: some models of transformers keep a state that a second
chunk does not go on from, some count its positions from zero again, some take no cache but their
own. Their results would be wrong, and nothing would say so.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.attention import UnsupportedAttentionError, own_attention
from harness.prefill import Prefill, base_of, chunk_size, evaluating

_TOKENS = 16
_FIRST_CHUNK = 11
# Of the hidden states' size. Rounding stays a tenth below it; a chunk that goes on from nothing, or
# from a wrong position, is far above in any model whose layers do anything.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Abilities:
    """What a model was found able to do.

    Attributes:
        own_attention: It runs with our attention in place of its own.
        continues: A second chunk behind a cache has the hidden states that it has in the whole, so
            that sequences may run in chunks and share a prefix.
    """

    own_attention: bool
    continues: bool


_known: weakref.WeakKeyDictionary[Any, Abilities] = weakref.WeakKeyDictionary()


def abilities(model: Any) -> Abilities:
    """Try a model on a few tokens; what was found is kept for as long as the model lives.

    Args:
        model: A causal language model of transformers, patched or not.

    Raises:
        ModelError: If it has no base model.
    """
    if model not in _known:
        _known[model] = _try(model)
    return _known[model]


def safe_chunk_size(model: Any, num_tokens: int, *, tokens: int | None = None) -> int:
    """Tokens that run at once, as `chunk_size` says; all of them where chunks would be wrong."""
    chunk = chunk_size(model, num_tokens, tokens=tokens)
    return chunk if chunk >= num_tokens or abilities(model).continues else num_tokens


def _try(model: Any) -> Abilities:
    base_of(model)
    weight = model.get_input_embeddings().weight
    # Any tokens that differ will do; the first few of a vocabulary are often padding and the like.
    ids = (torch.arange(_TOKENS, device=weight.device) * 7 + 5)[None] % weight.shape[0]
    with evaluating(model):
        try:
            with own_attention(model):
                whole = _whole(model, ids)
                ours, continues = True, _continues(model, ids, whole)
        except UnsupportedAttentionError:
            ours, continues = False, _continues(model, ids, _whole(model, ids))
    return Abilities(own_attention=ours, continues=continues)


def _whole(model: Any, ids: Tensor) -> Tensor:
    output = base_of(model)(input_ids=ids, use_cache=False, return_dict=True)
    hidden: Tensor = output.last_hidden_state
    return hidden


def _continues(model: Any, ids: Tensor, whole: Tensor) -> bool:
    try:
        prefill = Prefill(model)
        prefill.run(ids[:, :_FIRST_CHUNK])
        parts = prefill.branch().run(ids[:, _FIRST_CHUNK:]).last_hidden_state
    except UnsupportedAttentionError:
        raise
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return False  # what a model says that takes no cache, or only one of its own
    behind = whole[:, _FIRST_CHUNK:].double()
    errors = (parts.double() - behind).norm(dim=-1) / behind.norm(dim=-1)
    # The median: a router of experts that falls to the other side by rounding moves one token far.
    return bool(errors.median() <= _TOLERANCE.get(whole.dtype, 1e-1))
