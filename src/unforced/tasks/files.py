"""Readers of text files and arrays; errors name the file and the line.

Files that end in ``.gz`` are decompressed. Lines end at ``\\n`` or ``\\r\\n`` only. Readers that skip blank lines count
them in ``dropped``.
"""

import gzip
import io
import json
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.options import show

BOM = b"\xef\xbb\xbf"
BLANK = "blank line"


def user_file(path: str, field: str) -> Path:
    """Return the path in a field of a task; in built-in recipes for users' own data it is empty."""
    if not path:
        raise InputError(f"task.{field} is empty: set it to the path of your file, as in task.{field}=PATH")
    return from_home(path)


def from_home(path: str) -> Path:
    """Return a path with ~ replaced by the home folder; ~NAME of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 text file with their numbers from 1, without line ends."""
    path, number = Path(path), 0
    try:
        compressed = path.suffix == ".gz"
        with io.BufferedReader(gzip.open(path)) if compressed else path.open("rb") as file:  # lines at C speed
            for number, raw in enumerate(file, 1):
                try:
                    text = decode_line(raw, number)
                except InputError as error:
                    raise InputError(f"{path}:{number}: {error}") from None
                yield number, text
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}:{number + 1}: the gzip data is damaged ({error})") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def decode_line(line: bytes, number: int) -> str:
    """Return the text of a line without its line end; `InputError` does not name the file and the line.

    >>> decode_line(b"eins\\r\\n", 1)
    'eins'
    """
    if number == 1 and line.startswith(BOM):
        raise InputError("the input starts with a byte order mark: save it as UTF-8 without one")
    if b"\0" in line:
        raise InputError("there is a NUL byte in the line")
    try:
        return line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InputError(f"the line is not UTF-8 (byte {error.start + 1})") from None


def _unreadable(path: Path, error: OSError) -> InputError:
    missing = isinstance(error, FileNotFoundError)
    return InputError(f"{path}: {'there is no such file' if missing else f'cannot be read ({error.strerror})'}")


def read_tsv(
    path: str | Path, columns: int, dropped: Counter[str] | None = None, note: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a tab-separated file (no quoting, no header) with their line numbers.

    Cells are stripped of white space and may be empty. The message for rows of other widths ends with ``note``.
    """
    dropped = Counter() if dropped is None else dropped
    for number, line in read_lines(path):
        if not line.strip():
            dropped[BLANK] += 1
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != columns:
            raise InputError(f"{path}:{number}: must have {columns} tab-separated columns, got {len(cells)}{note}")
        yield number, cells


def read_jsonl(
    path: str | Path, keys: Sequence[str] = (), dropped: Counter[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with one JSON object per line, which must have ``keys``, with their line numbers."""
    dropped = Counter() if dropped is None else dropped
    for number, line in read_lines(path):
        if not line.strip():
            dropped[BLANK] += 1
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{number}: the line is not JSON ({error})") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: the line is not a JSON object")
        if missing := [key for key in keys if key not in record]:
            raise InputError(f"{path}:{number}: must be a JSON object with the key {missing[0]!r}")
        yield number, record


def texts(value: Any, where: str) -> list[str]:
    """Return a text, or the texts of a list, stripped of white space; ``where`` starts the error message."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not found or not all(isinstance(text, str) for text in found):
        raise InputError(f"{where} must be a string or a list of strings, got {show(value)}")
    return [text.strip() for text in found]


def read_parallel(source_path: str | Path, target_path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield line i of one file with line i of the other, stripped of white space."""
    for source, target in zip_longest(read_lines(source_path), read_lines(target_path)):
        if source is None or target is None:
            short, long = (source_path, target_path) if source is None else (target_path, source_path)
            raise InputError(f"{short} has fewer lines than {long}: line i of one must belong to line i of the other")
        yield source[1].strip(), target[1].strip()


class TaggedSentence(NamedTuple):
    """A sentence of a column file and the number of its first line."""

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    path: str | Path, word_column: int, tag_column: int, comment_prefix: str | None = None
) -> Iterator[TaggedSentence]:
    """Yield the sentences of a column file: one token per line, blank lines between sentences.

    Columns count from 0. They are separated by tabs, or by white space in lines without a tab. Lines that start with
    ``comment_prefix`` are skipped.
    """
    start = 0
    words: list[str] = []
    tags: list[str] = []
    columns = 1 + max(word_column, tag_column)
    for number, line in read_lines(path):
        if comment_prefix is not None and line.startswith(comment_prefix):
            continue
        if not line.strip():
            if words:
                yield TaggedSentence(start, tuple(words), tuple(tags))
                words, tags = [], []
            continue
        cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
        if len(cells) < columns or not cells[word_column] or not cells[tag_column]:
            raise InputError(f"{path}:{number}: must have a word in column {word_column} and a tag in {tag_column}")
        start = start if words else number
        words.append(cells[word_column])
        tags.append(cells[tag_column])
    if words:
        yield TaggedSentence(start, tuple(words), tuple(tags))


def read_npz(
    path: str | Path, names: Sequence[str] | None = None, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return the arrays ``names`` of an ``.npz`` file (default: all), and those of ``optional`` that it has.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, x=np.arange(3), y=np.zeros(2))
    >>> read_npz(path, ["x"])
    {'x': array([0, 1, 2])}
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = list(arrays) if names is None else names
            missing = [name for name in names if name not in arrays]
            if missing:
                raise InputError(f"{path}: has no array {missing[0]!r}, only {', '.join(sorted(arrays))}")
            return {name: arrays[name] for name in (*names, *optional) if name in arrays}
    except OSError as error:
        raise _unreadable(path, error) from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, TypeError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path}: is not an .npz file of plain arrays ({error})") from None
