"""Every metric: the protocol, sums of rows, and invalid input."""

from typing import Any

import numpy as np
import pytest

from unforced.errors import InputError
from unforced.metrics.images import FrechetDistance, InceptionStyleScore
from unforced.metrics.tagging import EntityF1, TokenAccuracy
from unforced.metrics.text import (
    Bleu,
    ChrF,
    Cider,
    ErrorRate,
    ExactError,
    LengthRatio,
    NgramPrecision,
    Rouge,
    ShortBleu,
)
from unforced.protocols import Metric


class Pixels:
    """Features and probabilities of an image that is a list of numbers."""

    def features(self, images: Any) -> np.ndarray:
        return np.array(images, dtype=float)

    def probabilities(self, images: Any) -> np.ndarray:
        return self.features(images) / self.features(images).sum(axis=1, keepdims=True)

    def describe(self) -> str:
        return "pixels"


TEXT: Any = (["a b c d", "b c", "a a d"], [["a b d d", "c"], ["b c"], ["d a"]])
TAGS: Any = ([["O", "B-X"], ["B-Y", "I-Y"], ["O"]], [[["O", "B-X"]], [["B-Y", "O"]], [["B-X"]]])
IMAGES: Any = ([[1.0, 2.0], [3.0, 1.0], [2.0, 2.0]], [[[1.0, 1.0]], [[2.0, 1.0]], [[4.0, 3.0]]])
TEXT_METRICS = (
    Bleu(),
    ShortBleu(),
    NgramPrecision(),
    LengthRatio(),
    ChrF(),
    Rouge(),
    Cider(),
    ErrorRate(),
    ExactError(),
)
CASES = [
    *((metric, TEXT) for metric in TEXT_METRICS),
    *((metric, TAGS) for metric in (TokenAccuracy(), EntityF1())),
    *((metric, IMAGES) for metric in (FrechetDistance("distance", Pixels), InceptionStyleScore("score", Pixels))),
]


@pytest.mark.parametrize(("metric", "data"), CASES, ids=lambda x: type(x).__name__)
def test_contract(metric: Any, data: Any) -> None:
    outputs, answers = data
    assert isinstance(metric, Metric)
    assert metric.signature()
    rows = metric.statistics(outputs, answers)
    assert rows.shape[0] == len(outputs)
    weights = np.random.default_rng(0).multinomial(3, np.full(3, 1 / 3), size=(4, 2))  # bootstrap samples
    scores = metric.score(weights @ rows)
    assert scores.shape == (4, 2)
    low, high = metric.score_range
    assert ((low <= scores) & (scores <= high)).all()
    for i in np.ndindex(4, 2):
        assert scores[i] == pytest.approx(float(metric.score(weights[i] @ rows)))
    for wrong in ((outputs, answers[:2]), (outputs[:1], [[]])):
        with pytest.raises(InputError):
            metric.statistics(*wrong)


@pytest.mark.parametrize(
    ("metric", "outputs", "answers", "message"),
    [
        (TokenAccuracy(), [["O"]], [[["O", "O"]]], "output 0 has 1 tags, but its answer has 2"),
        (EntityF1(), [["O"]], [[["O", "O"]]], "output 0 has 1 tags, but its answer has 2"),
        (EntityF1(), [["NOUN"]], [[["O"]]], "the tag 'NOUN' is not IOB2"),
        (EntityF1(), [["O"]], [[["O"], ["B-X"]]], "2 answers"),
    ],
)
def test_invalid_tags(metric: Any, outputs: Any, answers: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric.statistics(outputs, answers)
