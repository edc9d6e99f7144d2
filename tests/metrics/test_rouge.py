"""ROUGE against rouge-score itself and a case by hand."""

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from unforced.metrics.text import Rouge

OUTPUTS = ["The cats were sitting on the mat.", "", "Neural models of text", "a b c"]
ANSWERS = [["The cat sat on the mat"], ["Anything"], ["Neural Text Models", "Models of Text"], ["a x b y c"]]


@pytest.mark.parametrize("kind", ["1", "2", "L"])
@pytest.mark.parametrize("stemmer", [False, True])
def test_rouge_is_the_mean_of_rouge_score(kind: str, stemmer: bool) -> None:
    metric = Rouge(kind, stemmer=stemmer)  # type: ignore[arg-type]
    scorer = RougeScorer([f"rouge{kind}"], use_stemmer=stemmer)
    expected = [
        max(scorer.score(answer, output)[f"rouge{kind}"].fmeasure for answer in acceptable)
        for output, acceptable in zip(OUTPUTS, ANSWERS)
    ]
    rows = metric.statistics(OUTPUTS, ANSWERS)
    assert rows[:, 0] == pytest.approx(expected)
    assert (rows[:, 1] == 1).all()
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(100 * np.mean(expected))
    assert metric.name == f"rouge_{kind.lower()}"
    assert ("without" in metric.signature()) != stemmer


def test_rouge_by_hand() -> None:
    # the longest common subsequence "a b c" is all of the output and three fifths of the answer
    rows = Rouge("L").statistics(["a b c"], [["a x b y c"]])
    assert rows.tolist() == [[pytest.approx(2 * 0.6 / 1.6), 1]]
