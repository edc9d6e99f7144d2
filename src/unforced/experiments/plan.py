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
        for variant, single in _ordered(recipe).items():
            needs = tuple(prefix + name for name in needed_variants(single))
            for seed in recipe.seeds:
                path = root / recipe.name / f"{variant}-{seed}"
                planned.append(Planned(prefix + variant, seed, single.single(seed=seed), path, needs))
    seeds = list(dict.fromkeys(run.seed for run in planned))
    return sorted(planned, key=lambda run: seeds.index(run.seed))


def _ordered(recipe: Recipe) -> dict[str, Recipe]:
    """Return the resolved variants by name, each after those that it needs, else in the order of the recipe."""
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
    """Raise `InputError` if the run was trained with a different recipe, or if files of the objective are missing.

    Recipes may differ in decoders without scores.
    """
    try:
        now = expected_facts(run.recipe)
    except InputError as error:
        if found and found.finished:
            return  # a finished run needs no files
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


def _by_task(planned: Sequence[Planned]) -> list[list[Planned]]:
    """Return the runs in groups that have one task each."""
    groups: list[list[Planned]] = []
    for run in planned:
        same = [group for group in groups if group[0].recipe.task == run.recipe.task]
        same[0].append(run) if same else groups.append([run])
    return groups


def _check_references(planned: Sequence[Planned]) -> None:
    """Raise `InputError` if tasks differ in metrics or test references, or if data can't be read."""
    first, *others = [group[0] for group in _by_task(planned)]
    metrics = [metric.name for metric in first.recipe.task.metrics()]
    answers = [example.answers for example in first.recipe.task.read("test")]
    for run in others:
        pair = f"{run.label} and {first.label} can't be compared"
        if [metric.name for metric in run.recipe.task.metrics()] != metrics:
            raise InputError(f"{pair}: their tasks have different metrics")
        if not _equal([example.answers for example in run.recipe.task.read("test")], answers):
            raise InputError(f"{pair}: their tasks have different test references")


def _check_training_data(planned: Sequence[Planned], runs: Mapping[Planned, Run]) -> None:
    """Raise `InputError` if runs of one task were trained on different data, or if new runs would be."""
    for group in _by_task(planned):
        digests = [(run.folder, runs[run].facts["training data"]) for run in group if run in runs]
        for folder, digest in digests:
            if digest != digests[0][1]:
                raise InputError(
                    f"{folder} was trained on different data than {digests[0][0]}; choose another root or remove a run"
                )
        if not digests or all(run in runs and runs[run].finished for run in group):
            continue  # without reading the data
        (folder, digest), task = digests[0], group[0].recipe.task
        codec = task.codec(RunFolder(folder).codec())
        if training_data_fact([codec.encode(example) for example in task.read("train")]) != digest:
            raise InputError(
                f"{folder} was trained on different data than there are now; choose another root or remove the run"
            )


def _equal(a: Any, b: Any) -> bool:
    """Whether nested sequences of texts, numbers and arrays are equal."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(a, b))
