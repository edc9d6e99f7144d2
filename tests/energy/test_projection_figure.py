"""The picture of the projection: a line for each training by its number of strings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from unforced.comparison import Cell, Comparison, Row

TOOL = Path(__file__).resolve().parents[2] / "tools" / "projection_figure.py"
SCORES = {"mlm_100k": 5.8, "pll_30": 6.5, "kl_30": 5.2, "pll_100": 5.6, "kl_100": 5.1}


@pytest.fixture
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("projection_figure", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def comparison() -> Comparison:
    rows = [
        Row(name, "mask_predict", None, {"sequence_nll": Cell({"1": nll}, nll, None)})
        for name, nll in SCORES.items()
    ]
    return Comparison("x", "", "", "mlm_100k", "test", None, 0.95, 0, 0, (), tuple(rows), ())


def test_lines_have_the_scores_of_the_variants(tool: Any) -> None:
    panel = tool.panel(comparison(), truth=4.97)
    found = {line.label: (tuple(line.x), tuple(line.y)) for line in panel.lines}
    assert found[tool.SAYS["pll"]] == ((30, 100), (6.5, 5.6))
    assert found[tool.SAYS["kl"]] == ((30, 100), (5.2, 5.1))
    levels = [values for label, values in found.items() if label not in tool.SAYS.values()]
    assert levels == [((30, 100), (5.8, 5.8)), ((30, 100), (4.97, 4.97))]


def test_the_picture_is_written(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unforced.recipe import load

    (tmp_path / "docs").mkdir()
    (tmp_path / "comparison.json").write_text(comparison().to_json())
    (tmp_path / "recipe.toml").write_text(load("energy_projection").to_toml())
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path)])
    assert tool.main() == 0
    assert "<svg" in (tmp_path / "docs/projection.svg").read_text()
