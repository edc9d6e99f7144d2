"""Runs of a comparison that are made side by side: in which order, with which results, and what becomes of them when someone dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest
import torch

from unforced.cli import main
from unforced.errors import InputError
from unforced.experiments.child import heard
from unforced.experiments.compare import Record, compare
from unforced.experiments.parallel import Process, side_by_side, told
from unforced.experiments.plan import Planned, plan
from unforced.experiments.runs import Outcome
from unforced.recipes.recipe import load
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder

RECIPE = """
name = "toy"
seeds = [1, 2]
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
name = "warm"
training = {{ warm_start = "variant:plain", epochs = 1 }}
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


def names() -> list[str]:
    folder = resources.files("unforced") / "recipes" / "builtin"
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


@pytest.mark.parametrize("name", names())
def test_a_process_hears_what_it_is_told(name: str, tmp_path: Path) -> None:
    for run in plan([load(name)], tmp_path):
        assert heard(told(run, quiet=True)) == (run, True)


# ---- in which order ----


class Fake:
    """Processes that end when they are told to, and what has been asked of them."""

    def __init__(self, runs: list[Planned], fail: tuple[str, ...] = ()) -> None:
        self.runs, self.fail = runs, fail
        self.states: dict[tuple[str, int], str] = {}
        self.running: list[str] = []
        self.most = 0
        self.log: list[str] = []

    def start(self, run: Planned) -> Any:
        fake, name = self, run.folder.name
        fake.running.append(name)
        fake.most = max(fake.most, len(fake.running))
        fake.log.append(f"+{name}")

        class Process:
            now, looks = "begun", 0

            def __init__(self) -> None:
                self.name = name

            def outcome(self) -> Outcome | None:
                self.looks += 1
                if self.looks < 1 + len(name) % 3:
                    return None
                fake.running.remove(name)
                fake.log.append(f"-{name}")
                return Outcome(run, failure="it could not be" if name in fake.fail else "")

            def stop(self) -> None: ...

            def wait(self) -> None: ...

        return Process()

    def make(self, jobs: int) -> list[Outcome]:
        found = []
        state = lambda label, seed: self.states.get((label, seed), "")  # noqa: E731
        begin = lambda run: self.states.update({(run.label, run.seed): "unfinished"})  # noqa: E731
        for outcome in side_by_side(self.runs, jobs, state, begin, self.start, Display(quiet=True)):
            run = outcome.run
            self.states[run.label, run.seed] = "failed" if outcome.failure else "finished"
            found.append(outcome)
        return found


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("unforced.experiments.parallel"), "PAUSE", 0.0)


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("jobs", [1, 2, 3, 20])
def test_each_run_comes_behind_those_it_builds_on(jobs: int, tmp_path: Path) -> None:
    fake = Fake(plan([load(write(tmp_path))], tmp_path))
    found = fake.make(jobs)
    assert sorted(outcome.run.folder.name for outcome in found) == sorted(
        f"{variant}-{seed}" for variant in ("plain", "warm", "smoothed") for seed in (1, 2)
    )
    assert fake.most == min(jobs, 4)  # two wait for their start
    for seed in (1, 2):
        assert fake.log.index(f"-plain-{seed}") < fake.log.index(f"+warm-{seed}")
    begun = [each for each in fake.log if each.startswith("+")]
    assert begun[:2] == ["+plain-1", "+plain-2"]  # others build on these
    assert all(outcome.news and not outcome.failure for outcome in found)


@pytest.mark.usefixtures("quickly")
def test_what_builds_on_a_failure_fails_and_the_others_do_not(tmp_path: Path) -> None:
    found = Fake(plan([load(write(tmp_path))], tmp_path), fail=("plain-2",)).make(2)
    failures = {outcome.run.folder.name: outcome.failure for outcome in found if outcome.failure}
    assert failures == {"plain-2": "it could not be", "warm-2": "it builds on plain, which failed"}
    assert len(found) == 6


# ---- with real processes ----


def results(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for pattern in ("predictions/*.jsonl", "best.json")
        for path in root.glob(f"toy/*/{pattern}")
    }


@pytest.mark.usefixtures("one_thread")
def test_side_by_side_gives_what_one_after_another_gives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = str(write(tmp_path))
    assert main(["compare", recipe, "--root", str(tmp_path / "one"), "--quiet"]) == 0
    assert main(["compare", recipe, "--root", str(tmp_path / "two"), "--jobs", "2"]) == 0
    told = capfd.readouterr()
    assert "smoothed" in told.out
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert len(results(tmp_path / "two")) == 6 * 3
    lines = told.err.splitlines()
    assert f"plain, seed 1: {tmp_path}/two/toy/plain-1" in lines
    assert any(line.startswith("plain-1: step 5 of ") for line in lines)
    assert {line.split()[0] for line in lines if line.endswith(": finished")} == {f"[{i}/6]" for i in range(1, 7)}
    assert RunFolder(tmp_path / "two" / "toy" / "plain-1").info()["threads"] == 1
    found = compare([load(recipe)], tmp_path / "two", jobs=2, table=False, samples=20, permutations=20)
    assert "[6/6] smoothed, seed 2: was trained before" in capfd.readouterr().err
    assert not found.failures


