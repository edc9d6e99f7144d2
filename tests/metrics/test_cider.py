"""CIDEr-D against values of the coco-caption scorer and against the formula with dense vectors."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.metrics.text import Cider

# What pycocoevalcap 1.2 (cider.Cider().compute_score, its tokeniser left out) gives for these captions.
CORPUS = [
    (
        "a man riding a brown horse on the beach",
        ["a man rides a brown horse along the beach", "someone riding a horse near the sea"],
        2.1299722331120967,
    ),
    (
        "two dogs dogs dogs play",
        ["two dogs play in the snow", "dogs playing outside in winter snow", "two brown dogs play"],
        1.3271368702378907,
    ),
    ("a red heart", ["a red heart"], 7.5),
    ("the the the the", ["a cat on the mat", "the cat is on the mat"], 0.27995089776666604),
    ("nothing in common here at all", ["woman with light skin tone"], 0.0),
    ("horse", ["a horse", "horse"], 2.4065070845000394),
]


def dense(outputs, answers):
    """The definition written with one vector over all n-grams of the corpus."""

    def grams(caption, n):
        words = caption.split()
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    scores = np.zeros(len(outputs))
    for n in range(1, 5):
        texts = [*outputs, *itertools.chain.from_iterable(answers)]
        index = {g: i for i, g in enumerate(sorted({g for text in texts for g in grams(text, n)}))}
        df = np.zeros(len(index))
        for group in answers:
            df[[index[g] for g in {g for text in group for g in grams(text, n)}]] += 1
        idf = math.log(len(outputs)) - np.log(np.maximum(df, 1))

        def vector(text, index=index, idf=idf, n=n):
            counts = np.zeros(len(index))
            for g in grams(text, n):
                counts[index[g]] += 1
            return counts * idf

        for i, (output, group) in enumerate(zip(outputs, answers)):
            for answer in group:
                g, h = vector(output), vector(answer)
                norm = np.linalg.norm(g) * np.linalg.norm(h)
                cosine = np.minimum(g, h) @ h / norm if norm else 0.0
                gap = len(output.split()) - len(answer.split())
                scores[i] += 10 * cosine * math.exp(-(gap**2) / 72) / 4 / len(group)
    return scores


def test_equals_the_coco_caption_scorer():
    metric = Cider()
    outputs, answers, wanted = zip(*CORPUS)
    rows = metric.statistics(outputs, answers)
    assert rows[:, 0] == pytest.approx(wanted, abs=1e-12)
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(227.39278476027818, abs=1e-9)


captions = st.lists(st.sampled_from(["a", "b", "c", "d", "the", "of"]), min_size=1, max_size=7).map(" ".join)


@given(st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_equals_the_formula_with_dense_vectors(corpus):
    outputs, answers = zip(*corpus)
    assert Cider().statistics(outputs, answers)[:, 0] == pytest.approx(dense(outputs, answers), abs=1e-9)


@given(st.lists(st.tuples(captions, st.lists(captions, min_size=1, max_size=3)), min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_equals_the_scorer_of_coco_captions(corpus):
    from pycocoevalcap.cider.cider import Cider as Coco

    outputs, answers = zip(*corpus)
    _, wanted = Coco().compute_score(dict(enumerate(answers)), {i: [text] for i, text in enumerate(outputs)})
    assert Cider().statistics(outputs, answers)[:, 0] == pytest.approx(wanted, abs=1e-9)


def test_a_perfect_caption_of_four_words_scores_a_thousand():
    captions = ["a big red heart", "two small blue squares"]
    metric = Cider()
    rows = metric.statistics(captions, [[caption] for caption in captions])
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(1000)


def test_words_and_strings_are_the_same():
    outputs, answers, _ = zip(*CORPUS)
    split = Cider().statistics([o.split() for o in outputs], [[a.split() for a in g] for g in answers])
    assert (split == Cider().statistics(outputs, answers)).all()


def test_empty_captions_and_single_images_score_zero():
    assert Cider().statistics(["", "a b"], [["a b c"], ["a b"]])[0].tolist() == [0, 1]
    assert Cider().statistics(["a b"], [["a b"]])[0].tolist() == [0, 1]  # one image: every idf is log 1
