"""Every built-in recipe trains for two updates, validates and evaluates a few examples."""

import os
import random
from dataclasses import fields
from pathlib import Path

import pytest

import unforced
from unforced.recipes.recipe import builtin, load
from unforced.tasks.datasets import available

FAST = {  # the others need large data sets
    *("pairs", "tagging", "language", "palindromes", "hmm"),
    *("energy_palindromes", "energy_hmm", "energy_hmm_high"),
}
SMALL = {"train_limit": 200, "dev_limit": 8, "test_limit": 8, "size": 300, "held_out": 8}
SIZES = {"hidden": 16, "embedding": 16, "width": 16, "feedforward": 16}


def own_files(folder: Path) -> dict[str, str]:
    """Write small files for the recipes that need data files."""
    rng = random.Random(0)
    lines = [[rng.choice("abcdefgh") for _ in range(rng.randint(2, 6))] for _ in range(100)]
    contents = {
        "pairs": "".join(f"{' '.join(line)}\t{' '.join(sorted(line))}\n" for line in lines),
        "language": "".join(f"{' '.join(line)}\n" for line in lines),
        "tagging": "".join(
            "".join(f"{word}\t{'B-X' if word < 'c' else 'O'}\n" for word in line) + "\n" for line in lines
        ),
    }
    paths = {"pairs": folder / "my.tsv", "language": folder / "my.txt", "tagging": folder / "my.conll"}
    for name, path in paths.items():
        path.write_text(contents[name])
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in builtin()]
)
def test_recipe_runs(name: str, tmp_path: Path) -> None:
    if name not in FAST and (os.environ.get("UNFORCED_DATA") is None or any(e.missing for e in available())):
        pytest.skip("UNFORCED_DATA doesn't have all data sets")
    files = own_files(tmp_path)
    words = [f"task.train={files[name]}"] if name in files else []
    recipe = load(name, words)
    for part, small in (("task", SMALL), ("model", SIZES)):
        known = {field.name: getattr(getattr(recipe, part), field.name) for field in fields(getattr(recipe, part))}
        words += [
            f"{part}.{key}={value}"
            for key, value in small.items()
            if key in known and (part == "task" or isinstance(known[key], int))
        ]
    words += ["training.steps=2", "training.warmup=1", "training.dev_examples=4", "training.patience=none"]
    run = unforced.train(name, *words, run=tmp_path / "run", quiet=True)
    scores = unforced.evaluate(run, "test", recipe.training.validate, quiet=True)
    assert scores[recipe.training.validate], "no metric"
