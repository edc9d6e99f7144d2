"""Several processes make the same updates as one (gloo)."""

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import FORKS, Noisy, Poisoned, Run, content, free_port, join

from unforced.errors import InputError
from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.training import checkpoints
from unforced.training.distributed import start, tune_process
from unforced.training.run_folder import RunFolder

OPTIONS: dict[str, Any] = {"epochs": 3, "batch_tokens": 150, "log_every": 1, "learning_rate": 0.01, "log_samples": True}
PLAIN: dict[str, Any] = {"dropout": 0.0, "double": True}

SCRIPT = """
import json
import sys
sys.path.insert(0, sys.argv[1])
from toy_training import recipe, train, Training
import torch.distributed
train(recipe(options=Training(**json.loads(sys.argv[3])), **json.loads(sys.argv[4])), sys.argv[2], quiet=True)
assert torch.distributed.get_world_size() == 2 and torch.distributed.get_backend() == "gloo"
torch.distributed.destroy_process_group()
"""


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in RunFolder(folder).events("train")]


def exit_with_page_faults() -> None:
    """Exit with 1 if memory that is freed and allocated again must be mapped anew."""
    tune_process()
    faults = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(20_000_000)  # 20,000 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    raise SystemExit(int(faults[-1] > 1000))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_kept() -> None:
    child = FORKS.Process(target=exit_with_page_faults)
    child.start()
    assert join([child]) == [0]


@pytest.mark.slow
def test_torchrun_with_two_processes_gives_the_losses_of_one(folder: Path) -> None:
    assert Run(folder / "one", OPTIONS, PLAIN).finish() == [0]
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    arguments = [str(script), str(Path(__file__).parent), str(folder / "two"), json.dumps(OPTIONS), json.dumps(PLAIN)]
    done = subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert RunFolder(folder / "two").info()["world"] == 2
    assert len(losses(folder / "one")) > 10
    assert losses(folder / "two") == pytest.approx(losses(folder / "one"), rel=1e-6)
    one, two = (RunFolder(folder / name) for name in ("one", "two"))
    assert one.samples() == two.samples()
    assert [event["exact"] for event in one.events("dev")] == [event["exact"] for event in two.events("dev")]
    weights = checkpoints.read_model(two.checkpoints()[-1])
    for name, tensor in checkpoints.read_model(one.checkpoints()[-1]).items():
        torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fewer_rows_than_processes(folder: Path, accumulate: int) -> None:
    """Batches of one or two rows for three processes: those without any wait for the others and add nothing."""
    options = {**OPTIONS, "max_rows": 2, "epochs": None, "steps": 8, "accumulate": accumulate}
    settings = {**PLAIN, "examples": 11}
    assert Run(folder / "one", options, settings).finish() == [0]
    assert Run(folder / "three", options, settings, world=3).finish() == [0, 0, 0]
    sizes = {len(update["ids"]) for update in RunFolder(folder / "three").samples()}
    assert sizes == {1, 2}
    assert losses(folder / "three") == pytest.approx(losses(folder / "one"), rel=1e-6)


@pytest.mark.parametrize(
    "objective",
    [
        ScheduledSampling(feed="sample", mixing=0.5),
        pytest.param(ScheduledSampling(feed="soft_sample", mixing=0.5, alpha=2.0), marks=pytest.mark.slow),
        pytest.param(ParallelScheduledSampling(p=0.5, passes=2), marks=pytest.mark.slow),
    ],
    ids=["sample", "soft_sample", "parallel"],
)
def test_draws_do_not_depend_on_processes_and_micro_batches(folder: Path, objective: Any) -> None:
    options, settings = {**OPTIONS, "epochs": 1}, {**PLAIN, "objective": objective}
    assert Run(folder / "one", options, settings).finish() == [0]
    assert Run(folder / "two", {**options, "accumulate": 2}, settings, world=2).finish() == [0, 0]
    assert RunFolder(folder / "two").info()["world"] == 2
    assert losses(folder / "two") == pytest.approx(losses(folder / "one"), rel=1e-6)


def test_two_interrupted_processes_resume_bitwise(folder: Path) -> None:
    """One process gets the signal, both stop at the same step; dropout draws apart in each."""
    options, settings = {**OPTIONS, "epochs": 12}, {"objective": Noisy()}
    whole, stopped = (Run(folder / name, options, settings, world=2) for name in ("whole", "stopped"))
    children = stopped.start()
    while children[0].exitcode is None and not (stopped.folder / "best.json").exists():
        time.sleep(0.01)
    os.kill(children[1].pid, signal.SIGTERM)
    assert join(children) == [143, 143]
    assert RunFolder(stopped.folder).finished() is None
    assert stopped.finish() == [0, 0]
    assert whole.finish() == [0, 0]
    assert content(stopped.folder) == content(whole.folder)
    states = checkpoints.read(RunFolder(whole.folder).checkpoints()[-1]).random
    assert all(len(rows) == 2 and not torch.equal(rows[0], rows[1]) for rows in states.values())


def test_errors_reach_all_processes(folder: Path) -> None:
    assert Run(folder / "nan" / "run", OPTIONS, {"objective": Poisoned(3)}, world=2).finish() == [2, 2]
    assert Run(folder / "one" / "run", OPTIONS).finish() == [0]
    assert Run(folder / "one" / "run", OPTIONS, world=2).finish() == [2, 2]
    for rank in (0, 1):
        assert "loss is nan at step 3" in (folder / "nan" / f"error-{rank}").read_text()
        assert "world is 1 in the run and 2 now" in (folder / "one" / f"error-{rank}").read_text()


def test_processes_that_accelerate_does_not_see_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    start("float32")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"started 2 processes .* but accelerate runs 1"):
        start("float32")
