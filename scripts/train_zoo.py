#!/usr/bin/env python3
"""Train the zoo from scratch: the tokenizer, then any of its models.

    scripts/train_zoo.py                      all of it
    scripts/train_zoo.py llama-10k            one model (and the tokenizer if it is missing)
    scripts/train_zoo.py --tokenizer          the tokenizer again

The text is the running Python's standard library, without the modules held out for evaluation.
Another Python version has other text, so it trains another model; the manifest beside the models
says which files went in. An interrupted training goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from harness.corpus import HELD_OUT, SourceFile, training_files
from harness.errors import RopewalkError
from harness.zoo import FOLDER, MANIFEST, TOKENIZER_FOLDER, TRAINED_LENGTH, ZOO


def _write_manifest(files: list[SourceFile], folder: Path) -> None:
    manifest = {
        "python": platform.python_version(),
        "held_out": list(HELD_OUT),
        "bytes": sum(len(f.text.encode()) for f in files),
        "files": {f.name: f.sha256 for f in files},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST.name).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"{', '.join(ZOO)} (default: all)"
    )
    parser.add_argument("--tokenizer", action="store_true", help="train the tokenizer again")
    parser.add_argument("--steps", type=int, default=1000, help="default 1000")
    parser.add_argument("--batch", type=int, default=32, help="windows in a step (default 32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("build/zoo"), help="checkpoints")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where the models go")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models if name not in ZOO]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; there are: {', '.join(ZOO)}")
    return arguments


def main() -> None:
    arguments = _parse()
    files = training_files()
    if arguments.tokenizer or not TOKENIZER_FOLDER.exists():
        from harness.zoo.tokenizer_training import train_tokenizer

        train_tokenizer(files).save_pretrained(TOKENIZER_FOLDER)
        print(f"tokenizer: {TOKENIZER_FOLDER}", flush=True)
        if not arguments.models:
            return
    from transformers import PreTrainedTokenizerFast

    from harness.zoo.documents import TrainingText
    from harness.zoo.training import Recipe, save_model, train

    _write_manifest(files, arguments.output)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(TOKENIZER_FOLDER)
    text = TrainingText(tokenizer, files, TRAINED_LENGTH)
    print(f"{len(files)} files, {text.num_tokens} tokens", flush=True)
    recipe = Recipe(steps=arguments.steps, batch=arguments.batch, seed=arguments.seed)
    # A terminal gets one line that moves; a log gets a line every ten steps.
    end = "\r" if sys.stdout.isatty() else "\n"
    for name in arguments.models or ZOO:
        model, card = train(
            name,
            text,
            recipe,
            arguments.work / name,
            say=lambda line: print(line, end=end, flush=True),
        )
        save_model(model, card, arguments.output / name)
        print(
            f"\n{name}: {card['seconds']:.0f} s, passkey {card['passkey_accuracy']:.2f}", flush=True
        )


if __name__ == "__main__":
    try:
        main()
    except RopewalkError as error:
        sys.exit(f"train_zoo: {error}")
