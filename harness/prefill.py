"""Running a model's base over a sequence, in chunks where memory asks for it.

A chunk's keys and values go into a cache, and the next chunk attends to them: the hidden states
are those of the whole sequence at once, up to rounding, with the activations of one chunk.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from harness.errors import DataError, ModelError
from harness.memory import trim
from patches.geometry import LENGTH_DEPENDENT
from patches.state import rotary_state_kept

# Activations of a chunk, at most. It decides the chunks and so the rounding: fixed numbers, not
# what happens to be free, make two runs equal bit for bit.
ACTIVATION_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30, "mps": 1 << 30}
# Keys and values of sequences that run side by side, at most.
CACHE_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30, "mps": 2 << 30}
_LEAST_TOKENS = 256


def base_of(model: Any) -> Any:
    """The model beneath the head.

    Raises:
        ModelError: If there is none.
    """
    # Llama 4's prefix names something that its text model does not have.
    names = (getattr(model, "base_model_prefix", ""), "model")
    base = next((found for n in names if n and (found := getattr(model, n, None))), None)
    if base is None or base is model:
        raise ModelError(
            f"{type(model).__name__} is not a causal language model of transformers (no base "
            "model beneath its head); load it with AutoModelForCausalLM"
        )
    return base


def known_tokens(model: Any, input_ids: Tensor) -> Tensor:
    """The ids as int64 on the embeddings' device; refused if the model does not know them."""
    base_of(model)
    if input_ids.is_floating_point():
        raise DataError(f"input_ids must be whole numbers, not {input_ids.dtype}")
    weight = model.get_input_embeddings().weight
    if int(input_ids.max()) >= weight.shape[0] or int(input_ids.min()) < 0:
        raise DataError(
            f"input_ids holds a token outside the model's vocabulary of {weight.shape[0]}; is it "
            "from this model's tokenizer?"
        )
    return input_ids.to(device=weight.device, dtype=torch.int64)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients, and afterwards the model is as it was.

    What was training is training again, and rotary tables that follow the length of an input are
    those from before it.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode(), rotary_state_kept(model):
            yield
    finally:
        for module in training:  # not model.train(): some parts may have been at rest before
            module.training = True


def follows_length(model: Any) -> bool:
    """Whether rotary tables in use are chosen by the length of each input.

    Stock ``dynamic`` and ``longrope`` scaling take other tables for a chunk than for the whole:
    such a model runs whole or not at all.
    """
    for module in model.modules():
        if "Rotary" not in type(module).__name__:
            continue
        own = getattr(module, "original", module)  # behind tables of ours, for layers that keep it
        kinds = getattr(own, "rope_type", None)
        kinds = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
        replaced = own is not module and None in module.tables and not module.selective
        if kinds & LENGTH_DEPENDENT and not replaced:
            return True
    return False


@dataclass(frozen=True)
class _Sizes:
    """What decides how much memory a token takes; where a config does not say, a usual value."""

    hidden: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    layers: int
    element_bytes: int

    @classmethod
    def of(cls, model: Any) -> _Sizes:
        config = model.config.get_text_config()
        hidden = config.hidden_size
        # Models without attention have no heads; layers of other kinds take about as much.
        heads = getattr(config, "num_attention_heads", None) or 1
        inner = getattr(config, "intermediate_size", None) or 4 * hidden
        return cls(
            hidden=hidden,
            inner=max(inner) if isinstance(inner, list | tuple) else inner,
            heads=heads,
            key_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or hidden // heads,
            layers=config.num_hidden_layers,
            element_bytes=next(model.parameters()).element_size(),
        )

    @property
    def activation_bytes(self) -> int:
        """Of one token while one layer runs, roughly."""
        attention = (self.heads + 2 * self.key_heads) * self.head_dim
        # Queries and keys are there in single precision too, for the statistics.
        exact = 2 * max(4, self.element_bytes) * attention
        return self.element_bytes * (6 * self.hidden + 3 * self.inner + 2 * attention) + exact

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.key_heads * self.head_dim * self.element_bytes


