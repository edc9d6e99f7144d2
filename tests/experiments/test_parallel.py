"""Runs in processes of their own: order, equal results, signals, and processes that die."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unforced
from unforced.errors import InputError
from unforced.experiments.compare import compare
from unforced.experiments.parallel import execute
from unforced.experiments.plan import Planned, plan
from unforced.recipes.recipe import load
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder

RECIPE = """
name = "toy"
seeds = [1]
[task]
name = "pairs"
train = "{folder}/pairs.tsv"
measures = ["exact"]
[model]
name = "lstm"
hidden = 8
embedding = 8
[objective]
name = "cross_entropy"
[training]
epochs = {epochs}
batch_tokens = 40
log_every = 5
warmup = 0
save_every = 5
[decoding.greedy]
method = "greedy"
[[variants]]
name = "plain"
[[variants]]
name = "hot"
training = {{ warm_start = "variant:plain" }}
objective = {{ name = "sequence_smoothing", tau = 9.0 }}
[[variants]]
name = "smoothed"
objective = "label_smoothing"
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write(folder: Path, epochs: int = 2) -> Path:
    (folder / "pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    path = folder / "toy.toml"
    path.write_text(RECIPE.format(folder=folder, epochs=epochs))
    return path


def builtin_recipes() -> list[str]:
    folder = resources.files("unforced") / "recipes" / "builtin"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", builtin_recipes())
def test_planned_runs_can_be_sent_to_a_process(name: str, tmp_path: Path) -> None:
    for run in plan([load(name)], tmp_path):
        again = pickle.loads(pickle.dumps(run))
        assert (again.recipe, again.folder, again.needs) == (run.recipe, run.folder, run.needs)


# Processes without training


def planned(folder: Path, needs: dict[str, tuple[str, ...]]) -> list[Planned]:
    recipe: Any = SimpleNamespace()
    return [Planned(name, 1, recipe, folder / name, needs[name]) for name in needs]


def pretend(run: Planned, quiet: bool) -> None:
    """Make a run as its label says."""
    print(f"making {run.label}")
    if run.label == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if run.label == "wrong":
        raise InputError("a file is\nmissing")
    if run.label == "broken":
        raise ValueError("a bug")
    run.folder.write_text(str(torch.get_num_threads()))


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_wait_for_those_that_they_need_and_failures_stay_apart(
    jobs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], one_thread: None
) -> None:
    bad = "wrong" if jobs == 1 else "killed"
    needs = {"done": (), bad: (), "a": (bad,), "first": ("done",)}
    if jobs == 1:
        needs |= {"broken": ()}
    runs = planned(tmp_path, needs)
    done = [run for run in runs if run.label == "done"]
    outcomes = list(execute(runs, pretend, done=done, jobs=jobs, display=Display()))
    ended = {outcome.run.label: outcome.failure for outcome in outcomes}
    failures = {"wrong": "a file is missing", "broken": "a bug"}
    if jobs > 1:
        failures = {"killed": "its process was ended by SIGKILL"}
    assert ended == {"first": "", "a": f"it needs {bad}, which failed", **failures}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"first": "1"}
    out, err = capfd.readouterr()
    assert ("making first" in out) == (jobs == 1)
    assert ("first-1: making first" in err.splitlines()) == (jobs > 1)
    assert err.count("Traceback") == (jobs == 1)  # of a bug, not of an error of the user
    assert f"[{len(runs)}/{len(runs)}]" in err


@pytest.mark.slow
def test_a_process_that_cannot_start_is_a_failed_run(tmp_path: Path) -> None:
    (outcome,) = execute(planned(tmp_path, {"a": ()}), Refuses(), jobs=2, display=Display(quiet=True))
    assert outcome.failure == "its process ended with code 3"


class Refuses:
    """A function whose process ends while it is read there."""

    def __call__(self, run: Planned, quiet: bool) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


# Real training


def results(root: Path) -> dict[str, bytes]:
    patterns = ("predictions/*.jsonl", "best.json")
    return {str(p.relative_to(root)): p.read_bytes() for each in patterns for p in root.glob(f"toy/*/{each}")}


