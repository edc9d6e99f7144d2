"""Language modelling of plain text files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unforced.errors import InputError
from unforced.metrics.likelihood import Measure, check_measures, measured
from unforced.metrics.protocol import LikelihoodMetric
from unforced.tasks.files import BLANK, count, named, read_lines
from unforced.tasks.protocol import Split
from unforced.tasks.segment import TextCoder, Tokens
from unforced.tasks.splits import limited
from unforced.tasks.text import PairCodec
from unforced.types import Example, Examples


@dataclass(frozen=True, kw_only=True)
class Language:
    """Text from files, without sources: each line is an example, or each ``block`` of words (or characters).

    A block runs over line ends, which count as white space; the last one of a file may be shorter. Where ``dev``
    or ``test`` is absent, a share ``hold_out`` of the training file's examples takes its place: the stretch at its
    end, test behind development. There are no outputs to judge, so models are compared by perplexity, and masked models
    by "pseudo_perplexity".
    """

    train: str  # a text file
    dev: str | None = None  # the same for development; the training file's end if absent
    test: str | None = None  # the same for test
    hold_out: float = 0.05  # share of the training file that stands in for an absent dev or test file
    tokens: Tokens = "words"  # how text is cut: white-space words, characters, byte pair encoding
    size: int | None = None  # most tokens of the vocabulary; with bpe its pieces (none: 8,000)
    min_count: int = 1  # rarer words or characters of the training data are unknown
    lowercase: bool = False  # all text
    block: int | None = None  # words an example has, characters where the tokens are characters
    longest: int | None = None  # longer training examples are left out, counted like blocks
    train_limit: int | None = None  # take only the first so many training examples
    dev_limit: int | None = None  # the same for development
    test_limit: int | None = None  # the same for test
    measures: tuple[Measure, ...] = ("perplexity",)  # how models are judged; the first picks the checkpoint

    def __post_init__(self) -> None:
        for name in ("size", "min_count", "block", "longest", "train_limit", "dev_limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        if not 0 < self.hold_out < 0.5:
            raise InputError(f"hold_out must be between 0 and 0.5, not {self.hold_out}.")
        check_measures(self.measures)

    def read(self, split: Split) -> Examples:
        """The examples of a split; an ``InputError`` if there is none."""
        dropped: dict[str, int] = {}
        path = getattr(self, split)
        if path is None or split == "train":
            texts = self._part(split, list(self._texts(self.train, dropped)), dropped)
        else:
            texts = list(self._texts(path, dropped))
        if split == "train" and self.longest is not None:
            short = [text for text in texts if self._length(text) <= self.longest]
            if len(short) < len(texts):
                dropped["too long"] = len(texts) - len(short)
            texts = short
        if not texts:
            raise InputError(f"{path or self.train} has no usable example for {split}.")
        examples = [Example(None, text.lower() if self.lowercase else text) for text in texts]
        return limited(examples, dropped, getattr(self, f"{split}_limit"))

    def _length(self, text: str) -> int:
        return len(text if self.tokens == "characters" else text.split())

    def _texts(self, path: str, dropped: dict[str, int]) -> Iterator[str]:
        """The lines or blocks of a file that aren't blank."""
        lines = (line for _, line in read_lines(named(path, "train")))
        if self.block is not None:
            yield from self._blocks(lines, self.block)
            return
        for line in lines:
            if text := line.strip():
                yield text
            else:
                count(dropped, BLANK)

    def _blocks(self, lines: Iterator[str], size: int) -> Iterator[str]:
        characters = self.tokens == "characters"
        glue = "" if characters else " "
        waiting: list[str] = []
        for line in lines:
            words = line.split()
            if not words:
                continue
            waiting.extend(" ".join(words) + " " if characters else words)
            whole = len(waiting) - len(waiting) % size
            for start in range(0, whole, size):
                yield glue.join(waiting[start : start + size])
            del waiting[:whole]
        if rest := glue.join(waiting).rstrip():
            yield rest

    def _part(self, split: Split, texts: list[str], dropped: dict[str, int]) -> list[str]:
        """The stretch of the training file that falls to a split; the others are counted as dropped."""
        share = max(1, round(self.hold_out * len(texts)))
        test = len(texts) - (share if self.test is None else 0)
        dev = test - (share if self.dev is None else 0)
        bounds = {"train": (0, dev), "dev": (dev, test), "test": (test, len(texts))}
        if dev < 1:
            raise InputError(
                f"{self.train} has too few examples to hold some out ({len(texts)}): give dev and test."
            )
        start, end = bounds[split]
        if end - start < len(texts):
            dropped["in another split"] = len(texts) - (end - start)
        return texts[start:end]

    def fit(self, train: Sequence[Example]) -> PairCodec:
        texts = (example.target for example in train)
        learn = partial(TextCoder.learn, min_count=self.min_count, lowercase=self.lowercase)
        return PairCodec(None, learn(texts, self.tokens, size=self.size))

    def codec(self, data: dict[str, Any]) -> PairCodec:
        return PairCodec.from_json(data)

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return measured(self.measures)
