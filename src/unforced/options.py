"""Frozen dataclasses whose fields are checked against their type hints.

A class of options derives from `Options`. The hint of a field may be bool, int, float (finite; an int fits), str, a
`Literal`, a tuple, a dict, a class, a protocol, a callable, or a union of these. `Annotated` adds a range:

    >>> @dataclass(frozen=True)
    ... class Search(Options):
    ...     beam: Count = 5
    ...     dropout: Annotated[float, AtLeast(0), Below(1)] = 0.1
    ...     scores: Literal["local", "global"] = "local"
    ...     longest: Count | None = None
    >>> Search(beam=0)
    Traceback (most recent call last):
    unforced.errors.InputError: beam must be at least 1, got 0
    >>> Search(scores="glob")
    Traceback (most recent call last):
    unforced.errors.InputError: scores must be one of local, global, got 'glob'; did you mean "global"?
"""

import math
import operator
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from unforced.errors import InputError, closest

P = ParamSpec("P")
R = TypeVar("R")

# Ranges


class Range(ABC):
    """A condition on the value of a field, written into `Annotated`; its string completes "must be ..."."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Return whether the value satisfies the condition."""


@dataclass(frozen=True)
class Bound(Range):
    """One end of a range; subclasses name it and compare a value with it."""

    bound: float
    words: ClassVar[str]
    compare: ClassVar[Callable[[Any, Any], bool]]

    def holds(self, value: Any) -> bool:
        return bool(type(self).compare(value, self.bound))

    def __str__(self) -> str:
        return f"{self.words} {self.bound:g}"


class AtLeast(Bound):
    words, compare = "at least", operator.ge


class Above(Bound):
    words, compare = "above", operator.gt


class AtMost(Bound):
    """With the bound inf it accepts infinity, which other ranges refuse."""

    words, compare = "at most", operator.le


class Below(Bound):
    words, compare = "below", operator.lt


