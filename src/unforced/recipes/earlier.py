"""Runs that a run builds on: ``"variant:NAME"`` in a recipe means the run of that variant with the same seed.

A run may start from another's weights (``training.warm_start``) or learn from another's model (a field of the objective, such
as ``teacher``).
"""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.recipes.recipe import Recipe

VARIANT = "variant:"


def needed(recipe: Recipe) -> tuple[str, ...]:
    """The variants whose runs must be there before this one, each once; the one that it starts from comes first."""
    found = [recipe.training.warm_start or "", *_strings(recipe.objective).values()]
    return tuple(dict.fromkeys(name.removeprefix(VARIANT) for name in found if _named(name)))


def placed(recipe: Recipe, folder: Path, seed: int) -> Recipe:
    """The recipe with each such variant replaced by the path of its run with that seed, which lies in ``folder``."""

    def path(name: str) -> str:
        return str((folder / f"{name.removeprefix(VARIANT)}-{seed}").absolute())

    start, training, objective = recipe.training.warm_start, recipe.training, recipe.objective
    if start is not None and _named(start):
        training = replace(training, warm_start=path(start))
    changed = {key: path(name) for key, name in _strings(objective).items() if _named(name)}
    if changed:
        objective = replace(objective, **changed)
    return replace(recipe, training=training, objective=objective)


def check(recipe: Recipe, folder: Path, seed: int) -> None:
    """Raise ``InputError`` if a variant that this one builds on has not been trained in ``folder`` yet."""
    for name in needed(recipe):
        if not (folder / f"{name}-{seed}" / "run.json").is_file():
            raise InputError(
                f"{recipe.name}: variant {recipe.baseline} builds on variant {name} with seed {seed}, which is not in {folder} yet: "
                f"train that first, or let compare train both"
            )


def _named(name: str) -> bool:
    return name.startswith(VARIANT)


def _strings(objective: Any) -> dict[str, str]:
    """The objective's fields that are text and could be given when it was made."""
    if not is_dataclass(objective):  # the user's own
        return {}
    values = {field.name: getattr(objective, field.name) for field in fields(objective) if field.init}
    return {key: value for key, value in values.items() if isinstance(value, str)}