def _budget(model: Any, of: dict[str, int]) -> int:
    return of.get(next(model.parameters()).device.type, of["cpu"])


def most_rows(model: Any, num_tokens: int) -> int:
    """Sequences of so many tokens whose caches fit the budget together; 1 at least."""
    rows = _budget(model, CACHE_BYTES) // (num_tokens * _Sizes.of(model).cache_bytes)
    return max(1, rows)


def chunk_size(model: Any, num_tokens: int, *, tokens: int | None = None) -> int:
    """Tokens that run at once.

    Args:
        model: A causal language model of transformers.
        num_tokens: Of the sequence.
        tokens: What is asked for; None for what fits the budget of the model's device.

    Returns:
        `num_tokens` where the whole fits, or where chunks would change the rotary tables.
    """
    if tokens is None:
        budget = _budget(model, ACTIVATION_BYTES)
        tokens = max(_LEAST_TOKENS, budget // _Sizes.of(model).activation_bytes)
        tokens -= tokens % _LEAST_TOKENS
    return num_tokens if tokens >= num_tokens or follows_length(model) else tokens


def _only_grows(layer: Any) -> bool:
    """Whether a layer of a cache holds keys and values and nothing else."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)


class Prefill:
    """A base model with the cache of what it has seen."""

    def __init__(self, model: Any, cache: Any | None = None) -> None:
        """Begin with nothing seen, or go on from a cache."""
        from transformers import DynamicCache

        self._model = model
        self._base = base_of(model)
        # The argument was renamed in transformers 5.
        names = signature(type(self._base).forward).parameters
        self._name = "cache" if "cache" in names else "past_key_values"
        self._takes_positions = "position_ids" in names
        if cache is None:
            cache = DynamicCache(config=model.config.get_text_config())
        self._cache = cache
        self.num_tokens = int(cache.get_seq_length())

    def run(self, input_ids: Tensor) -> Any:
        """The base model's output of the next tokens ``(B, n)``, which are then seen, too."""
        more: dict[str, Any] = {self._name: self._cache}
        stop = self.num_tokens + input_ids.shape[1]
        if self._takes_positions:
            # Bamba, left alone, counts those of every chunk from zero.
            positions = torch.arange(self.num_tokens, stop, device=input_ids.device)
            more["position_ids"] = positions[None].expand_as(input_ids)
        output = self._base(input_ids=input_ids, use_cache=True, return_dict=True, **more)
        self.num_tokens = stop
        return output

    def outputs(self, input_ids: Tensor, chunk: int) -> Iterator[tuple[int, Any]]:
        """Run the next tokens ``(B, n)`` in chunks: where each starts, and its output."""
        for start in range(0, input_ids.shape[1], chunk):
            yield start, self.run(input_ids[:, start : start + chunk])
            trim()

    @property
    def can_widen(self) -> bool:
        """Whether a branch can have several rows: states of other kinds know only their own."""
        return all(_only_grows(layer) for layer in self._cache.layers)

    def branch(self, batch: int = 1) -> Prefill:
        """Another that has seen the same, in each of `batch` rows; this one stays as it is."""
        twin = copy.copy(self._cache)
        # What only grows makes new tensors; others change their own, and need a copy.
        twin.layers = [
            copy.copy(layer) if _only_grows(layer) else copy.deepcopy(layer)
            for layer in self._cache.layers
        ]
        if batch > 1:
            twin.batch_repeat_interleave(batch)
        return Prefill(self._model, twin)


def base_outputs(model: Any, input_ids: Tensor, chunk: int) -> Iterator[tuple[int, Any]]:
    """Run a sequence ``(B, n)``: each chunk's first position and the base model's output."""
    if chunk >= input_ids.shape[1]:
        yield 0, base_of(model)(input_ids=input_ids, use_cache=False, return_dict=True)
        return
    yield from Prefill(model).outputs(input_ids, chunk)
