"""Small real models that ship with the package: ``zoo:NAME`` in a sweep loads one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.errors import ModelError

ZOO: dict[str, str] = {
    "llama-10k": "Llama, full attention, rope base 10000",
    "llama-500k": "Llama, full attention, rope base 500000",
    "gemma-local-global": "Gemma 3, sliding-window layers at base 10000, global at 1000000",
}

TRAINED_LENGTH = 256
VOCABULARY = 2048
FOLDER = Path(__file__).resolve().parent
TOKENIZER_FOLDER = FOLDER / "tokenizer"
MANIFEST = FOLDER / "corpus_manifest.json"


def zoo_folder(name: str) -> Path:
    """The folder of a zoo model.

    Raises:
        ModelError: If there is no such model, or it was not installed with the package.
    """
    if name not in ZOO:
        raise ModelError(f"no zoo model '{name}'; there are: {', '.join(ZOO)}")
    folder = FOLDER / name
    if not (folder / "model.safetensors").is_file():
        raise ModelError(f"zoo model '{name}' has no weights in {folder}; reinstall ropewalk")
    return folder


def model_card(name: str) -> dict[str, Any]:
    """The training card of a zoo model: steps, tokens, seconds, losses, accuracy, versions."""
    card: dict[str, Any] = json.loads((zoo_folder(name) / "card.json").read_text(encoding="utf-8"))
    return card
