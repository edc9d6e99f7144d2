"""Pairs of texts of your own: parallel text, TSV, JSON lines, chats, or a list."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from unforced.errors import InputError
from unforced.metrics.text import Bleu, ChrF, ErrorRate, ExactError, Rouge
from unforced.options import Distinct, Natural, NotEmpty, show
from unforced.protocols import Metric, Split
from unforced.tasks.files import read_jsonl, read_parallel, read_tsv, texts, user_file
from unforced.tasks.splits import FileSplits
from unforced.tasks.text import TextTask
from unforced.types import Examples

TextMeasure = Literal["bleu", "chrf", "error_rate", "exact", "rouge"]
TextMeasures = Annotated[tuple[TextMeasure, ...], NotEmpty(), Distinct()]
TURN = " <turn> "  # between the turns of a dialogue
Row = Sequence[str]  # a source and its references


@dataclass(frozen=True, kw_only=True)
class Pairs(TextTask, FileSplits):
    """Pairs of your own texts. Each of ``train``, ``dev`` and ``test`` is

    - a ``.tsv`` file with a source and a target per line, separated by a tab, and ``references`` further references,
    - a ``.jsonl`` file with one JSON object per line: a source and a target, or a chat under "messages",
    - a text file with one source per line, if ``train_target`` (``dev_target``, ``test_target``) has the targets, or
    - a list of tuples, each of a source and its targets.

    A list of targets are references of one source. A list of sources is a dialogue, joined by " <turn> ". Each answer
    of the assistant in a chat is a target; its source is the chat before it, each message after its role. A further
    suffix ``.gz`` means that the file is compressed. Examples with equal sources, or equal first turns, are held out
    together.
    """

    train_target: str | None = None  # text file of targets, if train is a text file of sources
    dev_target: str | None = None  # the same for development
    test_target: str | None = None  # the same for test
    source_key: str = "source"  # key of sources in .jsonl files
    target_key: str = "target"  # key of targets in .jsonl files
    references: Natural = 0  # further columns of .tsv files, each with one more reference or empty
    # metrics of outputs; the first selects checkpoints; error_rate counts in the unit of targets
    measures: TextMeasures = ("bleu",)

    def check(self) -> None:
        super().check()
        for split, path, target in (("dev", self.dev, self.dev_target), ("test", self.test, self.test_target)):
            if path is None and target is not None:
                raise InputError(f"{split}_target needs {split}, the file of its sources")

    def read(self, split: Split) -> Examples:
        data, dropped = self.data(split), Counter[str]()
        rows = list(self._listed(split, data) if isinstance(data, tuple) else self._file(split, data, dropped))
        if self.is_part(split):
            rows = self.part(split, rows, lambda row: row[0].partition(TURN)[0], dropped)
        return self.examples(split, rows, dropped, self.origin(split))

    def _listed(self, split: Split, data: tuple[Any, ...]) -> Iterator[Row]:
        for i, item in enumerate(data):
            if isinstance(item, str) or len(item) < 2:
                raise InputError(f"task.{self.owner(split)}[{i}] must be a source and a target, got {show(item)}")
            where = f"task.{self.owner(split)}[{i}]"
            yield [TURN.join(texts(item[0], where)), *(text for part in item[1:] for text in texts(part, where))]

    def _file(self, split: Split, path: Path, dropped: Counter[str]) -> Iterator[Row]:
        """The rows of the file that holds a split."""
        owner = self.owner(split)
        targets = {"train": self.train_target, "dev": self.dev_target, "test": self.test_target}[owner]
        if targets is not None:
            yield from read_parallel(path, user_file(targets, f"{owner}_target"))
            return
        match (path.with_suffix("") if path.suffix == ".gz" else path).suffix:
            case ".tsv":
                note = " (task.references is the number of further ones)"
                yield from (row for _, row in read_tsv(path, 2 + self.references, dropped, note))
            case ".jsonl":
                for number, record in read_jsonl(path, dropped=dropped):
                    yield from self._rows(record, f"{path}:{number}")
            case _:
                raise InputError(
                    f"{path}: must be .tsv or .jsonl, or be a file of sources whose targets {owner}_target names"
                )

    def _rows(self, record: dict[str, Any], where: str) -> Iterator[Row]:
        """The row of a JSON object, or those of a chat."""
        if "messages" in record and self.source_key not in record:
            yield from _chat_rows(record["messages"], f"{where}: messages")
            return
        for key in (self.source_key, self.target_key):
            if key not in record:
                raise InputError(f"{where}: must be a JSON object with the key {key!r}")
        turns = texts(record[self.source_key], f"{where}: {self.source_key!r}")
        yield [TURN.join(turns), *texts(record[self.target_key], f"{where}: {self.target_key!r}")]

    def output_metrics(self) -> tuple[Metric, ...]:
        unit: Literal["character", "word"] = "word" if self.target_tokens in ("words", "bpe") else "character"
        table: dict[TextMeasure, Callable[[], tuple[Metric, ...]]] = {
            "bleu": lambda: (Bleu(),),
            "chrf": lambda: (ChrF(),),
            "error_rate": lambda: (ErrorRate(unit=unit),),
            "exact": lambda: (ExactError(),),
            "rouge": lambda: (Rouge("L"), Rouge("1"), Rouge("2")),
        }
        return tuple(metric for measure in self.measures for metric in table[measure]())


def _chat_rows(messages: Any, where: str) -> Iterator[Row]:
    """Yield each answer of the assistant with the messages before it, a system message as part of the first turn."""
    turns: list[str] = []
    system = ""
    for i, message in enumerate(messages if isinstance(messages, list) and messages else [None]):
        role, text = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not isinstance(role, str) or not isinstance(text, str):
            raise InputError(f"{where}[{i}] must have a role and a content, both strings, got {show(message)}")
        if role == "assistant" and turns:
            yield [TURN.join(turns), text.strip()]
        if role == "system":
            system = f"{role}: {text.strip()} "
        else:
            turns.append(f"{system}{role}: {text.strip()}")
            system = ""
