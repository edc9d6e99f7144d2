"""Text to text with a user's own files: parallel text, TSV or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unforced.errors import InputError
from unforced.metrics.bleu import Bleu
from unforced.metrics.chrf import ChrF
from unforced.metrics.edit import ErrorRate, ExactError
from unforced.metrics.protocol import Metric
from unforced.metrics.rouge import Rouge
from unforced.tasks.files import Dropped, named, read_jsonl, read_parallel, read_tsv, string
from unforced.tasks.protocol import Split
from unforced.tasks.splits import fraction
from unforced.tasks.text import TextTask
from unforced.types import Examples

Measure = Literal["bleu", "chrf", "error_rate", "exact", "rouge"]


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
    hold_out: float = 0.05  # share of the different sources that stands in for an absent dev or test file
    measures: tuple[Measure, ...] = ("bleu",)  # how outputs are judged; the first picks the checkpoint

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.hold_out < 0.5:
            raise InputError(f"hold_out must be between 0 and 0.5, not {self.hold_out}.")
        if not self.measures or len(set(self.measures)) < len(self.measures):
            raise InputError("measures must name at least one measure, and none twice.")
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
                    chosen.append(
                        ErrorRate(unit="character" if self.target_tokens == "characters" else "word")
                    )
                case "exact":
                    chosen.append(ExactError())
                case "rouge":
                    chosen.extend([Rouge("L"), Rouge("1"), Rouge("2")])
        return tuple(chosen)
