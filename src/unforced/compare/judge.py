"""Judge the runs of a comparison: intervals, paired tests against the baseline, and scores by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unforced.comparison import Cell, Comparison, LengthBin, Row
from unforced.errors import InputError
from unforced.metrics.protocol import Metric
from unforced.report.pictures import read_picture
from unforced.report.runs import Run
from unforced.significance import interval, paired_bootstrap, paired_test

BINS = 5  # of lengths
FEWEST = 20  # examples in a bin
WIDE = 100  # metrics whose statistics have more numbers than this are dear to permute ...
FEW = 1000  # ... so often at most


def judge(
    comparison: Comparison,
    runs: Sequence[Run],
    metrics: Sequence[Metric],
    *,
    samples: int = 1000,
    permutations: int = 10000,
) -> Comparison:
    """The summary of these runs (``report.summary``) with intervals, tests and scores by length filled in.

    A variant is tested against the baseline with the same decoder, over the seeds that both have finished.
    """
    answers = same_answers(runs, comparison)
    by_name = {metric.name: metric for metric in metrics}
    unknown = [measure.name for measure in comparison.measures if measure.name not in by_name]
    if unknown:
        raise InputError(
            f"{unknown[0]}: is in the runs' scores and not among the task's metrics ({', '.join(by_name)})"
        )
    bins, members, unit = length_bins(answers)
    rows = []
    if any(_width(run, comparison.split) > WIDE for run in runs):
        permutations = min(permutations, FEW)
    for row in comparison.rows:
        cells = {}
        for name, cell in row.cells.items():
            mine = statistics(runs, comparison.split, row.variant, row.decoder, name)
            base = {}
            if row.variant != comparison.baseline:
                base = statistics(runs, comparison.split, comparison.baseline, row.decoder, name)
            metric = by_name[name]
            cell = replace(cell, by_length=_by_length(metric, mine, members))
            cells[name] = _judge(cell, metric, mine, base, comparison.level, samples, permutations)
        rows.append(Row(row.variant, row.decoder, row.cost, cells))
    return replace(
        comparison,
        rows=tuple(rows),
        bootstrap_samples=samples,
        permutations=permutations if len({row.variant for row in rows}) > 1 else 0,
        lengths=bins,
        length_unit=unit,
    )


def statistics(
    runs: Sequence[Run], split: str, variant: str, decoder: str, metric: str
) -> dict[int, np.ndarray]:
    """[N,D] statistics by seed, of the runs of a variant that have them."""
    found = {}
    for run in runs:
        scores = run.scores.get((split, decoder))
        if run.label == variant and scores is not None and metric in scores["metrics"]:
            rows = scores["metrics"][metric].get("statistics")
            try:
                found[run.seed] = np.array(rows, dtype=np.float64)
            except (TypeError, ValueError):
                found[run.seed] = np.empty(0)
            if found[run.seed].ndim != 2:
                path = run.folder.path / "scores" / f"{split}-{decoder}.json"
                raise InputError(f"{path}: the statistics of {metric} are no table of numbers")
    return found


def same_answers(runs: Sequence[Run], comparison: Comparison) -> list[str]:
    """The first answer of every test example, after checking that all runs were tested on the same answers."""
    first: tuple[Run, list[list[str]]] | None = None
    for run in runs:
        for split, decoder in run.scores:
            if split != comparison.split:
                continue
            answers = [row["answers"] for row in run.predictions(split, decoder)]
            if first is None:
                first = run, answers
            elif answers != first[1]:
                raise InputError(
                    f"{run.folder.path}: was tested on other references than {first[0].folder.path}, so that the two "
                    "can't be compared"
                )
    return [] if first is None else [str(answer[0]) if answer else "" for answer in first[1]]


def length_bins(answers: Sequence[str]) -> tuple[tuple[LengthBin, ...], list[np.ndarray], str]:
    """Bins of the answers' lengths with about as many examples each, the members of each, and the unit.

    No bins where answers are pictures, of one length, or too few.

    >>> length_bins(["a b"] * 30 + ["a b c"] * 20)[0]
    (LengthBin(low=2, high=2, examples=30), LengthBin(low=3, high=3, examples=20))
    """
    if not answers or read_picture(answers[0]) is not None:
        return (), [], ""
    words = any(" " in answer for answer in answers)
    lengths = np.array([len(answer.split()) if words else len(answer) for answer in answers])
    uppers = sorted({int(np.quantile(lengths, (i + 1) / BINS, method="higher")) for i in range(BINS)})
    edges = [int(lengths.min())]  # where each bin begins
    for upper in uppers[:-1]:
        enough = np.sum((lengths >= edges[-1]) & (lengths <= upper)) >= FEWEST
        if enough and np.sum(lengths > upper) >= FEWEST:
            edges.append(upper + 1)
    if len(edges) < 2:
        return (), [], ""
    ends = [edge - 1 for edge in edges[1:]] + [uppers[-1]]
    members = [np.flatnonzero((lengths >= low) & (lengths <= high)) for low, high in zip(edges, ends)]
    bins = [LengthBin(low, high, len(chosen)) for low, high, chosen in zip(edges, ends, members)]
    return tuple(bins), members, "words" if words else "characters"


def _judge(
    cell: Cell,
    metric: Metric,
    mine: dict[int, np.ndarray],
    base: dict[int, np.ndarray],
    level: float,
    samples: int,
    permutations: int,
) -> Cell:
    low, high = interval(metric.score, list(mine.values()), level=level, samples=samples)
    cell = replace(cell, low=low, high=high)
    seeds = [seed for seed in mine if seed in base]
    if not seeds:
        return cell
    pair = [mine[seed] for seed in seeds], [base[seed] for seed in seeds]
    change = paired_bootstrap(metric.score, *pair, level=level, samples=samples)
    test = paired_test(metric.score, *pair, samples=permutations)
    return replace(
        cell,
        difference=change.difference,
        difference_low=change.low,
        difference_high=change.high,
        p_value=test.p_value,
    )


def _by_length(
    metric: Metric, mine: dict[int, np.ndarray], members: list[np.ndarray]
) -> tuple[float | None, ...]:
    """Mean over seeds of the score of each bin's examples."""
    return tuple(
        float(np.mean([metric.score(rows[chosen].sum(axis=0)) for rows in mine.values()]))
        for chosen in members
    )


def _width(run: Run, split: str) -> int:
    """How many numbers the longest statistics of a run have."""
    scores = [
        metric for (s, _), found in run.scores.items() if s == split for metric in found["metrics"].values()
    ]
    return max((len(metric["statistics"][0]) for metric in scores if metric.get("statistics")), default=0)
