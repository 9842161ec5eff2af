"""Fixtures that many tests share."""

from __future__ import annotations

from typing import Any

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
