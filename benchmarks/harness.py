"""Sides that take turns, and the ratio of their speeds.

A figure here is a ratio of two programs on one machine. The machine's speed drifts, so the two are measured in turn
(A B A B …) and each round gives one ratio; the median of the rounds is the figure, their range its spread, and how sure
the median is can be read off its interval.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
WORK = HERE.parent / "build" / "benchmarks"


class SideError(RuntimeError):
    """A measured process ended before its time; the message names its log."""


class Window(NamedTuple):
    """What a side did in one turn."""

    updates: int
    tokens: int
    seconds: float
    busy: float  # seconds that the process had a core, summed over its threads

    @property
    def speed(self) -> float:
        """Target tokens a second."""
        return self.tokens / self.seconds


class Side:
    """One program under measurement: a child process that follows ``pace.Pace``, from the scripts of a checkout."""

    def __init__(
        self, name: str, script: str, wish: dict, *, python: Path | str = sys.executable, tree: Path = HERE.parent
    ) -> None:
        self.name = name
        logs = WORK / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(wish["threads"]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(tree / "src"),
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(tree / "benchmarks" / "sides" / script), json.dumps(wish)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self.facts: dict = {}

    def get_ready(self) -> None:
        """Wait until the side stands before its first update."""
        self.facts = self._receive()["ready"]

    def turn(self, updates: int) -> Window:
        """Let the side make so many updates and say how long they took."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{updates}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return Window(**self._receive())

    def stop(self) -> None:
        """End the process; a side that sleeps goes by itself when its input closes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _receive(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> SideError:
        code = self._process.wait()
        tail = self.log.read_text(errors="replace").splitlines()[-12:]
        return SideError("\n".join([f"{self.name} ended with code {code}; the end of {self.log}:", *tail]))


class Sides:
    """Several sides at once, stopped whatever happens."""

    def __init__(self) -> None:
        self.all: list[Side] = []

    def start(self, name: str, script: str, wish: dict, **rest) -> Side:
        say(f"  starting {name}")
        side = Side(name, script, wish, **rest)
        self.all.append(side)
        side.get_ready()
        return side

    def __enter__(self) -> "Sides":
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.all:
            side.stop()


def interleave(
    turns: Mapping[str, Callable[[], float]], rounds: int, *, unit: str, warm_up: bool = True
) -> dict[str, list[float]]:
    """Measure each of ``turns`` once in every round, each round starting with another one."""
    names = list(turns)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for name in names if warm_up else ():
        turns[name]()
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(turns[name]())
        latest = ", ".join(f"{name} {values[-1]:,.4g}" for name, values in measured.items())
        say(f"  round {number + 1} of {rounds} ({unit}): {latest}")
    return measured


def ratio(top: Sequence[float], bottom: Sequence[float]) -> dict[str, float]:
    """The median of the rounds' ratios with its 95 % interval, and the smallest and the largest of them.

    The interval is read off their order, so it holds whatever the noise is like; fewer than six rounds have none.
    """
    from scipy.stats import quantile_test

    values = [a / b for a, b in zip(top, bottom, strict=True)]
    sure = quantile_test(values, p=0.5).confidence_interval(0.95)
    interval = {"sure_low": float(sure.low), "sure_high": float(sure.high)} if sure.low == sure.low else {}
    return {
        "median": statistics.median(values),
        **interval,
        "low": min(values),
        "high": max(values),
        "rounds": len(values),
    }


def row(
    name: str, against: str, figure: Mapping[str, float], *, target: str | None, passed: bool | None, **more
) -> dict:
    """A line of the table of results."""
    return {"figure": name, "against": against, **figure, "target": target, "passed": passed, **more}


def say(line: str) -> None:
    """Progress, at once."""
    print(line, flush=True)