def test_a_process_that_cannot_begin_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = load(write(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match="all runs failed; the first one: its process ended with code 3"):
        compare([recipe], tmp_path / "runs", jobs=2, table=False)
    assert "[6/6]" in capfd.readouterr().err


def test_jobs_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", str(write(tmp_path)), "--root", str(tmp_path / "runs"), "--jobs"]
    assert main([*words, "0"]) == 2
    assert capsys.readouterr().err == "unforced: jobs must be at least 1, not 0\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([*words, "2"]) == 2
    assert "can't be run below torchrun" in capsys.readouterr().err
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(InputError, match="train and score are for one job"):
        compare([load(words[1])], tmp_path / "runs", jobs=2, train=print)
    assert not (tmp_path / "runs").exists()


def begun(folder: Path, recipe: Path, names: Sequence[str] = ("plain-1", "smoothed-1")) -> subprocess.Popen[bytes]:
    """A comparison of two jobs, of which these have saved a checkpoint."""
    words = ["compare", str(recipe), "--root", str(folder), "--jobs", "2", "--seeds", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "unforced", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    until(lambda: all(RunFolder(folder / "toy" / each).checkpoints() for each in names), process)
    return process


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert process is None or process.poll() is None, "it ended before"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def children(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """The processes of its runs by the names of their folders, as far as these are locked."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = {}
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                path = Path(os.readlink(handle))
                if path.name == "lock":
                    found[path.parent.name] = int(pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")


@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_all_runs_save(tmp_path: Path, number: int) -> None:
    folder, recipe = tmp_path / "runs", write(tmp_path, epochs=5000)
    process = begun(folder, recipe)
    pids = children(process)
    assert pids.keys() == {"plain-1", "smoothed-1"}
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not any(map(alive, pids.values()))
    for name in pids:
        lines = [line for line in told.decode().splitlines() if line.startswith(f"{name}: interrupted, saved step-")]
        saved = RunFolder(folder / "toy" / name).checkpoints()[-1].name
        assert [line.split()[-1] for line in lines] == [saved]


@linux
def test_runs_stop_when_nobody_waits_for_them(tmp_path: Path) -> None:
    process = begun(tmp_path / "runs", write(tmp_path, epochs=5000))
    pids = children(process)
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, pids.values())))
    for name in pids:
        run = RunFolder(tmp_path / "runs" / "toy" / name)
        assert run.finished() is None
        assert run.checkpoints()


@linux
def test_a_run_that_is_killed_leaves_the_others_alone(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "runs", write(tmp_path, epochs=40)
    process = begun(folder, recipe, ["plain-1"])  # long before it ends
    os.kill(children(process)["plain-1"], signal.SIGKILL)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1
    lines = told.decode().splitlines()
    assert "[1/3] plain, seed 1: failed: its process was ended by SIGKILL" in lines
    assert "[2/3] warm, seed 1: failed: it builds on plain, which failed" in lines
    assert "[3/3] smoothed, seed 1: finished" in lines
    assert main(["compare", str(recipe), "--root", str(folder), "--seeds", "1", "--quiet"]) == 0


def test_processes_import_what_this_one_does_and_may_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, here = write(tmp_path), tmp_path / "here"
    here.mkdir()
    (here / "random.py").write_text("raise SystemExit('the wrong one')")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        "import atexit\nprint('early')\natexit.register(lambda: print('late ' * 40_000))"
    )
    monkeypatch.syspath_prepend(own)
    monkeypatch.chdir(here)
    words = ["compare", str(recipe), "--root", str(tmp_path / "runs"), "--seeds", "1", "--jobs", "2"]
    assert main(words) == 0
    told = capfd.readouterr()
    assert sum("late late" in line for line in told.err.splitlines()) == 3
    assert "late" not in told.out


@linux
def test_an_error_between_runs_stops_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, root = load(write(tmp_path, epochs=5000)), tmp_path / "runs"
    (root / "toy" / "plain-1").mkdir(parents=True)
    (root / "toy" / "plain-1" / "mine.txt").write_text("not a run")  # it fails soon
    started = []
    begin = Process.__init__

    def noted(self: Process, *words: Any, **more: Any) -> None:
        begin(self, *words, **more)
        started.append(self)

    monkeypatch.setattr(Process, "__init__", noted)
    monkeypatch.setattr(Record, "summary", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compare([recipe], root, jobs=2, table=False, quiet=True)
    assert len(started) == 2
    assert all(process.child.poll() is not None for process in started)


def test_mistakes_of_processes_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, root = write(tmp_path), tmp_path / "runs"
    hot = '[[variants]]\nname = "hot"\nobjective = { name = "sequence_smoothing", tau = 9.0 }\n'
    recipe.write_text(recipe.read_text() + hot)
    words = ["compare", str(recipe), "--root", str(root), "--seeds", "1", "--jobs", "2", "--variants"]
    (root / "toy" / "plain-1").mkdir(parents=True)
    (root / "toy" / "plain-1" / "mine.txt").write_text("not a run")
    assert main([*words, "hot,plain"]) == 1
    told = capfd.readouterr().err.splitlines()
    (failed,) = [line for line in told if "plain, seed 1: failed: " in line]
    assert str(root / "toy" / "plain-1") in failed
    assert not [line for line in told if "Traceback" in line]
    assert (root / "toy" / "plain-1" / "mine.txt").read_text() == "not a run"
    assert main([*words, "hot,smoothed", "--quiet"]) == 0
    assert capfd.readouterr().err == ""
