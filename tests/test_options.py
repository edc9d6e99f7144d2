"""Options: what a hint accepts, what it refuses and with which words."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import pytest

from unforced.errors import InputError
from unforced.options import (
    Above,
    AtLeast,
    AtMost,
    Below,
    Between,
    Count,
    Distinct,
    Fraction,
    Natural,
    NonEmptyStr,
    NonNegative,
    NotEmpty,
    Options,
    Positive,
    Probability,
    check_value,
    expected,
)

Names = Annotated[tuple[Literal["bleu", "chrf"], ...], NotEmpty(), Distinct()]


@runtime_checkable
class Shape(Protocol):
    def area(self) -> float: ...


class Untested(Protocol):
    def area(self) -> float: ...


class Square:
    def area(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Inner(Options):
    size: Count = 1


# hint, values that fit, values that do not
HINTS: list[tuple[Any, list[Any], list[Any]]] = [
    (bool, [True, False], [0, 1, None, "true"]),
    (int, [0, -3, 10**12], [True, 1.0, "1", None, math.nan]),
    (float, [0.5, -2.0, 3], [True, "1", None, math.nan, math.inf, -math.inf]),
    (str, ["", "a"], [1, None, b"a"]),
    (NonEmptyStr, ["a"], ["", 1, None]),
    (Count, [1, 7], [0, -1, 1.0, True, None]),
    (Natural, [0, 7], [-1, 0.0, False]),
    (Positive, [1e-30, 3], [0, 0.0, -1, math.nan, math.inf, "1"]),
    (NonNegative, [0, 0.0, 4], [-1e-9, math.inf]),
    (Probability, [0, 0.5, 1.0], [-0.1, 1.1, math.nan]),
    (Fraction, [0, 0.99], [1, 1.0, -0.1]),
    (Annotated[float, Above(0), Below(0.5)], [0.1], [0, 0.5]),
    (Annotated[int, Above(1), AtMost(3)], [2, 3], [1, 4]),
    (Annotated[int, Between(2, 4)], [2, 4], [1, 5]),
    (Literal["a", "b"], ["a", "b"], ["c", "A", 1, None, ["a"]]),
    (Literal[1, 2], [1, 2], [3, True, 1.0, "1"]),
    (Count | None, [None, 1], [0, "none", 1.0]),
    (Probability | Shape, [0.5, Square()], [1.5, Square, "a", None]),
    (Literal["a"] | Callable[[int], int] | None, ["a", None, abs], ["b", 1]),
    (tuple[int, ...], [(), (1, 2)], [[1], (1, "a"), 1, None, (True,)]),
    (tuple[Fraction, Fraction], [(0.9, 0.98)], [(0.9,), (0.9, 1.0), [0.9, 0.98]]),
    (Names, [("bleu",), ("bleu", "chrf")], [(), ("bleu", "bleu"), ("blue",), ["bleu"]]),
    (dict[str, Count], [{}, {"a": 1}], [{"a": 0}, [("a", 1)], None]),
    (Inner, [Inner()], [Inner, {"size": 1}, None]),
    (frozenset[int], [frozenset()], [set(), None]),
    (Untested, [Square(), 3], []),
    (Any, [None, 3, Square], []),
]


@pytest.mark.parametrize(("hint", "good", "bad"), HINTS, ids=[str(hint) for hint, _, _ in HINTS])
def test_a_hint_accepts_and_refuses(hint, good, bad):
    One = dataclass(frozen=True)(type("One", (Options,), {"__annotations__": {"field": hint}}))
    for value in good:
        assert One(value).field is value
        check_value("field", hint, value)
    for value in bad:
        with pytest.raises(InputError, match=r"^field\S* must be .*, got ") as by_class:
            One(value)
        with pytest.raises(InputError) as by_function:
            check_value("field", hint, value)
        assert str(by_class.value) == str(by_function.value)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Count, 0, "x must be at least 1, got 0"),
        (Count, 2.5, "x must be a whole number of at least 1, got 2.5"),
        (Count | None, 0, "x must be at least 1, got 0"),
        (Count | None, "a", "x must be a whole number of at least 1 or none, got 'a'"),
        (Fraction, 1, "x must be at least 0 and below 1, got 1"),
        (Literal["argmax", "sample"], "beam", "x must be one of argmax, sample, got 'beam'"),
        (
            Literal["argmax", "sample"],
            "smaple",
            "x must be one of argmax, sample, got 'smaple'; did you mean \"sample\"?",
        ),
        (Probability | Shape, 2, "x must be between 0 and 1, got 2"),
        (Probability | Shape, "a", "x must be a number between 0 and 1 or a Shape, got 'a'"),
        (Names, ("blue",), "x[0] must be one of bleu, chrf, got 'blue'; did you mean \"bleu\"?"),
        (Names, ["bleu"], "x must be a tuple, not a list, got ['bleu']"),
        (dict[str, Count], {"a": 0}, "x.a must be at least 1, got 0"),
        (str, list(range(99)), f"x must be a string, got {str(list(range(99)))[:59]}…"),
    ],
)  # fmt: skip
def test_the_message_is_one_sentence(hint, value, text):
    with pytest.raises(InputError) as error:
        check_value("x", hint, value)
    assert str(error.value) == text


@dataclass(frozen=True)
class Tree(Options):
    """Refers to itself and to a class that is defined later."""

    kind: ClassVar[str] = "tree"
    low: Natural = 0
    high: Natural = 9
    below: "Tree | None" = None
    later: "Later | None" = None

    def check(self) -> None:
        if self.low > self.high:
            raise InputError(f"low must not exceed high, got {self.low} and {self.high}")


class Later:
    pass


def test_forward_references_and_checks_of_two_fields():
    tree = Tree(1, 2, Tree(), Later())
    assert replace(tree, low=2).low == 2
    with pytest.raises(InputError, match="low must not exceed high, got 3 and 2"):
        replace(tree, low=3)
    with pytest.raises(InputError, match="below must be a Tree or none, got 3"):
        Tree(below=3)


def test_words():
    assert expected(dict[str, int]) == "a table"
    assert expected(Names) == "a list (each one of bleu, chrf), not empty and without repeated values"
    assert expected(Annotated[int, "no range"]) == "a whole number"
    assert expected(Callable[[int], int] | None) == "a function or none"
    assert expected(Annotated[float, AtLeast(0), AtMost(2)]) == "a number of at least 0 and at most 2"
