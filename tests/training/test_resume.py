"""Runs that are killed, interrupted or damaged resume bit for bit."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_training import Noisy, Run, content, join

from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import Linear
from unforced.training.run_folder import RunFolder

OPTIONS: dict[str, Any] = {
    "epochs": 4,
    "batch_tokens": 120,
    "save_every": 1,
    "validate_every": 7,
    "log_every": 3,
    "log_samples": True,
    "learning_rate": 0.01,
    "schedule": "cosine",
    "warmup": 3,
}
SETTINGS = {"objective": Noisy()}


def wait_for(condition: Any, child: Any) -> None:
    """Look without pause until ``condition`` holds or the child has ended."""
    while child.exitcode is None and not condition():
        pass


def kill(run: Run, rng: random.Random) -> None:
    """Start the run, let it get a step further and kill it at a random moment."""
    before = sorted(run.folder.glob("checkpoints/step-*"))
    (child,) = run.start()
    wait_for(lambda: sorted(run.folder.glob("checkpoints/step-*")) not in ([], before), child)
    time.sleep(rng.uniform(0.0, 0.05))
    child.kill()
    child.join()


def assert_kills_change_nothing(
    folder: Path, *, accumulate: int, epochs: int, kills: int, operations: list[int]
) -> None:
    """Compare a run that was killed at random moments, and at those of its ``operations``, with one that was not."""
    options = {**OPTIONS, "accumulate": accumulate, "epochs": epochs}
    whole, broken = Run(folder / "whole", options, SETTINGS), Run(folder / "broken", options, SETTINGS)
    assert whole.finish() == [0]
    for count in operations:
        assert replace(broken, dies_at=count).finish() == [-signal.SIGKILL]
    for number in range(kills):
        kill(broken, random.Random(number))
    assert broken.finish() == [0]
    assert content(broken.folder) == content(whole.folder)
    ids = [row for update in RunFolder(broken.folder).samples() if update["epoch"] == 1 for row in update["ids"]]
    assert sorted(ids) == list(range(60))  # none repeated, none dropped


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_kill_9_changes_nothing(folder: Path, accumulate: int) -> None:
    """Two kills at any moment, others while the folder is created and inside of saves."""
    operations = [5, 14, 22, 27, 33]
    assert_kills_change_nothing(folder, accumulate=accumulate, epochs=3, kills=2, operations=operations)


@pytest.mark.parametrize(
    "objective",
    [
        ScheduledSampling(feed="soft_sample", mixing=Linear(start=1.0, end=0.2, over=20, unit="step")),
        pytest.param(ParallelScheduledSampling(p=0.5, passes=2, warmup=10), marks=pytest.mark.slow),
    ],
    ids=["soft_sample", "parallel"],
)
def test_sampling_objectives_resume(folder: Path, objective: Any) -> None:
    """What they draw is a function of seed, step and example, so a killed run feeds what the whole one feeds."""
    options = {**OPTIONS, "epochs": 2}
    whole, broken = (Run(folder / name, options, {"objective": objective}) for name in ("whole", "broken"))
    assert whole.finish() == [0]
    kill(broken, random.Random(0))
    assert broken.finish() == [0]
    assert content(broken.folder) == content(whole.folder)
    assert any(event["fed"] > 0 for event in RunFolder(whole.folder).events("train"))


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3])
def test_many_kills_change_nothing(folder: Path, accumulate: int) -> None:
    """A kill at each single operation of creating the folder and of saving, and a dozen at any moment."""
    assert_kills_change_nothing(folder, accumulate=accumulate, epochs=9, kills=12, operations=list(range(1, 31)))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signals_save_and_exit(folder: Path, number: int, code: int) -> None:
    options = {**OPTIONS, "save_every": None, "validate_every": None, "epochs": 12}
    whole, stopped = Run(folder / "whole", options, SETTINGS), Run(folder / "stopped", options, SETTINGS)
    (child,) = stopped.start()
    wait_for(lambda: (stopped.folder / "best.json").exists(), child)
    time.sleep(0.05)
    os.kill(child.pid, number)
    assert join([child]) == [code]
    run = RunFolder(stopped.folder)
    assert run.finished() is None
    saved = run.checkpoints()[-1].name
    assert run.samples()[-1]["step"] == int(saved.split("-")[1])  # the very last update was saved
    assert stopped.finish() == [0]
    assert whole.finish() == [0]
    assert content(stopped.folder) == content(whole.folder)
