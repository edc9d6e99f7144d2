"""Strict readers of text files: every fault is an ``InputError`` that names the file and the line.

Files whose name ends in ``.gz`` are decompressed on the way. Lines end at ``\\n`` or ``\\r\\n`` and nowhere else.
Readers that skip blank lines count them in the ``dropped`` mapping they are given, so that read = kept + dropped.
"""

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Iterator, MutableMapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.types import Example, Examples

MAX_BYTES = 4 * 2**30  # a compressed file that holds more is taken for a decompression bomb
MAX_LINE = 2**26  # no line of an honest text file is longer
BOM = b"\xef\xbb\xbf"
BLANK = "blank line"

Dropped = MutableMapping[str, int]


class Sentence(NamedTuple):
    """A sentence of a column file and the number of its first line."""

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...]


def count(dropped: Dropped | None, reason: str) -> None:
    """Note one example left out for ``reason``."""
    if dropped is not None:
        dropped[reason] = dropped.get(reason, 0) + 1


def named(path: str, field: str) -> Path:
    """The path a user gave for a task's field; built-in recipes for users' own data leave it empty to be filled in."""
    if not path:
        raise InputError(f"task.{field} names no file yet: give your own, as in task.{field}=PATH.")
    found = Path(path).expanduser()
    if found.is_dir():
        raise InputError(f"task.{field} wants a file, and {path} is a folder.")
    return found


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file with their numbers, counted from one, without their line ends.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = path.write_bytes(b"eins\\nzwei\\r\\n")
    >>> list(read_lines(path))
    [(1, 'eins'), (2, 'zwei')]
    """
    path = Path(path)
    number, total = 0, 0
    try:
        with _open(path) as handle:
            while raw := handle.readline(MAX_LINE + 1):
                number, total = number + 1, total + len(raw)
                if len(raw) > MAX_LINE:
                    raise InputError(f"{path}:{number}: the line is longer than {MAX_LINE} bytes.")
                if path.suffix == ".gz" and total > MAX_BYTES:
                    raise InputError(f"{path}:{number}: the file unpacks to more than {MAX_BYTES} bytes.")
                yield number, _text(raw, path, number)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}:{number + 1}: the gzip data is damaged or cut off ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: the file can't be read ({error.strerror or error}).") from None


def _open(path: Path) -> IO[bytes]:
    if path.suffix != ".gz":
        return open(path, "rb")
    return io.BufferedReader(gzip.open(path, "rb"), 2**20)  # lines at C speed


def decode_line(line: bytes, number: int) -> str:
    """Return the text of a line without its line end; an `InputError` does not say where, the caller does.

    >>> decode_line(b"eins\\r\\n", 1)
    'eins'
    """
    if number == 1 and line.startswith(BOM):
        raise InputError("the input starts with a byte order mark")
    if b"\0" in line:
        raise InputError("there is a NUL byte in the line")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the line is not UTF-8 (byte {error.start + 1})") from None
    return text.removesuffix("\n").removesuffix("\r")


def _text(raw: bytes, path: Path, number: int) -> str:
    if number == 1 and raw.startswith(BOM):
        raise InputError(f"{path}:1: the file starts with a byte order mark; save it as UTF-8 without one.")
    if b"\0" in raw:
        raise InputError(f"{path}:{number}: there is a NUL byte in the line.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number}: the line isn't UTF-8 (byte {error.start + 1}).") from None
    return text.removesuffix("\n").removesuffix("\r")


def read_tsv(path: str | Path, columns: int, dropped: Dropped | None = None) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The rows of a tab-separated file (no quoting, no header); blank lines are dropped, other widths refused.

    Cells are stripped of white space at both ends and may be empty.
    """
    for number, line in read_lines(path):
        if not line.strip():
            count(dropped, BLANK)
            continue
        cells = tuple(cell.strip() for cell in line.split("\t"))
        if len(cells) != columns:
            raise InputError(f"{path}:{number}: {columns} tab-separated columns wanted, {len(cells)} found.")
        yield number, cells


