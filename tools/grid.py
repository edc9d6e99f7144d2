"""Train a variant with every combination of some settings, and rank them by development scores.

    python tools/grid.py RECIPE VARIANT RUNS --try KEY VALUE... [--try KEY VALUE...] [--seed N] [--output TABLE]

Keys and values are those of ``unforced train``. RUNS is the root of ``unforced compare``, which must have trained the
variants that this one needs. Runs go to RUNS/RECIPE/grid; finished ones are kept and interrupted ones continued. The
table has all runs in that folder; it goes to results/tuning_RECIPE.md by default. Test data are never read.
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
from unforced.recipes.recipe import BODY, REFERENCE, Recipe, flatten, load, with_paths_resolved
from unforced.training.run_folder import RunFolder

ROOT = Path(__file__).resolve().parent.parent


def grid(tried: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Return every combination of the values, as ``key=value``."""
    return itertools.product(*([f"{key}={value}" for value in values] for key, *values in tried))


def train_setting(recipe: str, variant: str, folder: Path, changes: Sequence[str], seed: int) -> None:
    """Train one setting, or continue it."""
    single = with_paths_resolved(load(recipe, changes, variant, seed).single(), folder, seed)
    label = hashlib.sha256("\n".join([*sorted(changes), str(seed)]).encode()).hexdigest()[:10]
    run = folder / "grid" / f"{variant}-{label}"
    if RunFolder(run).finished() is not None:
        return
    api.train(single, run=run, resume=run.is_dir() and any(run.iterdir()))


def settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of a recipe with dotted keys."""
    return flatten({key: value for key, value in recipe.to_data().items() if key in BODY})


def varied(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys whose values differ."""
    keys = dict.fromkeys(key for each in found for key in each)
    return [key for key in keys if any(each.get(key) != found[0].get(key) for each in found)]


def table(recipe: Recipe, folder: Path) -> str:
    """Return the settings of each variant from best to worst, without what they share."""
    metric = recipe.task.metrics()[0]
    lines = [f"| variant | settings | seed | {metric.name} (dev) | at update |", "| --- | --- | ---: | ---: | ---: |"]
    for variant in recipe.variants:
        own = settings(recipe.single(variant.name))
        runs = [RunFolder(path) for path in sorted((folder / "grid").glob(f"{variant.name}-*"))]
        ended = [(best, load(run.path)) for run in runs if run.finished() and (best := run.best()) is not None]
        ended = [(best, trained) for best, trained in ended if trained.baseline == variant.name]
        tables = [own, *(settings(trained) for _, trained in ended)]
        keys = [key for key in varied(tables) if not str(own.get(key)).startswith(REFERENCE)]
        ended.sort(key=lambda each: each[0]["score"], reverse=metric.higher_is_better)
        for best, trained in ended:
            changes = ", ".join(f"{key} = {value}" for key, value in settings(trained).items() if key in keys)
            score = f"{trained.seeds[0]} | {best['score']:.2f} | {best['step']}"
            lines.append(f"| {variant.name} | {changes or 'as in the recipe'} | {score} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a variant with every combination of some settings.")
    parser.add_argument("recipe")
    parser.add_argument("variant")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--try", dest="tried", nargs="+", action="append", default=[], metavar=("KEY", "VALUE"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    recipe = load(args.recipe)
    folder = args.runs / recipe.name
    try:
        for changes in grid(args.tried):
            print(args.variant, *changes, file=sys.stderr)
            train_setting(args.recipe, args.variant, folder, changes, args.seed)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    output = args.output or ROOT / "results" / f"tuning_{recipe.name}.md"
    output.write_text(table(recipe, folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
