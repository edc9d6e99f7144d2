"""A run folder on the disk: what training writes, and what the report reads back. See docs/design.md for the files.

This module imports neither torch nor numpy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.training.files import (
    PART,
    read_json,
    read_lines,
    read_text,
    replace_bytes,
    replace_json,
    replace_lines,
    writable,
)

STEP = "step-"  # begins the names of checkpoint folders: step-00000120
BEFORE_RUN = {"lock", "recipe.toml", "codec.json"}  # what a writer killed in its first moments may leave


class RunFolder:
    """The files of one run. Reading raises ``InputError`` where a file is absent or broken.

    >>> import tempfile
    >>> run = RunFolder(tempfile.mkdtemp())
    >>> with run.writing():
    ...     run.create(recipe='name = "toy"', info={"seed": 1}, codec={})
    >>> run.info()
    {'seed': 1}
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
            self._refuse_content(resume)
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle, self.path)
            with writable(self.path):
                self._refuse_content(resume)
                self._sweep()
            yield
        finally:
            os.close(handle)

    def _refuse_content(self, resume: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file where a run folder is wanted")
        content = set(os.listdir(self.path)) - {"lock"} if self.path.exists() else set()
        if content and not resume:
            found = (
                "resume the run in it or choose another folder" if self.exists() else "choose another folder"
            )
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
        replace_json(self.path / "run.json", info)

    def discard(self) -> None:
        """Remove what was written, all but the lock: for a run that failed before its first update."""
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
