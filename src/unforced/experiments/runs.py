"""The contents of run folders; each file is read at most once."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, State, read_comparison
from unforced.training.run_folder import RunFolder, check_shape


class Predictions(NamedTuple):
    """The sources, references and outputs of a split, as texts."""

    sources: list[str]
    answers: list[tuple[str, ...]]
    outputs: list[str]


class Run:
    """The contents of a run folder; ``label`` is the name of its variant in tables."""

    def __init__(self, path: Path, label: str | None = None) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self.info: dict[str, Any] = self.folder.info()
        check_shape(self.info, {"name": str, "variant": str, "seed": int}, str(path / "run.json"))
        self.name: str = self.info["name"]
        self.variant: str = self.info["variant"]
        self.seed: int = self.info["seed"]
        self.label = label or self.variant
        self._predictions: dict[tuple[str, str], Predictions] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that runs of one recipe share; see `unforced.training.run_identity`."""
        facts: dict[str, Any] = self.info.get("facts", {})
        return facts

    @cached_property
    def recipe_text(self) -> str:
        return self.folder.recipe_text()

    @cached_property
    def recipe(self) -> dict[str, Any]:
        return self.folder.recipe()

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

    @property
    def state(self) -> State:
        return "finished" if self.finished else "running" if self.folder.locked() else "interrupted"

    @cached_property
    def scores(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The files of ``scores/`` by split and decoder; the [N,D] statistics of each metric are an array."""
        tables = {}
        for table in self.folder.scores():
            if not table["metrics"]:
                raise InputError(f"{self.path}: the scores of {table['decoder']} have no metric")
            for name, metric in table["metrics"].items():
                if len({len(row) for row in metric["statistics"]}) != 1:
                    raise InputError(f"{self.path}: is damaged: rows of the statistics of {name} differ in length")
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


def read_comparison_folder(folder: Path) -> tuple[Comparison, list[Run]]:
    """Read a comparison and those of its runs that have started.

    Runs that had not ended when the comparison was written get their present states.
    """
    comparison = read_comparison(folder / "comparison.json")
    started = [state for state in comparison.runs if RunFolder(folder / state.folder).exists()]
    runs = [Run(folder / state.folder, state.variant) for state in started]
    present = {(run.label, run.seed): run.state for run in runs}
    states = tuple(
        replace(state, state=present[state.variant, state.seed])
        if state.state == "waiting" and (state.variant, state.seed) in present
        else state
        for state in comparison.runs
    )
    return replace(comparison, runs=states), runs


def read_runs(paths: Sequence[Path]) -> list[list[Run]]:
    """Read run folders, and the run folders in other folders, in groups that can be compared.

    The runs of a group have one task, or were scored on the same references by the same metrics. Labels are variants,
    or recipes and variants if a group has several recipes, or paths if these are not unique.
    """
    groups: list[list[Run]] = []
    for run in [Run(path) for path in dict.fromkeys(run for path in paths for run in _run_folders(path))]:
        same = [group for group in groups if any(_comparable(run, other) for other in group)]
        same[0].append(run) if same else groups.append([run])
    for runs in groups:
        if len({run.name for run in runs}) > 1:
            for run in runs:
                run.label = f"{run.name}/{run.variant}"
        if len({(run.label, run.seed) for run in runs}) < len(runs):
            for run in runs:
                run.label = str(run.path)
    return groups


def _comparable(a: Run, b: Run) -> bool:
    task = a.recipe.get("task")
    return (task is not None and task == b.recipe.get("task")) or (bool(a.scores) and _scored_on(a) == _scored_on(b))


def _scored_on(run: Run) -> Any:
    """Return the metrics and the references of a run's scores on the test split, else on another one."""
    found = sorted(run.scores, key=lambda key: key[0] != "test")[:1]
    return [
        (split, set(run.scores[split, name]["metrics"]), run.predictions(split, name).answers) for split, name in found
    ]


def _run_folders(path: Path) -> list[Path]:
    inside = sorted(path.iterdir()) if path.is_dir() and not RunFolder(path).exists() else []
    return [each for each in inside if RunFolder(each).exists()] or [path]
