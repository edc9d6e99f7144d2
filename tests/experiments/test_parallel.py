"""Several jobs: order of runs, equality with one job, signals and killed processes."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from unforced.training.distributed import catch_signals
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder

RECIPE = """
name = "toy"
seeds = [1]
[task]
name = "pairs"
train = "{folder}/pairs.tsv"
source_tokens = "words"
target_tokens = "words"
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
def test_planned_runs_can_be_pickled(name: str, tmp_path: Path) -> None:
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
def test_order_and_failures_of_runs(
    jobs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], one_thread: None
) -> None:
    bad = "wrong" if jobs == 1 else "killed"
    needs = {"done": (), bad: (), "a": (bad,), "first": ("done",)}
    if jobs == 1:
        needs |= {"broken": ()}
    runs = planned(tmp_path, needs)
    done = [run for run in runs if run.label == "done"]
    outcomes = execute(runs, pretend, done=done, jobs=jobs, display=Display())
    ended = {run.label: failure for run, failure in outcomes}
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
def test_process_that_cannot_start_is_a_failed_run(tmp_path: Path) -> None:
    ((_, failure),) = execute(planned(tmp_path, {"a": ()}), Refuses(), jobs=2, display=Display(quiet=True))
    assert failure == "its process ended with code 3"


class Refuses:
    """A function whose process ends while it is read there."""

    def __call__(self, run: Planned, quiet: bool) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


# Real training


def results(root: Path, variant: str) -> dict[str, bytes]:
    folder = root / "toy" / f"{variant}-1"
    return {path.name: path.read_bytes() for path in [*folder.glob("predictions/*.jsonl"), folder / "best.json"]}


OPTIONS: Any = {"samples": 20, "permutations": 20}


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a comparison with one job; its runs are in ``runs`` in the same folder."""
    recipe = write(tmp_path_factory.mktemp("serial"))
    compare([load(recipe)], recipe.parent / "runs", quiet=True, **OPTIONS)
    return recipe


@pytest.mark.usefixtures("one_thread")
def test_parallel_runs_equal_serial_runs(serial: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = serial.parent / "runs"
    shutil.copytree(before / "toy" / "plain-1", tmp_path / "toy" / "plain-1")
    unforced.compare(serial, root=tmp_path, jobs=2, variants=["plain", "smoothed"], **OPTIONS)
    out, err = capfd.readouterr()
    assert results(tmp_path, "smoothed") == results(before, "smoothed")
    assert len(results(tmp_path, "smoothed")) == 3
    assert "exact_error (lower is better)" in out
    lines = err.splitlines()
    assert "1 of 2 runs are finished already" in lines
    assert f"smoothed, seed 1: {tmp_path}/toy/smoothed-1" in lines
    assert any(line.startswith("smoothed-1: step 1 of ") for line in lines)
    assert f"report: {tmp_path}/toy/report.html" in lines
    assert RunFolder(tmp_path / "toy" / "smoothed-1").info()["threads"] == 1


@pytest.mark.usefixtures("one_thread")
def test_moved_runs_continue(serial: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before, root = serial.parent / "runs", tmp_path / "moved"
    shutil.copytree(before, root)
    (root / "toy/hot-1/finished.json").unlink()
    (root / "toy/hot-1/scores/test-greedy.json").unlink()
    unforced.compare(serial, root=root, **OPTIONS)
    err = capfd.readouterr().err
    assert "2 of 3 runs are finished already" in err
    assert "resuming from step-" in err
    assert results(root, "hot") == results(before, "hot")
    unforced.compare(serial, root=root, quiet=True, table=False, **OPTIONS)
    assert capfd.readouterr() == ("", "")


def test_invalid_jobs_raise(serial: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        compare([load(serial)], tmp_path / "runs", jobs=0)
    assert not (tmp_path / "runs").exists()


def run_until_signal(run: Planned, quiet: bool) -> None:
    run.folder.touch()
    with catch_signals() as signals:
        wait_until(lambda: signals.received is not None)
    run.folder.write_text("saved")


@contextmanager
def signal_after(holds: Callable[[], bool], number: int) -> Iterator[None]:
    """Expect this process to end by a signal, which is sent when the condition holds."""

    def send() -> None:
        wait_until(holds)
        os.kill(os.getpid(), number)

    previous = signal.signal(number, lambda *_: None)  # a late signal must not end pytest, and is not inherited
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        yield
    thread.join()
    signal.signal(number, previous)
    assert ended.value.code == 128 + number


def test_signals_are_sent_to_runs(tmp_path: Path) -> None:
    (run,) = planned(tmp_path, {"a": ()})
    with signal_after(run.folder.exists, signal.SIGTERM):
        list(execute([run], run_until_signal, jobs=2, display=Display(quiet=True)))
    assert run.folder.read_text() == "saved"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_checkpoints(number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names, root = ("plain", "smoothed"), tmp_path / "runs"
    recipe = load(write(tmp_path, epochs=5000)).only(names)
    runs = [RunFolder(root / "toy" / f"{name}-1") for name in names]
    with signal_after(lambda: all(run.checkpoints() for run in runs), number):
        compare([recipe], root, jobs=2)
    err = capfd.readouterr().err
    for name, run in zip(names, runs):
        assert f"{name}-1: interrupted, saved {run.checkpoints()[-1].name}" in err
        assert not run.locked()


def wait_until(holds: Callable[[], bool], process: "subprocess.Popen[bytes] | None" = None) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


@pytest.mark.slow
def test_runs_stop_if_the_parent_process_ends(tmp_path: Path) -> None:
    folder, names = tmp_path / "runs", ("plain", "smoothed")
    words = ["compare", str(write(tmp_path, epochs=5000)), "--root", str(folder), "--jobs", "2"]
    words += ["--variants", ",".join(names)]
    process = subprocess.Popen([sys.executable, "-m", "unforced", *words], stderr=subprocess.PIPE)
    wait_until(lambda: all(RunFolder(folder / "toy" / f"{name}-1").checkpoints() for name in names), process)
    process.kill()
    process.communicate()
    for run in (folder / "toy" / f"{name}-1" for name in names):
        wait_until(lambda run=run: not RunFolder(run).locked())  # type: ignore[misc]
        assert RunFolder(run).finished() is None
        assert RunFolder(run).checkpoints()


@pytest.mark.slow
def test_errors_of_the_parent_stop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, root = load(write(tmp_path, epochs=5000)).only(["plain", "smoothed"]), tmp_path / "runs"
    (root / "toy" / "plain-1").mkdir(parents=True)
    (root / "toy" / "plain-1" / "mine.txt").write_text("not a run")  # it fails soon
    monkeypatch.setattr("unforced.experiments.compare.summarize", lambda *runs, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare([recipe], root, jobs=2, quiet=True)
    assert not RunFolder(root / "toy" / "smoothed-1").locked()
    assert (root / "toy" / "plain-1" / "mine.txt").read_text() == "not a run"
