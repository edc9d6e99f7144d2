"""Measure programs in turn, and take the ratio of their speeds.

The speed of a machine drifts, so programs are never measured one after the other. They work in turn (A B, B A, …), and
each round gives one ratio. The figure is the median of the rounds.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
WORK = HERE.parent / "build" / "benchmarks"
WARM_UP = 5  # updates of a training program before the first measured one


class SideError(RuntimeError):
    """A measured process failed; the message names its log."""


class Window(NamedTuple):
    """What a side did in one turn."""

    updates: int
    tokens: int
    seconds: float
    busy: float  # CPU seconds of all threads

    @property
    def speed(self) -> float:
        """Target tokens per second."""
        return self.tokens / self.seconds


class Side:
    """A measured program: a child process that works in turns (``sides/pace.py``), from the scripts of a checkout."""

    def __init__(
        self,
        name: str,
        script: str,
        options: dict,
        *,
        python: Path | str = sys.executable,
        checkout: Path = HERE.parent,
    ) -> None:
        self.name = name
        logs = WORK / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(options["threads"]),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(checkout / "src"),
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(checkout / "benchmarks" / "sides" / script), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self.facts: dict = {}

    def get_ready(self) -> None:
        """Wait until the side can begin its first update."""
        self.facts = self._receive()["ready"]

    def turn(self, updates: int) -> Window:
        """Run this many updates and return their measurements."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{updates}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return Window(**self._receive())

    def stop(self) -> None:
        """End the process; a sleeping one exits when its input closes."""
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
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> SideError:
        code = self._process.wait()
        tail = self.log.read_text(errors="replace").splitlines()[-12:]
        return SideError("\n".join([f"{self.name} ended with code {code}; the end of {self.log}:", *tail]))


class Sides:
    """Several sides; all are stopped at the end of the ``with`` block."""

    def __init__(self) -> None:
        self.all: list[Side] = []

    def start(self, name: str, script: str, options: dict, **rest) -> Side:
        say(f"  starting {name}")
        side = Side(name, script, options, **rest)
        self.all.append(side)
        side.get_ready()
        return side

    def __enter__(self) -> "Sides":
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.all:
            side.stop()


# ---- turns ----


def interleave(
    turns: Mapping[str, Callable[[], float]], rounds: int, *, unit: str, warm_up: bool = True
) -> dict[str, list[float]]:
    """Measure each of ``turns`` once in every round; each round starts with another one."""
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


def race(sides: list[Side], rounds: int, updates: Mapping[str, int]) -> dict[str, list[Window]]:
    """Let training programs take turns of so many updates; return the windows of each by round."""
    windows: dict[str, list[Window]] = {side.name: [] for side in sides}

    def turn(side: Side) -> float:
        window = side.turn(updates[side.name])
        windows[side.name].append(window)
        return window.speed

    for side in sides:
        side.turn(WARM_UP)
    interleave({side.name: partial(turn, side) for side in sides}, rounds, unit="tokens/s", warm_up=False)
    return windows


def details(sides: list[Side], windows: dict[str, list[Window]]) -> dict[str, dict]:
    """Return what each side did in total and in each window, for the JSON file."""
    found = {}
    for side in sides:
        updates, tokens, seconds, busy = (sum(column) for column in zip(*windows[side.name], strict=True))
        found[side.name] = {
            "tokens_per_second": tokens / seconds,
            "tokens_per_update": tokens / updates,
            "core_milliseconds_per_token": 1000 * busy / tokens,
            "parameters": side.facts["parameters"],
            "threads": side.facts["threads"],
            "windows": [window._asdict() for window in windows[side.name]],
        }
    return found


# ---- results ----


def ratio(top: Sequence[float], bottom: Sequence[float]) -> dict[str, float]:
    """Return the median of the rounds' ratios, its 95 % interval, and the smallest and the largest ratio.

    The interval is computed from order statistics, so it holds for any kind of noise. Fewer than six rounds have none.
    """
    from scipy.stats import quantile_test

    values = [a / b for a, b in zip(top, bottom, strict=True)]
    found = quantile_test(values, p=0.5).confidence_interval(0.95)
    interval = {"interval_low": float(found.low), "interval_high": float(found.high)} if found.low == found.low else {}
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
    """Return a line of the table of results."""
    return {"figure": name, "against": against, **figure, "target": target, "passed": passed, **more}


def say(line: str) -> None:
    """Print progress without buffering."""
    print(line, flush=True)
