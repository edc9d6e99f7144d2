"""The study of samplers: tables, figures, and resumption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from masked_folders import conditional_run


@pytest.mark.slow
def test_tables_and_figures(tool: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, chains = conditional_run(tmp_path), tmp_path / "chains"
    study = tool("sampling_study", run, chains, "--examples", 1, "--chains", 2)
    monkeypatch.setattr(study, "SWEEPS", 3)
    monkeypatch.setattr(study, "BURN_IN", 1)
    assert study.main() == 0
    names = ["anneal", "block", "nucleus", "plain", "temperature"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [f"sampling_{name}.md" for name in names]
    rows = (tmp_path / "results/sampling_temperature.md").read_text().splitlines()
    assert rows[0] == "| setting | sampler | local energy | accepted | novel | BLEU |"
    assert sum(row.startswith("| 0.5 |") for row in rows) == 2  # local and Gibbs
    gibbs = json.loads((chains / "gibbs-greedy-1x2.json").read_text())
    assert [sweep for sweep, _ in gibbs["novel"]] == [1, 2, 3]
    assert all(share == 1.0 for _, share in gibbs["acceptance"])
    assert [sweep for sweep, _ in gibbs["score"]] == [2, 3]
    for name in ("plain", "block", "anneal"):
        assert "<svg" in (tmp_path / f"docs/figures/sampling_{name}.svg").read_text()
    reader = study.open_model(run)
    for start in ("greedy", "random"):
        found = study.measure(reader, study.Setting("gibbs"), 1, 2, start)
        assert (found == gibbs) == (start == "greedy")
    monkeypatch.setattr(study, "measure", None)  # everything is stored
    before = (tmp_path / "results/sampling_plain.md").read_bytes()
    assert study.main() == 0
    assert (tmp_path / "results/sampling_plain.md").read_bytes() == before
