"""Schedules: numbers that are pure functions of training progress.

Each is a frozen dataclass, called with a ``Progress``. Time runs in ``unit``s: complete epochs, updates, or the fraction of
the planned updates. For the first ``warmup`` units the value is ``start``; i below is the time that has passed since.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from unforced.errors import InputError, check_choice
from unforced.types import Progress

Unit = Literal["epoch", "step", "fraction"]
Shape = Literal["step", "linear", "exponential", "sigmoid"]


@runtime_checkable
class Schedule(Protocol):
    """A number for every moment of training."""

    def __call__(self, progress: Progress) -> float: ...


def at(value: float | Schedule, progress: Progress) -> float:
    """What a field that holds a number or a schedule is worth now.

    >>> at(0.5, Progress()), at(Linear(start=1.0, end=0.0, over=2), Progress(epoch=1.0))
    (0.5, 0.5)
    """
    return value(progress) if isinstance(value, Schedule) else value


def of(objective: object) -> dict[str, Schedule]:
    """An objective's schedules by name, numbers as constants: what its ``schedules`` says, or nothing without one."""
    found: dict[str, float | Schedule] = getattr(objective, "schedules", dict)()
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
    """Raise ``InputError`` where so many units are none, or more than there can be."""
    if not 0 <= value < math.inf:
        raise InputError(f"{name} must be at least 0 and finite, not {value}")
    if 0 < value < 1 and unit != "fraction":
        raise InputError(f'a {name} of {value} {unit}s is none; did you mean unit = "fraction"?')
    if value > 1 and unit == "fraction":
        raise InputError(f"a {name} in fractions of the training lies in [0, 1], not at {value}")


def check_values(value: float | Schedule, check: Callable[[float], float]) -> None:
    """Let ``check`` look at a number, or at the first and the last value of a schedule, between which all others lie.

    A user's own schedule is looked at while it is used.
    """
    if isinstance(value, Constant | _Timed | Rise):
        late = 10**9
        check(value(Progress(0, 0.0, late)))
        check(value(Progress(late, float(late), late)))
    elif not isinstance(value, Schedule):
        check(value)


@dataclass(frozen=True)
class Constant:
    """Always ``value``.

    >>> Constant(0.5)(Progress(step=7))
    0.5
    """

    value: float

    def __call__(self, progress: Progress) -> float:
        return self.value


@dataclass(frozen=True, kw_only=True)
class _Timed(ABC):
    """A value that moves once the warm-up is over."""

    start: float = 1.0  # the value until the warm-up is over
    warmup: float = 0.0  # how many units the first value is kept
    unit: Unit = "epoch"  # what time is counted in

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, Unit)
        check_duration("warmup", self.warmup, self.unit)

    def __call__(self, progress: Progress) -> float:
        passed = time(progress, self.unit) - self.warmup
        return self.start if passed < 0 else self.after(passed)

    @abstractmethod
    def after(self, passed: float) -> float:
        """The value when i = ``passed`` units have gone by since the warm-up."""


@dataclass(frozen=True, kw_only=True)
class Linear(_Timed):
    """From ``start`` to ``end`` in equal steps over ``over`` units, and ``end`` from then on.

    >>> Linear(start=1.0, end=0.0, over=4)(Progress(epoch=1.7))
    0.75
    """

    end: float
    over: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_duration("over", self.over, self.unit)
        if not self.over:
            raise InputError(f"over must be positive, not {self.over}")

    def after(self, passed: float) -> float:
        share = min(1.0, passed / self.over)
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True, kw_only=True)
class Exponential(_Timed):
    """``start`` · ``rate``^i, going no further than ``cap``: upwards for a rate above 1, downwards for one below.

    >>> alpha = Exponential(start=1.0, rate=2.0, cap=10.0)
    >>> [alpha(Progress(epoch=e)) for e in (0, 1, 3, 9, 10_000)]
    [1.0, 2.0, 8.0, 10.0, 10.0]
    """

    rate: float
    cap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.rate < math.inf and 0 < self.start < math.inf):
            raise InputError("an exponential schedule needs a positive start and a positive rate")
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


@dataclass(frozen=True, kw_only=True)
class InverseSigmoid(_Timed):
    """``end`` + (start − end) · k / (k + exp(i / k)) (Bengio et al. 2015): the larger ``k``, the gentler.

    It is computed as a sigmoid, so that no exponential overflows. At i = 0 it is k / (k + 1) of the way, not all of it.

    >>> mixing = InverseSigmoid(k=10.0, warmup=1)
    >>> [round(mixing(Progress(epoch=e)), 3) for e in (0, 1, 11, 100_000)]
    [1.0, 0.909, 0.786, 0.0]
    """

    k: float
    end: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.k < math.inf:
            raise InputError(f"k must be positive, not {self.k}")

    def after(self, passed: float) -> float:
        share = sigmoid(math.log(self.k) - passed / self.k)
        return self.end + (self.start - self.end) * share


@dataclass(frozen=True, kw_only=True)
class Always(_Timed):
    """``start`` for the warm-up, then 0: as a mixing probability, never gold again.

    >>> Always(warmup=1)(Progress(epoch=0.5)), Always()(Progress())
    (1.0, 0.0)
    """

    def after(self, passed: float) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Rise:
    """From (nearly) 0 to ``end`` in the course of ``over`` units, and ``end`` from then on.

    With x = time / over the share of ``end`` before x = 1 is: nothing at all (``step``), x (``linear``), 0.001^(1 − x)
    (``exponential``), or a sigmoid from 0.001 to 0.999 (``sigmoid``).

    >>> Rise(end=0.5, over=100)(Progress(step=99)), Rise(end=0.5, over=100)(Progress(step=100))
    (0.0, 0.5)
    >>> round(Rise(end=0.5, over=0.5, unit="fraction", shape="linear")(Progress(step=10, total=80)), 3)
    0.125
    """

    end: float
    over: float = 0.0
    unit: Unit = "step"
    shape: Shape = "step"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, Unit)
        check_choice("shape", self.shape, Shape)
        check_duration("over", self.over, self.unit)

    def __call__(self, progress: Progress) -> float:
        if self.over == 0:
            return self.end
        x = time(progress, self.unit) / self.over
        return self.end if x >= 1 else self.end * self.share(x)

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
