"""Error rates against hand-made cases and a plain dynamic programme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.metrics.text import ErrorRate, ExactError

TOKENS = st.lists(st.sampled_from("abc"), max_size=6)


def distance(a: list[str], b: list[str]) -> int:
    """Wagner and Fischer's table."""
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (x != y))
    return int(table[-1, -1])


@given(st.lists(st.tuples(TOKENS, st.lists(TOKENS, min_size=1, max_size=3)), min_size=1))
@settings(max_examples=60, deadline=None)
def test_errors_are_those_of_the_nearest_answer(corpus: list[tuple[list[str], list[list[str]]]]) -> None:
    outputs, answers = [c[0] for c in corpus], [c[1] for c in corpus]
    rows = ErrorRate().statistics(outputs, answers)
    assert rows.dtype == np.float64
    for row, (output, acceptable) in zip(rows, corpus):
        errors = [distance(output, answer) for answer in acceptable]
        assert row[0] == min(errors)
        assert row[1] == len(acceptable[errors.index(min(errors))])
    joined = ErrorRate().statistics([" ".join(o) for o in outputs], [[" ".join(a) for a in c] for c in answers])
    assert (joined == rows).all()


def test_units() -> None:
    assert ErrorRate(unit="word").statistics(["a bc"], [["a bd"]]).tolist() == [[1, 2]]
    assert ErrorRate(unit="character").statistics(["a bc"], [["a bd"]]).tolist() == [[1, 4]]


def test_scores_of_sums() -> None:
    metric = ErrorRate("wer")
    rows = metric.statistics(["a b", "", "x"], [["a c"], ["a"], ["x y z"]])
    assert rows.tolist() == [[1, 2], [1, 1], [2, 3]]
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(100 * 4 / 6)
    assert metric.score(np.stack([rows[:1].sum(axis=0), rows[1:].sum(axis=0)])) == pytest.approx([50, 75])
    assert float(metric.score(np.zeros(2))) == 0
    assert not metric.higher_is_better


def test_exact_error() -> None:
    metric = ExactError()
    rows = metric.statistics(["a", "b", ""], [["a"], ["x", "b"], ["c"]])
    assert rows.tolist() == [[0, 1], [0, 1], [1, 1]]
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(100 / 3)
