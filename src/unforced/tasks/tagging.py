"""The codec of tagging: as many tags as words, and no end symbol."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import likelihood_metrics
from unforced.metrics.tagging import EntityF1, TokenAccuracy, first_fault, is_iob
from unforced.options import Above, Below, Count, Natural, NonEmptyStr, Options
from unforced.protocols import LikelihoodMetric, Metric, Split
from unforced.tasks.codecs import collate
from unforced.tasks.datasets import find
from unforced.tasks.files import Sentence, count, fraction, limited, named, read_conll
from unforced.tasks.tokenization import Vocabulary
from unforced.types import Batch, Encoded, Example, Examples, Sizes, Symbols

Unseen = Literal["error", "wrong"]


class TagCodec:
    """Sequences of words to sequences of tags; ``Batch.length`` is the number of words.

    Rare words share the unknown word's id. The tags' vocabulary has such an id too, which is banned from outputs: it
    stands for tags that training never had where ``unseen`` is "wrong".

    >>> words = Vocabulary.learn([["Anna", "schläft"]], eos=False)
    >>> tags = Vocabulary.learn([["B-PER", "O"]], eos=False)
    >>> codec = TagCodec(words, tags)
    >>> codec.encode(Example(("Otto", "schläft"), ("B-PER", "O")))
    Encoded(source=array([2, 4]), target=[3, 4], references=())
    >>> codec.decode([3, 4])
    ('B-PER', 'O')
    """

    def __init__(self, words: Vocabulary, tags: Vocabulary, lowercase: bool = False, unseen: Unseen = "error") -> None:
        if words.unk is None or tags.unk is None or tags.eos:
            raise InputError("Tagging needs vocabularies with an unknown symbol, and tags without an end symbol.")
        self.words = words
        self.tags = tags
        self.lowercase = lowercase
        self.unseen = unseen
        pad, bos = tags.symbols.pad, tags.symbols.bos
        self.symbols = Symbols(pad=pad, bos=bos, eos=None, banned=(pad, bos, tags.unk))
        self.sizes = Sizes(target=len(tags), source=len(words))

    def encode(self, example: Example) -> Encoded:
        words = [word.lower() for word in example.source] if self.lowercase else example.source
        if not len(words):
            raise InputError("A sentence has no words.")
        source = np.asarray(self.words.encode(words, eos=False), dtype=np.int64)
        if example.target is None:
            return Encoded(source, [])
        if len(example.target) != len(words):
            raise InputError(f"A sentence has {len(words)} words but {len(example.target)} tags: {_start(words)}")
        if self.unseen == "error":
            self._check(example)
        return Encoded(source, self.tags.encode(example.target, eos=False))

    def _check(self, example: Example) -> None:
        for tag in example.target:
            if tag not in self.tags:
                raise InputError(
                    f"The tag {tag!r} never occurs in the training data but does in {_start(example.source)}: "
                    'mend the data, or set unseen_tags = "wrong" to let it count as an error of every model.'
                )

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, fixed_length=True)

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tags.decode(ids))

    def parse(self, line: str) -> tuple[str, ...]:
        """Words with white space between them."""
        words = tuple(line.split())
        if not words:
            raise InputError("The line is blank, and a sentence needs at least one word.")
        return words

    def show(self, output: Sequence[str] | None) -> str:
        """Tags (or words) with spaces between them."""
        return "" if output is None else " ".join(output)

    def token_names(self) -> tuple[str, ...]:
        return self.tags.tokens

    def to_json(self) -> dict[str, Any]:
        return {
            "words": self.words.to_json(),
            "tags": self.tags.to_json(),
            "lowercase": self.lowercase,
            "unseen": self.unseen,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        missing = {"words", "tags", "lowercase", "unseen"} - data.keys()
        if missing:
            raise InputError(f"The codec has no {', '.join(sorted(missing))}.")
        words, tags = Vocabulary.from_json(data["words"]), Vocabulary.from_json(data["tags"])
        return cls(words, tags, bool(data["lowercase"]), "wrong" if data["unseen"] == "wrong" else "error")


def _start(words: Sequence[str]) -> str:
    """The first words of a sentence, quoted, so that it can be found."""
    return repr(" ".join(words[:8]) + (" …" if len(words) > 8 else ""))


# A tag for every word: named entities, supertags, parts of speech.


class Columns(NamedTuple):
    """How a column file is read."""

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
GROUPS = {  # the coarse classes of Leitner et al. (2019)
    "PER": ("PER", "RR", "AN"),
    "LOC": ("LD", "ST", "STR", "LDS"),
    "ORG": ("ORG", "UN", "INN", "GRT", "MRK"),
    "NRM": ("GS", "VO", "EUN"),
    "REG": ("VS", "VT"),
    "RS": ("RS",),
    "LIT": ("LIT",),
}
COARSE = {fine: coarse for coarse, group in GROUPS.items() for fine in group}


@dataclass(frozen=True, kw_only=True)
class Tagging(Options):
    """Words to tags: a data set by name, or column files of one's own.

    ``dataset`` is "german_ler" (19 classes of entities, ``coarse`` merges them into 7), "germeval14_small" (the outer
    entities) or "ccg_ewt" (supertags). Otherwise ``train``, ``dev`` and ``test`` name files with a word a line and a blank
    line between sentences; columns count from zero and lines that start with ``comment_prefix`` are skipped. Where ``dev``
    or ``test`` is absent, a share ``hold_out`` of the training file's sentences takes its place, equal sentences together.

    ``metric`` "f1" is strict entity F1 and wants IOB2 tags; "auto" takes it if all training tags look like IOB, else token
    accuracy. ``unseen_tags`` says what a development or test tag that training never had is: an "error", or an answer that
    no output can match ("wrong"); "auto" is "wrong" for the data sets above and "error" for files of one's own.

    >>> Tagging(dataset="german_ler", coarse=True).metrics()[0].name
    'f1'
    >>> coarse("B-GRT"), coarse("O")
    ('B-ORG', 'O')
    """

    reads_text: ClassVar[bool] = True  # sources are text, and may be long or short

    dataset: Literal["german_ler", "germeval14_small", "ccg_ewt"] | None = None
    coarse: bool = False
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    word_column: Natural = 0
    tag_column: Natural = 1
    comment_prefix: NonEmptyStr | None = None
    hold_out: Annotated[float, Above(0), Below(0.5)] = 0.05
    min_count: Count = 2  # rarer words of the training data are unknown
    size: Count | None = None  # the most words of the vocabulary
    lowercase: bool = False  # words, in the vocabulary's eyes
    longest: Count | None = None  # training sentences of more words are left out
    train_limit: Count | None = None
    dev_limit: Count | None = None
    test_limit: Count | None = None
    metric: Literal["auto", "f1", "accuracy"] = "auto"
    unseen_tags: Literal["auto", "error", "wrong"] = "auto"
    log_z: bool = False  # also report the mean and variance of log Z

    def check(self) -> None:
        if self.dataset is None and self.train is None:
            raise InputError(
                f"Tagging needs a dataset ({', '.join(BUILT_IN)}) or files of your own: train, dev and test."
            )
        if self.coarse and self.dataset != "german_ler":
            raise InputError("coarse is for the dataset german_ler alone.")
        given = (self.train, self.dev, self.test, self.word_column, self.tag_column, self.comment_prefix)
        if self.dataset is not None and given != (None, None, None, *Columns()):
            raise InputError("Give either a dataset or files of your own and their columns, not both.")

    @property
    def columns(self) -> Columns:
        if self.dataset is not None:
            return BUILT_IN[self.dataset].columns
        return Columns(self.word_column, self.tag_column, self.comment_prefix)

    def path(self, split: Split) -> Path:
        """The file that a split is read from."""
        if self.dataset is not None:
            return find(self.dataset, f"{split}.tsv.gz")
        if not self.train:
            raise InputError("No file of words and tags is named: set train to the path of yours.")
        return named(getattr(self, split) or str(self.train or ""), "train")

    def read(self, split: Split) -> Examples:
        dropped: dict[str, int] = {}
        path = self.path(split)
        checked = self.chosen_metric() == "f1"
        examples = []
        for sentence in self._part(split, read_conll(path, *self.columns), dropped):
            if split == "train" and self.longest is not None and len(sentence.words) > self.longest:
                count(dropped, "too long")
                continue
            if checked:
                _check_iob2(sentence, path)
            tags = [coarse(tag) for tag in sentence.tags] if self.coarse else sentence.tags
            examples.append(Example(_interned(sentence.words), _interned(tags)))
        if not examples:
            raise InputError(f"{path} has no usable sentence for {split}.")
        return limited(examples, dropped, getattr(self, f"{split}_limit"))

    def _part(self, split: Split, sentences: Iterator[Sentence], dropped: dict[str, int]) -> Iterator[Sentence]:
        """The sentences of a file that fall to a split: all of them, unless some of ``train`` are held out."""
        if self.dataset is not None or (split != "train" and getattr(self, split) is not None):
            yield from sentences
            return
        for sentence in sentences:
            place = fraction(" ".join(sentence.words))
            owner = "train"
            if self.dev is None and place < self.hold_out:
                owner = "dev"
            elif self.test is None and place >= 1 - self.hold_out:
                owner = "test"
            if owner == split:
                yield sentence
            else:
                count(dropped, "in another split")

    def chosen_metric(self) -> Literal["f1", "accuracy"]:
        """What ``metric`` comes to: for files of one's own, "auto" looks at the training file's tags."""
        if self.metric != "auto":
            return self.metric
        if self.dataset is not None:
            return BUILT_IN[self.dataset].metric
        path = self.path("train")
        changed = path.stat().st_mtime_ns if path.is_file() else 0
        return "f1" if _all_iob(path, self.columns, changed) else "accuracy"

    def fit(self, train: Sequence[Example]) -> TagCodec:
        if not train:
            raise InputError("There are no training sentences.")
        words = ((word.lower() for word in example.source) if self.lowercase else example.source for example in train)
        vocabulary = Vocabulary.learn(words, min_count=self.min_count, max_size=self.size, eos=False)
        tags = Vocabulary.learn((example.target for example in train), eos=False)
        unseen: Unseen = "wrong" if self.dataset is not None else "error"
        return TagCodec(vocabulary, tags, self.lowercase, unseen if self.unseen_tags == "auto" else self.unseen_tags)

    def codec(self, data: dict[str, Any]) -> TagCodec:
        return TagCodec.from_json(data)

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        metric = EntityF1() if self.chosen_metric() == "f1" else TokenAccuracy()
        return (metric, *likelihood_metrics((), self.log_z))


def coarse(tag: str) -> str:
    """A tag of German LER with its class replaced by the coarse one."""
    if tag == "O":
        return tag
    if tag[2:] not in COARSE:
        raise InputError(f"The tag {tag!r} has none of the classes of German LER: {', '.join(COARSE)}.")
    return tag[:2] + COARSE[tag[2:]]


def _interned(strings: Sequence[str]) -> tuple[str, ...]:
    """Equal strings as one object: a corpus repeats its words and tags."""
    return tuple(map(sys.intern, strings))


def _check_iob2(sentence: Sentence, path: Path) -> None:
    fault = first_fault(sentence.tags)
    if fault is not None:
        raise InputError(
            f"{path}:{sentence.line}: in the sentence that starts here, {sentence.tags[fault]!r} at word {fault + 1} "
            'breaks IOB2, which F1 needs; convert the tags or set metric = "accuracy".'
        )


@lru_cache(maxsize=8)
def _all_iob(path: Path, columns: Columns, changed: int) -> bool:
    """Whether a file's tags all look like IOB and some mark an entity; ``changed`` (its time) only keys the cache."""
    marked = False
    for sentence in read_conll(path, *columns):
        if not all(map(is_iob, sentence.tags)):
            return False
        marked = marked or any(tag != "O" for tag in sentence.tags)
    return marked
