"""The study of samplers: its tables, its pictures, and that it goes on where it was stopped."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from masked_folders import conditional_run

TOOL = Path(__file__).resolve().parents[2] / "tools" / "sampling_study.py"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("sampling_study", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for folder in ("results", "docs"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "SWEEPS", 3)
    monkeypatch.setattr(module, "BURN_IN", 1)
    return module


def test_tables_and_pictures(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, chains = conditional_run(tmp_path), tmp_path / "chains"
    monkeypatch.setattr("sys.argv", ["x", str(run), str(chains), "--examples", "1", "--chains", "2"])
    assert tool.main() == 0
    names = ["anneal", "block", "nucleus", "plain", "temperature"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        f"sampling_{name}.md" for name in names
    ]
    rows = (tmp_path / "results/sampling_temperature.md").read_text().splitlines()
    assert rows[0] == "| setting | sampler | local energy | accepted | novel | BLEU |"
    assert sum(row.startswith("| 0.5 |") for row in rows) == 2  # local and Gibbs
    gibbs = json.loads((chains / "gibbs-greedy-1x2.json").read_text())
    assert [sweep for sweep, _ in gibbs["novel"]] == [1, 2, 3]
    assert all(share == 1.0 for _, share in gibbs["acceptance"])
    assert [sweep for sweep, _ in gibbs["score"]] == [2, 3]
    for name in ("plain", "block", "anneal"):
        assert "<svg" in (tmp_path / f"docs/sampling_{name}.svg").read_text()
    reader = tool.open_model(run)
    for start in ("greedy", "random"):
        found = tool.measure(reader, tool.Setting("gibbs"), 1, 2, start)
        assert (found == gibbs) == (start == "greedy")
    monkeypatch.setattr(tool, "measure", None)  # nothing is left to be done
    before = (tmp_path / "results/sampling_plain.md").read_bytes()
    assert tool.main() == 0
    assert (tmp_path / "results/sampling_plain.md").read_bytes() == before
