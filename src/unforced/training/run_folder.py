"""Writing files so that a crash leaves the old one or the new one, and reading JSON with clear complaints."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
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
            raise InputError(f"{path}: has {found} bytes where the checkpoint has seen {size}: the log was changed")
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

    def __enter__(self) -> "LineLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# A run folder on the disk: what training writes, and what the report reads back. See docs/design.md for the files.

FORMAT = 2  # of run folders
STEP = "step-"  # begins the names of checkpoint folders: step-00000120
BEFORE_RUN = {"lock", "recipe.toml", "codec.json"}  # what a writer killed in its first moments may leave


class RunFolder:
    """The files of one run. Reading raises ``InputError`` where a file is absent or broken.

    >>> import tempfile
    >>> run = RunFolder(tempfile.mkdtemp())
    >>> with run.writing():
    ...     run.create(recipe='name = "toy"', info={"seed": 1}, codec={})
    >>> run.info()
    {'format': 2, 'seed': 1}
    >>> run.finished() is None
    True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # ---- reading ----

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "run.json").is_file()

    def _file(self, name: str) -> Path:
        if not self.exists():
            raise InputError(f"{self.path}: is not a run folder (it has no run.json)")
        path = self.path / name
        if not path.is_file():
            raise InputError(f"{self.path}: has no {name}")
        return path

    def _optional(self, name: str) -> Any:
        return read_json(self.path / name) if (self.path / name).is_file() else None

    def recipe(self) -> str:
        """The resolved recipe, as TOML text."""
        return read_text(self._file("recipe.toml"))

    def info(self) -> dict[str, Any]:
        return read_json(self._file("run.json"))

    def facts(self) -> dict[str, Any]:
        """Return the facts of run.json (see `unforced.training.run_identity`)."""
        self.check_format()
        facts: dict[str, Any] = self.info()["facts"]
        return facts

    def check_format(self) -> None:
        """Raise `InputError` if another version of this library has written the run."""
        found = self.info().get("format", 1)
        if found != FORMAT:
            raise InputError(
                f"{self.path}: has the run folder format {found}, but this version of unforced reads format {FORMAT}; "
                "train the model again"
            )

    def codec(self) -> dict[str, Any]:
        return read_json(self._file("codec.json"))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl so far, or those of one kind ("train" or "dev")."""
        path = self.path / "metrics.jsonl"
        events = read_lines(path) if path.is_file() else []
        return [event for event in events if kind is None or event.get("kind") == kind]

    def samples(self) -> list[dict[str, Any]]:
        """The lines of samples.jsonl: which examples each update saw."""
        return read_lines(self._file("samples.jsonl"))

    def best(self) -> dict[str, Any] | None:
        """``{"checkpoint", "metric", "score", "step"}`` of the best validation so far."""
        return self._optional("best.json")

    def finished(self) -> dict[str, Any] | None:
        """``{"steps", "epochs", "seconds", "tokens", "reason"}``, or None while training has not ended."""
        return self._optional("finished.json")

    def checkpoints(self) -> list[Path]:
        """The folders of published checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob(f"{STEP}[0-9]*"))

    def best_checkpoint(self) -> Path:
        """The folder of the best checkpoint; the newest one where nothing was validated yet."""
        best, published = self.best(), self.checkpoints()
        if best is not None:
            return self.path / "checkpoints" / str(best["checkpoint"])
        if not published:
            missing = "has no checkpoint yet" if self.exists() else "is not a run folder (it has no run.json)"
            raise InputError(f"{self.path}: {missing}")
        return published[-1]

    def scores(self) -> list[dict[str, Any]]:
        """All files of scores/, sorted by name; each has "split" and "decoder"."""
        return [read_json(path) for path in sorted((self.path / "scores").glob("*.json"))]

    def predictions(self, split: str, decoder: str) -> list[dict[str, Any]]:
        return read_lines(self._file(f"predictions/{_stem(split, decoder)}.jsonl"))

    # ---- writing ----

    @contextmanager
    def writing(self, *, resume: bool = False) -> Iterator[None]:
        """Hold the folder's lock; refuses a folder with content unless ``resume``, and a second writer always.

        The lock is the kernel's: it ends with the process that holds it, however that process ends.
        """
        with writable(self.path):
            self.check_content(resume)
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, self.path)
            with writable(self.path):
                self.check_content(resume)
                self._sweep()
            yield
        finally:
            os.close(handle)

    def check_content(self, resume: bool) -> None:
        """Raise `InputError` if the folder holds anything, or with ``resume`` anything but a run."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file where a run folder is wanted")
        content = set(os.listdir(self.path)) - {"lock"} if self.path.exists() else set()
        if content and not resume:
            found = "resume the run in it or choose another folder" if self.exists() else "choose another folder"
            raise InputError(f"{self.path}: is not empty; {found}")
        foreign = {name for name in content - BEFORE_RUN if not name.startswith(PART)}
        if foreign and not self.exists():
            raise InputError(f"{self.path}: holds other files and no run, so there is nothing to resume")

    def _sweep(self) -> None:
        """Remove what a killed writer left half done."""
        for folder in (self.path, self.path / "checkpoints"):
            for path in folder.glob(f"{PART}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def create(self, *, recipe: str, info: Mapping[str, Any], codec: Mapping[str, Any]) -> None:
        """Write what is known before the first update; run.json comes last and makes the folder a run."""
        replace_bytes(self.path / "recipe.toml", recipe.encode())
        replace_json(self.path / "codec.json", codec)
        replace_json(self.path / "run.json", {"format": FORMAT, **info})

    def discard(self) -> None:
        """Remove everything but the lock, after a run that failed before its first update."""
        for path in self.path.iterdir():
            if path.name != "lock":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def write_best(self, best: Mapping[str, Any] | None) -> None:
        """Say which checkpoint is the best; None where there is none."""
        if best is None:
            (self.path / "best.json").unlink(missing_ok=True)
        elif best != self.best():
            replace_json(self.path / "best.json", best)

    def write_finished(self, finished: Mapping[str, Any]) -> None:
        replace_json(self.path / "finished.json", finished)

    def write_evaluation(
        self, split: str, decoder: str, predictions: list[dict[str, Any]], scores: dict[str, Any]
    ) -> None:
        """The predictions first, then the scores over them: whoever finds scores finds their predictions."""
        stem = _stem(split, decoder)
        (self.path / "scores" / f"{stem}.json").unlink(missing_ok=True)
        replace_lines(self.path / "predictions" / f"{stem}.jsonl", predictions)
        replace_json(self.path / "scores" / f"{stem}.json", scores)


def _lock(handle: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path}: another process is writing to this run") from None
    except OSError as error:
        raise InputError(f"{path}: can't be locked: {error.strerror or error}") from error


def _stem(split: str, decoder: str) -> str:
    stem = f"{split}-{decoder}"
    if not decoder or decoder.startswith(".") or any(sign in stem for sign in "/\\\0"):
        raise InputError(f"{decoder!r} can't be the name of a decoder: it names files")
    return stem


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What two flat tables say differently, a phrase each.

    >>> differences({"seed": 1, "world": 2}, {"seed": 1, "world": 1})
    ['world is 2 in the run and 1 now']
    """
    absent = object()
    return [
        f"{key} is {_say(old.get(key, absent), absent)} in the run and {_say(new.get(key, absent), absent)} now"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key, absent) != new.get(key, absent)
    ]


def _say(value: Any, absent: object) -> str:
    return "absent" if value is absent else str(value)
