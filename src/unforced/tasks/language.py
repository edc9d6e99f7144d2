"""Language modelling of your own text files."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.options import Count, NonEmptyStr
from unforced.protocols import LikelihoodMetric, Split
from unforced.tasks.codecs import PairCodec
from unforced.tasks.files import BLANK, read_lines
from unforced.tasks.splits import ELSEWHERE, FileSplits, LimitedTask
from unforced.tasks.text import check_pattern, is_longer
from unforced.tasks.tokenization import TextCoder, Tokens
from unforced.types import Example, Examples


@dataclass(frozen=True, kw_only=True)
class Language(LimitedTask, FileSplits):
    """Language modelling of your own text: each line, or each block of words, is an example without a source.

    A block continues across line ends, which count as white space; the last block of a file may be shorter. Absent dev
    and test data are replaced by the end of the training data, first dev, then test. Models are compared by
    likelihood, for example perplexity, or pseudo_perplexity for masked models.
    """

    codec_class: ClassVar[type[PairCodec]] = PairCodec

    # unit of text: byte pair encoding, white-space words, characters, or matches of `pattern`
    tokens: Tokens = "bpe"
    pattern: NonEmptyStr | None = None  # regular expression of the tokens that are its matches
    size: Count | None = None  # largest vocabulary; with bpe its size (default 8,000)
    min_count: Count = 1  # rarer words or characters of the training data are unknown
    lowercase: bool = False  # lower-case all text
    block: Count | None = None  # words per example, or characters if these are the tokens; default: a line
    longest: Count | None = None  # leave out longer training examples, counted like blocks
    measures: Measures = ("perplexity",)  # metrics; the first selects checkpoints

    def check(self) -> None:
        check_measures(self.measures)
        check_pattern(self.pattern, self.tokens)

    def read(self, split: Split) -> Examples:
        data, dropped = self.data(split), Counter[str]()
        lines = iter(data) if isinstance(data, tuple) else (line for _, line in read_lines(data))
        texts = list(self._lines(lines, dropped) if self.block is None else self._blocks(lines, self.block))
        if self.is_part(split):
            texts = self._part(split, texts, dropped)
        if split == "train":
            kept = [text for text in texts if not is_longer(text, self.tokens, self.longest)]
            dropped += Counter({"too long": len(texts) - len(kept)})
            texts = kept
        examples = [Example(None, text.lower() if self.lowercase else text) for text in texts]
        return self.limited(split, examples, dropped, self.origin(split))

    def _lines(self, lines: Iterator[str], dropped: Counter[str]) -> Iterator[str]:
        for line in lines:
            if text := line.strip():
                yield text
            else:
                dropped[BLANK] += 1

    def _blocks(self, lines: Iterator[str], size: int) -> Iterator[str]:
        characters = self.tokens == "characters"
        separator = "" if characters else " "
        buffer: list[str] = []
        for line in lines:
            if words := line.split():
                buffer.extend(" ".join(words) + " " if characters else words)
            end = len(buffer) - len(buffer) % size
            for start in range(0, end, size):
                yield separator.join(buffer[start : start + size])
            del buffer[:end]
        if rest := separator.join(buffer).rstrip():
            yield rest

    def _part(self, split: Split, texts: list[str], dropped: Counter[str]) -> list[str]:
        """The part of the training file that belongs to a split."""
        share = max(1, round(self.hold_out * len(texts)))
        test = len(texts) - (share if self.test is None else 0)
        dev = test - (share if self.dev is None else 0)
        if dev < 1:
            raise InputError(
                f"{self.origin('train')} has only {len(texts)} examples, too few to hold some out: set dev and test"
            )
        start, end = {"train": (0, dev), "dev": (dev, test), "test": (test, len(texts))}[split]
        dropped[ELSEWHERE] = len(texts) - (end - start)
        return texts[start:end]

    def fit(self, train: Sequence[Example]) -> PairCodec:
        texts = (example.target for example in train)
        learn = partial(TextCoder.learn, min_count=self.min_count, lowercase=self.lowercase, pattern=self.pattern)
        return PairCodec(None, learn(texts, self.tokens, size=self.size))

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return likelihood_metrics(self.measures)
