"""Schedules: numbers that are pure functions of training progress.

Each is a frozen dataclass, called with a ``Progress``. Time runs in ``unit``s: complete epochs, updates, or the fraction of
the planned updates. For the first ``warmup`` units the value is ``start``; i below is the time that has passed since.
"""

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from unforced.errors import InputError
from unforced.options import NonNegative, Options, Positive, check_value
from unforced.protocols import Schedule, SupportsSchedules
from unforced.types import Progress

Unit = Literal["epoch", "step", "fraction"]
Shape = Literal["step", "linear", "exponential", "sigmoid"]


def at(value: float | Schedule, progress: Progress, name: str = "value", hint: Any = float) -> float:
    """Return the current value of a field that holds a number or a schedule; raise `InputError` if it leaves its range.

    >>> at(0.5, Progress()), at(Linear(start=1.0, end=0.0, over=2), Progress(epoch=1.0))
    (0.5, 0.5)
    """
    if not isinstance(value, Schedule):
        return value
    found = value(progress)
    check_value(name, hint, found)
    return found


def check_ends(name: str, value: float | Schedule, hint: Any) -> None:
    """Raise `InputError` if a schedule of this module leaves the range ``hint``; `at` checks other schedules."""
    if isinstance(value, Constant | _Timed | Rise):
        for end in value.ends():
            check_value(name, hint, end)


def of(objective: object) -> dict[str, Schedule]:
    """An objective's schedules by name, numbers as constants: what its ``schedules`` says, or nothing without one."""
    found = objective.schedules() if isinstance(objective, SupportsSchedules) else {}
    return {name: value if isinstance(value, Schedule) else Constant(value) for name, value in found.items()}


def time(progress: Progress, unit: Unit) -> float:
    """How far training has come, in ``unit``s."""
    if unit == "epoch":
        return math.floor(progress.epoch)
    if unit == "step":
        return progress.step
    if progress.total is None:
        raise InputError('a schedule in unit "fraction" needs to know how many updates are planned')
    return progress.step / max(1, progress.total)


def check_duration(name: str, value: float, unit: Unit) -> None:
    """Raise `InputError` if a number of units makes no sense for the unit."""
    if 0 < value < 1 and unit != "fraction":
        raise InputError(f'a {name} of {value} {unit}s is none; did you mean unit = "fraction"?')
    if value > 1 and unit == "fraction":
        raise InputError(f"a {name} in fractions of the training lies in [0, 1], not at {value}")


@dataclass(frozen=True)
class Constant(Options):
    """Always ``value``.

    >>> Constant(0.5)(Progress(step=7))
    0.5
    """

    value: float

    def __call__(self, progress: Progress) -> float:
        return self.value

    def ends(self) -> tuple[float, float]:
        return self.value, self.value


@dataclass(frozen=True, kw_only=True)
class _Timed(Options, ABC):
    """A value that moves once the warm-up is over."""

    start: float = 1.0  # the value until the warm-up is over
    warmup: NonNegative = 0.0  # how many units the first value is kept
    unit: Unit = "epoch"  # what time is counted in

    def check(self) -> None:
        check_duration("warmup", self.warmup, self.unit)

    def __call__(self, progress: Progress) -> float:
        passed = time(progress, self.unit) - self.warmup
        return self.start if passed < 0 else self.after(passed)

    @abstractmethod
    def after(self, passed: float) -> float:
        """The value when i = ``passed`` units have gone by since the warm-up."""

    @abstractmethod
    def ends(self) -> tuple[float, float]:
        """Return two numbers between which all values lie."""


@dataclass(frozen=True, kw_only=True)
class Linear(_Timed):
    """From ``start`` to ``end`` in equal steps over ``over`` units, and ``end`` from then on.

    >>> Linear(start=1.0, end=0.0, over=4)(Progress(epoch=1.7))
    0.75
    """

    end: float
    over: Positive

    def check(self) -> None:
        super().check()
        check_duration("over", self.over, self.unit)

    def after(self, passed: float) -> float:
        share = min(1.0, passed / self.over)
        return self.start + (self.end - self.start) * share

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


