"""The runs of a comparison in the order of training, checked against the runs that exist."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unforced.errors import InputError, nearest
from unforced.experiments.runs import Run
from unforced.protocols import Split
from unforced.recipes.recipe import Recipe, needed_variants
from unforced.training.run_folder import RunFolder, differences
from unforced.training.run_identity import DATA_FACTS, expected_facts, training_data_fact

SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True, eq=False)
class Planned:
    """One run of a comparison."""

    label: str  # of the variant
    seed: int
    recipe: Recipe  # of one variant and one seed
    folder: Path
    needs: tuple[str, ...] = ()  # labels of the variants that this one starts or learns from

    def unscored(self) -> list[tuple[Split, str]]:
        """Return the splits and decoders without scores."""
        return [
            (split, decoder)
            for split in SPLITS
            for decoder in self.recipe.decoding
            if not (self.folder / "scores" / f"{split}-{decoder}.json").is_file()
        ]


def plan(recipes: Sequence[Recipe], root: Path) -> list[Planned]:
    """Return the runs of all variants and seeds, seed by seed, each after those that it needs."""
    if not recipes:
        raise InputError("there is no recipe to compare; name one or more")
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise InputError(f"two recipes are called {max(names, key=names.count)}; rename one of them")
    planned = []
    for recipe in recipes:
        for key, part in (("task", recipe.task), ("model", recipe.model)):
            if part is None:
                raise InputError(f"{recipe.name}: a recipe without a {key} can't be run")
        prefix = f"{recipe.name}/" if len(recipes) > 1 else ""
        folder = root / recipe.name
        for variant, single in _ordered(recipe).items():
            needs = tuple(prefix + name for name in needed_variants(single))
            for seed in recipe.seeds:
                planned.append(
                    Planned(prefix + variant, seed, single.single(seed=seed), folder / f"{variant}-{seed}", needs)
                )
    seeds = list(dict.fromkeys(run.seed for run in planned))
    return sorted(planned, key=lambda run: seeds.index(run.seed))


def _ordered(recipe: Recipe) -> dict[str, Recipe]:
    """The resolved variants by name, each after those that it needs, otherwise in the order of the recipe."""
    singles = {variant.name: recipe.single(variant.name) for variant in recipe.variants}
    needs = {name: set(needed_variants(single)) for name, single in singles.items()}
    for name in singles:
        for source in sorted(needs[name] - singles.keys()):
            raise InputError(
                f'{recipe.name}: variant {name} needs variant "{source}", which is not compared; '
                f"{nearest(source, singles)}"
            )
    ordered: dict[str, Recipe] = {}
    while len(ordered) < len(singles):
        ready = [name for name in singles if name not in ordered and needs[name] <= ordered.keys()]
        if not ready:
            left = " -> ".join(name for name in singles if name not in ordered)
            raise InputError(f"{recipe.name}: variants need each other in a circle: {left}")
        ordered[ready[0]] = singles[ready[0]]
    return ordered


def existing_runs(planned: Sequence[Planned]) -> dict[Planned, Run]:
    """Read the planned runs that exist; raise `InputError` if any of them differs from the plan."""
    runs = {run: Run(run.folder, run.label) for run in planned if RunFolder(run.folder).exists()}
    for run in planned:
        _check_recipe(run, runs.get(run))
    _check_references(planned)
    _check_training_data(planned, runs)
    return runs


def _check_recipe(run: Planned, found: Run | None) -> None:
    """Raise `InputError` if the run was trained with a different recipe, or if the objective's files can't be read.

    Decoders that were added since need no training.
    """
    try:
        now = expected_facts(run.recipe)
    except InputError as error:
        if found and found.finished:
            return  # the files are not read any more
        raise InputError(f"{run.label}: {error}") from None
    if found is None:
        return
    then = {key: value for key, value in found.facts.items() if key not in DATA_FACTS}
    changes = differences(then, now)
    for (split, decoder), table in found.scores.items():
        if split == "test" and decoder in run.recipe.decoding:
            options = json.loads(json.dumps(asdict(run.recipe.decoding[decoder])))
            scored = {key: value for key, value in table["options"].items() if key in options}
            changes += [f"decoding.{decoder}.{change}" for change in differences(scored, options) if scored]
    if changes:
        raise InputError(
            f"{run.folder} was trained with a different recipe: {'; '.join(changes)}; "
            "choose another root or remove the run"
        )


def _check_references(planned: Sequence[Planned]) -> None:
    """Raise `InputError` if tasks differ in metrics or test references, or if data can't be read."""
    first, tasks, answers = planned[0], list[Any](), None
    for run in planned:
        task = run.recipe.task
        if task in tasks:
            continue
        tasks.append(task)
        if [metric.name for metric in tasks[0].metrics()] != [metric.name for metric in task.metrics()]:
            raise InputError(f"{run.label} and {first.label} have different metrics, so they can't be compared")
        found = [example.answers for example in task.read("test")]
        answers = found if answers is None else answers
        if not _equal(answers, found):
            raise InputError(
                f"{run.label} and {first.label} have different test references, so they can't be compared; "
                "let them differ in other settings of the task"
            )


def _check_training_data(planned: Sequence[Planned], runs: Mapping[Planned, Run]) -> None:
    """Raise `InputError` if runs of one task were trained on different data, or if the data differ from today's."""
    first: list[tuple[Planned, str]] = []  # a run of each task, and the digest of its training data
    for run, found in runs.items():
        digest = found.facts["training data"]
        for other, before in first:
            if other.recipe.task == run.recipe.task and digest != before:
                raise InputError(
                    f"{run.folder} and {other.folder} were trained on different data, so they can't be compared; "
                    "choose another root or remove one of them"
                )
        if all(other.recipe.task != run.recipe.task for other, _ in first):
            first.append((run, digest))
    for run, digest in first:
        task = run.recipe.task
        left = [each for each in planned if each.recipe.task == task and not (each in runs and runs[each].finished)]
        if not left:
            continue  # the data are not read any more
        codec = task.codec(runs[run].folder.codec())
        if training_data_fact([codec.encode(example) for example in task.read("train")]) != digest:
            raise InputError(
                f"{run.folder} was trained on different data than there are now; choose another root or remove the run"
            )


def _equal(a: Any, b: Any) -> bool:
    """Whether nested sequences of texts, numbers and arrays are equal."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(a, b))
