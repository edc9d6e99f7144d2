"""From two columns of text to a trained model, its outputs, its scores and its report, by the command line alone."""

import io
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import unforced
from unforced.cli import main
from unforced.recipes.recipe import load as load_recipe

RECIPE = """
name = "reverse"
description = "letters, backwards"
seeds = [5]

[task]
name = "pairs"
train = "{folder}/train.tsv"
source_tokens = "words"
target_tokens = "words"
measures = ["exact", "error_rate"]

[model]
name = "lstm"
hidden = 8
embedding = 8
dropout = 0.0

[objective]
name = "cross_entropy"

[training]
epochs = "none"
steps = 6
validate_every = 3
log_every = 2
validate = "greedy"

[decoding.greedy]
method = "greedy"
max_length = 8

[decoding.beam]
method = "beam"
beam = 3
max_length = 8

[[variants]]
name = "cross_entropy"

[[variants]]
name = "label_smoothing"
objective = {{ name = "label_smoothing", smoothing = 0.1 }}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a recipe and a trained run."""
    folder = tmp_path_factory.mktemp("place")
    rng = random.Random(0)
    words = [[rng.choice("abcd") for _ in range(rng.randint(2, 5))] for _ in range(200)]
    (folder / "train.tsv").write_text("".join(f"{' '.join(w)}\t{' '.join(w[::-1])}\n" for w in words))
    (folder / "reverse.toml").write_text(RECIPE.format(folder=folder))
    assert main(["train", str(folder / "reverse.toml"), "--run", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch):
    return lambda data: monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_train_writes_a_complete_run_folder(place: Path) -> None:
    run = place / "run"
    info = json.loads((run / "run.json").read_text())
    assert (info["name"], info["variant"], info["seed"]) == ("reverse", "cross_entropy", 5)
    assert load_recipe(run) == load_recipe(place / "reverse.toml").single("cross_entropy")
    assert json.loads((run / "finished.json").read_text())["steps"] == 6


def test_train_prints_the_folder_it_chose(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(place / "reverse.toml"), "training.steps=2", "--variant", "label_smoothing", "--seed", "7", "--quiet"]
    assert main(["train", *words]) == 0
    out = capsys.readouterr().out
    assert out == "runs/reverse/label_smoothing-7\n"
    assert load_recipe(out.strip()).objective.smoothing == 0.1


def test_a_run_is_not_overwritten(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*")}
    words = ["train", str(place / "reverse.toml"), "--run", str(place / "run"), "--quiet"]
    assert main(words) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0  # it had finished: nothing to do
    capsys.readouterr()
    assert main(["train", str(place / "run"), "--resume"]) == 0  # the same, by the run folder
    out, err = capsys.readouterr()
    assert (out, err) == (f"{place}/run\n", f"next: unforced evaluate {place}/run\n")
    assert main(["train", str(place / "reverse.toml"), "--run", str(place / "rnu"), "--resume"]) == 2
    assert "rnu: there is no run to resume; leave out resume to start one" in capsys.readouterr().err
    assert main([*words, "--resume", "--seed", "6"]) == 2
    assert "seed is 5 in the run and 6 now" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (place / "run").rglob("*")} == before


def test_the_saved_recipe_repeats_the_run(place: Path, tmp_path: Path) -> None:
    assert main(["train", str(place / "run"), "--run", str(tmp_path / "again"), "--quiet"]) == 0
    first, again = unforced.load(place / "run").model, unforced.load(tmp_path / "again").model
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name])


def test_evaluate(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(place / "run"), "--split", "dev", "--quiet"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.rstrip().endswith("lower")]
    assert [row[:2] for row in rows] == [
        ["greedy", "exact_error"], ["greedy", "error_rate"], ["beam", "exact_error"], ["beam", "error_rate"],
    ]  # fmt: skip
    scores = json.loads((place / "run" / "scores" / "dev-beam.json").read_text())
    score = scores["metrics"]["error_rate"]["score"]
    assert rows[3][2] == f"{score:.2f}"
    assert float(rows[3][3].strip("[,")) <= score <= float(rows[3][4].strip("]"))
    assert f"{place / 'run'}: dev split, {scores['examples']} examples" in out
    assert "95 % interval: percentile bootstrap over the dev examples" in out
    assert main(["evaluate", str(place / "run"), "--decoder", "baem"]) == 2
    assert 'has no decoder "baem"; did you mean "beam"?' in capsys.readouterr().err
    assert main(["evaluate", str(place / "run"), "--checkpoint", "step-00000099"]) == 2
    assert 'has no checkpoint "step-00000099"; did you mean "step-0000000' in capsys.readouterr().err


