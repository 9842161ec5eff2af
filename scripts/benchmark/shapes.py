"""The models that are timed: random weights in real shapes, and the zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

QWEN = "qwen2.5-0.5b shape, 6 layers"
GEMMA = "gemma-3-270m shape"
LLAMA = "zoo:llama-10k"
WIDE = "2 layers, 262144 words"


def _qwen(layers: int, words: int) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=words,
            hidden_size=896,
            intermediate_size=4864,
            num_hidden_layers=layers,
            num_attention_heads=14,
            num_key_value_heads=2,
            max_position_embeddings=32768,
            rope_theta=1e6,
            tie_word_embeddings=True,
        )
    )


def _gemma(layers: int, words: int) -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=words,
            hidden_size=640,
            intermediate_size=2048,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
            max_position_embeddings=32768,
        )
    )


def make(name: str, *, dtype: str = "float32", device: str = "cpu", words: int = 2048) -> Any:
    """A model to time, in evaluation mode.

    Args:
        name: One of this module's names, or a folder.
        dtype: Of the weights.
        device: Where it runs.
        words: Vocabulary of a random one.
    """
    torch.manual_seed(0)
    if name == QWEN:
        model = _qwen(6, words)
    elif name == GEMMA:
        model = _gemma(18, words)
    elif name == WIDE:
        model = _gemma(2, 262_144)
    elif name == LLAMA:
        from harness.models import load_model
        from harness.spec import ModelSpec

        model = load_model(ModelSpec(path=name, dtype="float32", device="cpu"))
    elif Path(name).is_dir():
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
    else:
        from tests.models import make_model  # a tiny one, for the tests of this script

        model = make_model(name, 0)
    return model.to(device=device, dtype=getattr(torch, dtype)).eval()


def save_whole_qwen(folder: Path) -> None:
    """Random weights of all of Qwen2.5-0.5B's shape, for the time that loading takes."""
    torch.manual_seed(0)
    _qwen(24, 151_936).save_pretrained(folder)


def random_ids(model: Any, tokens: int) -> torch.Tensor:
    """Token ids ``(1, tokens)`` on the model's device."""
    words = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, words, (1, tokens), generator=generator)
    return ids.to(next(model.parameters()).device)
