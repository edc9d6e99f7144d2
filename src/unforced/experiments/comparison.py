"""The result of a comparison, as the records that ``comparison.json`` holds."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from unforced.errors import InputError
from unforced.recipes.fields import build
from unforced.training.run_folder import read_json

FORMAT = 1

State = Literal["waiting", "running", "interrupted", "finished", "failed"]


@dataclass(frozen=True)
class Measure:
    """A metric of the comparison."""

    name: str
    higher_is_better: bool
    signature: str  # how the metric was computed


@dataclass(frozen=True)
class LengthBin:
    """The test examples whose source or first reference has ``low`` to ``high`` units, both included."""

    low: int
    high: int
    examples: int


@dataclass(frozen=True)
class Cell:
    """One metric of one variant with one decoder, on the test split; None where a number is unknown."""

    scores: dict[str, float | None]  # by seed
    mean: float | None  # over seeds
    sd: float | None = None  # over seeds
    best_seed: int | None = None  # the seed with the best development score
    best: float | None = None  # the score of that seed
    low: float | None = None  # bounds of the interval of the mean
    high: float | None = None
    difference: float | None = None  # mean minus the baseline's, over the seeds that both have
    difference_low: float | None = None
    difference_high: float | None = None
    p_value: float | None = None  # of the difference, over test examples and seeds
    p_examples: float | None = None  # over test examples alone, for these trained models
    by_length: tuple[float | None, ...] = ()  # mean over seeds in each bin of ``Comparison.lengths``


@dataclass(frozen=True)
class Row:
    """A variant with a decoder."""

    variant: str
    decoder: str
    cost: float | None  # training time per token, relative to the baseline's
    cells: dict[str, Cell]  # by metric
    minutes: float | None = None  # training time of a run without validation, the median over seeds
    threads: int | None = None  # of a run; None if they differ


@dataclass(frozen=True)
class RunState:
    """The state of one run."""

    variant: str
    seed: int
    folder: str  # relative to ``comparison.json``
    state: State = "waiting"
    reason: str = ""  # why the run failed


@dataclass(frozen=True)
class Comparison:
    """The variants of one or more recipes, compared with a baseline."""

    name: str
    description: str
    command: str  # repeats the comparison
    baseline: str
    split: str  # "dev" only in a report on runs that have no test scores
    examples: int | None  # in the split
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
        """Whether every run has finished or failed."""
        return all(run.state in ("finished", "failed") for run in self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({run.seed for run in self.runs}))

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.variant for run in self.runs))

    def to_json(self) -> str:
        """Return the text of ``comparison.json``; NaN and infinities are written as null."""
        data = {"format": FORMAT, **_finite(asdict(self))}
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_comparison(path: Path) -> Comparison:
    """Read a ``comparison.json``; raise `InputError` if it is none."""
    data = read_json(path)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise InputError(f"{path} is not a comparison of format {FORMAT}; run `unforced compare` again")
    return build(Comparison, data, str(path))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
