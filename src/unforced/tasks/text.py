"""What text-to-text tasks share: the codec, the options of vocabularies, and which examples are left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import log_z_metrics
from unforced.metrics.protocol import LikelihoodMetric, Metric
from unforced.tasks.collate import collate
from unforced.tasks.files import count
from unforced.tasks.protocol import Split
from unforced.tasks.segment import Characters, TextCoder, Tokens
from unforced.tasks.splits import limited
from unforced.types import Batch, Encoded, Example, Examples, Sizes


class PairCodec:
    """Text in, text out; or text out alone, where ``source`` is None (language models).

    Sources and targets both end with the end symbol, so neither is ever empty in numbers.
    ``cut_source`` keeps so many of the source's first words (characters where tokens are characters).

    >>> from unforced.types import Example
    >>> codec = PairCodec(TextCoder.learn(["ab"], "characters"), TextCoder.learn(["x y"], "words"))
    >>> codec.encode(Example("ba", "y"))
    Encoded(source=array([5, 4, 2]), target=[5, 2], references=())
    >>> codec.decode([5, 4])
    'y x'
    """

    def __init__(self, source: TextCoder | None, target: TextCoder, cut_source: int | None = None) -> None:
        self.source = source
        self.target = target
        self.cut_source = cut_source
        self.symbols = target.vocabulary.symbols
        self.sizes = Sizes(len(target.vocabulary), None if source is None else len(source.vocabulary))

    def encode(self, example: Example) -> Encoded:
        target = [] if example.target is None else self.target.encode(example.target, eos=True)
        references = self.target.references(example)
        if self.source is None:
            return Encoded(None, target, references)
        source = self.source.encode(self._cut(example.source), eos=True)
        return Encoded(np.asarray(source, dtype=np.int64), target, references)

    def _cut(self, text: str) -> str:
        if self.cut_source is None or self.source is None:
            return text
        if isinstance(self.source.segmenter, Characters):
            return text[: self.cut_source]
        words = text.split()
        return " ".join(words[: self.cut_source]) if len(words) > self.cut_source else text

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols)

    def decode(self, ids: Sequence[int]) -> str:
        return self.target.decode(ids)

    def parse(self, line: str) -> str | None:
        """The line itself; a model without sources takes blank lines, one for each output that is wanted."""
        text = line.strip()
        if self.source is None:
            if text:
                raise InputError("This model takes no input: give a blank line for each output you want.")
            return None
        if not text:
            raise InputError("The line is blank, and there is no output for an empty source.")
        return text

    def show(self, output: str | None) -> str:
        return "" if output is None else " ".join(output.splitlines())

    def token_names(self) -> tuple[str, ...]:
        return self.target.vocabulary.tokens

    def to_json(self) -> dict[str, Any]:
        joint = self.source is self.target
        source = None if self.source is None or joint else self.source.to_json()
        return {
            "source": source,
            "target": self.target.to_json(),
            "joint": joint,
            "cut_source": self.cut_source,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PairCodec:
        missing = {"source", "target", "joint", "cut_source"} - data.keys()
        if missing:
            raise InputError(f"The codec has no {', '.join(sorted(missing))}.")
        target = TextCoder.from_json(data["target"])
        if data["joint"]:
            return cls(target, target, data["cut_source"])
        source = None if data["source"] is None else TextCoder.from_json(data["source"])
        return cls(source, target, data["cut_source"])


@dataclass(frozen=True, kw_only=True)
class TextTask(ABC):
    """The options all text-to-text tasks have.

    Lengths are counted in white-space separated words, or in characters where the tokens are characters.
    """

    reads_text: ClassVar[bool] = True  # sources are text, and may be long or short

    source_tokens: Tokens = "words"  # how sources are cut: white-space words, characters, byte pair encoding
    target_tokens: Tokens = "words"  # how targets are cut
    source_size: int | None = None  # most tokens of the source vocabulary; with bpe its pieces (none: 8,000)
    target_size: int | None = None  # the same of the target vocabulary
    min_count: int = 1  # rarer words or characters of the training data are unknown
    joint: bool = False  # one vocabulary of target_size for both sides
    lowercase: bool = False  # all text, answers included
    longest_source: int | None = None  # training examples with a longer source are left out
    longest_target: int | None = None  # training examples with a longer target are left out
    cut_source: int | None = None  # of longer sources the model sees only so much
    train_limit: int | None = None  # take only the first so many training examples
    dev_limit: int | None = None  # the same for development
    test_limit: int | None = None  # the same for test
    log_z: bool = False  # also report the mean and variance of log Z

    def __post_init__(self) -> None:
        for name in (
            *("source_size", "target_size", "min_count", "longest_source", "longest_target"),
            *("cut_source", "train_limit", "dev_limit", "test_limit"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        if self.joint and self.source_tokens != self.target_tokens:
            raise InputError("A joint vocabulary needs source_tokens and target_tokens to be the same.")
        if self.joint and self.source_size not in (None, self.target_size):
            raise InputError("A joint vocabulary has the size target_size; leave source_size out.")

    def fit(self, train: Sequence[Example]) -> PairCodec:
        """Learn one or two vocabularies from the training examples."""
        sources, targets = [e.source for e in train], [e.target for e in train]
        learn = partial(TextCoder.learn, min_count=self.min_count, lowercase=self.lowercase)
        if self.joint:
            both = learn(sources + targets, self.target_tokens, size=self.target_size)
            return PairCodec(both, both, self.cut_source)
        source = learn(sources, self.source_tokens, size=self.source_size)
        target = learn(targets, self.target_tokens, size=self.target_size)
        return PairCodec(source, target, self.cut_source)

    def codec(self, data: dict[str, Any]) -> PairCodec:
        return PairCodec.from_json(data)

    @abstractmethod
    def output_metrics(self) -> tuple[Metric, ...]:
        """How the task judges outputs."""

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        """How outputs are judged and, behind that, what ``log_z`` asks for."""
        return (*self.output_metrics(), *log_z_metrics(self.log_z))

    def choose(self, split: Split, pairs: Iterable[tuple[str, str]], dropped: dict[str, int]) -> Examples:
        """The pairs of a split as examples; empty ones and, for training, long ones are dropped and counted."""
        kept = []
        for source, target in pairs:
            reason = self._fault(split, source, target)
            if reason is not None:
                count(dropped, reason)
            elif self.lowercase:
                kept.append(Example(source.lower(), target.lower()))
            else:
                kept.append(Example(source, target))
        return limited(kept, dropped, getattr(self, f"{split}_limit"))

    def _fault(self, split: Split, source: str, target: str) -> str | None:
        if not source or not target:
            return "empty source" if not source else "empty target"
        if split == "train":
            if _longer(source, self.source_tokens, self.longest_source):
                return "source too long"
            if _longer(target, self.target_tokens, self.longest_target):
                return "target too long"
        return None


def _longer(text: str, tokens: Tokens, limit: int | None) -> bool:
    return limit is not None and len(text if tokens == "characters" else text.split()) > limit
