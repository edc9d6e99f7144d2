"""Strict construction of dataclasses from plain data: every type, every complaint, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unforced.describe import describe
from unforced.errors import InputError
from unforced.schema import build, nearest, to_mapping


@dataclass(frozen=True)
class Constant:
    value: float = 1.0


@dataclass(frozen=True)
class Linear:
    start: float = 1.0
    end: float = 0.0


@dataclass(frozen=True)
class Inner:
    width: int = 8
    deep: bool = False


@dataclass(frozen=True)
class Options:
    """Everything a field can be.

    ``label`` says what it is called. Nothing else does.
    """

    steps: int  # how many
    rate: float = 0.1
    label: str = "x"
    flag: bool = False
    mode: Literal["fast", "slow", 3] = "fast"
    limit: int | None = 5
    word: Literal["none", "some"] | None = None
    sizes: tuple[int, ...] = (1, 2)
    betas: tuple[float, float] = (0.9, 0.98)
    table: dict[str, float] = field(default_factory=dict)
    inner: Inner = Inner()
    schedule: Constant | Linear = Constant()
    maybe: Constant | Linear | None = None
    number: float | Linear = 0.5
    path: str | None = None


def named(hint: Any) -> dict[str, type] | None:
    """A resolver that knows the two schedules wherever both are allowed."""
    if hint == Constant | Linear:
        return {"constant": Constant, "linear": Linear}
    return {"linear": Linear} if hint is Linear else None


def made(**values: Any) -> Options:
    return build(Options, {"steps": 1, **values}, "options", named)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"rate": 2}, "rate", 2.0),
        ({"mode": 3}, "mode", 3),
        ({"limit": None}, "limit", None),
        ({"limit": "none"}, "limit", None),
        ({"path": "none"}, "path", None),
        ({"word": "none"}, "word", "none"),  # a choice of that name keeps its meaning
        ({"word": None}, "word", None),
        ({"sizes": [3, 4, 5]}, "sizes", (3, 4, 5)),
        ({"sizes": []}, "sizes", ()),
        ({"betas": [0, 1]}, "betas", (0.0, 1.0)),
        ({"table": {"a": 1}}, "table", {"a": 1.0}),
        ({"inner": {"width": 3}}, "inner", Inner(3)),
        ({"inner": Inner(4)}, "inner", Inner(4)),
        ({"schedule": {"name": "linear", "end": 0.5}}, "schedule", Linear(end=0.5)),
        ({"schedule": "linear"}, "schedule", Linear()),
        ({"schedule": {"value": 0.25}}, "schedule", Constant(0.25)),  # the default's kind
        ({"schedule": Linear(2.0)}, "schedule", Linear(2.0)),
        ({"maybe": {"name": "linear"}}, "maybe", Linear()),
        ({"maybe": "none"}, "maybe", None),
        ({"number": 1}, "number", 1.0),
        ({"number": {"name": "linear"}}, "number", Linear()),
    ],
)
def test_values_are_read(given: dict[str, Any], name: str, value: Any) -> None:
    result = getattr(made(**given), name)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stpes": 2}, 'options.stpes: no such key; did you mean "steps"?'),
        ({"RATE": 2.0}, 'options.RATE: no such key; did you mean "rate"?'),
        ({"qqqq": 2}, "options.qqqq: no such key; there are: steps, rate, "),
        ({"_target_": "os.system"}, "options._target_: no such key"),
        ({"inner": {"widht": 2}}, 'options.inner.widht: no such key; did you mean "width"?'),
        ({"inner": 3}, "options.inner: expected a table, not 3"),
        ({"inner": {"width": 2.0}}, "options.inner.width: expected a whole number, not 2.0"),
        ({"steps": True}, "options.steps: expected a whole number, not true"),
        ({"steps": "3"}, 'options.steps: expected a whole number, not "3"'),
        ({"rate": True}, "options.rate: expected a number, not true"),
        ({"rate": float("nan")}, "options.rate: expected a number, not nan"),
        ({"rate": "1e-3"}, 'options.rate: expected a number, not "1e-3"'),
        ({"label": 3}, "options.label: expected a string, not 3"),
        ({"flag": 1}, "options.flag: expected true or false, not 1"),
        ({"mode": "fats"}, 'one of "fast", "slow", 3, not "fats"; did you mean "fast"?'),
        ({"mode": 3.0}, 'options.mode: expected one of "fast", "slow", 3, not 3.0'),
        ({"limit": 1.5}, "options.limit: expected a whole number, not 1.5"),
        ({"sizes": 3}, "options.sizes: expected a list (each a whole number), not 3"),
        ({"sizes": [1, "2"]}, 'options.sizes[1]: expected a whole number, not "2"'),
        ({"betas": [0.9]}, "options.betas: expected 2 values, not 1"),
        ({"table": [1]}, "options.table: expected a table, not [1]"),
        ({"table": {"a": "b"}}, 'options.table.a: expected a number, not "b"'),
        (
            {"schedule": {"name": "linaer"}},
            'options.schedule.name: "linaer" is unknown; did you mean "linear"?',
        ),
        ({"schedule": {"end": 1}}, "options.schedule.name: a value is missing; there are: constant, linear"),
        (
            {"schedule": {"name": "linear", "edn": 1}},
            'options.schedule.edn: no such key; did you mean "end"?',
        ),
        ({"schedule": 3}, "options.schedule: expected a table with a name, not 3"),
        ({"maybe": {"name": "linear", "edn": 1}}, 'options.maybe.edn: no such key; did you mean "end"?'),
        ({"number": {"name": "linear", "edn": 1}}, 'options.number.edn: no such key; did you mean "end"?'),
        ({"number": [1]}, "options.number: expected a number or a table with a name (linear), not [1]"),
        ({"label": "y" * 10, "rate": "z" * 500}, "…"),
    ],
)
def test_faults_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        made(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_missing_value() -> None:
    with pytest.raises(InputError, match=r"^options\.steps: a value is missing; expected a whole number$"):
        build(Options, {}, "options", named)


def test_complaints_of_the_class_say_where() -> None:
    from unforced.objectives.label_smoothing import LabelSmoothing

    with pytest.raises(InputError, match=r"^objective: smoothing must lie in"):
        build(LabelSmoothing, {"smoothing": 2}, "objective")


def test_unreadable_types_are_the_programmers_fault() -> None:
    @dataclass(frozen=True)
    class Odd:
        data: bytes = b""

    with pytest.raises(TypeError, match="can't be read from plain data"):
        build(Odd, {"data": "x"})


numbers = st.integers(-(2**31), 2**31)
floats = st.floats(allow_nan=False, allow_subnormal=False)  # training flushes those to zero
schedules = st.one_of(st.builds(Constant, floats), st.builds(Linear, floats, floats))
options = st.builds(
    Options,
    steps=numbers,
    rate=floats,
    label=st.text(),
    flag=st.booleans(),
    mode=st.sampled_from(["fast", "slow", 3]),
    limit=st.none() | numbers,
    word=st.sampled_from(["none", "some", None]),
    sizes=st.lists(numbers).map(tuple),
    betas=st.tuples(floats, floats),
    table=st.dictionaries(st.text(), floats),
    inner=st.builds(Inner, numbers, st.booleans()),
    schedule=schedules,
    maybe=st.none() | schedules,
    number=floats | st.builds(Linear, floats, floats),
    path=st.none() | st.text().filter(lambda text: text != "none"),
)


@given(options)
def test_round_trip(value: Options) -> None:
    plain = to_mapping(value, named)
    assert build(Options, plain, "options", named) == value
    assert set(plain) == set(Options.__dataclass_fields__)


def test_integers_in_float_fields_are_written_as_floats() -> None:
    assert repr(to_mapping(Options(1, rate=2), named)["rate"]) == "2.0"
    assert repr(to_mapping(Options(1, mode=3), named)["mode"]) == "3"


def test_describe() -> None:
    found = {entry["name"]: entry for entry in describe(Options, named)}
    assert list(found) == list(Options.__dataclass_fields__)
    assert found["steps"] == {
        "name": "steps", "type": "int", "required": True, "default": None, "choices": None, "doc": "how many",
    }  # fmt: skip
    assert found["label"]["doc"] == "``label`` says what it is called."
    assert found["mode"]["choices"] == ["fast", "slow", 3]
    assert found["mode"]["type"] == "str | int"
    assert found["limit"]["type"] == "int | None"
    assert found["sizes"]["type"] == "tuple[int, ...]"
    assert found["schedule"]["choices"] == ["constant", "linear"]
    assert found["schedule"]["default"] == {"name": "constant", "value": 1.0}
    assert found["inner"]["default"] == {"width": 8, "deep": False}


@given(st.sampled_from(["epochs", "batch_tokens", "learning_rate", "warmup", "patience"]), st.data())
def test_nearest_finds_a_misspelt_key(word: str, data: st.DataObject) -> None:
    known = ["epochs", "batch_tokens", "learning_rate", "warmup", "patience"]
    at = data.draw(st.integers(0, len(word) - 1))
    assert nearest(word[:at] + word[at + 1 :], known) == f'did you mean "{word}"?'
