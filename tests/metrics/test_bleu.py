"""BLEU and chrF of summed statistics equal sacreBLEU's corpus scores, signatures included."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.metrics.text import Bleu, ChrF, LengthRatio, NgramPrecision

SENTENCE = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "Mat,", "it's", "."]), max_size=12).map(" ".join)


def corpora(references: int) -> st.SearchStrategy[list[tuple[str, list[str]]]]:
    return st.lists(
        st.tuples(SENTENCE, st.lists(SENTENCE, min_size=references, max_size=references)), min_size=1, max_size=6
    )


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("tokenize", ["13a", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_is_sacrebleu(references: int, tokenize: str, lowercase: bool) -> None:
    ours = Bleu(tokenize=tokenize, lowercase=lowercase, references=references)  # type: ignore[arg-type]
    theirs = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)

    @given(corpora(references))
    @settings(max_examples=60, deadline=None)
    def check(corpus: list[tuple[str, list[str]]]) -> None:
        outputs, answers = [c[0] for c in corpus], [c[1] for c in corpus]
        expected = theirs.corpus_score(outputs, [list(column) for column in zip(*answers)])
        sums = ours.statistics(outputs, answers).sum(axis=0)
        assert sums.tolist() == [expected.sys_len, expected.ref_len, *expected.counts, *expected.totals]
        assert float(ours.score(sums)) == pytest.approx(expected.score, rel=1e-12, abs=1e-12)
        assert ours.signature() == str(theirs.get_signature())

    check()


@pytest.mark.parametrize("references", [1, 3])
def test_chrf_is_sacrebleu(references: int) -> None:
    ours, theirs = ChrF(references=references), sacrebleu.CHRF()

    @given(corpora(references))
    @settings(max_examples=60, deadline=None)
    def check(corpus: list[tuple[str, list[str]]]) -> None:
        outputs, answers = [c[0] for c in corpus], [c[1] for c in corpus]
        expected = theirs.corpus_score(outputs, [list(column) for column in zip(*answers)])
        score = ours.score(ours.statistics(outputs, answers).sum(axis=0))
        assert float(score) == pytest.approx(expected.score, rel=1e-12, abs=1e-12)
        assert ours.signature() == str(theirs.get_signature())

    check()


def test_varying_numbers_of_references() -> None:
    outputs = ["the cat sat on the mat", "a dog barks at the cat"]
    answers = [["the cat sat on a mat", "the cat sits on the mat"], ["a dog barks at a cat"]]
    theirs = sacrebleu.BLEU()
    expected = theirs.corpus_score(outputs, [[answers[0][0], answers[1][0]], [answers[0][1], None]])  # type: ignore[list-item]
    ours = Bleu(references=None)
    assert float(ours.score(ours.statistics(outputs, answers).sum(axis=0))) == pytest.approx(expected.score)
    assert ours.signature() == str(theirs.get_signature())
    chrf = sacrebleu.CHRF()
    expected_chrf = chrf.corpus_score(outputs, [[answers[0][0], answers[1][0]], [answers[0][1], None]])  # type: ignore[list-item]
    mine = ChrF(references=None)
    assert float(mine.score(mine.statistics(outputs, answers).sum(axis=0))) == pytest.approx(expected_chrf.score)
    assert mine.signature() == str(chrf.get_signature())


def test_bleu_by_hand() -> None:
    # 1-grams 4/4, 2-grams 2/3, 3-grams 1/2, 4-grams 0/1 smoothed to ½; the output is one word short of five
    metric = Bleu(tokenize="none")
    sums = metric.statistics(["a b c e"], [["a b c d e"]])[0]
    assert sums.tolist() == [4, 5, 4, 2, 1, 0, 4, 3, 2, 1]
    expected = 100 * np.exp(1 - 5 / 4) * (1 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    assert float(metric.score(sums)) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [Bleu(), ChrF()], ids=repr)
def test_scores_of_many_sums_at_once(metric: Bleu) -> None:
    rows = metric.statistics(
        ["the cat sat on the mat", "", "dogs bark", "it is so"], [["the cat sat on a mat"], ["x"], ["dogs"], ["no"]]
    )
    weights = np.random.default_rng(0).multinomial(4, np.full(4, 0.25), size=(5, 3))
    sums = weights @ rows
    scores = metric.score(sums)
    assert scores.shape == (5, 3)
    for index in np.ndindex(5, 3):
        assert scores[index] == pytest.approx(float(metric.score(sums[index])))
    assert np.isfinite(scores).all()
    assert float(metric.score(np.zeros(rows.shape[1]))) == 0


@given(corpora(2))
@settings(max_examples=40, deadline=None)
def test_the_parts_of_bleu_are_sacrebleus(corpus: list[tuple[str, list[str]]]) -> None:
    outputs, answers = [c[0] for c in corpus], [c[1] for c in corpus]
    expected = sacrebleu.BLEU(smooth_method="none", force=True).corpus_score(
        outputs, [list(column) for column in zip(*answers)]
    )
    for order in (1, 2, 3, 4):
        metric = NgramPrecision(order=order, references=2)
        assert float(metric.score(metric.statistics(outputs, answers).sum(axis=0))) == pytest.approx(
            expected.precisions[order - 1]
        )
    ratio = LengthRatio(references=2)
    found = float(ratio.score(ratio.statistics(outputs, answers).sum(axis=0)))
    assert found == pytest.approx(100 * expected.sys_len / max(expected.ref_len, 1))
