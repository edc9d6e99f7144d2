"""Which runs a comparison needs, in which order, and whether what is there fits them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unforced.errors import InputError, nearest
from unforced.recipes import earlier
from unforced.recipes.recipe import BODY, Recipe, load
from unforced.reports.runs import flatten
from unforced.training.run_folder import RunFolder, differences


@dataclass(frozen=True)
class Planned:
    """One run to make: a recipe of one variant and one seed, where it goes and which runs it builds on."""

    label: str
    seed: int
    recipe: Recipe
    folder: Path
    needs: tuple[str, ...] = ()  # the labels of the variants that it starts or learns from

    @property
    def built_on(self) -> set[str]:
        """The names of those variants' run folders."""
        return {f"{label.rpartition('/')[2]}-{self.seed}" for label in self.needs}


def plan(recipes: Sequence[Recipe], root: Path) -> list[Planned]:
    """The runs to make, in an order in which each finds those it builds on: seed by seed, so that all variants
    have a figure soon."""
    if not recipes:
        raise InputError("there is no recipe to compare; name one or more")
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise InputError(
            f"two of the recipes have the name {max(names, key=names.count)}; their runs would share folders"
        )
    planned = []
    for recipe in recipes:
        if recipe.task is None or recipe.model is None:
            raise InputError(
                f"{recipe.name}: a recipe without a {'task' if recipe.task is None else 'model'} can't be run"
            )
        prefix = f"{recipe.name}/" if len(recipes) > 1 else ""
        singles = {variant.name: recipe.single(variant.name) for variant in recipe.variants}
        for variant in order(singles):
            for seed in recipe.seeds:
                single, folders = singles[variant].single(seed=seed), root / recipe.name
                needs = tuple(prefix + name for name in earlier.needed(single))
                ready = earlier.placed(single, folders, seed)
                planned.append(Planned(prefix + variant, seed, ready, folders / f"{variant}-{seed}", needs))
    seeds = list(dict.fromkeys(run.seed for run in planned))
    return sorted(planned, key=lambda run: seeds.index(run.seed))


def order(singles: Mapping[str, Recipe]) -> list[str]:
    """Return the names of the variants, each after those it builds on; otherwise in the recipe's order."""
    names = list(singles)
    sources = {name: earlier.needed(single) for name, single in singles.items()}
    for name, needs in sources.items():
        for source in needs:
            if source not in names:
                raise InputError(
                    f'{singles[name].name}: variant {name} builds on "{source}", which is not among those to compare; {nearest(source, names)}'
                )
    placed: list[str] = []
    while len(placed) < len(names):
        ready = [name for name in names if name not in placed and set(sources[name]) <= set(placed)]
        if not ready:
            left = " -> ".join(name for name in names if name not in placed)
            raise InputError(f"{singles[names[0]].name}: variants build on each other in a circle: {left}")
        placed.append(ready[0])
    return placed


def check_folders(planned: Sequence[Planned]) -> None:
    """Refuse run folders that another recipe made, before anything is trained."""
    for run in planned:
        if not RunFolder(run.folder).exists():
            continue
        found = earlier.spelt(load(run.folder), run.recipe, run.built_on)
        shared = set(found.decoding) & set(run.recipe.decoding)
        changes = differences(_settings(found, run, shared), _settings(run.recipe, run, shared))
        changes += _other_options(run, set(run.recipe.decoding) - shared)
        if found.seeds != run.recipe.seeds:
            changes.insert(0, f"seed is {found.seeds[0]} in the run and {run.seed} now")
        if changes:
            raise InputError(
                f"{run.folder}: was made with a different recipe: {'; '.join(changes)}; choose another root, or remove the run"
            )


