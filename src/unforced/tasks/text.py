"""What text-to-text tasks share: the codec, the options of vocabularies, and which examples are left out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.metrics.text import BLEU_ORDER, Bleu, ChrF, ErrorRate, ExactError, LengthRatio, NgramPrecision, Rouge
from unforced.options import Above, Below, Count, Distinct, NotEmpty, Options
from unforced.protocols import LikelihoodMetric, Metric, Split
from unforced.tasks.codecs import collate
from unforced.tasks.datasets import find
from unforced.tasks.files import (
    BLANK,
    Dropped,
    count,
    fraction,
    limited,
    named,
    read_jsonl,
    read_lines,
    read_parallel,
    read_tsv,
    string,
)
from unforced.tasks.tokenization import Characters, TextCoder, Tokens
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
        return {"source": source, "target": self.target.to_json(), "joint": joint, "cut_source": self.cut_source}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PairCodec":
        missing = {"source", "target", "joint", "cut_source"} - data.keys()
        if missing:
            raise InputError(f"The codec has no {', '.join(sorted(missing))}.")
        target = TextCoder.from_json(data["target"])
        if data["joint"]:
            return cls(target, target, data["cut_source"])
        source = None if data["source"] is None else TextCoder.from_json(data["source"])
        return cls(source, target, data["cut_source"])


@dataclass(frozen=True, kw_only=True)
class TextTask(Options, ABC):
    """The options all text-to-text tasks have.

    Lengths are counted in white-space separated words, or in characters where the tokens are characters.
    """

    reads_text: ClassVar[bool] = True  # sources are text, and may be long or short

    source_tokens: Tokens = "words"  # how sources are cut: white-space words, characters, byte pair encoding
    target_tokens: Tokens = "words"  # how targets are cut
    source_size: Count | None = None  # most tokens of the source vocabulary; with bpe its pieces (none: 8,000)
    target_size: Count | None = None  # the same of the target vocabulary
    min_count: Count = 1  # rarer words or characters of the training data are unknown
    joint: bool = False  # one vocabulary of target_size for both sides
    lowercase: bool = False  # all text, answers included
    longest_source: Count | None = None  # training examples with a longer source are left out
    longest_target: Count | None = None  # training examples with a longer target are left out
    cut_source: Count | None = None  # of longer sources the model sees only so much
    train_limit: Count | None = None  # take only the first so many training examples
    dev_limit: Count | None = None  # the same for development
    test_limit: Count | None = None  # the same for test
    log_z: bool = False  # also report the mean and variance of log Z

    def check(self) -> None:
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
        return (*self.output_metrics(), *likelihood_metrics((), self.log_z))

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


# Text to text with a user's own files: parallel text, TSV or JSON lines.

TextMeasure = Literal["bleu", "chrf", "error_rate", "exact", "rouge"]
TextMeasures = Annotated[tuple[TextMeasure, ...], NotEmpty(), Distinct()]


@dataclass(frozen=True, kw_only=True)
class Pairs(TextTask):
    """Pairs of texts from files. ``train``, ``dev`` and ``test`` each name

    - a ``.tsv`` file with a source and a target in each line, separated by a tab, or
    - a ``.jsonl`` file with an object a line that has the keys ``source_key`` and ``target_key``, or
    - any text file of sources, a line each, while ``train_target`` (``dev_target``, ``test_target``) names the
      file of their targets.

    A further ``.gz`` says that the file is compressed. Where ``dev`` or ``test`` is absent, a share ``hold_out`` of
    the training file's distinct sources takes its place: which ones is a function of the sources alone, and equal
    sources stay together. ``error_rate`` counts in characters if the target tokens are characters, else in words.
    """

    train: str  # a .tsv or .jsonl file of pairs, or a text file of sources
    dev: str | None = None  # the same for development; held out of the training file if absent
    test: str | None = None  # the same for test
    train_target: str | None = None  # a text file of targets, if train is one of sources
    dev_target: str | None = None  # the same for development
    test_target: str | None = None  # the same for test
    source_key: str = "source"  # the source's key in a .jsonl file
    target_key: str = "target"  # the target's key in a .jsonl file
    # share of the different sources that stands in for an absent dev or test file
    hold_out: Annotated[float, Above(0), Below(0.5)] = 0.05
    measures: TextMeasures = ("bleu",)  # how outputs are judged; the first picks the checkpoint

    def check(self) -> None:
        super().check()
        for split in ("dev", "test"):
            if getattr(self, split) is None and getattr(self, f"{split}_target") is not None:
                raise InputError(f"{split}_target is given without {split}.")

    def read(self, split: Split) -> Examples:
        """The examples of a split; an ``InputError`` if there is none."""
        dropped: dict[str, int] = {}
        path = getattr(self, split)
        if path is None or split == "train":
            examples = self.choose(split, self._part(split, dropped), dropped)
        else:
            examples = self.choose(split, self._pairs(split, dropped), dropped)
        if not examples:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in dropped.items()) or "the file is empty"
            raise InputError(f"{path or self.train} has no usable example for {split} ({reasons}).")
        return examples

    def _pairs(self, split: Split, dropped: Dropped) -> Iterator[tuple[str, str]]:
        """All pairs of the file named for a split."""
        path = named(getattr(self, split), split)
        target_path = getattr(self, f"{split}_target")
        if target_path is not None:
            for _, source, target in read_parallel(path, named(target_path, f"{split}_target")):
                yield source, target
            return
        suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        if suffix == ".tsv":
            for _, (source, target) in read_tsv(path, 2, dropped):
                yield source, target
        elif suffix == ".jsonl":
            for number, record in read_jsonl(path, (self.source_key, self.target_key), dropped):
                source, target = (string(record, k, path, number) for k in (self.source_key, self.target_key))
                yield source, target
        else:
            raise InputError(
                f"{path}: a file that is neither .tsv nor .jsonl needs a second one with the targets; name it as {split}_target."
            )

    def _part(self, split: Split, dropped: Dropped) -> Iterator[tuple[str, str]]:
        """The pairs of the training file that fall to a split; the others are counted as dropped."""
        if self.dev is not None and self.test is not None:
            yield from self._pairs("train", dropped)
            return
        pairs = list(self._pairs("train", dropped))
        sources = sorted({source for source, _ in pairs if source}, key=fraction)
        share = max(1, round(self.hold_out * len(sources)))
        held = {"dev": sources[:share] if self.dev is None else []}
        held["test"] = sources[len(sources) - share :] if self.test is None else []
        if not sources:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in dropped.items()) or "the file is empty"
            raise InputError(f"{self.train} has no usable example ({reasons}).")
        if len(sources) < 3:
            raise InputError(
                f"{self.train} has too few different sources to hold some out ({len(sources)}): give dev and test."
            )
        part_of = {source: part for part, chosen in held.items() for source in chosen}
        for source, target in pairs:
            part = part_of.get(source, "train")
            if part == split:
                yield source, target
            else:
                reason = "not held out" if part == "train" else f"held out for {part}"
                dropped[reason] = dropped.get(reason, 0) + 1

    def output_metrics(self) -> tuple[Metric, ...]:
        chosen: list[Metric] = []
        for measure in self.measures:
            match measure:
                case "bleu":
                    chosen.append(Bleu())
                case "chrf":
                    chosen.append(ChrF())
                case "error_rate":
                    chosen.append(ErrorRate(unit="character" if self.target_tokens == "characters" else "word"))
                case "exact":
                    chosen.append(ExactError())
                case "rouge":
                    chosen.extend([Rouge("L"), Rouge("1"), Rouge("2")])
        return tuple(chosen)


# Translation of picture descriptions: Multi30k, German and English.


@dataclass(frozen=True, kw_only=True)
class Translation(TextTask):
    """Multi30k task 1 (Elliott et al. 2016): 29,000 / 1,014 / 1,000 pairs, judged by sacreBLEU.

    ``raw`` is the text as written, ``tok`` the set's own lower-cased and tokenised form. BLEU of ``tok`` compares the
    tokens as they are (signature ``tok:none``), so it isn't comparable with that of ``raw``.
    """

    direction: Literal["de-en", "en-de"] = "de-en"  # from which language to which
    variant: Literal["raw", "tok"] = "raw"  # as written, or lower-cased and tokenised
    test_set: Literal["2016", "2017"] = "2016"  # the year of the test set
    source_tokens: Tokens = "bpe"  # how sources are cut
    target_tokens: Tokens = "bpe"  # how targets are cut
    joint: bool = True  # one vocabulary of target_size for both languages
    parts: bool = False  # also report the n-gram precisions and the length ratio

    def read(self, split: Split) -> Examples:
        part = {"train": "train", "dev": "val", "test": f"test_{self.test_set}_flickr"}[split]
        dropped: dict[str, int] = {}
        rows = read_tsv(find("multi30k_deen", f"{part}.{self.variant}.tsv.gz"), 2, dropped)
        if self.direction == "de-en":
            return self.choose(split, ((german, english) for _, (german, english) in rows), dropped)
        return self.choose(split, ((english, german) for _, (german, english) in rows), dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        tokens: Literal["13a", "none"] = "13a" if self.variant == "raw" else "none"
        parts = [
            *(NgramPrecision(tokenize=tokens, order=n + 1) for n in range(BLEU_ORDER)),
            LengthRatio(tokenize=tokens),
        ]
        return (Bleu(tokenize=tokens), *(parts if self.parts else []))


# Summarisation: the title of a paper from its abstract.


@dataclass(frozen=True, kw_only=True)
class Summarization(TextTask):
    """Abstracts of the ACL Anthology -> their titles: 20,000 / 1,000 / 1,000, judged by ROUGE."""

    source_tokens: Tokens = "bpe"  # how abstracts are cut
    target_tokens: Tokens = "bpe"  # how titles are cut
    joint: bool = True  # one vocabulary of target_size for both
    cut_source: Count | None = 100  # so many words of an abstract the model sees

    def read(self, split: Split) -> Examples:
        path = find("acl_title_abstract", f"{split}.jsonl.gz")
        dropped: dict[str, int] = {}
        pairs = (
            (string(record, "abstract", path, n), string(record, "title", path, n))
            for n, record in read_jsonl(path, ("abstract", "title"), dropped)
        )
        return self.choose(split, pairs, dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        return Rouge("L"), Rouge("1"), Rouge("2")


# Dialogue responses: what the system of a MultiWOZ dialogue says next.


@dataclass(frozen=True, kw_only=True)
class Dialogue(TextTask):
    """The last ``history`` turns of a dialogue -> the system's response (Budzianowski et al. 2018).

    A source is one line, ``u: … s: … u: …``, oldest turn first. Responses are tokenised text whose names, times and
    numbers are slots such as ``[hotel_name]`` (``delexicalized``), or as ``written``; BLEU compares their tokens.
    """

    history: Count = 5  # how many turns the model sees
    response: Literal["delexicalized", "written"] = "delexicalized"  # slots for names, or as written
    min_count: Count = 2  # rarer words of the training data are unknown
    lowercase: bool = True  # all text, answers included

    def read(self, split: Split) -> Examples:
        path = find("multiwoz_small", f"{split}.jsonl.gz")
        key = "response_delex" if self.response == "delexicalized" else "response"
        dropped: dict[str, int] = {}
        records = read_jsonl(path, ("history", key), dropped)
        pairs = (
            (" ".join(_turns(record["history"], f"{path}:{n}")[-self.history :]), string(record, key, path, n))
            for n, record in records
        )
        return self.choose(split, pairs, dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        return (Bleu(tokenize="none"),)


def _turns(history: Any, where: str) -> list[str]:
    if not isinstance(history, list) or not all(isinstance(turn, str) for turn in history):
        raise InputError(f"{where}: 'history' must be a list of strings.")
    return [turn.strip() for turn in history]


# Language modelling of plain text files.


@dataclass(frozen=True, kw_only=True)
class Language(Options):
    """Text from files, without sources: each line is an example, or each ``block`` of words (or characters).

    A block runs over line ends, which count as white space; the last one of a file may be shorter. Where ``dev``
    or ``test`` is absent, a share ``hold_out`` of the training file's examples takes its place: the stretch at its
    end, test behind development. There are no outputs to judge, so models are compared by perplexity, and masked models
    by "pseudo_perplexity".
    """

    train: str  # a text file
    dev: str | None = None  # the same for development; the training file's end if absent
    test: str | None = None  # the same for test
    # share of the training file that stands in for an absent dev or test file
    hold_out: Annotated[float, Above(0), Below(0.5)] = 0.05
    tokens: Tokens = "words"  # how text is cut: white-space words, characters, byte pair encoding
    size: Count | None = None  # most tokens of the vocabulary; with bpe its pieces (none: 8,000)
    min_count: Count = 1  # rarer words or characters of the training data are unknown
    lowercase: bool = False  # all text
    block: Count | None = None  # words an example has, characters where the tokens are characters
    longest: Count | None = None  # longer training examples are left out, counted like blocks
    train_limit: Count | None = None  # take only the first so many training examples
    dev_limit: Count | None = None  # the same for development
    test_limit: Count | None = None  # the same for test
    measures: Measures = ("perplexity",)  # how models are judged; the first picks the checkpoint

    def check(self) -> None:
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
            raise InputError(f"{self.train} has too few examples to hold some out ({len(texts)}): give dev and test.")
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
        return likelihood_metrics(self.measures)