@dataclass(frozen=True, kw_only=True)
class Exponential(_Timed):
    """``start`` · ``rate``^i, going no further than ``cap``: upwards for a rate above 1, downwards for one below.

    >>> alpha = Exponential(start=1.0, rate=2.0, cap=10.0)
    >>> [alpha(Progress(epoch=e)) for e in (0, 1, 3, 9, 10_000)]
    [1.0, 2.0, 8.0, 10.0, 10.0]
    """

    start: Positive = 1.0  # the value until the warm-up is over
    rate: Positive
    cap: float | None = None

    def check(self) -> None:
        super().check()
        if self.cap is not None and (self.cap - self.start) * (self.rate - 1) < 0:
            raise InputError(f"from start {self.start} with rate {self.rate} a cap of {self.cap} is never reached")

    def after(self, passed: float) -> float:
        try:
            value = max(self.start * self.rate**passed, sys.float_info.min)
        except OverflowError:
            value = sys.float_info.max
        if self.cap is None:
            return value
        return min(value, self.cap) if self.rate >= 1 else max(value, self.cap)

    def ends(self) -> tuple[float, float]:
        if self.cap is not None:
            return self.start, self.cap
        return self.start, sys.float_info.max if self.rate > 1 else sys.float_info.min


@dataclass(frozen=True, kw_only=True)
class InverseSigmoid(_Timed):
    """``end`` + (start − end) · k / (k + exp(i / k)) (Bengio et al. 2015): the larger ``k``, the gentler.

    It is computed as a sigmoid, so that no exponential overflows. At i = 0 it is k / (k + 1) of the way, not all of it.

    >>> mixing = InverseSigmoid(k=10.0, warmup=1)
    >>> [round(mixing(Progress(epoch=e)), 3) for e in (0, 1, 11, 100_000)]
    [1.0, 0.909, 0.786, 0.0]
    """

    k: Positive
    end: float = 0.0

    def after(self, passed: float) -> float:
        share = sigmoid(math.log(self.k) - passed / self.k)
        return self.end + (self.start - self.end) * share

    def ends(self) -> tuple[float, float]:
        return self.start, self.end


@dataclass(frozen=True, kw_only=True)
class Always(_Timed):
    """``start`` for the warm-up, then 0: as a mixing probability, never gold again.

    >>> Always(warmup=1)(Progress(epoch=0.5)), Always()(Progress())
    (1.0, 0.0)
    """

    def after(self, passed: float) -> float:
        return 0.0

    def ends(self) -> tuple[float, float]:
        return self.start, 0.0


@dataclass(frozen=True, kw_only=True)
class Rise(Options):
    """From (nearly) 0 to ``end`` in the course of ``over`` units, and ``end`` from then on.

    With x = time / over the share of ``end`` before x = 1 is: nothing at all (``step``), x (``linear``), 0.001^(1 − x)
    (``exponential``), or a sigmoid from 0.001 to 0.999 (``sigmoid``).

    >>> Rise(end=0.5, over=100)(Progress(step=99)), Rise(end=0.5, over=100)(Progress(step=100))
    (0.0, 0.5)
    >>> round(Rise(end=0.5, over=0.5, unit="fraction", shape="linear")(Progress(step=10, total=80)), 3)
    0.125
    """

    end: float
    over: NonNegative = 0.0
    unit: Unit = "step"
    shape: Shape = "step"

    def check(self) -> None:
        check_duration("over", self.over, self.unit)

    def __call__(self, progress: Progress) -> float:
        if self.over == 0:
            return self.end
        x = time(progress, self.unit) / self.over
        return self.end if x >= 1 else self.end * self.share(x)

    def ends(self) -> tuple[float, float]:
        return 0.0, self.end

    def share(self, x: float) -> float:
        if self.shape == "linear":
            return x
        if self.shape == "exponential":
            return float(LEAST ** (1 - x))
        if self.shape == "sigmoid":
            return sigmoid((2 * x - 1) * math.log((1 - LEAST) / LEAST))
        return 0.0


LEAST = 0.001  # where rises that can't begin at zero begin


def sigmoid(x: float) -> float:
    """1 / (1 + exp(−x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
