"""Schedules: hyper-parameters that are pure functions of training progress.

A schedule is called with a `Progress`. Time is counted in complete epochs, updates, or as a fraction of the planned
updates.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from unforced.errors import InputError
from unforced.options import NonNegative, Options, Positive, check_value
from unforced.protocols import Schedule, SupportsSchedules
from unforced.types import Progress

Unit = Literal["epoch", "step", "fraction"]
Shape = Literal["step", "linear", "exponential", "sigmoid"]
LEAST = 0.001  # share of the end value at which exponential and sigmoid rises begin


def at(value: float | Schedule, progress: Progress, name: str = "value", hint: Any = float) -> float:
    """Return the current value of a number or a schedule; raise `InputError` if a schedule leaves the range ``hint``.

    >>> at(0.5, Progress()), at(Linear(start=1.0, end=0.0, over=2), Progress(epoch=1.0))
    (0.5, 0.5)
    """
    if not isinstance(value, Schedule):
        return value
    current = value(progress)
    check_value(name, hint, current)
    return current


def check_ends(name: str, value: float | Schedule, hint: Any) -> None:
    """Raise `InputError` if a schedule of this module leaves the range ``hint``; `at` checks other schedules."""
    if isinstance(value, Constant | Decay | Rise):
        for end in value.ends():
            check_value(name, hint, end)


def schedules_of(objective: object) -> dict[str, Schedule]:
    """Return an objective's schedules by name, with numbers as `Constant`."""
    values = objective.schedules() if isinstance(objective, SupportsSchedules) else {}
    return {name: value if isinstance(value, Schedule) else Constant(value) for name, value in values.items()}


def elapsed(progress: Progress, unit: Unit) -> float:
    """Return the time since the start of training; raise `InputError` if a loop does not give it."""
    if unit == "step":
        return progress.step
    if unit == "epoch":
        if progress.epoch is None:
            raise InputError("a schedule in epochs needs the epoch: pass Progress(step=..., epoch=...)")
        return math.floor(progress.epoch)
    if progress.total is None:
        raise InputError(
            "a schedule in fractions of the training needs the number of planned updates: pass Progress(step=..., "
            "total=...)"
        )
    return progress.step / max(1, progress.total)


def check_duration(name: str, value: float, unit: Unit) -> None:
    """Raise `InputError` if a duration does not fit its unit."""
    if 0 < value < 1 and unit != "fraction":
        raise InputError(f'{name} is {value} {unit}s, less than one; did you mean unit = "fraction"?')
    if value > 1 and unit == "fraction":
        raise InputError(f"{name} is a fraction of the training and must be at most 1, got {value}")


@dataclass(frozen=True)
class Constant(Options):
    """Always ``value``."""

    value: float  # at all times

    def __call__(self, progress: Progress) -> float:
        return self.value

    def ends(self) -> tuple[float, float]:
        return self.value, self.value


@dataclass(frozen=True, kw_only=True)
class Decay(Options, ABC):
    """Base of schedules that keep a start value during a warm-up and change it afterwards."""

    start: float = 1.0  # value until the end of the warm-up
    warmup: NonNegative = 0.0  # duration of the warm-up
    unit: Unit = "epoch"  # unit of time

    def check(self) -> None:
        check_duration("warmup", self.warmup, self.unit)

    def __call__(self, progress: Progress) -> float:
        i = elapsed(progress, self.unit) - self.warmup
        return self.start if i < 0 else self.after(i)

    @abstractmethod
    def after(self, i: float) -> float:
        """Return the value at time i after the warm-up."""

    def ends(self) -> tuple[float, float]:
        """Return two numbers between which all values lie."""
        return self.start, self.after(math.inf)


@dataclass(frozen=True, kw_only=True)
class Linear(Decay):
    """Change linearly from ``start`` to ``end``, then stay.

    >>> Linear(start=1.0, end=0.0, over=4)(Progress(epoch=1.7))
    0.75
    """

    end: float  # last value
    over: Positive  # duration of the change

    def check(self) -> None:
        super().check()
        check_duration("over", self.over, self.unit)

    def after(self, i: float) -> float:
        return self.start + (self.end - self.start) * min(1.0, i / self.over)


@dataclass(frozen=True, kw_only=True)
class Exponential(Decay):
    """``start`` · ``rate``^i until ``cap``.

    >>> alpha = Exponential(start=1.0, rate=2.0, cap=10.0)
    >>> [alpha(Progress(epoch=e)) for e in (0, 1, 3, 9, 10_000)]
    [1.0, 2.0, 8.0, 10.0, 10.0]
    """

    start: Positive = 1.0  # value until the end of the warm-up
    rate: Positive  # factor per unit of time
    cap: float | None = None  # bound that is not crossed; none if absent

    def check(self) -> None:
        super().check()
        if self.cap is not None and (self.cap - self.start) * (self.rate - 1) < 0:
            raise InputError(f"cap {self.cap} is never reached from start {self.start} with rate {self.rate}")

    def after(self, i: float) -> float:
        most = math.inf if self.rate == 1 else 600 / abs(math.log(self.rate))  # avoids overflow
        value = float(self.start * self.rate ** min(i, most))
        if self.cap is None:
            return value
        return min(value, self.cap) if self.rate >= 1 else max(value, self.cap)


@dataclass(frozen=True, kw_only=True)
class InverseSigmoid(Decay):
    """``end`` + (start − end) · k / (k + exp(i / k)) (Bengio et al. 2015).

    At i = 0 it has covered 1 / (k + 1) of the way.

    >>> mixing = InverseSigmoid(k=10.0, warmup=1)
    >>> [round(mixing(Progress(epoch=e)), 3) for e in (0, 1, 11, 100_000)]
    [1.0, 0.909, 0.786, 0.0]
    """

    k: Positive  # larger values decay more slowly
    end: float = 0.0  # limit

    def after(self, i: float) -> float:
        return self.end + (self.start - self.end) * sigmoid(math.log(self.k) - i / self.k)


@dataclass(frozen=True, kw_only=True)
class Always(Decay):
    """``start`` during the warm-up, then 0: as a mixing probability, the target is never fed again.

    >>> Always(warmup=1)(Progress(epoch=0.5)), Always()(Progress(epoch=0))
    (1.0, 0.0)
    """

    def after(self, i: float) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Rise(Options):
    """Rise from (nearly) 0 to ``end``, then stay.

    With x = time / over, the share of ``end`` before x = 1 is 0 (``step``), x (``linear``), 0.001^(1 − x)
    (``exponential``), or a sigmoid from 0.001 to 0.999 (``sigmoid``).

    >>> Rise(end=0.5, over=100)(Progress(step=99)), Rise(end=0.5, over=100)(Progress(step=100))
    (0.0, 0.5)
    """

    end: float  # last value
    over: NonNegative = 0.0  # duration of the rise
    unit: Unit = "step"  # unit of time
    shape: Shape = "step"  # how it rises

    def check(self) -> None:
        check_duration("over", self.over, self.unit)

    def __call__(self, progress: Progress) -> float:
        x = elapsed(progress, self.unit) / self.over if self.over else 1.0
        return self.end if x >= 1 else self.end * self.share(x)

    def share(self, x: float) -> float:
        match self.shape:
            case "step":
                return 0.0
            case "linear":
                return x
            case "exponential":
                return float(LEAST ** (1 - x))
            case "sigmoid":
                return sigmoid((2 * x - 1) * math.log((1 - LEAST) / LEAST))

    def ends(self) -> tuple[float, float]:
        return 0.0, self.end


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(−x)) without overflow."""
    return 1 / (1 + math.exp(min(-x, 700)))
