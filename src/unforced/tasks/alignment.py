"""Alignment of letters with phonemes: each letter emits none, one or two of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

NOTHING = "_"  # label of a letter without a phoneme
PAIR = "+"  # between the two phonemes of a label
SMOOTHING = 0.01  # added to the count of every pair of letter and label
Word = tuple[Sequence[str], Sequence[str]]  # letters and phonemes


class Alignment(NamedTuple):
    """One label for each letter, and log p(labels | letters)."""

    labels: tuple[str, ...]
    log_prob: float


class _Group(NamedTuple):
    """Words with equally many letters, as ids; 0 is padding."""

    rows: list[int]  # their places among all words
    letters: np.ndarray  # [N,L]
    phonemes: np.ndarray  # [N,P]
    lengths: np.ndarray  # [N] phonemes of each word


@dataclass(frozen=True)
class Aligner:
    """Letter-to-label probabilities and the most probable alignment under them.

    p(labels | letters) is the product over letters of p(label | letter). A label is no phoneme, one, or two in
    sequence. Letters and phonemes that training words lack get their probability from smoothing.

    >>> aligner = Aligner.learn([("cat", ["K", "AE", "T"]), ("sat", ["S", "AE", "T"]), ("ta", ["T", "AA"])])
    >>> aligner.align([("catt", ["K", "AE", "T"])])[0].labels
    ('K', 'AE', 'T', '_')
    """

    letters: dict[str, int]  # ids from 1; 0 is any other letter
    phonemes: dict[str, int]  # ids from 1; 0 is no phoneme, the id after the last any other phoneme
    log_probs: np.ndarray  # [letter, first phoneme, second]; of a single phoneme the first is 0

    @classmethod
    def learn(cls, words: Sequence[Word], rounds: int = 30) -> "Aligner":
        """Learn the probabilities by Viterbi EM, until no alignment changes or ``rounds`` are over.

        The first alignment spreads the phonemes of a word evenly over its letters. Each round sets p(label | letter) to
        its smoothed relative frequency and aligns every word again. No round lowers log p(labels | letters) of all
        words plus ``SMOOTHING`` · Σ log p, the log-posterior under a Dirichlet prior. The result does not depend on the
        order of the words. Of equally probable alignments the one that emits phonemes earlier is taken. Words of more
        than two phonemes a letter are ignored.
        """
        words = [word for word in words if alignable(*word)]
        letters = {letter: i for i, letter in enumerate(sorted({x for word, _ in words for x in word}), 1)}
        phonemes = {phoneme: i for i, phoneme in enumerate(sorted({x for _, word in words for x in word}), 1)}
        groups = list(_groups(words, letters, phonemes))
        emitted = [_spread_evenly(group) for group in groups]
        for _ in range(rounds):
            aligner = cls(letters, phonemes, _log_frequencies(groups, emitted, len(letters), len(phonemes)))
            before, emitted = emitted, [aligner._viterbi(group)[0] for group in groups]
            if all(np.array_equal(a, b) for a, b in zip(before, emitted)):
                break
        return aligner

    def align(self, words: Sequence[Word]) -> list[Alignment]:
        """Return the most probable alignment of each word; every word must be alignable."""
        found: dict[int, Alignment] = {}
        for group in _groups(words, self.letters, self.phonemes):
            emitted, scores = self._viterbi(group)
            for row, counts, score in zip(group.rows, emitted.tolist(), scores.tolist()):
                found[row] = Alignment(_labels(words[row][1], counts), score)
        return [found[row] for row in range(len(words))]

    def _viterbi(self, group: _Group) -> tuple[np.ndarray, np.ndarray]:
        """How many phonemes each letter emits in the best alignment [N,L], and its log-probability [N]."""
        rows, phonemes = np.arange(len(group.rows)), group.phonemes
        scores = np.full((len(rows), phonemes.shape[1] + 1), -np.inf)  # of each number of phonemes emitted so far
        scores[:, 0] = 0
        moves = []
        for letter in group.letters.T[:, :, None]:
            choices = np.full((3, *scores.shape), -np.inf)  # the letter emits none, one or two
            choices[0] = scores + self.log_probs[letter, 0, 0]
            choices[1, :, 1:] = scores[:, :-1] + self.log_probs[letter, 0, phonemes]
            choices[2, :, 2:] = scores[:, :-2] + self.log_probs[letter, phonemes[:, :-1], phonemes[:, 1:]]
            scores = choices.max(axis=0)
            moves.append(choices.argmax(axis=0))
        best, left = scores[rows, group.lengths], group.lengths
        emitted = np.empty_like(group.letters)
        for i in reversed(range(len(moves))):
            emitted[:, i] = moves[i][rows, left]
            left = left - emitted[:, i]
        return emitted, best


def alignable(letters: Sequence[str], phonemes: Sequence[str]) -> bool:
    """Whether two phonemes a letter are enough.

    >>> alignable("tv", "T IY V IY".split()), alignable("x", "EH K S".split())
    (True, False)
    """
    return 0 < len(phonemes) <= 2 * len(letters)


def join_labels(labels: Sequence[str]) -> str:
    """Return the phonemes of a sequence of labels, separated by spaces.

    >>> join_labels(["B", "AA", "K+S", "_"])
    'B AA K S'
    """
    return " ".join(label.replace(PAIR, " ") for label in labels if label != NOTHING)


def _labels(phonemes: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
    """The label of each letter, given how many of the phonemes each emits."""
    labels, first = [], 0
    for count in counts:
        labels.append(PAIR.join(phonemes[first : first + count]) or NOTHING)
        first += count
    return tuple(labels)


def _groups(words: Sequence[Word], letters: dict[str, int], phonemes: dict[str, int]) -> Iterator[_Group]:
    """Words grouped by their number of letters, so that arrays of letters need no padding."""
    lengths: dict[int, list[int]] = {}
    for row, (word, _) in enumerate(words):
        lengths.setdefault(len(word), []).append(row)
    for rows in lengths.values():
        counts = np.array([len(words[row][1]) for row in rows])
        padded = np.zeros((len(rows), counts.max()), dtype=np.int64)
        for place, row in enumerate(rows):
            padded[place, : counts[place]] = [phonemes.get(phoneme, len(phonemes) + 1) for phoneme in words[row][1]]
        ids = np.array([[letters.get(letter, 0) for letter in words[row][0]] for row in rows])
        yield _Group(rows, ids, padded, counts)


def _spread_evenly(group: _Group) -> np.ndarray:
    """Phoneme j of P goes to letter ⌊j L / P⌋ of L: how many phonemes each letter then emits [N,L]."""
    (_, size), width = group.letters.shape, group.phonemes.shape[1]
    places = np.arange(width) * size // group.lengths[:, None]  # [N,P], at least L beyond a word's end
    emitted: np.ndarray = (places[:, :, None] == np.arange(size)).sum(axis=1)
    return emitted


def _log_frequencies(
    groups: Sequence[_Group], emitted: Sequence[np.ndarray], letters: int, phonemes: int
) -> np.ndarray:
    """Smoothed relative frequencies of labels given letters, as logarithms."""
    shape = (letters + 1, phonemes + 2, phonemes + 2)
    counts = np.zeros(shape, dtype=np.int64)
    for group, each in zip(groups, emitted):
        padded = np.pad(group.phonemes, ((0, 0), (0, 2)))
        first = each.cumsum(axis=1) - each
        rows = np.arange(len(each))[:, None]
        one, two = padded[rows, first], padded[rows, np.minimum(first + 1, padded.shape[1] - 1)]
        labels = (np.where(each == 2, one, 0), np.where(each == 2, two, np.where(each == 1, one, 0)))
        np.add.at(counts, (group.letters, *labels), 1)
    smoothed = counts + SMOOTHING
    log_probs = np.log(smoothed / smoothed.sum(axis=(1, 2), keepdims=True))
    rounded: np.ndarray = np.round(log_probs * 2**20) / 2**20  # sums are exact, so that ties are ties on every machine
    return rounded
