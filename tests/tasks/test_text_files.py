"""Readers: what they give for good files, and that every bad one is an InputError naming file and line."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.tasks import files
from unforced.tasks.files import Sentence, read_conll, read_jsonl, read_lines, read_parallel, read_tsv

GOOD_GZIP = gzip.compress(b"one\ttwo\n" * 200, mtime=0)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


BAD_LINES = [
    ("bad_utf8.txt", b"fine\n\xff\xfe\n", r"bad_utf8\.txt:2: .*UTF-8"),
    ("latin1.txt", "größer\n".encode("latin-1"), r"latin1\.txt:1: .*UTF-8"),
    ("cut_utf8.txt", b"a\nb\nc\xc3", r"cut_utf8\.txt:3: .*UTF-8"),
    ("surrogate.txt", b"\xed\xa0\x80\n", r"surrogate\.txt:1: .*UTF-8"),
    ("nul.txt", b"a\nb\0c\n", r"nul\.txt:2: .*NUL"),
    ("bom.txt", b"\xef\xbb\xbfa\n", r"bom\.txt:1: .*byte order mark"),
    ("utf16.txt", "a\n".encode("utf-16"), r"utf16\.txt:1: "),
    ("cut.gz", GOOD_GZIP[:-9], r"cut\.gz:\d+: .*cut off"),
    ("flipped.gz", GOOD_GZIP[:14] + b"\x13" + GOOD_GZIP[15:], r"flipped\.gz:\d+: .*damaged"),
    ("plain.gz", b"not compressed\n", r"plain\.gz:1: .*damaged"),
    ("inner.gz", gzip.compress(b"a\n\xff\n"), r"inner\.gz:2: .*UTF-8"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_LINES, ids=[row[0] for row in BAD_LINES])
def test_bad_files_name_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_lines(write(tmp_path, name, content)))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt: there is no such file"):
        list(read_lines(tmp_path / "nowhere.txt"))
    with pytest.raises(InputError, match="can't be read"):
        list(read_lines(tmp_path))


def test_decompression_bomb_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    path = write(tmp_path, "bomb.gz", gzip.compress(b"a\n" * 100_000))
    seen = []
    with pytest.raises(InputError, match=r"bomb\.gz:501: .*unpacks to more than 1000"):
        seen.extend(number for number, _ in read_lines(path))
    monkeypatch.setattr(files, "MAX_LINE", 100)
    with pytest.raises(InputError, match=r"long\.gz:2: .*longer than 100"):
        list(read_lines(write(tmp_path, "long.gz", gzip.compress(b"a\n" + b"b" * 100_000))))


def test_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, "empty.txt", b""))) == []
    assert list(read_lines(write(tmp_path, "empty.gz", gzip.compress(b"")))) == []


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x85d\r\n\nlast"
    expected = [(1, "a\u2028b\x0bc\x85d"), (2, ""), (3, "last")]
    assert list(read_lines(write(tmp_path, "a.txt", text.encode()))) == expected
    assert list(read_lines(write(tmp_path, "a.txt.gz", gzip.compress(text.encode())))) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"))))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("text") / "any.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert [line for _, line in read_lines(path)] == lines


def test_tsv_counts_blank_lines_and_refuses_other_widths(tmp_path: Path) -> None:
    dropped: dict[str, int] = {}
    path = write(tmp_path, "a.tsv", b"a\tb\n\n \t \n c \t\n")
    assert list(read_tsv(path, 2, dropped)) == [(1, ("a", "b")), (4, ("c", ""))]
    assert dropped == {"blank line": 2}
    with pytest.raises(InputError, match=r"b\.tsv:2: 2 tab-separated columns wanted, 3 found"):
        list(read_tsv(write(tmp_path, "b.tsv", b"a\tb\na\tb\tc\n"), 2))


BAD_JSON = [
    (b'{"source": "a"\n', "isn't JSON"),
    (b"[1, 2]\n", "a JSON object wanted, list found"),
    (b'{"source": "a", "tagret": "b"}\n', "the key 'target' is missing .*'tagret'"),
    (b'{"source": "\\u0000", "target": "b"}\n', "NUL"),
    (b'{"source": ["\\ud800"], "target": "b"}\n', "surrogate"),
    (b"[" * 100_000 + b"\n", "isn't JSON"),
]


@pytest.mark.parametrize(("content", "message"), BAD_JSON)
def test_bad_json_lines(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, "a.jsonl", b'\n{"source": "s", "target": "t"}\n' + content)
    with pytest.raises(InputError, match=rf"a\.jsonl:3: .*{message}"):
        list(read_jsonl(path, ("source", "target")))


def test_jsonl_reads_escapes_and_counts_blank_lines(tmp_path: Path) -> None:
    dropped: dict[str, int] = {}
    record = {"source": "😀\n", "more": 1}
    path = write(tmp_path, "a.jsonl", f"{json.dumps(record)}\n\n".encode())
    assert list(read_jsonl(path, ("source",), dropped)) == [(1, record)]
    assert dropped == {"blank line": 1}


def test_string_refuses_other_types() -> None:
    assert files.string({"a": " x "}, "a", "f", 1) == "x"
    with pytest.raises(InputError, match="f:1: 'a' must be a string, not list"):
        files.string({"a": ["x"]}, "a", "f", 1)


def test_parallel_files(tmp_path: Path) -> None:
    source = write(tmp_path, "a.de", b"eins\n\ndrei\n")
    target = write(tmp_path, "a.en", b"one\ntwo\nthree\n")
    assert list(read_parallel(source, target)) == [(1, "eins", "one"), (2, "", "two"), (3, "drei", "three")]


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3), (0, 2), (2, 0), (4, 5)])
def test_parallel_files_of_unequal_length_name_both_counts(tmp_path: Path, n: int, m: int) -> None:
    source, target = write(tmp_path, "a.de", b"x\n" * n), write(tmp_path, "a.en", b"y\n" * m)
    with pytest.raises(InputError, match=rf"a\.de has {n} lines and .*a\.en has {m}"):
        list(read_parallel(source, target))


def test_conll_sentences(tmp_path: Path) -> None:
    content = b"# id=1\nThe\tDET\tX\n#\tSYM\tY\n\n\n# id=2\nRuns\tVERB\tZ"
    path = write(tmp_path, "a.tsv", content)
    assert list(read_conll(path, 0, 2, "# id=")) == [
        Sentence(2, ("The", "#"), ("X", "Y")),
        Sentence(7, ("Runs",), ("Z",)),
    ]
    spaces = write(tmp_path, "b.conll", b"The DET\nend .\n")
    assert list(read_conll(spaces, 0, 1, None)) == [Sentence(1, ("The", "end"), ("DET", "."))]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\tX\nb\n", ":2: at least 2 columns wanted, 1 found"), (b"a\tX\n\tY\n", ":2: the word is empty")],
)
def test_bad_conll(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_conll(write(tmp_path, "a.tsv", content), 0, 1, None))
