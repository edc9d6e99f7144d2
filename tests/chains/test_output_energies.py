"""The table of energies of decoder outputs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_folders import conditional_run

from unforced.chains.readers import open_model
from unforced.energy import energies


def test_rows_of_decoders_and_references(
    tmp_path: Path, tool: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = conditional_run(tmp_path)
    script = tool("output_energies", run, "--split", "test")
    reader = open_model(run)
    example = reader.task.task.read("dev")[0]  # type: ignore[attr-defined]
    answer = example.answers[0]
    lines = [{"source": example.source, "answers": [answer], "output": text} for text in (answer, "")]
    (run / "predictions").mkdir(exist_ok=True)
    for old in (run / "predictions").glob("test-*"):
        old.unlink()
    assert script.main() == 2
    assert "has no predictions for test" in capsys.readouterr().err
    (run / "predictions" / "test-one.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert script.main() == 0
    rows = (tmp_path / "results/output_energies.md").read_text().splitlines()
    batch = reader.collate([reader.read(f"{example.source}\t{answer}")])
    with torch.no_grad():
        local, raw = (float(energies.energy(reader.model.eval(), batch, batch.gold, k)) for k in ("local", "raw"))
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:4]]
    assert [row[0] for row in cells] == ["references", "one"]
    for row in cells:  # the empty output has no energy
        assert [float(cell) for cell in row[1:3]] == pytest.approx([local, raw], abs=0.006)
    assert script.doubled_words(["a a a", "b"]) == 50.0
