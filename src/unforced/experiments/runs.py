"""The contents of run folders; each file is read at most once."""

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, read_comparison
from unforced.training.run_folder import FORMAT, RunFolder


class Predictions(NamedTuple):
    """What a decoder put out for each example of a split, as text."""

    sources: list[str]
    answers: list[tuple[str, ...]]
    outputs: list[str]


class Run:
    """The contents of a run folder; ``label`` is the name of its variant in tables.

    Raises `InputError` with file and line where a file is missing or is not what training writes.
    """

    def __init__(self, path: Path, label: str | None = None) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self.info: dict[str, Any] = self.folder.info()
        self.name: str = self.info["name"]
        self.variant: str = self.info["variant"]
        self.seed: int = self.info["seed"]
        self.label = label or self.variant
        self._predictions: dict[tuple[str, str], Predictions] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """What a run of the same recipe must share; see `unforced.training.run_identity`."""
        if self.info.get("format") != FORMAT:
            self.folder.check_format()
        facts: dict[str, Any] = self.info["facts"]
        return facts

    @cached_property
    def recipe_text(self) -> str:
        return self.folder.recipe()

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe as plain data."""
        try:
            return tomllib.loads(self.recipe_text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{self.path / 'recipe.toml'}: is not TOML ({error})") from None

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        return self.folder.events()

    @property
    def train(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == "train"]

    @property
    def dev(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == "dev"]

    @cached_property
    def best(self) -> dict[str, Any] | None:
        return self.folder.best()

    @cached_property
    def finished(self) -> dict[str, Any] | None:
        return self.folder.finished()

    @cached_property
    def scores(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The files of ``scores/`` by split and decoder; the [N,D] statistics of each metric are an array."""
        tables = {}
        for table in self.folder.scores():
            for metric in table["metrics"].values():
                metric["statistics"] = np.array(metric["statistics"], dtype=np.float64)
            tables[table["split"], table["decoder"]] = table
        return tables

    def predictions(self, split: str, decoder: str) -> Predictions:
        if (split, decoder) not in self._predictions:
            rows = self.folder.predictions(split, decoder)
            self._predictions[split, decoder] = Predictions(  # equal texts of several runs are kept once
                [sys.intern("" if row["source"] is None else str(row["source"])) for row in rows],
                [tuple(sys.intern(str(answer)) for answer in row["answers"]) for row in rows],
                [sys.intern(row["output"]) for row in rows],
            )
        return self._predictions[split, decoder]


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], Comparison | None]:
    """Read the runs in these folders, and their comparison if they are the runs of one.

    A path is a run folder, the folder of a comparison, or a folder of run folders.
    """
    if not paths:
        raise InputError("there is no run to report on; name one or more run folders")
    for root in [paths[0], *sorted({path.resolve().parent for path in paths})]:
        if (root / "comparison.json").is_file():
            comparison = read_comparison(root / "comparison.json")
            begun = {root / run.folder: run.variant for run in comparison.runs if RunFolder(root / run.folder).exists()}
            if paths == [root] or {path.resolve() for path in paths} == {path.resolve() for path in begun}:
                return [Run(path, label) for path, label in begun.items()], comparison
    expanded = {run.resolve(): run for path in paths for run in _run_folders(path)}
    return _labelled([Run(path) for path in expanded.values()]), None


def _run_folders(path: Path) -> list[Path]:
    if RunFolder(path).exists() or not path.is_dir():
        return [path]
    if (path / "comparison.json").is_file():
        inside = [path / run.folder for run in read_comparison(path / "comparison.json").runs]
    else:
        inside = sorted(path.iterdir())
    return [each for each in inside if RunFolder(each).exists()] or [path]


def _labelled(runs: list[Run]) -> list[Run]:
    """Label runs by variant, by recipe and variant, or by path: the first that tells them apart."""
    ways: list[Callable[[Run], str]] = [
        lambda run: run.variant,
        lambda run: f"{run.name}/{run.variant}",
        lambda run: str(run.path),
    ]
    if len({run.name for run in runs}) > 1:
        ways = ways[1:]
    label = next(way for way in ways if way is ways[-1] or max(Counter((way(r), r.seed) for r in runs).values()) == 1)
    for run in runs:
        run.label = label(run)
    return runs