@pytest.mark.usefixtures("one_thread")
def test_parallel_runs_equal_serial_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = str(write(tmp_path))
    options: Any = {"variants": ["plain", "hot"], "samples": 20, "permutations": 20}
    unforced.compare(recipe, root=tmp_path / "one", quiet=True, table=False, **options)
    assert capfd.readouterr() == ("", "")
    unforced.compare(recipe, root=tmp_path / "two", jobs=2, **options)
    out, err = capfd.readouterr()
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert len(results(tmp_path / "two")) == 2 * 3
    assert "exact_error (lower is better)" in out
    lines = err.splitlines()
    assert f"plain, seed 1: {tmp_path}/two/toy/plain-1" in lines
    assert any(line.startswith("plain-1: step 5 of ") for line in lines)
    assert f"report: {tmp_path}/two/toy/report.html" in lines
    assert RunFolder(tmp_path / "two" / "toy" / "plain-1").info()["threads"] == 1
    # continued, also elsewhere
    moved = (tmp_path / "one").rename(tmp_path / "moved")
    (moved / "toy/hot-1/finished.json").unlink()
    (moved / "toy/hot-1/scores/test-greedy.json").unlink()
    unforced.compare(recipe, root=moved, **options)
    err = capfd.readouterr().err
    assert "1 of 2 runs are finished already" in err
    assert "resuming from step-" in err
    assert results(moved) == results(tmp_path / "two")


def test_refused_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(write(tmp_path))
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        compare([recipe], tmp_path / "runs", jobs=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="can't be run by torchrun"):
        compare([recipe], tmp_path / "runs", jobs=2)
    assert not (tmp_path / "runs").exists()


def begun(folder: Path, recipe: Path, names: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """A comparison of these variants, which have saved checkpoints."""
    words = ["compare", str(recipe), "--root", str(folder), "--jobs", "2", "--variants", ",".join(names)]
    process = subprocess.Popen([sys.executable, "-m", "unforced", *words], stderr=subprocess.PIPE)
    wait_until(lambda: all(RunFolder(folder / "toy" / f"{name}-1").checkpoints() for name in names), process)
    return process


def wait_until(holds: Callable[[], bool], process: "subprocess.Popen[bytes] | None" = None) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def locked(folder: Path) -> bool:
    """Whether a process is writing to the run."""
    try:
        with RunFolder(folder).writing(resume=True):
            return False
    except InputError:
        return True


@linux
@pytest.mark.parametrize(
    ("number", "names"),
    [(signal.SIGTERM, ("plain",)), pytest.param(signal.SIGINT, ("plain", "smoothed"), marks=pytest.mark.slow)],
)
def test_a_signal_is_passed_on_and_runs_save(tmp_path: Path, number: int, names: tuple[str, ...]) -> None:
    folder = tmp_path / "runs"
    process = begun(folder, write(tmp_path, epochs=5000), names)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    for name in names:
        lines = [line for line in err.decode().splitlines() if line.startswith(f"{name}-1: interrupted, saved step-")]
        saved = RunFolder(folder / "toy" / f"{name}-1").checkpoints()[-1].name
        assert [line.split()[-1] for line in lines] == [saved]
        assert not locked(folder / "toy" / f"{name}-1")


@linux
@pytest.mark.slow
def test_runs_save_and_stop_if_the_parent_dies(tmp_path: Path) -> None:
    folder, names = tmp_path / "runs", ("plain", "smoothed")
    process = begun(folder, write(tmp_path, epochs=5000), names)
    process.kill()
    process.communicate()
    for run in (folder / "toy" / f"{name}-1" for name in names):
        wait_until(lambda run=run: not locked(run))  # type: ignore[misc]
        assert RunFolder(run).finished() is None
        assert RunFolder(run).checkpoints()


@pytest.mark.slow
def test_an_error_between_runs_stops_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, root = load(write(tmp_path, epochs=5000)).only(["plain", "smoothed"]), tmp_path / "runs"
    (root / "toy" / "plain-1").mkdir(parents=True)
    (root / "toy" / "plain-1" / "mine.txt").write_text("not a run")  # it fails soon
    monkeypatch.setattr("unforced.experiments.compare.summarize", lambda *runs, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare([recipe], root, jobs=2, quiet=True)
    assert not locked(root / "toy" / "smoothed-1")
    assert (root / "toy" / "plain-1" / "mine.txt").read_text() == "not a run"
