"""Token accuracy."""

import numpy as np

from unforced.metrics.tagging import TokenAccuracy
from unforced.protocols import Metric


def test_counts_tokens_over_the_corpus_not_sentences():
    metric = TokenAccuracy()
    rows = metric.statistics([["a", "b", "c"], ["x"]], [[["a", "b", "d"]], [["y"]]])
    assert isinstance(metric, Metric)
    assert rows.tolist() == [[2, 3], [0, 1]]
    assert float(metric.score(rows.sum(axis=0))) == 50


def test_takes_the_nearest_of_several_answers():
    assert TokenAccuracy().statistics([["a", "b"]], [[["b", "a"], ["a", "c"]]]).tolist() == [[1, 2]]


def test_scores_many_sums_at_once():
    assert TokenAccuracy().score(np.array([[1.0, 2.0], [0.0, 0.0]])).tolist() == [50, 0]
