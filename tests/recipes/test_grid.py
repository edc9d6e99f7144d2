"""tools/grid.py: train every combination of settings once, and rank them by development scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unforced
from unforced.training.run_folder import RunFolder

RECIPE = """
name = "small"

[task]
name = "palindromes"
size = 50
held_out = 8

[model]
name = "field"
hidden = 4
embedding = 4

[objective]
name = "masked_lm"

[training]
steps = 2
validate = "mask_predict"

[decoding.mask_predict]
method = "mask_predict"
iterations = 1

[[variants]]
name = "plain"

[[variants]]
name = "continued"
training = { warm_start = "variant:plain" }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


def test_every_combination_is_trained_once(recipe: Path, tmp_path: Path, tool: Callable[..., Any]) -> None:
    runs = tmp_path / "runs"
    unforced.train(recipe, variant="plain", run=runs / "small" / "plain-1", quiet=True)
    words = ["--try", "training.learning_rate", "1e-3", "3e-2", "--try", "training.steps", "1", "3"]
    grid = tool("grid", recipe, "continued", runs, *words)
    assert grid.main() == 0
    folders = [RunFolder(path) for path in (runs / "small" / "grid").iterdir()]
    assert len(folders) == 4
    rows = (tmp_path / "results" / "tuning_small.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {cell[1] for cell in cells} == {
        f"training.steps = {steps}, training.learning_rate = {rate}" for rate in (0.001, 0.03) for steps in (1, 3)
    }
    scores = [float(cell[3]) for cell in cells]
    assert scores == sorted(scores)  # a negative log-likelihood: the smallest first
    assert scores == sorted(round((folder.best() or {})["score"], 2) for folder in folders)
    finished = [(folder.path / "finished.json").stat().st_mtime_ns for folder in folders]
    other = tmp_path / "other.md"
    assert tool("grid", recipe, "continued", runs, *words, "--output", other).main() == 0
    assert other.read_text() == (tmp_path / "results" / "tuning_small.md").read_text()
    assert [(folder.path / "finished.json").stat().st_mtime_ns for folder in folders] == finished


def test_needed_runs_must_exist(
    recipe: Path, tmp_path: Path, tool: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool("grid", recipe, "continued", tmp_path / "runs", "--try", "training.steps", "1").main() == 2
    assert "plain-1" in capsys.readouterr().err
