"""Documents become token windows with the right start, bytes and hash."""

import numpy as np
import pytest

from harness.data import Document, build_corpus, read_documents, tokenize
from harness.errors import DataError
from harness.spec import StdlibData, TextData


def texts(*contents):
    return [Document(name=f"d{i}", text=text) for i, text in enumerate(contents)]


def test_bos_is_prepended_once_and_counted(zoo_tokenizer):
    document = tokenize(texts("one two three four five six seven")[0], zoo_tokenizer, 5)
    assert len(document.input_ids) == 5
    assert document.input_ids[0] == zoo_tokenizer.bos_token_id
    assert (document.input_ids[1:] != zoo_tokenizer.bos_token_id).all()


def test_no_bos_where_the_tokenizer_has_none(zoo_tokenizer):
    class WithoutBos:
        is_fast = True
        bos_token_id = None

        def __call__(self, text, **kwargs):
            return zoo_tokenizer(text, **kwargs)

    document = tokenize(texts("one two three four five six")[0], WithoutBos(), 4)
    expected = zoo_tokenizer("one two three four five six", add_special_tokens=False)["input_ids"]
    assert document.input_ids.tolist() == expected[:4]


def test_the_name_of_a_special_token_in_a_text_is_text(zoo_tokenizer):
    document = tokenize(texts("<s>" * 20)[0], zoo_tokenizer, 10)
    assert (document.input_ids[1:] != zoo_tokenizer.bos_token_id).all()


@pytest.mark.parametrize(
    "text", ["héllo wörld — ünïcode " * 30, "日本語のテキスト" * 40, "plain " * 90]
)
def test_bytes_are_those_of_the_text_so_far(zoo_tokenizer, text):
    document = tokenize(texts(text)[0], zoo_tokenizer, 60)
    assert document.byte_ends[0] == 0
    assert (np.diff(document.byte_ends) >= 0).all()
    decoded = zoo_tokenizer.decode(document.input_ids[1:].tolist())
    # The last token may be a part of a character; then the decoded text ends in U+FFFD.
    whole = decoded.rstrip("\ufffd")
    assert abs(int(document.byte_ends[-1]) - len(whole.encode())) <= 3
    assert text.startswith(whole)


def test_a_slow_tokenizer_counts_the_same_bytes(zoo_tokenizer):
    class Slow:
        is_fast = False
        bos_token_id = zoo_tokenizer.bos_token_id

        def __call__(self, text, **kwargs):
            kwargs.pop("return_offsets_mapping")
            return zoo_tokenizer(text, **kwargs)

        def decode(self, ids):
            return zoo_tokenizer.decode(ids)

    source = texts("def f(x):\n    return x + 1  # twelve\n" * 20)[0]
    slow, fast = (tokenize(source, t, 50) for t in (Slow(), zoo_tokenizer))
    assert slow.input_ids.tolist() == fast.input_ids.tolist()
    assert slow.byte_ends.tolist() == fast.byte_ends.tolist()


def test_only_a_prefix_of_a_long_text_is_tokenized_and_it_changes_nothing(zoo_tokenizer):
    text = " ".join(str(i) for i in range(30_000))
    document = tokenize(texts(text)[0], zoo_tokenizer, 100)
    whole = zoo_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert document.input_ids[1:].tolist() == whole[:99]


def test_long_tokens_do_not_make_a_long_document_too_short(zoo_tokenizer):
    # Sixty spaces are few tokens: the first guess of characters is not enough.
    text = (" " * 60 + "\n") * 4000
    document = tokenize(texts(text)[0], zoo_tokenizer, 500)
    assert document is not None
    assert len(document.input_ids) == 500


def test_short_documents_are_left_out_and_named(zoo_tokenizer):
    corpus = build_corpus(texts("short", "long " * 50, ""), zoo_tokenizer, 20, None)
    assert [d.name for d in corpus.documents] == ["d1"]
    assert corpus.too_short == ("d0", "d2")


def test_lengths_beyond_every_document_are_refused(zoo_tokenizer):
    with pytest.raises(DataError, match="no document has 100 tokens"):
        build_corpus(texts("a b c", "d"), zoo_tokenizer, 100, None)


def test_the_limit_counts_documents_that_are_long_enough(zoo_tokenizer):
    corpus = build_corpus(texts("x", "a " * 30, "y", "b " * 30, "c " * 30), zoo_tokenizer, 20, 2)
    assert [d.name for d in corpus.documents] == ["d1", "d3"]


def test_the_hash_follows_the_tokens(zoo_tokenizer):
    def digest(*contents, tokens=20):
        return build_corpus(texts(*contents), zoo_tokenizer, tokens, None).data_hash

    assert digest("a " * 30) == digest("a " * 40)  # what lies behind the window does not count
    assert digest("a " * 30) != digest("b " * 30)
    assert digest("a " * 30) != digest("a " * 30, tokens=21)


def test_two_documents_of_one_name_are_refused(zoo_tokenizer):
    twice = [Document(name="same", text="a " * 30), Document(name="same", text="b " * 30)]
    with pytest.raises(DataError, match="'same'"):
        build_corpus(twice, zoo_tokenizer, 10, None)


def test_text_files_by_pattern_in_a_fixed_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    spec = TextData(source="text", files=["*.txt", "a.*"])
    assert [d.name for d in read_documents(spec, tmp_path)] == ["a.txt", "b.txt"]


def test_a_pattern_without_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no file matches 'x\*\.txt'"):
        list(read_documents(TextData(source="text", files=["x*.txt"]), tmp_path))


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "blob.txt").write_bytes(b"ok \xff\xfe")
    with pytest.raises(DataError, match=r"blob\.txt is not UTF-8 text \(byte 3\)"):
        list(read_documents(TextData(source="text", files=["blob.txt"]), tmp_path))


def test_stdlib_documents_are_the_held_out_ones(tmp_path):
    from harness.corpus import HELD_OUT

    names = [d.name for d in read_documents(StdlibData(source="stdlib"), tmp_path)]
    assert names[0] == HELD_OUT[0]
    assert len(names) >= 10


def test_a_dataset_from_a_local_folder(tmp_path):
    from harness.spec import DatasetsData

    (tmp_path / "rows.jsonl").write_text('{"text": "first"}\n{"text": "second"}\n')
    spec = DatasetsData(source="datasets", path=str(tmp_path), split="train", column="text")
    assert [d.text for d in read_documents(spec, tmp_path)] == ["first", "second"]
    wrong = DatasetsData(source="datasets", path=str(tmp_path), split="train", column="body")
    with pytest.raises(DataError, match="no column 'body'; it has: text"):
        list(read_documents(wrong, tmp_path))


def test_a_dataset_that_cannot_be_had_is_one_clear_error(tmp_path):
    from harness.spec import DatasetsData

    spec = DatasetsData(source="datasets", path=str(tmp_path / "none"), split="train")
    with pytest.raises(DataError, match="source: text"):
        list(read_documents(spec, tmp_path))


def test_two_files_of_one_name_in_two_folders_are_told_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text(folder)
    spec = TextData(source="text", files=["*/x.txt"])
    names = [d.name for d in read_documents(spec, tmp_path)]
    assert len(set(names)) == 2
    assert all(name.endswith("/x.txt") for name in names)