@dataclass(frozen=True)
class Between(Range):
    low: float  # both ends are included
    high: float

    def holds(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        return f"between {self.low:g} and {self.high:g}"


@dataclass(frozen=True)
class NotEmpty(Range):
    def holds(self, value: Any) -> bool:
        return len(value) > 0

    def __str__(self) -> str:
        return "not empty"


@dataclass(frozen=True)
class Distinct(Range):
    def holds(self, value: Any) -> bool:
        return len(set(value)) == len(value)

    def __str__(self) -> str:
        return "without repeated values"


Count = Annotated[int, AtLeast(1)]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[float, Above(0)]
NonNegative = Annotated[float, AtLeast(0)]
Probability = Annotated[float, Between(0, 1)]
Fraction = Annotated[float, AtLeast(0), Below(1)]  # of dropout, label smoothing, ...
PositiveFraction = Annotated[float, Above(0), AtMost(1)]
Temperature = Annotated[float, AtLeast(0), AtMost(math.inf)]
NonEmptyStr = Annotated[str, NotEmpty()]


# Options


@dataclass(frozen=True)
class Options:
    """Base of the frozen dataclasses whose fields a user sets; raises `InputError` if a value does not fit its hint."""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for field in fields(self):
            if field.init:
                check_value(field.name, hints[field.name], getattr(self, field.name))
        self.check()

    def check(self) -> None:
        """Raise `InputError` if two fields contradict each other; override where needed."""


def check_value(name: str, hint: Any, value: Any) -> None:
    """Raise `InputError` if ``value`` does not fit the type hint.

    >>> check_value("training.warmup", Natural, -1)
    Traceback (most recent call last):
    unforced.errors.InputError: training.warmup must be at least 0, got -1
    """
    problem = _find_problem(hint, value)
    if problem is not None:
        text = f"{name}{problem.place} must be {problem.must}, got {show(problem.value)}"
        raise InputError(f"{text}; {problem.advice}" if problem.advice else text)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function against their type hints, as `Options` does for fields.

    >>> @checked
    ... def double(count: Count, *names: str) -> int:
    ...     return 2 * count
    >>> double(3)
    6
    >>> double(0)
    Traceback (most recent call last):
    unforced.errors.InputError: count must be at least 1, got 0
    """
    parameters = signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in parameters.bind(*args, **kwargs).arguments.items():
            several = parameters.parameters[name].kind is Parameter.VAR_POSITIONAL
            if name in function.__annotations__:
                for each in value if several else (value,):
                    check_value(name, function.__annotations__[name], each)
        return function(*args, **kwargs)

    return call


def hints_of(cls: type) -> dict[str, Any]:
    """Return the type hints of a class by field name, ranges included."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls, include_extras=True)
    return _HINTS[cls]


_HINTS: dict[type, dict[str, Any]] = {}  # resolving hints is slow


def show(value: Any) -> str:
    """Return the representation of a value, shortened to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


# Words for a type


_PLAIN = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    type(None): "none",
    Any: "any value",
    Path: "a path",
}


def expected(hint: Any) -> str:
    """Describe the values that fit a type hint.

    >>> expected(Probability), expected(Count | None)
    ('a number between 0 and 1', 'a whole number of at least 1 or none')
    >>> expected(Literal["a", "b"]), expected(tuple[float, float]), expected(tuple[int, ...])
    ('one of a, b', 'a list of 2 values (a number, a number)', 'a list (each a whole number)')
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated:
        base, ranges = expected(args[0]), _join(_ranges(hint))
        if base not in ("a number", "a whole number"):
            return f"{base}, {ranges}" if ranges else base
        return f"{base} {'of ' if ranges.startswith('at ') else ''}{ranges}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join(expected(option) for option in args)
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple:
        if args[-1:] == (Ellipsis,):
            return f"a list (each {expected(args[0])})"
        return f"a list of {len(args)} values ({', '.join(map(expected, args))})"
    if origin in (dict, Mapping) or hint is Mapping:
        return "a table"
    if origin in (Iterable, Sequence):
        return "a list"
    if origin is Callable or hint is Callable:
        return "a function"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _ranges(hint: Any) -> list[Range]:
    return [extra for extra in hint.__metadata__ if isinstance(extra, Range)]


def _join(ranges: list[Range]) -> str:
    return " and ".join(map(str, ranges))


# Checks


class _Problem(NamedTuple):
    """What a value must be and is not."""

    must: str
    value: Any
    place: str = ""  # inside the field: "[2]"
    advice: str = ""  # "did you mean ...?"


def _find_problem(hint: Any, value: Any, infinite: bool = False) -> _Problem | None:
    """Return what is wrong with a value, or None if it fits the hint; ``infinite`` allows infinite floats."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _check_ranges(hint, value)
    if origin in (Union, types.UnionType):
        return _check_union(hint, value)
    if origin is Literal:
        return _check_literal(hint, value)
    if origin is dict and isinstance(value, Mapping):
        return _check_items([(f".{key}", args[1], item) for key, item in value.items()])
    if origin is tuple and isinstance(value, list):
        return _Problem("a tuple, not a list", value)
    if origin is tuple and isinstance(value, tuple):
        hints = args[:1] * len(value) if args[-1] is Ellipsis else args
        if len(hints) == len(value):
            return _check_items([(f"[{i}]", *item) for i, item in enumerate(zip(hints, value))])
        fits = False
    elif origin is Callable or hint is Callable:
        fits = callable(value)
    elif origin in (Iterable, Sequence) and isinstance(value, str):
        fits = False  # a text is not a list of characters
    elif hint is str:
        fits = isinstance(value, str) and "\0" not in value  # no path and no name has a NUL
    elif hint is int or hint is float:
        whole = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        fits = whole or (hint is float and isinstance(value, float) and (math.isfinite(value) or infinite))
    else:
        fits = _is_instance(value, origin or hint)
    advice = f"pass an object, {value.__name__}(…)" if isinstance(value, type) else ""
    if isinstance(value, int) and abs(value) >= 2**63:
        advice = "the number is too large for 64 bits"
    return None if fits else _Problem(expected(hint), value, advice=advice)


def _check_ranges(hint: Any, value: Any) -> _Problem | None:
    inner, ranges = get_args(hint)[0], _ranges(hint)
    problem = _find_problem(inner, value, infinite=AtMost(math.inf) in ranges)
    if problem is not None:
        return problem._replace(must=expected(hint)) if problem.must == expected(inner) else problem
    return None if all(each.holds(value) for each in ranges) else _Problem(_join(ranges), value)


def _check_union(hint: Any, value: Any) -> _Problem | None:
    advice, closest = "", None
    for option in get_args(hint):
        problem = _find_problem(option, value)
        if problem is None:
            return None
        advice = advice or problem.advice
        if problem.must != expected(option):  # the right type, but not the right value
            closest = problem
    return closest or _Problem(expected(hint), value, advice=advice)


def _check_literal(hint: Any, value: Any) -> _Problem | None:
    choices = get_args(hint)
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return None
    near = closest(value, [each for each in choices if isinstance(each, str)]) if isinstance(value, str) else None
    return _Problem(expected(hint), value, advice=f'did you mean "{near}"?' if near is not None else "")


def _check_items(items: list[tuple[str, Any, Any]]) -> _Problem | None:
    """Return the first problem of items, given as their place, hint and value."""
    for place, hint, item in items:
        problem = _find_problem(hint, item)
        if problem is not None:
            return problem._replace(place=place + problem.place)
    return None


def _is_instance(value: Any, cls: Any) -> bool:
    try:
        return isinstance(value, cls) and not isinstance(value, type)  # a class may have the members of a protocol
    except TypeError:  # a hint that can't be checked, such as Any
        return True
