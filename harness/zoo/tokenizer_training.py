"""The zoo's one tokenizer: byte-level BPE with single digits, trained on the training files."""

from __future__ import annotations

from typing import Any

from harness.corpus import SourceFile
from harness.passkey_text import COLOURS, DISTRACTOR, FILLER, INTRODUCTION, NEEDLE, QUESTION
from harness.zoo import VOCABULARY
from harness.zoo.tokenizer import BOS


def train_tokenizer(files: list[SourceFile]) -> Any:
    """Train it and wrap it for transformers; it prepends ``<s>`` where special tokens are added.

    Every digit is a token of its own, so that a passkey is as many tokens as it has digits.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Words with the space before them, runs of spaces and of newlines, single digits.
            pre_tokenizers.Split(
                Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+(?!\S)|\s+"), "isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The task's words are in the vocabulary, so that 256 tokens have room for a haystack.
    task = [INTRODUCTION, NEEDLE, QUESTION, FILLER, DISTRACTOR, *COLOURS] * 300
    tokenizer.train_from_iterator([f.text for f in files] + task, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, clean_up_tokenization_spaces=False
    )
