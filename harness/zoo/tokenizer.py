"""The zoo's tokenizer without transformers, which takes two seconds to import.

It answers what the harness asks of a Hugging Face tokenizer, in the same way (a test compares).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.zoo import TOKENIZER_FOLDER

BOS = "<s>"


class ZooTokenizer:
    """The shipped tokenizer; thread-safe and stateless but for how special tokens are read."""

    is_fast = True

    def __init__(self) -> None:
        """Load the shipped file."""
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))
        self.bos_token_id = self._tokenizer.token_to_id(BOS)

    def __call__(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Tokenize a text.

        Args:
            text: Any text.
            add_special_tokens: Whether the beginning-of-sequence token is prepended.
            split_special_tokens: Whether ``<s>`` in the text is text.

        Returns:
            ``input_ids`` and ``offset_mapping`` (character start and end of each token).
        """
        self._tokenizer.encode_special_tokens = split_special_tokens
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, special ones included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text
