"""Fixtures that many tests share."""

from __future__ import annotations

import os
from typing import Any

# Before anything imports the hub's client: no test waits for a network.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest


@pytest.fixture(scope="session")
def zoo_tokenizer() -> Any:
    """The tokenizer of the shipped models."""
    from transformers import PreTrainedTokenizerFast

    from harness.zoo import TOKENIZER_FOLDER

    return PreTrainedTokenizerFast.from_pretrained(TOKENIZER_FOLDER)


@pytest.fixture(scope="session")
def llama_10k() -> Any:
    """The shipped Llama with base 10000; tests must leave it as they found it."""
    from harness.models import load_model
    from harness.spec import ModelSpec

    return load_model(ModelSpec(path="zoo:llama-10k", device="cpu"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, zoo_tokenizer: Any) -> Any:
    """A local folder with a random two-layer Llama (trained length 32) and the zoo's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=32,
            tie_word_embeddings=True,
            bos_token_id=0,
        )
    )
    model.save_pretrained(folder)
    zoo_tokenizer.save_pretrained(folder)
    return folder
