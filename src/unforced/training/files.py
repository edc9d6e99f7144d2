"""Writing files so that a crash leaves the old one or the new one, and reading JSON with clear complaints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from unforced.errors import InputError

PART = ".part-"  # begins the names of what is being written; the next writer sweeps away what a crash left


def dump(data: Any) -> str:
    """One line of JSON, keys as they come."""
    return json.dumps(data, ensure_ascii=False)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(data)
        flush(file)


def flush(file: BinaryIO) -> None:
    """Wait until what was written to ``file`` is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn the system's refusal (disk full, read-only …) into a sentence that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file under another name beside and rename it: readers see the old content or the new, never a part."""
    part = path.with_name(f"{PART}{os.getpid()}-{path.name}")
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_bytes(part, data)
            os.replace(part, path)
            sync_folder(path.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def replace_json(path: Path, data: Any) -> None:
    """Atomically write indented JSON."""
    replace_bytes(path, (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode())


def replace_lines(path: Path, rows: Iterable[Any]) -> None:
    """Atomically write a file of one JSON value a line."""
    replace_bytes(path, "".join(dump(row) + "\n" for row in rows).encode())


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_json(path: Path) -> Any:
    return _parse(read_text(path), path, 0)


def read_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value a line; a last line without its end (a crash) is left out."""
    *lines, _ = read_text(path).split("\n")
    return [_parse(line, path, number) for number, line in enumerate(lines, start=1)]


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{line or error.lineno}: is not JSON ({error.msg})") from None


class LineLog:
    """A file that JSON lines are appended to, and cut back to a known size on resuming.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> with LineLog(path) as log:
    ...     log.append({"step": 1})
    ...     size = log.sync()
    ...     log.append({"step": 2})
    >>> LineLog(path, size=size).close()
    >>> read_lines(path)
    [{'step': 1}]
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise InputError(
                f"{path}: has {found} bytes where the checkpoint has seen {size}: the log was changed"
            )
        with writable(path):
            self._file = open(path, "ab")  # noqa: SIM115 (open as long as the log is)
            self._file.truncate(size)

    def append(self, row: Any) -> None:
        """Add a line; it has left the process when this returns."""
        with writable(self.path):
            self._file.write((dump(row) + "\n").encode())
            self._file.flush()

    def sync(self) -> int:
        """Wait until all is on the disk; returns the size in bytes, what a checkpoint remembers."""
        with writable(self.path):
            flush(self._file)
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with suppress(OSError):  # append and sync have told of any fault
            self._file.close()

    def __enter__(self) -> LineLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