def test_decode_gives_a_line_for_a_line(place: Path, feed, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(place / "run")
    lines = ["a b c", "d", "a a", "zzz a", "b c d a b"]
    data = "".join(line + "\n" for line in lines).encode()
    outputs = []
    for words in ([], ["--batch", "1"], ["--batch", "2"], ["beam=3"]):
        feed(data)
        assert main(["decode", run, *words]) == 0
        outputs.append(capsys.readouterr().out)
    assert len(outputs[0].splitlines()) == len(lines)
    assert len(set(outputs)) == 1
    loaded = unforced.load(run)
    found = unforced.decode(loaded.model, unforced.batch(loaded.model, lines), "beam", beam=3, max_length=8)
    codec = loaded.task.codec
    assert outputs[0].splitlines() == [codec.show(codec.decode(ids)) for ids in found.ids(codec.symbols)]


def test_decode_many(place: Path, feed, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(place / "run")
    feed(b"a b\nc d")
    assert main(["decode", run, "--nbest", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0][1]) >= float(rows[1][1])
    assert rows[0][2] != rows[1][2]
    drawn = []
    for words in (["--batch", "1"], ["--batch", "2"], ["--seed", "2"]):
        feed(b"a b\nc d\nb b b\n" * 4)
        assert main(["decode", run, "--method", "sample", "temperature=2.0", "--nbest", "3", *words]) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    feed(b"a b\n")
    assert main(["decode", run, "--method", "greedy", "--nbest", "2"]) == 2
    assert "greedy returns one output per source, not 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "number", "reason"),
    [
        (b"a b\n\nc\n", 2, "blank"),
        (b"a b\nc\n\xff\xfe\n", 3, "is not UTF-8 (byte 1)"),
        (b"a\0b\n", 1, "NUL"),
        (b"\xef\xbb\xbfa b\n", 1, "byte order mark"),
    ],
)
def test_decode_stops_at_a_bad_line(
    place: Path, feed, capsys: pytest.CaptureFixture[str], data: bytes, number: int, reason: str
) -> None:
    feed(data)
    assert main(["decode", str(place / "run")]) == 2
    out, err = capsys.readouterr()
    assert f"standard input:{number}: " in err
    assert reason in err
    assert len(out.splitlines()) == number - 1


def test_decode_refuses_unknown_methods_and_options(place: Path, feed, capsys: pytest.CaptureFixture[str]) -> None:
    feed(b"")
    assert main(["decode", str(place / "run")]) == 0
    assert capsys.readouterr().out == ""
    assert main(["decode", str(place / "run"), "--method", "gredy"]) == 2
    assert 'there is no decoder "gredy"; did you mean "greedy"?' in capsys.readouterr().err
    assert main(["decode", str(place / "run"), "baem=3"]) == 2
    assert 'beam.baem: no such key; did you mean "beam.beam"?' in capsys.readouterr().err


def test_damaged_runs(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    (run / "recipe.toml").write_text("name = ")
    assert main(["evaluate", str(run)]) == 2
    assert "recipe.toml: " in capsys.readouterr().err
    shutil.copy(place / "run" / "recipe.toml", run)
    (run / "codec.json").write_text("{}")
    assert main(["evaluate", str(run)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    shutil.copy(place / "run" / "codec.json", run)
    weights = run / "checkpoints" / json.loads((run / "best.json").read_text())["checkpoint"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    assert main(["evaluate", str(run)]) == 2
    assert "model.safetensors: is damaged" in capsys.readouterr().err


def test_compare_and_report(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "runs"
    words = [str(place / "reverse.toml"), "training.steps=2", "--root", str(root), "--seeds", "1", "--quiet"]
    assert main(["compare", *words]) == 0
    out = capsys.readouterr().out
    assert "label_smoothing" in out
    folder = root / "reverse"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["cross_entropy-1", "label_smoothing-1"]
    assert (folder / "report.html").is_file()
    before = (folder / "cross_entropy-1" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["compare", *words]) == 0  # finished runs are kept
    assert (folder / "cross_entropy-1" / "metrics.jsonl").stat().st_mtime_ns == before
    capsys.readouterr()
    page = tmp_path / "page.html"
    assert main(["report", str(place / "run"), "--output", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "reverse" in page.read_text()
