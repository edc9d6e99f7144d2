"""Paths of the data sets that the library reads but does not contain; ``datasets.toml`` says where to get them.

A data set is a folder of its name below the folder that the environment variable ``UNFORCED_DATA`` names.
"""

import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from unforced.errors import InputError

VARIABLE = "UNFORCED_DATA"


class DataSet(NamedTuple):
    folder: str
    title: str
    origin: str
    licence: str
    layout: str  # what the files hold
    files: list[str]


class Availability(NamedTuple):
    """Whether a data set is in place."""

    dataset: DataSet
    path: Path | None  # its folder; None if UNFORCED_DATA is not set
    missing: list[str]  # files that are not there


_TABLE = tomllib.loads(files("unforced.tasks").joinpath("datasets.toml").read_text(encoding="utf-8"))
DATASETS = {folder: DataSet(folder, **entry) for folder, entry in _TABLE.items()}


def root() -> Path | None:
    """Return the folder that ``UNFORCED_DATA`` names, None if it is not set."""
    value = os.environ.get(VARIABLE, "").strip()
    return Path(os.path.expanduser(value)) if value else None


def find(folder: str, filename: str) -> Path:
    """Return the path of a file of a data set; raise `InputError` with instructions if it is missing."""
    entry, base = DATASETS[folder], root()
    path = None if base is None else base / folder / filename
    if path is not None and path.is_file():
        return path
    reason = f"{VARIABLE} is not set" if path is None else f"there is no file {path}"
    raise InputError(
        f"the data set {entry.title!r} is missing: {reason}. Get it from {entry.origin} (licence: {entry.licence}), "
        f"put {filename} ({entry.layout}) into a folder {folder}, and set {VARIABLE} to the folder above it"
    )


def available() -> list[Availability]:
    """Return for each data set its folder and the files missing there."""
    base, result = root(), []
    for entry in DATASETS.values():
        path = None if base is None else base / entry.folder
        missing = [file for file in entry.files if path is None or not (path / file).is_file()]
        result.append(Availability(entry, path, missing))
    return result
