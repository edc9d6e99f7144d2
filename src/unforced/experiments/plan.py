"""Which runs a comparison needs, in which order, and whether what is there fits them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unforced.errors import InputError, nearest
from unforced.recipes import earlier
from unforced.recipes.recipe import Recipe
from unforced.training.run_folder import RunFolder, differences
from unforced.training.run_identity import DATA_FACTS, expected_facts, training_data_fact


@dataclass(frozen=True)
class Planned:
    """One run to make: a recipe of one variant and one seed, where it goes and which runs it builds on."""

    label: str
    seed: int
    recipe: Recipe
    folder: Path
    needs: tuple[str, ...] = ()  # the labels of the variants that it starts or learns from


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
                planned.append(Planned(prefix + variant, seed, single, folders / f"{variant}-{seed}", needs))
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
    """Raise `InputError` if a run folder was made with another recipe, or if an objective's file can't be read."""
    for run in planned:
        folder = RunFolder(run.folder)
        try:
            now = expected_facts(run.recipe)
        except InputError as error:
            if folder.exists() and folder.finished() is not None:
                continue  # the file is not needed any more
            raise InputError(f"{run.label}: {error}") from None
        if not folder.exists():
            continue
        then = {key: value for key, value in folder.facts().items() if key not in DATA_FACTS}
        changes = differences(then, now) + _decoder_changes(run)
        if changes:
            raise InputError(
                f"{run.folder}: was made with a different recipe: {'; '.join(changes)}; choose another root, or remove the run"
            )


def check_data(planned: Sequence[Planned]) -> None:
    """Refuse runs of one task that learnt from different training data: those that are there, and those that would be made now."""
    first: list[tuple[Planned, str]] = []  # a run of each task, and what it learnt from
    for run in planned:
        folder = RunFolder(run.folder)
        found = folder.facts()["training data"] if folder.exists() else None
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
        if training_data_fact([codec.encode(example) for example in task.read("train")]) != found:
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


def _decoder_changes(run: Planned) -> list[str]:
    """How the decoders' options differ from those that the run was decoded with."""
    changes = []
    for scores in RunFolder(run.folder).scores():
        name = scores.get("decoder")
        if name in run.recipe.decoding and scores.get("split") == "test":
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
