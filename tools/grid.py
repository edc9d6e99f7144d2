"""Settings of a recipe's variant, chosen on development data: train each of a small grid, and say which was best.

    python tools/grid.py RECIPE VARIANT RUNS --try KEY VALUE... [--try KEY VALUE...] [--seed N] [--output TABLE]

Keys and values are those of ``unforced train``. RUNS is the root of ``unforced compare``: variants that the chosen one builds on
must have been trained there. Runs go to RUNS/RECIPE/grid; finished ones are kept and interrupted ones continued. All that lie there
are in the table, results/tuning_RECIPE.md unless another is named, by their best development scores. Test data are never read.
"""

import argparse
import hashlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unforced import api
from unforced.errors import InputError
from unforced.recipes import earlier
from unforced.recipes.recipe import BODY, Recipe, load
from unforced.reports.runs import flatten
from unforced.training.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent


def grid(tried: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Every combination of the values, as ``key=value``."""
    return itertools.product(*([f"{key}={value}" for value in values] for key, *values in tried))


def train(recipe: str, variant: str, folder: Path, changes: Sequence[str], seed: int) -> None:
    """One setting, to its end."""
    single = earlier.placed(load(recipe, changes, variant, seed).single(), folder, seed)
    label = hashlib.sha256("\n".join([*sorted(changes), str(seed)]).encode()).hexdigest()[:10]
    run = folder / "grid" / f"{variant}-{label}"
    if RunFolder(run).exists() and RunFolder(run).finished() is not None:
        return
    api.train(single, run=run, resume=run.is_dir() and any(run.iterdir()))


def settings(recipe: Recipe) -> dict[str, Any]:
    return flatten({key: value for key, value in recipe.to_data().items() if key in BODY})


def varied(found: Sequence[dict[str, Any]]) -> list[str]:
    """The keys that not all settings agree in."""
    keys = dict.fromkeys(key for each in found for key in each)
    return [key for key in keys if any(each.get(key) != found[0].get(key) for each in found)]


def table(recipe: Recipe, folder: Path) -> str:
    """Variants in the recipe's order, the settings of each from the best to the worst; what all share is not said."""
    metric = recipe.task.metrics()[0]
    lines = [f"| variant | settings | seed | {metric.name} (dev) | at update |", "| --- | --- | ---: | ---: | ---: |"]
    for variant in recipe.variants:
        own = settings(recipe.single(variant.name))
        runs = [RunFolder(path) for path in sorted((folder / "grid").glob(f"{variant.name}-*"))]
        ended = [
            (best, load(run.path)) for run in runs if run.finished() is not None and (best := run.best()) is not None
        ]
        ended = [(best, made) for best, made in ended if made.baseline == variant.name]
        found = [own, *(settings(made) for _, made in ended)]
        keys = [key for key in varied(found) if not str(own.get(key)).startswith(earlier.VARIANT)]
        ended.sort(key=lambda each: each[0]["score"], reverse=metric.higher_is_better)
        for best, made in ended:
            said = ", ".join(f"{key} = {value}" for key, value in settings(made).items() if key in keys)
            score = f"{made.seeds[0]} | {best['score']:.2f} | {best['step']}"
            lines.append(f"| {variant.name} | {said or 'as in the recipe'} | {score} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a variant with every combination of some settings.")
    parser.add_argument("recipe")
    parser.add_argument("variant")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar=("KEY", "VALUE"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    words = parser.parse_args()
    recipe = load(words.recipe)
    folder = words.runs / recipe.name
    try:
        for changes in grid(words.tried):
            print(words.variant, *changes, file=sys.stderr)
            train(words.recipe, words.variant, folder, changes, words.seed)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    output = words.output or ROOT / "results" / f"tuning_{recipe.name}.md"
    output.write_text(table(recipe, folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
