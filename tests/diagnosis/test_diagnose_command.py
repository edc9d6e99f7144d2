"""`unforced diagnose` on a run folder and from Python."""

import json
import shlex
from pathlib import Path

import pytest

import unforced
from unforced.cli import main
from unforced.diagnosis.remedies import CONTINUED, REMEDIES, promising


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that copies letters."""
    folder = tmp_path_factory.mktemp("diagnose")
    lines = [f"{text}\t{text}\n" for text in ("a b c", "c b", "b a c a", "c c a", "a b", "b b a c")] * 8
    (folder / "pairs.tsv").write_text("".join(lines))
    words = [f"task.train={folder / 'pairs.tsv'}", "task.source_tokens=words", "task.target_tokens=words"]
    words += [
        "model.width=16",
        "model.heads=2",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "training.epochs=2",
    ]
    assert main(["train", "pairs", *words, "--run", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def test_the_command_writes_and_prints_five_rows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run), "--split", "train", "--quiet"]) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads((run / "diagnosis.json").read_text())
    assert [line.split("\t")[0] for line in printed[1:6]] == list(REMEDIES)
    for name in REMEDIES:
        low, high = found[name]["interval"]
        assert low <= found[name]["headroom"] <= high
    commands = [line.partition(": ")[2] for line in printed if line.startswith("try for ")]
    assert len(commands) == sum(found[name]["interval"][0] > 0 for name in REMEDIES)
    assert commands, "a model this bad can be improved"
    for command in commands:
        assert main([*shlex.split(command)[1:], "training.steps=1", "--quiet"]) == 0


def test_an_oracle_is_tried_after_rows_that_are_none() -> None:
    found = {name: {"headroom": 1.0, "interval": [0.5, 1.5], "unit": "points"} for name in REMEDIES}
    found["ranking"]["headroom"], found["history"]["headroom"] = 9.0, 2.0
    found["confidence"]["unit"] = "nats per token"
    found["search"]["interval"] = [-0.5, 2.5]
    assert promising(found) == ["history", "normalisation", "ranking", "confidence"]


def test_python_takes_a_network_or_a_run(run: Path) -> None:
    network, task = unforced.load(run)
    examples = [("a b", "a b"), ("c", "c"), ("b c a", "b c a")] * 4
    found = unforced.diagnose(network, examples, task=task, quiet=True)
    assert found.examples == 12
    assert set(found.findings) == set(REMEDIES)
    assert unforced.diagnose(run, examples, most=6, quiet=True).examples == 6
    with pytest.raises(unforced.InputError, match="pass task="):
        unforced.diagnose(network, examples)


def test_an_untrained_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "streaming_g2p"]) == 2
    assert "needs a trained model" in capsys.readouterr().err


def test_the_report_and_the_picture_show_the_diagnosis(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.with_name("plain")
    assert main(["train", str(run), "--run", str(other), "training.epochs=1", "--quiet"]) == 0
    assert main(["plot", "diagnosis", str(other)]) == 2
    assert "unforced diagnose" in capsys.readouterr().err
    unforced.diagnose(run, most=10, quiet=True)
    assert main(["plot", "diagnosis", str(run)]) == 0
    picture, page = run / "diagnosis.svg", run.with_name("report.html")
    assert all(f">{name}<" in picture.read_text() or name in picture.read_text() for name in REMEDIES)
    unforced.report(run, output=page)
    text = page.read_text()
    assert "what each remedy could win" in text
    assert text.count('aria-label="history: ') == 1


def test_trials_are_compared_with_more_training(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(run), "--split", "train", "--try", "--quiet"]) == 0
    trials = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "-try-" in line]
    assert len(trials) == 2
    for name, _, gain, interval, folder in trials:
        assert name in REMEDIES
        low, high = interval.strip("[]").replace("−", "-").split(", ")
        assert float(low) <= float(gain.replace("−", "-")) <= float(high)
        assert Path(folder).is_dir()
    assert run.with_name(f"{run.name}-try-{CONTINUED}").is_dir()
    assert main(["diagnose", str(run), "--split", "train", "--try", "--quiet"]) == 0  # finished trials are read
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines() if "-try-" in line] == trials
