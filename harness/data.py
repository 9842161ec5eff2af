"""Documents to token windows: read, tokenized once per tokenizer, hashed.

Every length and every method sees the same documents, so a document must hold the longest length
of the sweep; what is too short is left out, and said.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.corpus import held_out_files
from harness.errors import DataError, UnreachableDataError
from harness.spec import DatasetsData, DataSpec, StdlibData, TextData

# A token of the tokenizers in use spans 3 to 5 characters; enough for nearly every document.
_CHARACTERS_PER_TOKEN = 12


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text with the name that the tables know it by."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedDocument:
    """The first tokens of a document.

    Attributes:
        name: As in the tables.
        input_ids: int64, shape ``(n,)``, the beginning-of-sequence token first where there is one.
        byte_ends: int64, shape ``(n,)``: UTF-8 bytes of the text up to and with each token.
    """

    name: str
    input_ids: npt.NDArray[np.int64]
    byte_ends: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What a model is measured on.

    Attributes:
        documents: All exactly `tokens` long.
        data_hash: SHA-256 of names and token ids: part of every pass's identity.
        too_short: Names of the documents left out.
    """

    documents: tuple[TokenizedDocument, ...]
    data_hash: str
    too_short: tuple[str, ...]


def _text_documents(spec: TextData, folder: Path) -> Iterator[Document]:
    paths: list[Path] = []
    for pattern in spec.files:
        found = sorted(Path(p) for p in glob.glob(str(folder / pattern), recursive=True))  # noqa: PTH207 - absolute patterns too
        files = [p for p in found if p.is_file()]
        if not files:
            raise DataError(f"no file matches '{pattern}' (looked in {folder})")
        paths += [p for p in files if p not in paths]
    names = [path.name for path in paths]
    for path in paths:
        # The file's name, or where two folders have one of that name, its path.
        name = path.name if names.count(path.name) == 1 else path.as_posix()
        try:
            yield Document(name=name, text=path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} is not UTF-8 text (byte {error.start}); convert it or leave it out"
            ) from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _datasets_documents(spec: DatasetsData) -> Iterator[Document]:
    try:
        import datasets
    except ImportError:
        raise DataError(
            "`source: datasets` needs the datasets package: pip install 'ropewalk[datasets]'"
        ) from None
    try:
        rows = datasets.load_dataset(
            spec.path, spec.name, split=spec.split, revision=spec.revision, streaming=True
        )
        for index, row in enumerate(rows):
            if spec.column not in row:
                raise DataError(
                    f"dataset {spec.path} has no column '{spec.column}'; it has: {', '.join(row)}"
                )
            yield Document(name=f"{spec.split}-{index}", text=str(row[spec.column]))
    except DataError:
        raise
    except Exception as error:  # the datasets package raises whatever its readers raise
        raise UnreachableDataError(
            f"dataset {spec.path} cannot be read ({type(error).__name__}: {error}); check the name "
            "and the connection, or use `source: text` with local files"
        ) from None


def read_documents(spec: DataSpec, folder: Path) -> Iterator[Document]:
    """Read the documents that a sweep names, lazily, in a fixed order.

    Args:
        spec: The sweep's `data`.
        folder: Where relative file patterns start: the folder of the YAML file.

    Raises:
        DataError: If a file is missing or no text, or a dataset cannot be read.
    """
    if isinstance(spec, StdlibData):
        return (Document(name=s.name, text=s.text) for s in held_out_files())
    if isinstance(spec, TextData):
        return _text_documents(spec, folder)
    return _datasets_documents(spec)


def _encode(tokenizer: Any, text: str) -> tuple[list[int], list[int] | None]:
    """Token ids and, where the tokenizer knows them, the character offset of each token's end."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    # A "<s>" that stands in a text is text, not the beginning of a sequence.
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=fast,
        split_special_tokens=True,
        verbose=False,
    )
    ends = [end for _, end in encoded["offset_mapping"]] if fast else None
    return list(encoded["input_ids"]), ends


def _byte_ends(
    tokenizer: Any, text: str, ids: list[int], ends: list[int] | None
) -> npt.NDArray[np.int64]:
    if ends is None:  # a slow tokenizer: decode prefixes, which is exact and slow
        lengths = [len(tokenizer.decode(ids[: i + 1]).encode()) for i in range(len(ids))]
        return np.array(lengths, dtype=np.int64)
    bytes_at = np.zeros(len(text) + 1, dtype=np.int64)
    np.cumsum([len(c.encode(errors="surrogatepass")) for c in text], out=bytes_at[1:])
    return np.maximum.accumulate(bytes_at[np.array(ends, dtype=np.int64)])


def tokenize(document: Document, tokenizer: Any, num_tokens: int) -> TokenizedDocument | None:
    """The first `num_tokens` tokens of a document, or None if it has fewer.

    The beginning-of-sequence token is prepended once where the tokenizer has one, and counted.
    """
    bos = getattr(tokenizer, "bos_token_id", None)
    wanted = num_tokens - (bos is not None)
    # Long texts are tokenized only as far as needed; a cut changes at most the last few tokens.
    characters = _CHARACTERS_PER_TOKEN * num_tokens
    while True:
        text = document.text[:characters]
        ids, ends = _encode(tokenizer, text)
        if len(ids) >= wanted + 8 or len(text) == len(document.text):
            break
        characters *= 2
    if len(ids) < wanted:
        return None
    byte_ends = _byte_ends(tokenizer, text, ids[:wanted], None if ends is None else ends[:wanted])
    input_ids = np.array(ids[:wanted], dtype=np.int64)
    if bos is not None:
        input_ids = np.concatenate([[bos], input_ids])
        byte_ends = np.concatenate([[0], byte_ends])
    return TokenizedDocument(name=document.name, input_ids=input_ids, byte_ends=byte_ends)


def build_corpus(
    documents: Iterable[Document], tokenizer: Any, num_tokens: int, limit: int | None
) -> Corpus:
    """Tokenize the first `limit` documents that hold `num_tokens` tokens.

    Raises:
        DataError: If no document is long enough, or two have the same name.
    """
    kept: list[TokenizedDocument] = []
    too_short: list[str] = []
    for document in documents:
        if limit is not None and len(kept) == limit:
            break
        tokens = tokenize(document, tokenizer, num_tokens)
        if tokens is None:
            too_short.append(document.name)
        else:
            kept.append(tokens)
    if not kept:
        raise DataError(
            f"no document has {num_tokens} tokens, the longest context length "
            f"({len(too_short)} read, all shorter); lower context_lengths or add longer documents"
        )
    names = [d.name for d in kept]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"two documents are called '{twice}'; rename one of the files")
    digest = hashlib.sha256()
    for kept_document in kept:
        digest.update(kept_document.name.encode() + b"\0")
        digest.update(kept_document.input_ids.astype("<i8").tobytes())
    return Corpus(documents=tuple(kept), data_hash=digest.hexdigest(), too_short=tuple(too_short))
