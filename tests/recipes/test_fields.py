"""Build dataclasses from plain data, and the way back."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError, nearest
from unforced.objectives.schedules import Always, Constant, Linear
from unforced.options import Count, Options, Probability
from unforced.protocols import Schedule
from unforced.recipes.fields import build, to_mapping
from unforced.recipes.listing import describe

CONSTANT = Constant(1.0)


@dataclass(frozen=True)
class Inner(Options):
    width: Count = 8
    deep: bool = False


@dataclass(frozen=True)
class Everything(Options):
    """Every kind of field."""

    steps: int  # number of steps
    rate: float = 0.1
    label: str = "x"
    # a comment
    # of two lines
    flag: bool = False
    mode: Literal["fast", "slow", 3] = "fast"
    limit: Count | None = 5
    sizes: tuple[int, ...] = (1, 2)
    betas: tuple[float, float] = (0.9, 0.98)
    table: dict[str, float] = field(default_factory=dict)
    inner: Inner = Inner()
    schedule: Schedule = CONSTANT
    maybe: Schedule | None = None
    number: Probability | Schedule = 0.5
    path: str | None = None


def options_from(**values: Any) -> Everything:
    return build(Everything, {"steps": 1, **values}, "options")


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"rate": 2}, "rate", 2.0),
        ({"mode": 3}, "mode", 3),
        ({"limit": None}, "limit", None),
        ({"sizes": [3, 4, 5]}, "sizes", (3, 4, 5)),
        ({"betas": [0, 1]}, "betas", (0.0, 1.0)),
        ({"table": {"a": 1}}, "table", {"a": 1.0}),
        ({"inner": {"width": 3}}, "inner", Inner(3)),
        ({"inner": Inner(4)}, "inner", Inner(4)),
        ({"schedule": {"name": "linear", "end": 0.5, "over": 2}}, "schedule", Linear(end=0.5, over=2.0)),
        ({"schedule": "always"}, "schedule", Always()),
        ({"schedule": {"value": 0.25}}, "schedule", Constant(0.25)),  # the class of the default
        ({"schedule": Linear(end=0.5, over=2.0)}, "schedule", Linear(end=0.5, over=2.0)),
        ({"maybe": {"name": "linear", "end": 0, "over": 1}}, "maybe", Linear(end=0.0, over=1.0)),
        ({"number": 1}, "number", 1.0),
        ({"number": {"name": "linear", "end": 0, "over": 1}}, "number", Linear(end=0.0, over=1.0)),
    ],
)
def test_build_converts_values(given: dict[str, Any], name: str, value: Any) -> None:
    result = getattr(options_from(**given), name)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stpes": 2}, 'options.stpes: no such key; did you mean "options.steps"?'),
        ({"inner": {"widht": 2}}, 'options.inner.widht: no such key; did you mean "options.inner.width"?'),
        ({"inner": 3}, "options.inner must be an Inner, got 3"),
        ({"inner": {"width": 0}}, "options.inner.width must be at least 1, got 0"),
        ({"mode": "fats"}, "options.mode must be one of fast, slow, 3, got 'fats'; did you mean \"fast\"?"),
        ({"sizes": [1, "2"]}, "options.sizes[1] must be a whole number, got '2'"),
        ({"betas": [0.9]}, "options.betas must be a list of 2 values (a number, a number), got (0.9,)"),
        ({"table": {"a": "b"}}, "options.table.a must be a number, got 'b'"),
        (
            {"schedule": {"name": "linaer"}},
            "options.schedule.name must be one of constant, linear, exponential, inverse_sigmoid, always, rise, "
            "got 'linaer'; did you mean \"linear\"?",
        ),
        ({"schedule": {"endd": 1}}, "options.schedule.name is missing; there are: constant, linear"),
        (
            {"schedule": {"name": "linear", "edn": 1}},
            'options.schedule.edn: no such key; did you mean "options.schedule.end"?',
        ),
        ({"number": {"name": "linear", "end": 0, "over": -1}}, "options.number"),
        ({"number": [1]}, "options.number must be a number between 0 and 1 or a Schedule, got [1]"),
    ],
)
def test_errors_name_the_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        options_from(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_missing_value() -> None:
    with pytest.raises(InputError, match=r"^options\.steps is missing; it must be a whole number$"):
        build(Everything, {}, "options")


numbers = st.integers(-(2**31), 2**31)
floats = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)  # training flushes those to zero
schedules = st.one_of(st.builds(Constant, floats), st.builds(Linear, start=floats, end=floats, over=st.just(3.0)))
options = st.builds(
    Everything,
    steps=numbers,
    rate=floats,
    label=st.text(st.characters(exclude_characters="\0")),
    flag=st.booleans(),
    mode=st.sampled_from(["fast", "slow", 3]),
    limit=st.none() | st.integers(1, 2**31),
    sizes=st.lists(numbers).map(tuple),
    betas=st.tuples(floats, floats),
    table=st.dictionaries(st.text(), floats),
    inner=st.builds(Inner, st.integers(1, 2**31), st.booleans()),
    schedule=schedules,
    maybe=st.none() | schedules,
    number=st.floats(0, 1, allow_subnormal=False) | schedules,
    path=st.none() | st.text(st.characters(exclude_characters="\0")).filter(lambda text: text != "none"),
)


@settings(max_examples=40)
@given(options)
def test_round_trip(value: Everything) -> None:
    plain = to_mapping(value)
    assert build(Everything, plain, "options") == value
    assert set(plain) == set(Everything.__dataclass_fields__)


def test_describe() -> None:
    found = {entry["name"]: entry for entry in describe(Everything)}
    assert list(found) == list(Everything.__dataclass_fields__)
    assert found["steps"] == {
        "name": "steps", "expected": "a whole number", "required": True, "default": None, "choices": None,
        "doc": "number of steps",
    }  # fmt: skip
    assert found["flag"]["doc"] == "a comment of two lines"
    assert found["mode"]["choices"] == ["fast", "slow", 3]
    assert found["limit"]["expected"] == "a whole number of at least 1 or none"
    assert found["number"]["expected"] == "a number between 0 and 1 or a Schedule"
    assert found["schedule"]["choices"][:2] == ["constant", "linear"]
    assert found["schedule"]["default"] == {"name": "constant", "value": 1.0}
    assert found["inner"]["default"] == {"width": 8, "deep": False}


def test_missing_letters_find_the_nearest_key() -> None:
    known = ["epochs", "batch_tokens", "learning_rate", "warmup", "patience"]
    for word in known:
        for i in range(len(word)):
            assert nearest(word[:i] + word[i + 1 :], known) == f'did you mean "{word}"?'