def read_jsonl(
    path: str | Path, keys: Sequence[str], dropped: Dropped | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with one JSON object a line, each with at least these keys; blank lines are dropped."""
    for number, line in read_lines(path):
        if not line.strip():
            count(dropped, BLANK)
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: the line isn't JSON ({error}).") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: a JSON object wanted, {type(record).__name__} found.")
        missing = [key for key in keys if key not in record]
        if missing:
            found = ", ".join(map(repr, record)) or "none"
            raise InputError(f"{path}:{number}: the key {missing[0]!r} is missing (keys found: {found}).")
        for key in keys:
            _check_strings(record[key], f"{path}:{number}")
        yield number, record


def _check_strings(value: Any, where: str) -> None:
    """Refuse what JSON escapes can smuggle into strings: NUL and halves of surrogate pairs."""
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise InputError(f"{where}: a string holds a NUL or half of a surrogate pair.")
    elif isinstance(value, list):
        for item in value:
            _check_strings(item, where)


def string(record: dict[str, Any], key: str, path: str | Path, number: int) -> str:
    """The text under ``key``, with white space at both ends stripped; anything but a string is refused."""
    value = record[key]
    if not isinstance(value, str):
        raise InputError(f"{path}:{number}: {key!r} must be a string, not {type(value).__name__}.")
    return value.strip()


def read_parallel(source_path: str | Path, target_path: str | Path) -> Iterator[tuple[int, str, str]]:
    """Line i of one file with line i of the other, blank ones too; unequal numbers of lines are refused."""
    pairs = zip_longest(read_lines(source_path), read_lines(target_path))
    for source, target in pairs:
        if source is None or target is None:
            rest = 1 + sum(1 for _ in pairs)
            number = (source or target)[0]
            counts = (number + rest - 1, number - 1)
            first, second = counts if target is None else counts[::-1]
            raise InputError(
                f"{source_path} has {first} lines and {target_path} has {second}: line i of one must be line i of the other."
            )
        yield source[0], source[1].strip(), target[1].strip()


def read_conll(
    path: str | Path, word_column: int, tag_column: int, comment_prefix: str | None = None
) -> Iterator[Sentence]:
    """The sentences of a column file: a token a line, blank lines between sentences, columns counted from zero.

    Columns are split at tabs, or at runs of white space in a line that has no tab. Lines that start with
    ``comment_prefix`` are skipped.
    """
    start = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in read_lines(path):
        if comment_prefix is not None and line.startswith(comment_prefix):
            continue
        if not line.strip():
            if words:
                yield Sentence(start, tuple(words), tuple(tags))
                words, tags = [], []
            continue
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) <= max(word_column, tag_column):
            wanted = max(word_column, tag_column) + 1
            raise InputError(f"{path}:{number}: at least {wanted} columns wanted, {len(cells)} found.")
        word, tag = cells[word_column].strip(), cells[tag_column].strip()
        if not word or not tag:
            raise InputError(f"{path}:{number}: the {'tag' if word else 'word'} is empty.")
        start = start if words else number
        words.append(word)
        tags.append(tag)
    if words:
        yield Sentence(start, tuple(words), tuple(tags))


# A strict reader of ``.npz`` files: plain arrays only, nothing pickled, no decompression bombs.

MAX_ARRAY_BYTES = 4 * 2**30


def read_npz(
    path: str | Path, names: Sequence[str] | None = None, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return the arrays ``names`` of a file and those of ``optional`` that it has, or all arrays without ``names``.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, x=np.arange(3), y=np.zeros(2))
    >>> read_npz(path, ["x"])
    {'x': array([0, 1, 2])}
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
        names = list(sizes) if names is None else names
        missing = [name for name in names if name not in sizes]
        if missing:
            found = ", ".join(sorted(sizes)) or "none"
            raise InputError(f"{path}: the array {missing[0]!r} is missing (arrays found: {found}).")
        wanted = [*names, *(name for name in optional if name in sizes)]
        if sum(sizes[name] for name in wanted) > MAX_ARRAY_BYTES:
            raise InputError(f"{path}: the arrays unpack to more than {MAX_ARRAY_BYTES} bytes.")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in wanted}
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the file is not a sound .npz of plain arrays ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: the file can't be read ({error.strerror or error}).") from None


# Random splits and subsets that are pure functions of (seed, key): no state, no order, the same on every machine.


def fraction(key: str, seed: int = 0) -> float:
    """A number in [0, 1), uniform over keys.

    >>> fraction("word") == fraction("word"), fraction("word") == fraction("word", seed=1)
    (True, False)
    """
    digest = blake2b(f"{seed}\t{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def limited(examples: list[Example], dropped: dict[str, int], limit: int | None) -> Examples:
    """The first ``limit`` examples (all if None), with those beyond counted among the dropped."""
    if limit is not None and len(examples) > limit:
        reason = "beyond the limit"
        dropped = {**dropped, reason: dropped.get(reason, 0) + len(examples) - limit}
        examples = examples[:limit]
    return Examples(examples, dropped)
