"""Damaged files and odd arguments: exit code 0 or 2 and one sentence.

There is never a traceback, nor anything that changes a terminal.
"""

import io
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unforced.cli import main

RECIPE = """
name = "toy"
model = { name = "lstm", hidden = 4, embedding = 4 }
objective = "cross_entropy"
[task]
name = "pairs"
train = "FOLDER/pairs.tsv"
source_tokens = "words"
target_tokens = "words"
measures = ["exact"]
[training]
epochs = "none"
steps = 2
validate_every = 1
[decoding.greedy]
method = "greedy"
max_length = 4
"""
MASKED = """
task = { name = "palindromes", size = 20, held_out = 4 }
model = { name = "field", hidden = 4, embedding = 4 }
objective = "masked_lm"
training = { epochs = "none", steps = 1, validate = "masks" }
decoding = { masks = { method = "mask_predict", iterations = 1 } }
"""
VALUES: list[Any] = [
    *(None, -1, 1e300, 10**25, float("nan"), True, "", "x", "../../etc", "\x1b[31mred", "a\x00b", "9" * 30),
    *([], {}, [[]], [1, 2], {"a": 1}),
]
COMMANDS = [
    "evaluate run --quiet",
    "evaluate run --split dev --checkpoint last --quiet",
    "decode run --method greedy",
    "train toy.toml --run run --resume --quiet",
    "train run --run again --quiet",
    "show run",
    "report run --output page.html",
    "score masked --quiet",
    "sample masked -o chains --sweeps 4 --chains 2 --resume --quiet",
    "plot traces chains -o picture.svg",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a scored run, a run of a masked model, and chains."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    (folder / "toy.toml").write_text(RECIPE.replace("FOLDER", str(folder)))
    (folder / "masked.toml").write_text(MASKED)
    for words in (
        ["train", str(folder / "toy.toml"), "--run", str(folder / "run"), "--quiet"],
        ["evaluate", str(folder / "run"), "--quiet"],
        ["train", str(folder / "masked.toml"), "--run", str(folder / "masked"), "--quiet"],
        ["sample", str(folder / "masked"), "-o", str(folder / "chains"), "--sweeps", "3", "--chains", "2", "--quiet"],
    ):
        assert main(words) == 0
    return folder


def parts(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:4]) if isinstance(data, list) else ()
    return [path, *(inner for key, value in items for inner in parts(value, (*path, key)))]


def changed(data: Any, rng: random.Random) -> Any:
    """JSON data in which one value is another or missing."""
    *path, last = rng.choice(parts(data)) or [None]
    if last is None:
        return rng.choice(VALUES)
    table = data
    for key in path:
        table = table[key]
    if isinstance(table, dict) and rng.random() < 0.3:
        del table[last]
    else:
        table[last] = rng.choice(VALUES)
    return data


def damage(path: Path, rng: random.Random) -> None:
    content, kind = path.read_bytes(), rng.random()
    if kind < 0.6 and path.suffix in (".json", ".jsonl"):
        lines = [content.decode()] if path.suffix == ".json" else content.decode().splitlines()
        i = rng.randrange(len(lines))
        lines[i] = json.dumps(changed(json.loads(lines[i]), rng))
        path.write_text("\n".join(lines) + "\n")
    elif kind < 0.75:
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind < 0.8:
        path.write_bytes(b"[" * 5000)
    elif kind < 0.9:
        path.unlink()
    else:
        i = rng.randrange(max(1, len(content)))
        path.write_bytes(content[:i] + bytes([rng.randrange(256)]) + content[i + 1 :])


def check(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> int:
    """Run a command; its exit code is 0 or 2, and its messages are clean."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a b\nabcba\n")))
    code = main(words)
    out, err = capsys.readouterr()
    assert code in (0, 2), (words, code, err)
    assert all(sign.isprintable() or sign in "\n\t" for sign in out + err), (words, out + err)
    if code == 2:
        assert err.splitlines()[-1].startswith("unforced: ")
        assert len(err) < 2000
    return code


def damage_and_check(
    number: int, place: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> int:
    rng, copy = random.Random(number), folder / str(number)
    words = rng.choice(COMMANDS).split()
    copy.mkdir()
    for name in ("run", "masked", "chains"):
        if name in words:
            shutil.copytree(place / name, copy / name)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.name not in ("lock", "traces.svg")]
    damage(rng.choice(files), rng)
    shutil.copy(place / "toy.toml", copy)
    monkeypatch.chdir(copy)
    code = check(words, monkeypatch, capsys)
    shutil.rmtree(copy)
    return code


def test_damaged_folders(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [damage_and_check(number, place, tmp_path, monkeypatch, capsys) for number in range(25)]
    assert set(codes) == {0, 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_many_damaged_folders(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(25, 2000):
        damage_and_check(number, place, tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "toy.toml", "--seed", "9" * 20],
        ["train", "toy.toml", f"seeds=[{'9' * 20}]"],
        ["train", "toy.toml", "training.steps=" + "9" * 5000],
        ["train", "toy.toml", "model.hidden=" + "[" * 3000],
        ["train", "toy.toml", ".".join("a" * 3000) + "=1"],
        ["train", "toy.toml", "model.hid\x1b[31mden=3"],
        ["train", "toy.toml", "task.train=~nobody-here/x.tsv"],
        ["train", "toy.toml", "task.train=a\x00b.tsv"],
        ["train", "a\x00b"],
        ["show", "\x1b[31m"],
        ["show", "a" * 300],
        ["decode", "run", "--seed", "9" * 20],
        ["decode", "run", "--nbest", "0"],
        ["decode", "run", "max_length=" + "9" * 20],
        ["evaluate", "run\x00"],
        ["evaluate", "run", "--checkpoint", "../../x"],
        ["evaluate", "run", "--decoder", "\x9b31m"],
        ["report", "a\x00b"],
        ["sample", "masked", "-o", "new", "--seed", "9" * 20],
        ["score", "~nobody-here"],
    ],
)
def test_odd_arguments(
    words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert check(words, monkeypatch, capsys) == 2


def test_damaged_data_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez_compressed(tmp_path / "images.npz", x_train=np.zeros((9, 2, 2), np.uint8), y_train=np.zeros(9, int))
    content = (tmp_path / "images.npz").read_bytes()
    rng = random.Random(0)
    for _ in range(20):
        i = rng.randrange(len(content))
        (tmp_path / "images.npz").write_bytes(content[:i] + bytes([rng.randrange(256)]) + content[i + 1 :])
        words = ["train", "digits", f"task.path={tmp_path}/images.npz", "--run", str(tmp_path / "run"), "--quiet"]
        assert check(words, monkeypatch, capsys) == 2


def test_nothing_leads_out_of_a_run_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        shutil.copytree(place / "run", folder)
    best = json.loads((run / "best.json").read_text())
    name = best["checkpoint"]
    cases = [("best.json", None), ("recipe.toml", "recipe.toml"), (f"checkpoints/{name}", f"checkpoints/{name}")]
    for file, target in cases:
        shutil.rmtree(run)
        shutil.copytree(other, run)
        if target is None:
            (run / file).write_text(json.dumps({**best, "checkpoint": f"../../other/checkpoints/{name}"}))
        else:
            shutil.rmtree(run / file) if (run / file).is_dir() else (run / file).unlink()
            (run / file).symlink_to(other / target)
        assert main(["evaluate", str(run), "--quiet"]) == 2
        assert "leads out of the run folder" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m unforced list recipes {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == (1 if "full" in closed else 0)
