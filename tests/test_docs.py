"""The examples of the pages run, and their tables are the generated ones."""

import doctest
import importlib
import io
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from unforced.cli import main
from unforced.registry import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_in_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=options, encoding="utf-8")
    assert failed == 0


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_have_targets(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_recipes_that_pages_name_exist() -> None:
    folders = (ROOT / "src" / "unforced" / "recipes" / "builtin", ROOT / "docs" / "skeleton")
    recipes = {path.stem for folder in folders for path in folder.glob("*.toml")}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"unforced compare (\w+)(?![\w.])", text))
        assert named <= recipes, f"{page.name}: {named - recipes}"


def test_tables_in_pages_are_the_generated_ones() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "fill_tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_skeleton_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three files of docs/extending.md: the recipe trains, and the tests pass."""
    skeleton = ROOT / "docs" / "skeleton"
    monkeypatch.syspath_prepend(str(skeleton))
    monkeypatch.setitem(REGISTRY["objectives"], "word_dropout", "word_dropout:WordDropout")
    recipe = str(skeleton / "word_dropout.toml")
    assert (
        main(
            [
                "train",
                recipe,
                "--variant",
                "word_dropout",
                "--run",
                str(tmp_path),
                "training.epochs=none",
                "training.steps=2",
            ]
        )
        == 0
    )
    tests = importlib.import_module("test_word_dropout")
    checks = [value for name, value in vars(tests).items() if name.startswith("test_")]
    assert len(checks) == 3
    for check in checks:
        check()


SHORT = {
    "compare streaming_g2p": "--seeds 1 --variants cross_entropy,continued training.steps=2"
    " task.train_limit=60 task.dev_limit=4 task.test_limit=4",
    "train g2p": "task.train_limit=200 task.test_limit=8 training.steps=2",
    **{f"train {name}": "model.width=16 training.steps=2" for name in ("pairs", "language", "masked")},
    "train": "training.steps=2",
    "diagnose": "--examples 8",
    "sample": "--sweeps 3 --examples 2",
}


def shortened(command: str) -> str:
    """The command with options that make it fast."""
    command = re.sub(r" --(sweeps|examples|jobs) \d+| *#.*", "", command)
    options = next((words for start, words in SHORT.items() if command.startswith(f"unforced {start}")), "")
    return f"{command} {options}".replace(
        "training.steps=2", "training.steps=2 training.epochs=none training.dev_examples=4"
    )


def commands(page: Path) -> list[str]:
    """The commands in a page's shell examples, except in its section on results."""
    text = page.read_text(encoding="utf-8").partition("\n## Results")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(echo .* \| )?unforced ", line)]


def write_data_files() -> None:
    """Write the data files of the examples into the present folder."""
    rng = random.Random(1)
    sentences = [" ".join(rng.choice("abcdefgh") for _ in range(rng.randint(4, 7))) for _ in range(120)]
    text = {
        "pairs.tsv": "".join(f"{line}\t{line[::-1]}\n" for line in sentences),
        "ner.conll": "".join("".join(f"{word} N C O\n" for word in line.split()) + "\n" for line in sentences),
        **dict.fromkeys(("train.de", "train.en", "corpus.txt", "sentences.txt"), "\n".join(sentences) + "\n"),
    }
    for name, content in text.items():
        Path(name).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/energy.md", "docs/loss_smoothing.md"])
def test_shell_examples_run_one_after_another(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data_files()
    lines = [line for line in commands(ROOT / page) if "path/to/" not in line]
    for line in lines:
        echo, _, command = line.rpartition(" | ")
        command, _, source = shortened(command).partition(" < ")
        if source:
            name, _, options = source.partition(" ")
            text, command = Path(name).read_text(encoding="utf-8"), f"{command} {options}"
        else:
            text = echo.removeprefix("echo ").strip('"')
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        assert main(shlex.split(command)[1:]) == 0, line
    capsys.readouterr()
    assert len(lines) >= 3
