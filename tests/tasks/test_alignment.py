"""The alignment of letters with phonemes, against enumeration."""

import random
from itertools import product

import numpy as np
import pytest

from unforced.tasks.alignment import SMOOTHING, Aligner, alignable, join_labels

Words = list[tuple[str, list[str]]]


def corpus(seed: int, number: int = 40) -> Words:
    """Random words of 1 to 5 letters and as many phonemes as can be aligned."""
    rng = random.Random(seed)
    words = []
    for _ in range(number):
        letters = "".join(rng.choices("abc", k=rng.randint(1, 5)))
        words.append((letters, rng.choices("XYZ", k=rng.randint(1, min(5, 2 * len(letters))))))
    return words


def alignments(letters: str, phonemes: list[str]) -> list[tuple[str, ...]]:
    """All sequences of labels that spell the phonemes."""
    found = []
    for counts in product(range(3), repeat=len(letters)):
        if sum(counts) == len(phonemes):
            rest = iter(phonemes)
            found.append(tuple("+".join(next(rest) for _ in range(count)) or "_" for count in counts))
    return found


def log_prob(aligner: Aligner, letters: str, labels: tuple[str, ...]) -> float:
    total = 0.0
    for letter, label in zip(letters, labels):
        other = len(aligner.phonemes) + 1
        ids = [0, 0, *(aligner.phonemes.get(phoneme, other) for phoneme in label.split("+") if phoneme != "_")]
        total += aligner.log_probs[aligner.letters.get(letter, 0), ids[-2], ids[-1]]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_alignments_are_the_best_of_all(seed: int) -> None:
    aligner = Aligner.learn(corpus(seed))
    words = [*corpus(seed), *corpus(seed + 100), ("adb", ["X", "W", "Y"])]  # the last has unknown symbols
    for (letters, phonemes), found in zip(words, aligner.align(words), strict=True):
        scores = {labels: log_prob(aligner, letters, labels) for labels in alignments(letters, phonemes)}
        assert found.log_prob == scores[found.labels] == max(scores.values())
        assert join_labels(found.labels).split() == phonemes


@pytest.mark.parametrize("seed", range(5))
def test_no_round_lowers_the_posterior(seed: int) -> None:
    words, posteriors = corpus(seed), []
    for rounds in range(1, 8):
        aligner = Aligner.learn(words, rounds)
        np.testing.assert_allclose(np.exp(aligner.log_probs).sum(axis=(1, 2)), 1, rtol=1e-5)
        likelihood = sum(alignment.log_prob for alignment in aligner.align(words))
        posteriors.append(likelihood + SMOOTHING * aligner.log_probs.sum())
    assert np.all(np.diff(posteriors) > -1e-3)
    assert posteriors[-1] > posteriors[0]


def test_the_order_of_words_does_not_matter() -> None:
    words = corpus(7, number=200)
    mixed = random.Random(0).sample(words, len(words))
    first, second = Aligner.learn(words), Aligner.learn(mixed)
    assert first.log_probs.tobytes() == second.log_probs.tobytes()
    assert (first.letters, first.phonemes) == (second.letters, second.phonemes)
    found = dict(zip(map(str, mixed), second.align(mixed)))
    assert [found[str(word)] for word in words] == first.align(words)


def test_words_that_cannot_be_aligned_are_ignored() -> None:
    words = corpus(1)
    assert not alignable("x", ["EH", "K", "S"])
    assert not alignable("x", [])
    with_more = Aligner.learn([("x", ["EH", "K", "S"]), *words])
    assert with_more.log_probs.tobytes() == Aligner.learn(words).log_probs.tobytes()


def test_ties_go_to_the_earlier_letter() -> None:
    aligner = Aligner.learn([("aa", ["X"]), ("aa", ["X"])])
    assert aligner.align([("aaa", ["X"])])[0].labels == ("X", "_", "_")
