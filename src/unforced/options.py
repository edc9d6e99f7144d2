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
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from unforced.errors import InputError, nearest

# Ranges


class Range(ABC):
    """A condition on the value of a field, written into `Annotated`; its string completes "must be ..."."""

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Return whether the value satisfies the condition."""


@dataclass(frozen=True)
class AtLeast(Range):
    bound: float

    def holds(self, value: Any) -> bool:
        return bool(value >= self.bound)

    def __str__(self) -> str:
        return f"at least {self.bound:g}"


@dataclass(frozen=True)
class Above(Range):
    bound: float

    def holds(self, value: Any) -> bool:
        return bool(value > self.bound)

    def __str__(self) -> str:
        return f"above {self.bound:g}"


@dataclass(frozen=True)
class AtMost(Range):
    bound: float  # inf accepts infinity, which other ranges refuse

    def holds(self, value: Any) -> bool:
        return bool(value <= self.bound)

    def __str__(self) -> str:
        return f"at most {self.bound:g}"


@dataclass(frozen=True)
class Below(Range):
    bound: float

    def holds(self, value: Any) -> bool:
        return bool(value < self.bound)

    def __str__(self) -> str:
        return f"below {self.bound:g}"


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


class Options:
    """Base of the frozen dataclasses whose fields a user sets; raises `InputError` if a value does not fit its hint."""

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)):
            problem = check(getattr(self, name))
            if problem is not None:
                raise _error(name, problem)
        self.check()

    def check(self) -> None:
        """Raise `InputError` if two fields contradict each other; override where needed."""


def check_value(name: str, hint: Any, value: Any) -> None:
    """Raise `InputError` if ``value`` does not fit the type hint.

    >>> check_value("training.warmup", Natural, -1)
    Traceback (most recent call last):
    unforced.errors.InputError: training.warmup must be at least 0, got -1
    """
    problem = _compile(hint)(value)
    if problem is not None:
        raise _error(name, problem)


def hints_of(cls: type) -> dict[str, Any]:
    """Return the type hints of a class by field name, ranges included."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls, include_extras=True)
    return _HINTS[cls]


def _checks(cls: Any) -> "list[tuple[str, _Check]]":
    if cls not in _CHECKS:
        _CHECKS[cls] = [(f.name, _compile(hints_of(cls)[f.name])) for f in fields(cls) if f.init]
    return _CHECKS[cls]


_HINTS: dict[type, dict[str, Any]] = {}  # resolving hints is slow
_CHECKS: "dict[type, list[tuple[str, _Check]]]" = {}


def _error(name: str, problem: "_Problem") -> InputError:
    text = f"{name}{problem.place} must be {problem.must}, got {show(problem.value)}"
    return InputError(f"{text}; {problem.advice}" if problem.advice else text)


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
        base, ranges = expected(args[0]), ranges_of(hint)
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
    if origin is dict:
        return "a table"
    if origin is Callable or hint is Callable:
        return "a function"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def ranges_of(hint: Any) -> str:
    """Describe the ranges of an `Annotated` hint: "at least 0 and below 1"; empty without."""
    ranges = [str(extra) for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Range)]
    return " and ".join(ranges)


# Checks: each hint becomes a function that returns None if a value fits


class _Problem(NamedTuple):
    """What a value must be and is not."""

    must: str
    value: Any
    place: str = ""  # inside the field: "[2]"
    advice: str = ""  # "did you mean ...?"


_Check = Callable[[Any], _Problem | None]


def _compile(hint: Any, infinite: bool = False) -> _Check:
    origin, args, must = get_origin(hint), get_args(hint), expected(hint)
    if origin is Annotated:
        return _ranged(hint)
    if origin in (Union, types.UnionType):
        return _union(args, must)
    if origin is Literal:
        return _literal(args, must)
    if origin is tuple:
        return _tuple(args, must)
    if origin is dict:
        return _dict(args[1], must)
    if origin is Callable or hint is Callable:
        return lambda value: None if callable(value) else _Problem(must, value)
    if hint is float:
        return lambda value: None if _is_float(value, infinite) or _is_int(value) else _Problem(must, value)
    if hint is int:
        return lambda value: None if _is_int(value) else _Problem(must, value)
    return _instance(origin or hint, must)


def _is_float(value: Any, infinite: bool) -> bool:
    return isinstance(value, float) and (math.isfinite(value) or (infinite and math.isinf(value)))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and value is not True and value is not False


def _instance(cls: Any, must: str) -> _Check:
    """Check for an ordinary class or a runtime-checkable protocol; accept everything for other hints."""
    protocol = getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False)
    if cls is Any or protocol or is_typeddict(cls) or not isinstance(cls, type):
        return lambda value: None
    known: set[type] = set()  # classes that passed: isinstance with a protocol is slow

    def check(value: Any) -> _Problem | None:
        if type(value) in known:
            return None
        if not isinstance(value, cls) or (isinstance(value, type) and cls is not type):  # a class is no instance
            return _Problem(must, value)
        known.add(type(value))
        return None

    return check


def _ranged(hint: Any) -> _Check:
    inner, ranges = get_args(hint)[0], [extra for extra in hint.__metadata__ if isinstance(extra, Range)]
    base = _compile(inner, infinite=AtMost(math.inf) in ranges)
    plain, whole, words = expected(inner), expected(hint), ranges_of(hint)

    def check(value: Any) -> _Problem | None:
        problem = base(value)
        if problem is not None:
            return problem._replace(must=whole) if problem.must == plain else problem
        for extra in ranges:
            if not extra.holds(value):
                return _Problem(words, value)
        return None

    return check


def _union(options: tuple[Any, ...], must: str) -> _Check:
    checks = [(_compile(option), expected(option)) for option in options]

    def check(value: Any) -> _Problem | None:
        advice, closest = "", None
        for one, words in checks:
            problem = one(value)
            if problem is None:
                return None
            advice = advice or problem.advice
            if problem.must != words:  # the right type, but not the right value
                closest = problem
        return closest or _Problem(must, value, advice=advice)

    return check


def _literal(choices: tuple[Any, ...], must: str) -> _Check:
    known = [choice for choice in choices if isinstance(choice, str)]

    def check(value: Any) -> _Problem | None:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return None
        advice = nearest(value, known) if isinstance(value, str) else ""
        return _Problem(must, value, advice=advice if advice.startswith("did you mean") else "")

    return check


def _tuple(args: tuple[Any, ...], must: str) -> _Check:
    variable = args[-1:] == (Ellipsis,)
    checks = [_compile(arg) for arg in args if arg is not Ellipsis]

    def check(value: Any) -> _Problem | None:
        if not isinstance(value, tuple):
            return _Problem("a tuple, not a list" if isinstance(value, list) else must, value)
        if not variable and len(value) != len(checks):
            return _Problem(must, value)
        for i, item in enumerate(value):
            problem = checks[0 if variable else i](item)
            if problem is not None:
                return problem._replace(place=f"[{i}]{problem.place}")
        return None

    return check


def _dict(hint: Any, must: str) -> _Check:
    inner = _compile(hint)

    def check(value: Any) -> _Problem | None:
        if not isinstance(value, Mapping):
            return _Problem(must, value)
        for key, item in value.items():
            problem = inner(item)
            if problem is not None:
                return problem._replace(place=f".{key}{problem.place}")
        return None

    return check
