"""A tag for each word: named entities, supertags, parts of speech."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from unforced.errors import InputError
from unforced.metrics.likelihood import likelihood_metrics
from unforced.metrics.tagging import EntityF1, TokenAccuracy, first_fault, is_iob
from unforced.options import Count, Natural, NonEmptyStr, show
from unforced.protocols import LikelihoodMetric, Metric, Split
from unforced.tasks.codecs import TagCodec
from unforced.tasks.datasets import find
from unforced.tasks.files import TaggedSentence, read_conll
from unforced.tasks.splits import Data, FileSplits, LimitedTask
from unforced.tasks.tokenization import Vocabulary
from unforced.types import Example, Examples


class Columns(NamedTuple):
    """Layout of a column file."""

    word: int = 0
    tag: int = 1
    comment: str | None = None


class BuiltIn(NamedTuple):
    columns: Columns
    metric: Literal["f1", "accuracy"]


BUILT_IN = {
    "german_ler": BuiltIn(Columns(), "f1"),
    "germeval14_small": BuiltIn(Columns(), "f1"),
    "ccg_ewt": BuiltIn(Columns(tag=2, comment="# id="), "accuracy"),
}
COARSE = {  # Leitner et al. (2019)
    fine: coarse
    for coarse, group in {
        "PER": ("PER", "RR", "AN"),
        "LOC": ("LD", "ST", "STR", "LDS"),
        "ORG": ("ORG", "UN", "INN", "GRT", "MRK"),
        "NRM": ("GS", "VO", "EUN"),
        "REG": ("VS", "VT"),
        "RS": ("RS",),
        "LIT": ("LIT",),
    }.items()
    for fine in group
}


@dataclass(frozen=True, kw_only=True)
class Tagging(LimitedTask, FileSplits):
    """Words to tags: a data set, or your own column files with a word per line and blank lines between sentences.

    A list of sentences has the words and the tags of each, as lists or separated by blanks.

    Columns count from 0. Equal sentences are held out together. F1 is strict entity F1 and needs IOB2 tags.
    """

    codec_class: ClassVar[type[TagCodec]] = TagCodec
    reads_text: ClassVar[bool] = True

    # German legal entities in 19 classes, outer entities of German news, or English supertags; default: your own files
    dataset: Literal["german_ler", "germeval14_small", "ccg_ewt"] | None = None
    train: Data = ""  # the training file, or a list of sentences and their tags
    coarse: bool = False  # merge the classes of german_ler into 7
    word_column: Natural = 0  # column of words in your files
    tag_column: Natural = 1  # column of tags in your files
    comment_prefix: NonEmptyStr | None = None  # skip lines that start with it in your files
    min_count: Count = 2  # rarer words of the training data are unknown
    size: Count | None = None  # largest vocabulary of words
    lowercase: bool = False  # lower-case words
    longest: Count | None = None  # leave out training sentences with more words
    metric: Literal["auto", "f1", "accuracy"] = "auto"  # "auto" is f1 if all training tags are IOB, else accuracy
    # dev and test tags absent from the training data are an error, or count as wrong; "auto" is "error" for your files
    unseen_tags: Literal["auto", "error", "wrong"] = "auto"
    log_z: bool = False  # also report the mean and variance of log Z

    def check(self) -> None:
        own = (self.train, self.dev, self.test, self.word_column, self.tag_column, self.comment_prefix)
        if self.dataset is not None and own != ("", None, None, *Columns()):
            raise InputError("set either dataset, or your own files and their columns")
        if self.coarse and self.dataset != "german_ler":
            raise InputError("coarse needs the dataset german_ler")

    @property
    def columns(self) -> Columns:
        if self.dataset is not None:
            return BUILT_IN[self.dataset].columns
        return Columns(self.word_column, self.tag_column, self.comment_prefix)

    def data(self, split: Split) -> Path | tuple[Any, ...]:
        return super().data(split) if self.dataset is None else find(self.dataset, f"{split}.tsv.gz")

    def read(self, split: Split) -> Examples:
        dropped: Counter[str] = Counter()
        needs_iob2 = self.chosen_metric() == "f1"
        sentences = self._sentences(split)
        if self.dataset is None and self.is_part(split):
            sentences = self.part(split, sentences, lambda sentence: " ".join(sentence.words), dropped)
        examples = []
        for sentence in sentences:
            if split == "train" and self.longest is not None and len(sentence.words) > self.longest:
                dropped["too long"] += 1
                continue
            if needs_iob2 and (fault := first_fault(sentence.tags)) is not None:
                raise InputError(
                    f"{self.origin(split)}:{sentence.line}: in the sentence that starts here, "
                    f"{sentence.tags[fault]!r} at word {fault + 1} breaks IOB2, which F1 needs: "
                    'convert the tags or set metric = "accuracy"'
                )
            tags = [coarse(tag) for tag in sentence.tags] if self.coarse else sentence.tags
            examples.append(Example(tuple(map(sys.intern, sentence.words)), tuple(map(sys.intern, tags))))
        return self.limited(split, examples, dropped, self.origin(split))

    def _sentences(self, split: Split) -> list[TaggedSentence]:
        """All sentences of the data that holds a split."""
        data = self.data(split)
        if not isinstance(data, tuple):
            return list(read_conll(data, *self.columns))
        for i, item in enumerate(data):
            if isinstance(item, str) or len(item) != 2:
                raise InputError(f"task.{self.owner(split)}[{i}] must be a sentence and its tags, got {show(item)}")
        rows = [[tuple(part.split()) if isinstance(part, str) else part for part in item] for item in data]
        return [TaggedSentence(i, words, tags) for i, (words, tags) in enumerate(rows)]

    def chosen_metric(self) -> Literal["f1", "accuracy"]:
        """Return the metric that "auto" stands for."""
        if self.metric != "auto":
            return self.metric
        if self.dataset is not None:
            return BUILT_IN[self.dataset].metric
        path = self.data("train")
        changed = path.stat().st_mtime_ns if isinstance(path, Path) and path.is_file() else 0
        return "f1" if _all_iob(self, changed) else "accuracy"

    def fit(self, train: Sequence[Example]) -> TagCodec:
        words = ((word.lower() for word in example.source) if self.lowercase else example.source for example in train)
        vocabulary = Vocabulary.learn(words, min_count=self.min_count, max_size=self.size, eos=False)
        tags = Vocabulary.learn((example.target for example in train), eos=False)
        own: Literal["error", "wrong"] = "error" if self.dataset is None else "wrong"
        return TagCodec(vocabulary, tags, self.lowercase, own if self.unseen_tags == "auto" else self.unseen_tags)

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        metric = EntityF1() if self.chosen_metric() == "f1" else TokenAccuracy()
        return (metric, *likelihood_metrics((), self.log_z))


def coarse(tag: str) -> str:
    """Return a tag of German LER with its coarse class.

    >>> coarse("B-GRT"), coarse("O")
    ('B-ORG', 'O')
    """
    if tag != "O" and tag[2:] not in COARSE:
        raise InputError(f"the tag {tag!r} has none of the classes of German LER: {', '.join(COARSE)}")
    return tag if tag == "O" else tag[:2] + COARSE[tag[2:]]


@lru_cache(maxsize=8)
def _all_iob(task: Tagging, changed: int) -> bool:
    """Return whether all training tags look like IOB and some mark an entity; ``changed`` is a key of the cache."""
    tags = {tag for sentence in task._sentences("train") for tag in sentence.tags}
    return all(map(is_iob, tags)) and bool(tags - {"O"})
