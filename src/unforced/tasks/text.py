"""Text-to-text tasks: their common base, and the data sets for translation, summarization and dialogue."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from unforced.errors import InputError
from unforced.metrics.likelihood import likelihood_metrics
from unforced.metrics.text import BLEU_ORDER, Bleu, LengthRatio, NgramPrecision, Rouge
from unforced.options import Count, NonEmptyStr
from unforced.protocols import LikelihoodMetric, Metric, Split
from unforced.tasks.codecs import PairCodec
from unforced.tasks.datasets import find
from unforced.tasks.files import read_jsonl, read_tsv
from unforced.tasks.splits import LimitedTask
from unforced.tasks.tokenization import TextCoder, Tokens
from unforced.types import Example, Examples


@dataclass(frozen=True, kw_only=True)
class TextTask(LimitedTask, ABC):
    """Base of text-to-text tasks. Lengths count words, or characters if the tokens are characters or a pattern."""

    codec_class: ClassVar[type[PairCodec]] = PairCodec
    reads_text: ClassVar[bool] = True

    # unit of sources: byte pair encoding, white-space words, characters, or matches of `pattern`
    source_tokens: Tokens = "bpe"
    target_tokens: Tokens = "bpe"  # unit of targets
    pattern: NonEmptyStr | None = None  # regular expression of the tokens that are its matches
    source_size: Count | None = None  # largest source vocabulary; with bpe its size (default 8,000)
    target_size: Count | None = None  # the same for targets
    min_count: Count = 1  # rarer words or characters of the training data are unknown
    joint: bool = False  # one vocabulary of target_size for both sides
    lowercase: bool = False  # lower-case all text, answers included
    longest_source: Count | None = None  # leave out training examples with longer sources
    longest_target: Count | None = None  # leave out training examples with longer targets
    cut_source: Count | None = None  # the model reads only this much of longer sources
    log_z: bool = False  # also report the mean and variance of log Z

    def check(self) -> None:
        check_pattern(self.pattern, self.source_tokens, self.target_tokens)
        if self.joint and self.source_tokens != self.target_tokens:
            raise InputError("joint needs the same source_tokens and target_tokens")
        if self.joint and self.source_size not in (None, self.target_size):
            raise InputError("a joint vocabulary has the size target_size: leave source_size out")

    def fit(self, train: Sequence[Example]) -> PairCodec:
        """Learn one or two vocabularies from the training examples."""
        sources, targets = [e.source for e in train], [e.target for e in train]
        learn = partial(TextCoder.learn, min_count=self.min_count, lowercase=self.lowercase, pattern=self.pattern)
        if self.joint:
            both = learn(sources + targets, self.target_tokens, size=self.target_size)
            return PairCodec(both, both, self.cut_source)
        source = learn(sources, self.source_tokens, size=self.source_size)
        target = learn(targets, self.target_tokens, size=self.target_size)
        return PairCodec(source, target, self.cut_source)

    @abstractmethod
    def output_metrics(self) -> tuple[Metric, ...]:
        """Return the metrics of outputs."""

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        return (*self.output_metrics(), *likelihood_metrics((), self.log_z))

    def examples(
        self, split: Split, rows: Iterable[Sequence[str]], dropped: Counter[str], path: str | Path
    ) -> Examples:
        """Return rows of a source and one or more references as examples, without empty ones.

        In training, each reference that is not too long is an example; otherwise each row is one.
        """
        kept = []
        for row in rows:
            source, *answers = map(str.lower, row) if self.lowercase else row
            references = tuple(dict.fromkeys(filter(None, answers))) or ("",)
            for target in references if split == "train" else references[:1]:
                reason = self._reason_to_drop(split, source, target)
                if reason is not None:
                    dropped[reason] += 1
                else:
                    kept.append(Example(source, target, references if len(references) > 1 else ()))
        return self.limited(split, kept, dropped, path)

    def _reason_to_drop(self, split: Split, source: str, target: str) -> str | None:
        if not source or not target:
            return "empty target" if source else "empty source"
        if split == "train" and is_longer(source, self.source_tokens, self.longest_source):
            return "source too long"
        if split == "train" and is_longer(target, self.target_tokens, self.longest_target):
            return "target too long"
        return None


def is_longer(text: str, tokens: Tokens, limit: int | None) -> bool:
    """Return whether text has more than ``limit`` words, or characters if the tokens are characters or a pattern."""
    return limit is not None and len(text.split() if tokens in ("words", "bpe") else text) > limit


def check_pattern(pattern: str | None, *tokens: Tokens) -> None:
    """Raise `InputError` unless there is a valid regular expression exactly if some tokens are its matches."""
    if ("pattern" in tokens) != (pattern is not None):
        raise InputError('pattern is the regular expression of tokens "pattern": set both or none')
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise InputError(f"pattern is not a regular expression: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Translation(TextTask):
    """Multi30k task 1 (Elliott et al. 2016): captions in German and English, judged by sacreBLEU.

    It has 29,000 / 1,014 / 1,000 pairs. BLEU of "tok" compares its tokens unchanged (signature ``tok:none``), so it is
    not comparable with BLEU of "raw".
    """

    direction: Literal["de-en", "en-de"] = "de-en"  # source and target language
    variant: Literal["raw", "tok"] = "raw"  # as written, or the lower-cased and tokenised form of the data set
    test_set: Literal["2016", "2017"] = "2016"  # year of the test set
    joint: bool = True  # one vocabulary of target_size for both languages
    parts: bool = False  # also report the n-gram precisions and the length ratio

    def read(self, split: Split) -> Examples:
        part = {"train": "train", "dev": "val", "test": f"test_{self.test_set}_flickr"}[split]
        path = find("multi30k_deen", f"{part}.{self.variant}.tsv.gz")
        dropped: Counter[str] = Counter()
        rows = (row if self.direction == "de-en" else row[::-1] for _, row in read_tsv(path, 2, dropped))
        return self.examples(split, rows, dropped, path)

    def output_metrics(self) -> tuple[Metric, ...]:
        tokens: Literal["13a", "none"] = "13a" if self.variant == "raw" else "none"
        if not self.parts:
            return (Bleu(tokenize=tokens),)
        precisions = (NgramPrecision(tokenize=tokens, order=n + 1) for n in range(BLEU_ORDER))
        return (Bleu(tokenize=tokens), *precisions, LengthRatio(tokenize=tokens))


@dataclass(frozen=True, kw_only=True)
class Summarization(TextTask):
    """Titles of papers from their abstracts (ACL Anthology): 20,000 / 1,000 / 1,000 pairs, judged by ROUGE."""

    joint: bool = True  # one vocabulary of target_size for both
    cut_source: Count | None = 100  # the model reads only this many words of an abstract

    def read(self, split: Split) -> Examples:
        path = find("acl_title_abstract", f"{split}.jsonl.gz")
        dropped: Counter[str] = Counter()
        records = read_jsonl(path, ("abstract", "title"), dropped)
        return self.examples(split, ((r["abstract"].strip(), r["title"].strip()) for _, r in records), dropped, path)

    def output_metrics(self) -> tuple[Metric, ...]:
        return Rouge("L"), Rouge("1"), Rouge("2")


@dataclass(frozen=True, kw_only=True)
class Dialogue(TextTask):
    """Responses of the system in MultiWOZ dialogues (Budzianowski et al. 2018), judged by BLEU of their tokens.

    A source is one line, ``u: … s: … u: …``, oldest turn first.
    """

    history: Count = 5  # number of turns that the model reads
    source_tokens: Tokens = "words"  # unit of sources
    target_tokens: Tokens = "words"  # unit of targets
    # with names, times and numbers replaced by slots such as [hotel_name], or as written
    response: Literal["delexicalized", "written"] = "delexicalized"
    min_count: Count = 2  # rarer words of the training data are unknown
    lowercase: bool = True  # lower-case all text, answers included

    def read(self, split: Split) -> Examples:
        path = find("multiwoz_small", f"{split}.jsonl.gz")
        key = "response_delex" if self.response == "delexicalized" else "response"
        dropped: Counter[str] = Counter()
        records = read_jsonl(path, (key, "history"), dropped)
        pairs = ((self._source(record), record[key].strip()) for _, record in records)
        return self.examples(split, pairs, dropped, path)

    def _source(self, record: dict[str, Any]) -> str:
        return " ".join(turn.strip() for turn in record["history"][-self.history :])

    def output_metrics(self) -> tuple[Metric, ...]:
        return (Bleu(tokenize="none"),)