def check_files(planned: Sequence[Planned]) -> None:
    """Refuse objectives whose files are missing, and runs that were made with another content of theirs."""
    from unforced.training.run_identity import file_digest, files

    for run in planned:
        folder = RunFolder(run.folder)
        made = folder.info().get("facts", {}) if folder.exists() else {}
        try:
            found = {f"file {path.name}": file_digest(path) for path in files(run.recipe.objective)}
        except InputError as error:
            if folder.exists() and folder.finished() is not None:
                continue  # what it has learnt from them stays
            raise InputError(f"{run.label}: {error}") from None
        for name in found.keys() & made.keys():
            if found[name] != made[name]:
                raise InputError(
                    f"{run.folder}: was made with another content of {name.removeprefix('file ')}; choose another root, "
                    "or remove the run"
                )


def check_data(planned: Sequence[Planned]) -> None:
    """Refuse runs of one task that learnt from different training data: those that are there, and those that would be made now."""
    from unforced.training.run_identity import learnt_from

    first: list[tuple[Planned, str]] = []  # a run of each task, and what it learnt from
    for run in planned:
        folder = RunFolder(run.folder)
        found = folder.info().get("facts", {}).get("training data") if folder.exists() else None
        if found is None:
            continue
        other = next(((before, data) for before, data in first if before.recipe.task == run.recipe.task), None)
        if other is None:
            first.append((run, found))
        elif other[1] != found:
            raise InputError(
                f"{run.folder}: learnt from other training data than {other[0].folder}, so that the two can't be compared; "
                "choose another root, or remove one of them"
            )
    for run, found in first:
        task = run.recipe.task
        if all(RunFolder(each.folder).finished() for each in planned if each.recipe.task == task):
            continue  # nothing reads the data any more
        codec = task.codec(RunFolder(run.folder).codec())
        if learnt_from([codec.encode(example) for example in task.read("train")]) != found:
            raise InputError(
                f"{run.folder}: learnt from other training data than there is now; choose another root, or remove the run"
            )


def check_references(planned: Sequence[Planned]) -> None:
    """Refuse variants whose tasks have other metrics or other test references than the first run's, and data that can't be read."""
    tasks: list[Any] = []
    answers: list[Any] = []
    for run in planned:
        if run.recipe.task in tasks:
            continue
        tasks.append(run.recipe.task)
        first, other = tasks[0], tasks[-1]
        if [metric.name for metric in first.metrics()] != [metric.name for metric in other.metrics()]:
            raise InputError(
                f"{run.label} and {planned[0].label} are judged by different metrics, so they can't be compared"
            )
        answers.append(_answers(other))
        if not _equal(answers[0], answers[-1]):
            raise InputError(
                f"{run.label} and {planned[0].label} have different test references, so they can't be compared; compare them "
                "apart, or let them differ in other settings of the task"
            )


def _settings(recipe: Recipe, run: Planned, decoders: set[str]) -> dict[str, Any]:
    """The flat settings that make a run what it is, with these decoders only: others need no training."""
    from unforced.training.run_identity import FREE

    flat = flatten({key: value for key, value in recipe.to_data().items() if key in BODY})
    kept = {
        key: value
        for key, value in flat.items()
        if key.removeprefix("training.") not in FREE
        and (not key.startswith("decoding.") or key.split(".")[1] in decoders)
    }
    return kept


def _other_options(run: Planned, decoders: set[str]) -> list[str]:
    """How decoders that joined after training differ from what the run was decoded with."""
    changes = []
    for scores in RunFolder(run.folder).scores():
        name = scores.get("decoder")
        if name in decoders and scores.get("split") == "test":
            now = json.loads(json.dumps(asdict(run.recipe.decoding[name])))
            then = {key: value for key, value in scores.get("options", {}).items() if key in now}
            changes += [f"decoding.{name}.{change}" for change in differences(then, now) if then]
    return changes


def _answers(task: Any) -> list[Any]:
    return [example.answers for example in task.read("test")]


def _equal(a: Any, b: Any) -> bool:
    """Whether nested sequences of texts, numbers and arrays are the same."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(a, b))
