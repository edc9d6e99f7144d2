"""Run folders: atomic writing, reading with clear errors, and the lock. docs/design.md lists the files."""

import hashlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.options import show

PART = ".part-"  # prefix of files being written; the next writer removes those that a crash left


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the entries of a folder are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` (disk full, read-only …) into an `InputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error


def replace_bytes(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that readers see the old or the new content."""
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
    """Write indented JSON atomically."""
    replace_bytes(path, (json.dumps(data, ensure_ascii=False, indent=1) + "\n").encode())


def replace_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a file with one JSON value per line atomically."""
    replace_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_json(path: Path, shape: Any = object) -> Any:
    """Read a JSON file whose data must have a shape; see `check_shape`."""
    data = _parse(read_text(path), path, 0)
    check_shape(data, shape, str(path))
    return data


def read_lines(path: Path, shape: Any = object) -> list[Any]:
    """Read a file with one JSON value per line; a last line without line break (after a crash) is ignored."""
    *lines, _ = read_text(path).split("\n")
    rows = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
    for number, row in enumerate(rows, start=1):
        check_shape(row, shape, f"{path}:{number}")
    return rows


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def check_shape(data: Any, shape: Any, where: str) -> None:
    """Raise `InputError` if JSON data lack the shape that the library wrote: the file was damaged or edited.

    A shape is a type, ``[shape]`` for lists, or ``{key: shape}`` for tables with these keys. A key that ends in "?" may
    be missing, and ``...`` stands for all other keys.

    >>> check_shape({"step": 3, "loss": "low"}, {"step": int, ...: float}, "log.jsonl:1")
    Traceback (most recent call last):
    unforced.errors.InputError: log.jsonl:1: is damaged: loss can't be 'low'
    """
    problem = _find_damage(data, shape)
    if problem is not None:
        raise InputError(f"{where}: is damaged: {problem}")


def _find_damage(data: Any, shape: Any, name: str = "it") -> str | None:
    kind: Any = type(shape) if isinstance(shape, list | dict) else (int, float) if shape is float else shape
    if not isinstance(data, kind) or (isinstance(data, int) and abs(data) >= 2**63):
        return f"{name} can't be {show(data)}"
    if isinstance(shape, list):
        parts = [(item, shape[0], f"{name}[{i}]") for i, item in enumerate(data)]
    elif isinstance(shape, dict):
        known = {key.removesuffix("?"): inner for key, inner in shape.items() if key is not ...}
        missing = [key for key in shape if key in known and key not in data]
        if missing:
            return f"there is no {missing[0]}"
        parts = [(item, known.get(key, shape.get(..., object)), key) for key, item in data.items()]
    else:
        return None
    return next((problem for part in parts if (problem := _find_damage(*part)) is not None), None)


def digest(data: Any) -> str:
    """Return a short hash of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{line or error.lineno}: is not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or too many brackets
        raise InputError(f"{path}: is not JSON ({error})") from None


class LineLog:
    """A file to which JSON lines are appended; it is truncated to ``size`` bytes when it is opened."""

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path = path
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise InputError(
                f"{path}: has {found} bytes but had {size} when the checkpoint was saved: the file was changed"
            )
        with writable(path):
            self._file = open(path, "ab")  # noqa: SIM115 (closed by close)
            self._file.truncate(size)

    def append(self, row: Any) -> None:
        """Add a line and flush it to the system."""
        with writable(self.path):
            self._file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
            self._file.flush()

    def sync(self) -> int:
        """Wait until everything is on disk; return the size in bytes."""
        with writable(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with suppress(OSError):  # append and sync have reported any error
            self._file.close()

    def __enter__(self) -> "LineLog":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# The run folder

FORMAT = 2  # of run folders
STEP = "step-"  # prefix of checkpoint folders: step-00000120
INFO = {
    "name?": str,
    "variant?": str,
    "seed?": int,
    "threads?": (int, type(None)),
    "world?": int,
    "parameters?": int,
    "versions?": {...: str},
    "examples?": {...: {"read": int, "kept": int, "dropped": {...: int}}},
    "facts?": {"vocabulary?": str},
}
EVENT = {"kind": str, "step": int, "epoch": float, ...: (int, float, str)}
BEST = {"checkpoint": str, "metric": str, "score": float, "step": int}
FINISHED = {"steps": int, "epochs": float, "seconds": float, "tokens": int, "reason": str}
PREDICTION = {"source": object, "answers": list, "output": str}
METRIC = {"score": float, "higher_is_better": bool, "signature": str, "statistics": [[float]]}
SCORES = {"split": str, "decoder": str, "options?": dict, "seconds": float, "examples": int, "metrics": {...: METRIC}}
BEFORE_RUN = {"lock", "recipe.toml", "codec.json"}  # files of a writer that was killed before it wrote run.json


class RunFolder:
    """The files of one run. Reading raises `InputError` if a file is missing or broken."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    # Reading

    def exists(self) -> bool:
        """Return whether the folder contains a run."""
        return (self.path / "run.json").is_file()

    def _file(self, name: str) -> Path:
        if not self.exists():
            raise InputError(f"{self.path}: is not a run folder (it has no run.json)")
        path = self._inside(name)
        if not path.is_file():
            raise InputError(f"{self.path}: has no {name}")
        return path

    def _inside(self, name: str) -> Path:
        """Return the path of a file; raise `InputError` if its name or a link leads out of the folder."""
        path = self.path / name
        if "\0" in name or not path.resolve().is_relative_to(self.path.resolve()):
            raise InputError(f"{path}: leads out of the run folder")
        return path

    def _optional(self, name: str, shape: Any) -> dict[str, Any] | None:
        path = self._inside(name)
        found: dict[str, Any] | None = read_json(path, shape) if path.is_file() else None
        return found

    def recipe_text(self) -> str:
        """Return the recipe of the run as TOML."""
        return read_text(self._file("recipe.toml"))

    def recipe(self) -> dict[str, Any]:
        """Return the recipe of the run as plain data."""
        return read_toml(self._file("recipe.toml"))

    def info(self) -> dict[str, Any]:
        """Return run.json; raise `InputError` if another version of this library has written it."""
        info = read_json(self._file("run.json"))
        found = info.get("format", 1) if isinstance(info, dict) else "unknown"
        if found != FORMAT:
            raise InputError(
                f"{self.path}: has the run folder format {found}, but this version of unforced reads format {FORMAT}; "
                "train the model again"
            )
        check_shape(info, INFO, str(self.path / "run.json"))
        return dict(info)

    def facts(self) -> dict[str, Any]:
        """Return the facts of run.json (see `unforced.training.run_identity`)."""
        facts: dict[str, Any] = self.info().get("facts", {})
        return facts

    def codec(self) -> dict[str, Any]:
        """Return codec.json; raise `InputError` if it is not the codec that the model was trained with."""
        path = self._file("codec.json")
        codec: dict[str, Any] = read_json(path)
        if not self.facts().get("vocabulary", "").endswith(digest(codec)):
            raise InputError(f"{path}: is damaged (its hash differs from run.json)")
        return codec

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, or those of one kind ("train" or "dev")."""
        path = self._inside("metrics.jsonl")
        events = read_lines(path, EVENT) if path.is_file() else []
        return [event for event in events if kind is None or event.get("kind") == kind]

    def samples(self) -> list[dict[str, Any]]:
        """Return the lines of samples.jsonl: the examples of each update."""
        return read_lines(self._file("samples.jsonl"))

    def best(self) -> dict[str, Any] | None:
        """Return ``{"checkpoint", "metric", "score", "step"}`` of the best validation so far."""
        return self._optional("best.json", BEST)

    def finished(self) -> dict[str, Any] | None:
        """Return ``{"steps", "epochs", "seconds", "tokens", "reason"}``, or None before the end of training."""
        return self._optional("finished.json", FINISHED)

    def diagnosis(self) -> dict[str, Any] | None:
        """Return what `unforced.diagnose` wrote, or None."""
        return self._optional("diagnosis.json", dict)

    def checkpoints(self) -> list[Path]:
        """Return the folders of the checkpoints, oldest first."""
        found = sorted(self._inside("checkpoints").glob(f"{STEP}[0-9]*"))
        return [self._inside(f"checkpoints/{path.name}") for path in found]

    def best_checkpoint(self) -> Path:
        """Return the folder of the best checkpoint, or of the newest if nothing was validated yet."""
        best, published = self.best(), self.checkpoints()
        if best is not None:
            return self._inside(f"checkpoints/{best['checkpoint']}")
        if not published:
            missing = "has no checkpoint yet" if self.exists() else "is not a run folder (it has no run.json)"
            raise InputError(f"{self.path}: {missing}")
        return published[-1]

    def scores(self) -> list[dict[str, Any]]:
        """Return the content of the files in scores/, sorted by name."""
        paths = sorted(self._inside("scores").glob("*.json"))
        return [read_json(self._inside(f"scores/{path.name}"), SCORES) for path in paths]

    def predictions(self, split: str, decoder: str) -> list[dict[str, Any]]:
        return read_lines(self._file(f"predictions/{_stem(split, decoder)}.jsonl"), PREDICTION)

    # Writing

    @contextmanager
    def writing(self, *, resume: bool = False) -> Iterator[None]:
        """Hold the lock of the folder; raise `InputError` if another process holds it, or as `check_content` does.

        The operating system releases the lock when the process ends, even after a kill. If a new run fails before its
        first checkpoint, its files are removed, so that they do not block the corrected command.
        """
        with writable(self.path):
            self.check_content(resume)
            new_folder = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, self.path)
            with writable(self.path):
                self.check_content(resume)
                _remove(self.path, f"{PART}*")  # unfinished files of a killed writer
                _remove(self.path / "checkpoints", f"{PART}*")
            new_run = not self.exists()
            try:
                yield
            except Exception:
                if new_run and not self.checkpoints():
                    _remove(self.path, "*")
                    if new_folder:
                        self.path.rmdir()
                raise
        finally:
            os.close(handle)

    def locked(self) -> bool:
        """Return whether a process is writing to the run."""
        import fcntl

        if not (self.path / "lock").is_file():
            return False
        with open(self.path / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def check_content(self, resume: bool) -> None:
        """Raise `InputError` if the folder holds anything, or with ``resume`` anything but a run."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file, not a folder")
        content = set(os.listdir(self.path)) if self.path.exists() else set()
        if resume and not content:
            raise InputError(f"{self.path}: there is no run to resume; leave out resume to start one")
        if not resume and content - {"lock"}:
            found = "resume the run or choose another folder" if self.exists() else "choose another folder"
            raise InputError(f"{self.path}: is not empty; {found}")
        foreign = {name for name in content - BEFORE_RUN if not name.startswith(PART)}
        if foreign and not self.exists():
            raise InputError(f"{self.path}: contains other files but no run, so there is nothing to resume")

    def create(self, *, recipe: str, info: Mapping[str, Any], codec: Mapping[str, Any]) -> None:
        """Write the files that are known before the first update; run.json comes last and makes the folder a run."""
        replace_bytes(self.path / "recipe.toml", recipe.encode())
        replace_json(self.path / "codec.json", codec)
        self.write_info(info)

    def write_info(self, info: Mapping[str, Any]) -> None:
        replace_json(self.path / "run.json", {"format": FORMAT, **info})

    def write_best(self, best: Mapping[str, Any] | None) -> None:
        """Record the best checkpoint; None if there is none."""
        if best is None:
            (self.path / "best.json").unlink(missing_ok=True)
        elif best != self.best():
            replace_json(self.path / "best.json", best)

    def write_diagnosis(self, found: Mapping[str, Any]) -> None:
        replace_json(self.path / "diagnosis.json", found)

    def write_finished(self, finished: Mapping[str, Any]) -> None:
        replace_json(self.path / "finished.json", finished)

    def write_evaluation(
        self, split: str, decoder: str, predictions: list[dict[str, Any]], scores: dict[str, Any]
    ) -> None:
        """Write predictions before scores, so that scores never lack their predictions."""
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
        raise InputError(f"{decoder!r} can't be the name of a decoder, because it is part of file names")
    return stem


def _remove(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two flat tables, one phrase each.

    >>> differences({"seed": 1, "world": 2}, {"seed": 1, "file": 3})
    ['world is 2 in the run and absent now', 'file is absent in the run and 3 now']
    """
    pairs = {key: (old.get(key, "absent"), new.get(key, "absent")) for key in [*old, *new]}
    return [
        f"{key} is {then!s:.60} in the run and {now!s:.60} now" for key, (then, now) in pairs.items() if then != now
    ]
