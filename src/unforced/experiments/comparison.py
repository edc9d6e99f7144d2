"""What a comparison found, as plain records that go to ``comparison.json`` and back."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from unforced.errors import InputError
from unforced.training.run_folder import read_json

FORMAT = 1

State = Literal["waiting", "unfinished", "finished", "failed"]


@dataclass(frozen=True)
class Measure:
    """A metric of the table: its name, which way is better, and how it was computed."""

    name: str
    higher_is_better: bool
    signature: str


@dataclass(frozen=True)
class LengthBin:
    """Test examples whose source, or first answer, has ``low`` to ``high`` units, both included."""

    low: int
    high: int
    examples: int


@dataclass(frozen=True)
class Cell:
    """One metric of one variant with one decoder, on the test split.

    ``mean`` and ``sd`` are over seeds; ``best`` is the score of ``best_seed``, the seed with the best development score;
    ``low`` and ``high`` bound the mean, ``difference`` is the mean minus the baseline's over the seeds that both have.
    None says that a figure is not known: one seed has no spread, and the baseline no difference to itself.
    """

    scores: dict[str, float]  # by seed
    mean: float
    sd: float | None = None
    best_seed: int | None = None
    best: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None  # of that difference, over test examples and seeds
    p_examples: float | None = None  # ... over test examples alone, for these trained models
    by_length: tuple[float | None, ...] = ()  # mean over seeds of the score in each bin of ``Comparison.lengths``


@dataclass(frozen=True)
class Row:
    """A variant with a decoder; ``cost`` is its training time per token as a ratio to the baseline's."""

    variant: str
    decoder: str
    cost: float | None
    cells: dict[str, Cell]  # by metric
    minutes: float | None = None  # that a run trained, the median over seeds, validation apart
    threads: int | None = None  # that it had, if all had the same


@dataclass(frozen=True)
class RunState:
    """Where a run of the comparison is (relative to ``comparison.json``) and how far it came."""

    variant: str
    seed: int
    folder: str
    state: State = "waiting"
    reason: str = ""  # why it failed


@dataclass(frozen=True)
class Comparison:
    name: str
    description: str
    command: str
    baseline: str
    split: str  # what the table is about; "dev" only in a report on runs that have no test scores
    examples: int | None  # of that split
    level: float  # of the intervals
    bootstrap_samples: int
    permutations: int
    measures: tuple[Measure, ...]
    rows: tuple[Row, ...]
    runs: tuple[RunState, ...]
    lengths: tuple[LengthBin, ...] = ()
    length_unit: str = ""  # such as "words of the source"
    notes: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[RunState, ...]:
        return tuple(run for run in self.runs if run.state == "failed")

    @property
    def complete(self) -> bool:
        """Whether every run has ended, well or not."""
        return all(run.state in ("finished", "failed") for run in self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.variant for run in self.runs))

    def to_json(self) -> str:
        """The text of ``comparison.json``; a figure that is not a number is written as null."""
        data = {"format": FORMAT, **_finite(asdict(self))}
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_comparison(path: Path) -> Comparison:
    """The comparison that a ``comparison.json`` holds; raises ``InputError`` where the file is not one."""
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise InputError(f"{path}: not a comparison of format {FORMAT}; run `unforced compare` again")
    try:
        return _record(
            Comparison,
            {
                **data,
                "measures": tuple(_record(Measure, m) for m in data["measures"]),
                "rows": tuple(_row(row) for row in data["rows"]),
                "runs": tuple(_record(RunState, run) for run in data["runs"]),
                "lengths": tuple(_record(LengthBin, b) for b in data["lengths"]),
                "notes": tuple(data["notes"]),
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a whole comparison ({type(error).__name__}: {error})") from None


def _row(data: Mapping[str, Any]) -> Row:
    return _record(Row, {**data, "cells": {name: _cell(cell) for name, cell in data["cells"].items()}})


def _cell(data: Mapping[str, Any]) -> Cell:
    return _record(Cell, {**data, "by_length": tuple(data["by_length"])})


def _record(cls: Any, data: Mapping[str, Any]) -> Any:
    unknown = set(data) - {f.name for f in fields(cls)}
    if unknown:
        raise KeyError(f"unknown key {sorted(unknown)[0]}")
    return cls(**data)


def _finite(value: Any) -> Any:
    """The same plain data with NaN and infinities replaced by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
