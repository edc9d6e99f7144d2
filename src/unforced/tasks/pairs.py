"""Pairs of texts from your own files: parallel text, TSV or JSON lines."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from unforced.errors import InputError
from unforced.metrics.text import Bleu, ChrF, ErrorRate, ExactError, Rouge
from unforced.options import Distinct, NotEmpty
from unforced.protocols import Metric, Split
from unforced.tasks.files import read_jsonl, read_parallel, read_tsv, user_file
from unforced.tasks.splits import FileSplits
from unforced.tasks.text import TextTask
from unforced.types import Examples

TextMeasure = Literal["bleu", "chrf", "error_rate", "exact", "rouge"]
TextMeasures = Annotated[tuple[TextMeasure, ...], NotEmpty(), Distinct()]


@dataclass(frozen=True, kw_only=True)
class Pairs(TextTask, FileSplits):
    """Pairs of texts from your own files. Each of ``train``, ``dev`` and ``test`` is

    - a ``.tsv`` file with a source and a target per line, separated by a tab, or
    - a ``.jsonl`` file with one JSON object per line, or
    - a text file with one source per line, if ``train_target`` (``dev_target``, ``test_target``) has the targets.

    A further suffix ``.gz`` means that the file is compressed. Examples with equal sources are held out together.
    """

    train_target: str | None = None  # text file of targets, if train is a text file of sources
    dev_target: str | None = None  # the same for development
    test_target: str | None = None  # the same for test
    source_key: str = "source"  # key of sources in .jsonl files
    target_key: str = "target"  # key of targets in .jsonl files
    # metrics of outputs; the first selects checkpoints; error_rate counts in the unit of targets
    measures: TextMeasures = ("bleu",)

    def check(self) -> None:
        super().check()
        for split, path, target in (("dev", self.dev, self.dev_target), ("test", self.test, self.test_target)):
            if path is None and target is not None:
                raise InputError(f"{split}_target needs {split}, the file of its sources")

    def read(self, split: Split) -> Examples:
        dropped: Counter[str] = Counter()
        pairs = self._pairs(split, dropped)
        if self.is_part(split):
            pairs = iter(self.part(split, list(pairs), lambda pair: pair[0], dropped))
        return self.examples(split, pairs, dropped, self.path(split))

    def _pairs(self, split: Split, dropped: Counter[str]) -> Iterator[tuple[str, str]]:
        """All pairs of the file that holds a split."""
        path, owner = self.path(split), self.owner(split)
        targets = {"train": self.train_target, "dev": self.dev_target, "test": self.test_target}[owner]
        if targets is not None:
            return read_parallel(path, user_file(targets, f"{owner}_target"))
        match (path.with_suffix("") if path.suffix == ".gz" else path).suffix:
            case ".tsv":
                return ((source, target) for _, (source, target) in read_tsv(path, 2, dropped))
            case ".jsonl":
                keys = (self.source_key, self.target_key)
                return ((r[keys[0]], r[keys[1]]) for _, r in read_jsonl(path, keys, dropped=dropped))
        raise InputError(f"{path}: must be .tsv or .jsonl, or be a file of sources whose targets {owner}_target names")

    def output_metrics(self) -> tuple[Metric, ...]:
        unit: Literal["character", "word"] = "character" if self.target_tokens == "characters" else "word"
        table: dict[TextMeasure, tuple[Metric, ...]] = {
            "bleu": (Bleu(),),
            "chrf": (ChrF(),),
            "error_rate": (ErrorRate(unit=unit),),
            "exact": (ExactError(),),
            "rouge": (Rouge("L"), Rouge("1"), Rouge("2")),
        }
        return tuple(metric for measure in self.measures for metric in table[measure])
