"""Commands that do not train: output, error messages, exit codes and light imports."""

import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

from unforced import cli
from unforced.cli import main
from unforced.errors import InputError
from unforced.recipes.fields import fields_of
from unforced.recipes.recipe import builtin, load
from unforced.registry import REGISTRY
from unforced.reports.tables import print_table
from unforced.training.options import Training


def unforced(*words: str, code: str = "from unforced.cli import main; import sys; sys.exit(main())", **options):
    """Run the command line in a process of its own."""
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, **options)


@pytest.mark.parametrize("words", [["train", "--help"], ["list", "recipes"], ["data"]])
def test_light_commands_import_neither_torch_nor_numpy(words: list[str]) -> None:
    code = (
        "import sys; from unforced.cli import main; code = main()\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = unforced(*words, code=code)
    assert done.returncode == 0
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_python_m_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "unforced", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, version("unforced"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lisst"], 'Did you mean "list"?'),
        (["list", "objectivs"], 'Did you mean "objectives"?'),
        (["list", "objectives", "--jsn"], "Did you mean --json?"),
        (["train"], "RECIPE"),
        (["train", "translation"], "those of the task translation are multi30k, "),
        (["train", "lstm"], "for your own files there are language, masked, pairs, tagging;"),
        (["train", "g2p", "training.lr=1"], 'training.lr: no such key; did you mean "training.learning_rate"?'),
        (["train", "g2p", "epochs=3"], 'epochs: no such key; did you mean "training.epochs"?'),
        (["train", "g2p", "optimizer.lr=1"], 'optimizer.lr: no such key; did you mean "training.learning_rate"?'),
        (["train", "g2p", "seed=3"], 'seed: no such key; did you mean "seeds"?'),
        (["train", "g2pp"], 'there is no recipe "g2pp"; did you mean "g2p"?'),
        (["train", "g2p", "epochs"], "'epochs' is not of the form key=value"),
        (["train", "g2p", "training.epohcs=1"], 'training.epohcs: no such key; did you mean "training.epochs"?'),
        (["train", "g2p", "--variant", "crossentropy"], 'did you mean "cross_entropy"?'),
        (["show", "g2p", "objective=lable_smoothing"], 'did you mean "label_smoothing"?'),
        (["compare"], "compare needs a recipe"),
        (["compare", "g2p", "--variants", "cros_entropy"], 'did you mean "cross_entropy"?'),
        (["compare", "g2p", "--seeds", "1,x"], "seeds must be a list (each a whole number of at least 0)"),
        (["report"], "report needs at least one run folder"),
        (["plot", "traces"], "plot traces needs the folder of the chains"),
        (["plot", "discontinuity", "x"], "plot discontinuity takes no folder"),
        (["plot", "traces", "x", "--metric", "bleu"], "--metric is an option of plot changes, not of plot traces"),
        (["report", "absent"], "absent"),
        (["report", "absent", "--output", "x.pdf"], "x.pdf: the name of a report must end in .html, or in .md"),
        (["train", "pairs", "--variant", "x"], 'variant: "x" is not among the variants; '),
        (["train", "pairs", "task.train=."], ".: must be .tsv or .jsonl"),
        (["train", "g2p", "training.warm_start=absent"], "absent: is not a run folder"),
        (
            ["train", "captions_smoothing", "--variant", "token"],
            "variant token needs the run mle-1, which is not in runs/captions_smoothing",
        ),
        (["evaluate", "absent"], "absent: is not a run folder"),
        (["evaluate", "absent", "--split", "tset"], 'Did you mean "test"?'),
        (["decode", "absent", "--nbest", "0"], "nbest must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("unforced: ")
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_completion_can_be_installed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert main(["--install-completion", "--shell", "bash"]) == 0
    assert any("unforced" in path.name for path in tmp_path.rglob("*") if path.is_file())


def test_warnings_of_the_library_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other packages stay what they are, with the file that they come from."""

    def warn(_: object) -> int:
        warnings.warn_explicit("mind the gap", UserWarning, cli.__file__, 3)
        warnings.warn_explicit("mind the step", UserWarning, "elsewhere.py", 4)
        return 0

    monkeypatch.setattr(cli, "app", warn)
    monkeypatch.setattr(warnings, "showwarning", before := lambda *parts: print(*parts[:4], file=sys.stderr))
    assert main([]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "unforced: warning: mind the gap"
    assert lines[1].startswith("mind the step")
    assert lines[1].endswith("elsewhere.py 4")
    assert warnings.showwarning is before


def test_every_command_has_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for command, lines in cli.EXAMPLES.items():
        name = command.__name__.strip("_")
        assert main([name, "--help"]) == 0
        out = capsys.readouterr().out
        for line in lines:
            assert line in out
            words = shlex.split(line.partition("unforced ")[2].partition(" < ")[0])
            if "|" in line:
                words = shlex.split(line.partition("| unforced ")[2])
            assert cli.app.parse_args(words)[0] is command


def test_list_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "training"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["warmup", "0", "a whole number of at least 0"] in [row[:3] for row in rows]


def test_list_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == list(builtin())
    assert all(line.split("\t")[1] for line in lines)


def test_list_prints_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    parts = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert {part: names.split(", ") for part, names in parts.items()} == {
        **{part: list(names) for part, names in REGISTRY.items()},
        "recipes": list(builtin()),
        "training": [field.name for field in fields_of(Training)],
    }
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipes"] == list(builtin())
    assert main(["list", "decoders", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(REGISTRY["decoders"])


def test_show_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", "g2p", "training.epochs=2", "--variant", "label_smoothing"]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["objective"]["name"] == "label_smoothing"
    (tmp_path / "again.toml").write_text(text)
    assert load(tmp_path / "again.toml") == load("g2p", ["training.epochs=2"], "label_smoothing")


def test_data(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFORCED_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").touch()
    assert main(["data"]) == 0
    rows = dict(line.split("\t")[:2] for line in capsys.readouterr().out.splitlines())
    assert rows["mnist"] == "found"
    assert rows["multi30k_deen"] == "missing"
    monkeypatch.delenv("UNFORCED_DATA")
    assert main(["data"]) == 0
    assert "Set UNFORCED_DATA" in capsys.readouterr().err


def test_tables_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(("name", "what"), [("a", "[bold]b[/bold]")])
    out = capsys.readouterr().out
    assert "name" in out
    assert "[bold]b[/bold]" in out  # what comes from data is never markup


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("two\nlines"), 2, "unforced: two lines\n"),
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device", "runs/x"), 1, "No space left on device"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert main([]) == code
    assert said in capsys.readouterr().err


def test_a_reader_that_has_seen_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "unforced", "list", "recipes"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == ""
    assert done.returncode == 141


def test_ctrl_c_leaves_no_traceback() -> None:
    code = (
        "import os, signal, sys; from unforced import cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits it ignored
        "cli.app = lambda words: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.exit(cli.main())"
    )
    done = unforced(code=code)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == ""
