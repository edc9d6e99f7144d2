"""Schedules against their formulas, at and after their ends."""

import math

import pytest

from unforced.errors import InputError
from unforced.objectives.schedules import Always, Constant, Exponential, InverseSigmoid, Linear, Rise
from unforced.protocols import Schedule
from unforced.recipes.fields import convert, to_plain
from unforced.types import Progress


def epochs(schedule: Schedule, *moments: float) -> list[float]:
    return [schedule(Progress(epoch=moment)) for moment in moments]


def test_inverse_sigmoid_equals_the_formula_of_the_paper():
    for k in (1.0, 10.0, 100.0):
        for i in (0, 1, 5, 40):
            expected = k / (k + math.exp(i / k))
            assert InverseSigmoid(k=k)(Progress(epoch=i)) == pytest.approx(expected, rel=1e-12)


def test_inverse_sigmoid_does_not_overflow():
    assert epochs(InverseSigmoid(k=1.0), 1e3, 1e9) == pytest.approx([0, 0])
    values = [InverseSigmoid(k=k)(Progress(epoch=4)) for k in (1.0, 10.0, 100.0)]
    assert values == sorted(values)


def test_warmups_keep_the_start_value():
    mixing = InverseSigmoid(k=10.0, warmup=1)
    assert epochs(mixing, 0, 0.99) == [1.0, 1.0]
    assert mixing(Progress(epoch=1.0)) == pytest.approx(10 / 11)
    assert mixing(Progress(epoch=1.9)) == mixing(Progress(epoch=1.0))  # epochs are whole ones
    assert epochs(Always(warmup=2), 1.9, 2.0, 50) == [1.0, 0.0, 0.0]


def test_linear_stays_at_its_end():
    assert epochs(Linear(start=1.0, end=0.2, over=4), 0, 1, 4, 9) == pytest.approx([1.0, 0.8, 0.2, 0.2])
    by_step = Linear(start=0.0, end=1.0, over=10, warmup=5, unit="step")
    assert [by_step(Progress(step=s)) for s in (0, 5, 10, 15, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_exponential_stops_at_its_cap():
    assert epochs(Exponential(start=1.0, rate=2.0, cap=10.0), 0, 3, 4, 1e6) == [1.0, 8.0, 10.0, 10.0]
    assert epochs(Exponential(start=1.0, rate=0.5, cap=0.1), 1, 3, 4, 1e6) == [0.5, 0.125, 0.1, 0.1]
    assert math.isfinite(Exponential(start=1.0, rate=2.0)(Progress(epoch=1e9)))


@pytest.mark.parametrize("shape", ["step", "linear", "exponential", "sigmoid"])
def test_rises_go_from_zero_to_their_end(shape):
    rise = Rise(end=0.5, over=100, shape=shape)
    values = [rise(Progress(step=s)) for s in range(0, 120, 10)]
    assert values == sorted(values)
    assert values[0] < 0.001
    assert values[10:] == [0.5, 0.5]
    by_fraction = Rise(end=0.5, over=0.5, unit="fraction", shape=shape)
    assert by_fraction(Progress(step=30, total=120)) == pytest.approx(rise(Progress(step=50)))


@pytest.mark.parametrize(("unit", "missing"), [("fraction", r"total=\.\.\."), ("epoch", r"epoch=\.\.\.")])
def test_loops_must_give_the_time_that_a_schedule_needs(unit, missing):
    with pytest.raises(InputError, match=missing):
        Linear(end=0.5, over=1, unit=unit)(Progress(step=1))
    assert Linear(end=0.5, over=2, unit="step")(Progress(step=1)) == 0.75


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Linear(end=0.0, over=0.5), "fraction"),
        (lambda: Linear(end=0.0, over=1, warmup=2, unit="fraction"), "warmup"),
        (lambda: Exponential(start=1.0, rate=2.0, cap=0.5), "cap"),
        (lambda: Rise(end=0.5, over=0.5), "fraction"),
    ],
)
def test_fields_that_contradict_each_other_raise(make, word):
    with pytest.raises(InputError, match=word):
        make()


@pytest.mark.parametrize(
    ("plain", "schedule"),
    [
        (0.25, 0.25),
        ("always", Always()),
        ({"name": "inverse_sigmoid", "k": 10, "warmup": 1}, InverseSigmoid(k=10.0, warmup=1.0)),
        ({"name": "linear", "start": 1, "end": 0, "over": 3}, Linear(start=1.0, end=0.0, over=3.0)),
        ({"name": "constant", "value": 0.5}, Constant(0.5)),
        ({"name": "exponential", "start": 1, "rate": 2, "cap": 9}, Exponential(start=1.0, rate=2.0, cap=9.0)),
    ],
)
def test_schedules_round_trip_through_plain_data(plain, schedule):
    value = convert(float | Schedule, plain, "mixing")
    assert value == schedule
    assert convert(float | Schedule, to_plain(value, float | Schedule), "mixing") == schedule
