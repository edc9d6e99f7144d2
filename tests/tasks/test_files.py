"""Readers: what they give for good files, and that every bad one is an InputError naming file and line."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.tasks.files import TaggedSentence, read_conll, read_jsonl, read_lines, read_npz, read_parallel, read_tsv

GOOD_GZIP = gzip.compress(b"one\ttwo\n" * 200, mtime=0)


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


BAD_LINES = [
    ("bad_utf8.txt", b"fine\n\xff\xfe\n", r"bad_utf8\.txt:2: .*UTF-8"),
    ("latin1.txt", "größer\n".encode("latin-1"), r"latin1\.txt:1: .*UTF-8"),
    ("bom.txt", b"\xef\xbb\xbfa\n", r"bom\.txt:1: .*byte order mark"),
    ("cut.gz", GOOD_GZIP[:-9], r"cut\.gz:\d+: .*damaged"),
    ("flipped.gz", GOOD_GZIP[:14] + b"\x13" + GOOD_GZIP[15:], r"flipped\.gz:\d+: .*damaged"),
    ("inner.gz", gzip.compress(b"a\n\xff\n"), r"inner\.gz:2: .*UTF-8"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_LINES, ids=[row[0] for row in BAD_LINES])
def test_bad_files_name_file_and_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_lines(write(tmp_path, name, content)))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt: there is no such file"):
        list(read_lines(tmp_path / "nowhere.txt"))
    with pytest.raises(InputError, match="cannot be read"):
        list(read_lines(tmp_path))


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    text = "a\u2028b\x0bc\x85d\r\n\nlast"
    expected = [(1, "a\u2028b\x0bc\x85d"), (2, ""), (3, "last")]
    assert list(read_lines(write(tmp_path, "a.txt", text.encode()))) == expected
    assert list(read_lines(write(tmp_path, "a.txt.gz", gzip.compress(text.encode())))) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"))))
@settings(max_examples=60, deadline=None)
def test_any_text_round_trips(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("text") / "any.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert [line for _, line in read_lines(path)] == lines


def test_tsv_counts_blank_lines_and_refuses_other_widths(tmp_path: Path) -> None:
    dropped: Counter[str] = Counter()
    path = write(tmp_path, "a.tsv", b"a\tb\n\n \t \n c \t\n")
    assert list(read_tsv(path, 2, dropped)) == [(1, ["a", "b"]), (4, ["c", ""])]
    assert dropped == {"blank line": 2}
    with pytest.raises(InputError, match=r"b\.tsv:2: must have 2 tab-separated columns, got 3"):
        list(read_tsv(write(tmp_path, "b.tsv", b"a\tb\na\tb\tc\n"), 2))


BAD_JSON = [
    (b'{"source": "a"\n', "is not JSON"),
    (b"[1, 2]\n", "the line is not a JSON object"),
    (b'{"source": "a", "tagret": "b"}\n', "must be a JSON object with the key 'target'"),
    (b"[" * 100_000 + b"\n", "is not JSON"),
]


@pytest.mark.parametrize(("content", "message"), BAD_JSON)
def test_bad_json_lines(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, "a.jsonl", b'\n{"source": "s", "target": "t"}\n' + content)
    with pytest.raises(InputError, match=rf"a\.jsonl:3: .*{message}"):
        list(read_jsonl(path, ("source", "target")))


def test_jsonl_reads_escapes_and_counts_blank_lines(tmp_path: Path) -> None:
    dropped: Counter[str] = Counter()
    record = {"source": "😀", "more": 1}
    path = write(tmp_path, "a.jsonl", f"{json.dumps(record)}\n\n".encode())
    assert list(read_jsonl(path, ("source", "more"), dropped)) == [(1, record)]
    assert dropped == {"blank line": 1}


def test_parallel_files(tmp_path: Path) -> None:
    source = write(tmp_path, "a.de", b"eins\n\ndrei\n")
    target = write(tmp_path, "a.en", b"one\ntwo\nthree\n")
    assert list(read_parallel(source, target)) == [("eins", "one"), ("", "two"), ("drei", "three")]


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3), (0, 2)])
def test_parallel_files_of_unequal_length(tmp_path: Path, n: int, m: int) -> None:
    source, target = write(tmp_path, "a.de", b"x\n" * n), write(tmp_path, "a.en", b"y\n" * m)
    short, long = ("de", "en") if n < m else ("en", "de")
    with pytest.raises(InputError, match=rf"a\.{short} has fewer lines than .*a\.{long}"):
        list(read_parallel(source, target))


def test_conll_sentences(tmp_path: Path) -> None:
    content = b"# id=1\nThe\tDET\tX\n#\tSYM\tY\n\n\n# id=2\nRuns\tVERB\tZ"
    path = write(tmp_path, "a.tsv", content)
    assert list(read_conll(path, 0, 2, "# id=")) == [
        TaggedSentence(2, ("The", "#"), ("X", "Y")),
        TaggedSentence(7, ("Runs",), ("Z",)),
    ]
    spaces = write(tmp_path, "b.conll", b"The DET\nend .\n")
    assert list(read_conll(spaces, 0, 1, None)) == [TaggedSentence(1, ("The", "end"), ("DET", "."))]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\tX\nb\n", ":2: must have a word in column 0 and a tag in 1"), (b"a\tX\n\tY\n", ":2: must have a word")],
)
def test_bad_conll(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_conll(write(tmp_path, "a.tsv", content), 0, 1, None))


def test_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(3), objects=np.array([object()]))
    assert list(read_npz(path, ["x"], ["y"])) == ["x"]
    with pytest.raises(InputError, match="has no array 'y', only objects, x"):
        read_npz(path, ["y"])
    with pytest.raises(InputError, match=r"none\.npz: there is no such file"):
        read_npz(tmp_path / "none.npz", ["x"])
    content = path.read_bytes()
    np.save(tmp_path / "single.npy", np.arange(3))
    for bad in (b"PK not a zip", content[:100], (tmp_path / "single.npy").read_bytes()):
        path.write_bytes(bad)
        with pytest.raises(InputError, match=r"is not an \.npz file"):
            read_npz(path, ["x"])
    start = content.index(b"PK\1\2")  # of the directory; the flags of the first entry follow after 8 bytes
    for flag in (0x01, 0x40):  # encrypted
        path.write_bytes(content[: start + 8] + bytes([flag]) + content[start + 9 :])
        with pytest.raises(InputError, match=r"is not an \.npz file"):
            read_npz(path, ["x"])
    np.savez(path, objects=np.array([object()]))
    with pytest.raises(InputError, match=r"is not an \.npz file of plain arrays"):
        read_npz(path, ["objects"])
