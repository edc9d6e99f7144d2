"""Streaming grapheme to phoneme: pronounce an English word while it is being spelled."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from unforced.errors import InputError
from unforced.metrics.tagging import TokenAccuracy
from unforced.metrics.text import ErrorRate, ExactError
from unforced.protocols import Codec, Metric, Split
from unforced.tasks.alignment import Aligner, alignable, join_labels
from unforced.tasks.codecs import TagCodec
from unforced.tasks.pronunciation import G2P
from unforced.tasks.tokenization import Vocabulary
from unforced.types import Example, Examples


class LetterCodec(TagCodec):
    """Letters of a word to one label each: a ``TagCodec`` that reads one word per line.

    Labels are separated by spaces when shown: ``_`` for a silent letter, ``K+S`` for two phonemes.
    """

    def parse(self, line: str) -> tuple[str, ...]:
        words = line.split()
        if len(words) != 1:
            raise InputError(f"each line must hold one word, but this one holds {len(words)}")
        return tuple(words[0])


class PhonemeMetric:
    """A metric of phoneme strings, applied to sequences of labels after joining them.

    >>> metric = PhonemeMetric(ErrorRate("phoneme_error"))
    >>> metric.statistics([["B", "AA", "K+S"]], [[["B", "AO", "K+S"]]])
    array([[1., 4.]])
    """

    def __init__(self, metric: ErrorRate | ExactError) -> None:
        self.metric = metric
        self.name = metric.name
        self.higher_is_better = metric.higher_is_better
        self.score_range = metric.score_range

    def statistics(self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        joined = [[join_labels(answer) for answer in acceptable] for acceptable in answers]
        return self.metric.statistics([join_labels(output) for output in outputs], joined)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.metric.score(sums)

    def signature(self) -> str:
        return f"{self.metric.signature()}, of the joined labels"


@dataclass(frozen=True)
class StreamingG2P(G2P):
    """Letters of CMU dictionary words to labels, one a letter: no phoneme, one phoneme or a pair of them.

    Words, splits and options are those of ``g2p``. Labels come from the model of ``unforced.tasks.alignment``, learned
    from the training words alone; it also aligns the references of development and test words. Accuracy compares
    labels, so it depends on the alignment. Phoneme and word error compare the joined phonemes with all pronunciations
    in the dictionary, so they do not. Words with a pronunciation of more than two phonemes a letter (44 of 126,052)
    cannot be aligned and are left out.
    """

    codec_class: ClassVar[type[Codec]] = LetterCodec

    @cached_property
    def aligner(self) -> Aligner:
        """The alignment model, learned from the training words."""
        return Aligner.learn([(example.source, example.target.split()) for example in super().read("train")])

    def read(self, split: Split) -> Examples:
        words = super().read(split)
        dropped, kept = Counter(words.dropped), []
        for example in words:
            if all(alignable(example.source, answer.split()) for answer in example.answers):
                kept.append(example)
            else:
                dropped["more than two phonemes a letter"] += 1
        pairs = list(dict.fromkeys((example.source, answer) for example in kept for answer in example.answers))
        found = self.aligner.align([(word, answer.split()) for word, answer in pairs])
        labels = {pair: alignment.labels for pair, alignment in zip(pairs, found)}
        aligned = (
            Example(word, labels[word, target], tuple(labels[word, answer] for answer in answers))
            for word, target, answers in kept
        )
        return Examples(aligned, dropped)

    def fit(self, train: Sequence[Example]) -> LetterCodec:
        letters = Vocabulary.learn((example.source for example in train), eos=False)
        labels = Vocabulary.learn((example.target for example in train), eos=False)
        return LetterCodec(letters, labels, lowercase=True, unseen="wrong")

    def metrics(self) -> tuple[Metric, ...]:
        return (
            TokenAccuracy("label_accuracy"),
            PhonemeMetric(ErrorRate("phoneme_error")),
            PhonemeMetric(ExactError("word_error")),
        )
