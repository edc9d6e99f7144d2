"""Token accuracy, and strict entity F1 against seqeval."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from unforced.metrics.tagging import EntityF1, TokenAccuracy, first_fault
from unforced.protocols import Metric

# Accuracy


def test_counts_tokens_over_the_corpus_not_sentences():
    metric = TokenAccuracy()
    rows = metric.statistics([["a", "b", "c"], ["x"]], [[["a", "b", "d"]], [["y"]]])
    assert isinstance(metric, Metric)
    assert rows.tolist() == [[2, 3], [0, 1]]
    assert float(metric.score(rows.sum(axis=0))) == 50
    assert metric.statistics([["a", "b"]], [[["b", "a"], ["a", "c"]]]).tolist() == [
        [1, 2]
    ]  # the nearest of two answers


# Entity F1

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def f1(outputs, answers):
    metric = EntityF1()
    return float(metric.score(metric.statistics(outputs, [[a] for a in answers]).sum(axis=0)))


@st.composite
def corpora(draw):
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    rows = [st.lists(st.sampled_from(TAGS), min_size=n, max_size=n) for n in lengths]
    return [draw(row) for row in rows], [draw(row) for row in rows]


@given(corpora())
@settings(max_examples=60, deadline=None)
def test_equals_seqeval_in_strict_mode(corpus):
    outputs, answers = corpus
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = 100 * f1_score(answers, outputs, mode="strict", scheme=IOB2)
    assert f1(outputs, answers) == pytest.approx(wanted, abs=1e-9)


def test_an_entity_must_match_in_class_start_and_end():
    gold = [["B-PER", "I-PER", "O", "B-LOC"]]
    assert f1(gold, gold) == 100
    assert f1([["B-PER", "O", "O", "B-LOC"]], gold) == 50  # end
    assert f1([["B-LOC", "I-LOC", "O", "B-LOC"]], gold) == 50  # class
    assert f1([["O", "B-PER", "O", "B-LOC"]], gold) == 50  # start
    assert f1([["I-PER", "I-PER", "O", "I-LOC"]], gold) == 0  # nothing was opened


@pytest.mark.parametrize(
    ("tags", "fault"),
    [
        (["O", "B-A", "I-A", "I-A", "B-A"], None),
        (["I-A"], 0),
        (["B-A", "O", "I-A"], 2),
        (["B-A", "I-B"], 1),
        (["O", "E-A"], 1),
        (["O", "B-"], 1),
        (["O", ""], 1),
    ],
)
def test_finds_the_first_tag_that_breaks_iob2(tags, fault):
    assert first_fault(tags) == fault
