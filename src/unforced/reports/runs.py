"""Run folders as the report sees them: read once, checked, and never written."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, read_comparison
from unforced.recipes.recipe import flatten
from unforced.training.run_folder import RunFolder, read_json

APART = ("name", "description", "seeds", "baseline", "variants")  # keys of a recipe that change no run


@dataclass(frozen=True)
class Run:
    """What one run folder holds; ``label`` is what the report calls its variant."""

    folder: RunFolder
    label: str
    name: str
    variant: str
    seed: int
    info: dict[str, Any]
    recipe_text: str
    recipe: dict[str, Any]
    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]
    best: dict[str, Any] | None
    finished: dict[str, Any] | None
    scores: dict[tuple[str, str], dict[str, Any]]  # by split and decoder, without the statistics

    def predictions(self, split: str, decoder: str) -> list[dict[str, Any]]:
        rows = self.folder.predictions(split, decoder)
        path = self.folder.path / "predictions" / f"{split}-{decoder}.jsonl"
        for number, row in enumerate(rows, start=1):
            _table(row, f"{path}:{number}", id=Real, source=object, answers=list, output=str)
        return rows

    def statistics(self, split: str, decoder: str) -> dict[str, np.ndarray]:
        """[N,D] statistics of each metric, read anew from the file."""
        path = self.folder.path / "scores" / f"{split}-{decoder}.json"
        tables = {}
        for name, metric in _read_score(path)["metrics"].items():
            try:
                tables[name] = np.array(metric.get("statistics"), dtype=np.float64)
            except (TypeError, ValueError):
                tables[name] = np.empty(0)
            if tables[name].ndim != 2:
                raise InputError(f"{path}: the statistics of {name} are no table of numbers")
        return tables


def read_run(path: Path, label: str | None = None) -> Run:
    """Read a run folder; raises ``InputError`` with the file (and line) that is missing or broken."""
    folder = RunFolder(path)
    info = _table(folder.info(), f"{path / 'run.json'}", name=str, variant=str, seed=int)
    text = folder.recipe()
    try:
        recipe = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path / 'recipe.toml'}: is not TOML ({error})") from None
    events = folder.events()
    for number, event in enumerate(events, start=1):
        _table(event, f"{path / 'metrics.jsonl'}:{number}", kind=str, step=Real)
    best, finished = folder.best(), folder.finished()
    if best is not None:
        _table(best, f"{path / 'best.json'}", metric=str, score=Real)
    if finished is not None:
        _table(finished, f"{path / 'finished.json'}", steps=Real, seconds=Real, tokens=Real)
    return Run(
        folder=folder,
        label=label or info["variant"],
        name=info["name"],
        variant=info["variant"],
        seed=info["seed"],
        info=info,
        recipe_text=text,
        recipe=recipe,
        train=[event for event in events if event["kind"] == "train"],
        dev=[event for event in events if event["kind"] == "dev"],
        best=best,
        finished=finished,
        scores=_read_scores(folder),
    )


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], Comparison | None]:
    """The runs of these folders, and the comparison that they are the runs of, if they are.

    A path may also be the folder of a comparison, or another folder of run folders: it stands for all of them.
    """
    if not paths:
        raise InputError("there is no run to report on; name one or more run folders")
    comparison = _comparison_of(paths)
    if comparison is not None:
        root, found = comparison
        begun = [(root / state.folder, state.variant) for state in found.runs]
        return [read_run(path, label) for path, label in begun if RunFolder(path).exists()], found
    expanded = [run for path in paths for run in _expand(path)]
    unique = list({path.resolve(): path for path in expanded}.values())
    return _label([read_run(path) for path in unique]), None


def _expand(path: Path) -> list[Path]:
    """A run folder, or the run folders that a folder holds or compares."""
    if RunFolder(path).exists() or not path.is_dir():
        return [path]
    if (path / "comparison.json").is_file():
        inside = [path / run.folder for run in read_comparison(path / "comparison.json").runs]
    else:
        inside = sorted(path.iterdir())
    return [each for each in inside if RunFolder(each).exists()] or [path]


def settings(run: Run) -> dict[str, Any]:
    """The flat recipe of a run without the keys that don't change it."""
    return flatten({key: value for key, value in run.recipe.items() if key not in APART})


def _comparison_of(paths: Sequence[Path]) -> tuple[Path, Comparison] | None:
    """The comparison whose folder is the only path, or whose begun runs are exactly these folders."""
    if len(paths) == 1 and (paths[0] / "comparison.json").is_file():
        return paths[0], read_comparison(paths[0] / "comparison.json")
    for root in sorted({path.resolve().parent for path in paths}):
        if not (root / "comparison.json").is_file():
            continue
        comparison = read_comparison(root / "comparison.json")
        begun = {(root / run.folder).resolve() for run in comparison.runs}
        if {path.resolve() for path in paths} == {path for path in begun if RunFolder(path).exists()}:
            return root, comparison
    return None


def _label(runs: list[Run]) -> list[Run]:
    """Call runs by their variant; where that is not enough to tell them apart, by recipe, folder or path."""
    names = [
        lambda run: run.variant,
        lambda run: f"{run.name}/{run.variant}",
        lambda run: run.folder.path.name,
        lambda run: str(run.folder.path),
    ]
    one_recipe = len({run.name for run in runs}) == 1
    for name in names[0 if one_recipe else 1 :]:
        if max(Counter((name(run), run.seed) for run in runs).values()) == 1:
            break
    return [replace(run, label=name(run)) for run in runs]


def _read_scores(folder: RunFolder) -> dict[tuple[str, str], dict[str, Any]]:
    scores = {}
    for path in sorted((folder.path / "scores").glob("*.json")):
        found = _read_score(path)
        for metric in found["metrics"].values():
            rows = metric.pop("statistics", None)  # can be large: see ``Run.statistics``
            metric["width"] = len(rows[0]) if isinstance(rows, list) and rows and isinstance(rows[0], list) else 0
        scores[found["split"], found["decoder"]] = found
    return scores


def _read_score(path: Path) -> dict[str, Any]:
    found = _table(read_json(path), f"{path}", split=str, decoder=str, metrics=dict)
    for name, metric in found["metrics"].items():
        _table(metric, f"{path}: {name}", score=(Real, type(None)), higher_is_better=bool, signature=str)
    return found


def _table(value: Any, where: str, **types: Any) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{where}: is not a table of keys and values")
    for key, kind in types.items():
        if key not in value:
            raise InputError(f'{where}: has no "{key}"')
        if not isinstance(value[key], kind):
            raise InputError(f'{where}: "{key}" is of the wrong type ({type(value[key]).__name__})')
    return value
