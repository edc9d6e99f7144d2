"""Judge the runs of a comparison: intervals, paired tests against the baseline, and scores by length."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Cell, Comparison, LengthBin, Row
from unforced.metrics.significance import interval, paired_bootstrap, paired_test
from unforced.protocols import Metric
from unforced.reports.examples import read_picture
from unforced.reports.runs import Run

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
    sources: bool = False,
) -> Comparison:
    """The summary of these runs (``report.summary``) with intervals, tests and scores by length filled in.

    A variant is tested against the baseline with the same decoder, over the seeds that both have finished. Lengths are
    those of the ``sources``, where these are text, or else of the first answers.
    """
    texts = same_examples(runs, comparison, sources)
    by_name = {metric.name: metric for metric in metrics}
    unknown = [measure.name for measure in comparison.measures if measure.name not in by_name]
    if unknown:
        raise InputError(
            f"{unknown[0]}: is in the runs' scores and not among the task's metrics ({', '.join(by_name)})"
        )
    bins, members, unit = length_bins(texts)
    widths = [m["width"] for run in runs for found in run.scores.values() for m in found["metrics"].values()]
    if max(widths, default=0) > WIDE:
        permutations = min(permutations, FEW)
    rows: list[Row] = []
    for decoder in dict.fromkeys(row.decoder for row in comparison.rows):
        baseline = statistics(runs, comparison.split, comparison.baseline, decoder)
        for row in [row for row in comparison.rows if row.decoder == decoder]:
            is_baseline = row.variant == comparison.baseline
            mine = baseline if is_baseline else statistics(runs, comparison.split, row.variant, decoder)
            cells = {}
            for name, cell in row.cells.items():
                cell = replace(cell, by_length=_by_length(by_name[name], mine[name], members))
                base = {} if is_baseline else baseline.get(name, {})
                cells[name] = _judge(cell, by_name[name], mine[name], base, comparison.level, samples, permutations)
            rows.append(replace(row, cells=cells))
    order = [(row.variant, row.decoder) for row in comparison.rows]
    rows.sort(key=lambda row: order.index((row.variant, row.decoder)))
    return replace(
        comparison,
        rows=tuple(rows),
        bootstrap_samples=samples,
        permutations=permutations if len({row.variant for row in rows}) > 1 else 0,
        lengths=bins,
        length_unit=unit and f"{unit} of the {'source' if sources else 'reference'}",
    )


def statistics(runs: Sequence[Run], split: str, variant: str, decoder: str) -> dict[str, dict[int, np.ndarray]]:
    """[N,D] statistics by metric and seed, of the runs of a variant that were scored with this decoder."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for run in runs:
        if run.label == variant and (split, decoder) in run.scores:
            for name, rows in run.statistics(split, decoder).items():
                found.setdefault(name, {})[run.seed] = rows
    return found


def same_examples(runs: Sequence[Run], comparison: Comparison, sources: bool) -> list[str]:
    """The source or first answer of every test example, after checking that all runs were tested on the same answers."""
    first: tuple[Run, list[list[str]]] | None = None
    texts: list[str] = []
    for run in runs:
        for split, decoder in run.scores:
            if split != comparison.split:
                continue
            rows = run.predictions(split, decoder)
            answers = [row["answers"] for row in rows]
            if first is None:
                first = run, answers
                texts = [str(row["source"] if sources else (row["answers"] or [""])[0]) for row in rows]
            elif answers != first[1]:
                raise InputError(
                    f"{run.folder.path}: was tested on other references than {first[0].folder.path}, so that the two "
                    "can't be compared"
                )
    return texts


def length_bins(texts: Sequence[str]) -> tuple[tuple[LengthBin, ...], list[np.ndarray], str]:
    """Bins of the texts' lengths with about as many examples each, the members of each, and the unit.

    No bins where texts are pictures, of one length, or too few.

    >>> length_bins(["a b"] * 30 + ["a b c"] * 20)[0]
    (LengthBin(low=2, high=2, examples=30), LengthBin(low=3, high=3, examples=20))
    """
    if not texts or read_picture(texts[0]) is not None:
        return (), [], ""
    words = any(" " in text for text in texts)
    lengths = np.array([len(text.split()) if words else len(text) for text in texts])
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
        p_examples=test.p_examples,
    )


def _by_length(metric: Metric, mine: dict[int, np.ndarray], members: list[np.ndarray]) -> tuple[float | None, ...]:
    """Mean over seeds of the score of each bin's examples."""
    return tuple(
        float(np.mean([metric.score(rows[chosen].sum(axis=0)) for rows in mine.values()])) for chosen in members
    )
