"""Metrics of text against sacreBLEU, rouge-score, coco-caption and cases by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from unforced.cli import main
from unforced.errors import InputError
from unforced.metrics.text import Bleu, ChrF, Cider, ErrorRate, LengthRatio, NgramPrecision, Rouge
from unforced.tasks import Pairs

# BLEU and chrF

SENTENCE = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "Mat,", "it's", "."]), max_size=12).map(" ".join)


def text_corpora(references: int) -> st.SearchStrategy[list[tuple[str, list[str]]]]:
    return st.lists(
        st.tuples(SENTENCE, st.lists(SENTENCE, min_size=references, max_size=references)), min_size=1, max_size=6
    )


@pytest.mark.parametrize("references", [1, 3])
@pytest.mark.parametrize("tokenize", ["13a", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_is_sacrebleu(references: int, tokenize: str, lowercase: bool) -> None:
    ours = Bleu(tokenize=tokenize, lowercase=lowercase, references=references)  # type: ignore[arg-type]
    theirs = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)

    @given(text_corpora(references))
    @settings(max_examples=25, deadline=None)
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

    @given(text_corpora(references))
    @settings(max_examples=25, deadline=None)
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
    columns = [[answers[0][0], answers[1][0]], [answers[0][1], None]]
    for ours, theirs in ((Bleu(references=None), sacrebleu.BLEU()), (ChrF(references=None), sacrebleu.CHRF())):
        expected = theirs.corpus_score(outputs, columns)  # type: ignore[attr-defined]
        totals = ours.statistics(outputs, answers).sum(axis=0)  # type: ignore[attr-defined]
        assert float(ours.score(totals)) == pytest.approx(expected.score)  # type: ignore[attr-defined]
        assert ours.signature() == str(theirs.get_signature())  # type: ignore[attr-defined]


@given(text_corpora(2))
@settings(max_examples=20, deadline=None)
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


# ROUGE

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


def test_rouge_names_its_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(InputError, match=r"needs the package rouge-score: pip install 'unforced\[rouge\]'"):
        Rouge()


def test_a_training_without_the_package_of_its_metric_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    files = [tmp_path / f"{split}.tsv" for split in ("train", "dev", "test")]
    for file in files:
        file.write_text(f"a b {file.stem}\tb a\nc d {file.stem}\td c\n")
    arguments = ["train", "pairs", *(f"task.{file.stem}={file}" for file in files), "--run", str(tmp_path / "run")]
    assert main([*arguments, 'task.measures=["rouge"]']) == 2
    said = "unforced: ROUGE needs the package rouge-score: pip install 'unforced[rouge]'\n"
    assert capsys.readouterr() == ("", said)  # and no step of training
    assert [metric.name for metric in Pairs(train=str(files[0]), measures=("exact",)).metrics()] == ["exact_error"]


# CIDEr-D

captions = st.lists(st.sampled_from(["a", "b", "c", "d", "the", "of"]), min_size=1, max_size=7).map(" ".join)


@given(st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=6))
@settings(max_examples=25, deadline=None)
def test_equals_the_scorer_of_coco_captions(corpus):
    from pycocoevalcap.cider.cider import Cider as Coco

    outputs, answers = zip(*corpus)
    _, wanted = Coco().compute_score(dict(enumerate(answers)), {i: [text] for i, text in enumerate(outputs)})
    assert Cider().statistics(outputs, answers)[:, 0] == pytest.approx(wanted, abs=1e-9)


def test_empty_captions_and_single_images_score_zero():
    assert Cider().statistics(["", "a b"], [["a b c"], ["a b"]])[0].tolist() == [0, 1]
    assert Cider().statistics(["a b"], [["a b"]])[0].tolist() == [0, 1]  # one image: every idf is log 1


# Error rates

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
@settings(max_examples=25, deadline=None)
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


def test_scores_of_sums() -> None:
    metric = ErrorRate("wer")
    rows = metric.statistics(["a b", "", "x"], [["a c"], ["a"], ["x y z"]])
    assert rows.tolist() == [[1, 2], [1, 1], [2, 3]]
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(100 * 4 / 6)
    assert metric.score(np.stack([rows[:1].sum(axis=0), rows[1:].sum(axis=0)])) == pytest.approx([50, 75])
    assert float(metric.score(np.zeros(2))) == 0
    assert not metric.higher_is_better
