"""Statistics of a comparison: means, intervals, paired tests, costs and scores by length."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Cell, Comparison, LengthBin, Measure, Row, RunState
from unforced.experiments.runs import Run
from unforced.metrics.significance import interval, paired_test

if TYPE_CHECKING:
    from unforced.protocols import Scoring  # imports torch, which reports do without

LEVEL = 0.95  # of intervals
BINS = 5  # of lengths
MIN_BIN = 20  # examples in a bin
WIDE = 100  # metrics with more statistics are expensive to permute ...
WIDE_PERMUTATIONS = 1000  # ... and get at most this many permutations


def summarize(
    runs: Sequence[Run],
    *,
    name: str,
    description: str = "",
    command: str = "",
    baseline: str | None = None,
    states: Sequence[RunState] = (),
    notes: Sequence[str] = (),
    split: str = "",
) -> Comparison:
    """Return the scores of these runs as a comparison without intervals and tests.

    The split is "test" by default, or "dev" if no run has test scores.
    """
    variants = list(dict.fromkeys(run.label for run in runs))
    baseline = baseline or (variants[0] if variants else "")
    tested = any(scored == "test" for run in runs for scored, _ in run.scores)
    split = split or ("test" if tested else "dev")
    measures = _measures(runs, split)
    rows = []
    for variant in variants:
        mine = [run for run in runs if run.label == variant]
        for decoder in decoders(runs, split):
            if cells := _cells(mine, split, decoder, measures):
                rows.append(Row(variant, decoder, _cost(runs, variant, baseline), cells, *_effort(mine)))
    counts = {table["examples"] for run in runs for (scored, _), table in run.scores.items() if scored == split}
    return Comparison(
        name=name,
        description=description,
        command=command,
        baseline=baseline,
        split=split,
        examples=counts.pop() if len(counts) == 1 else None,
        level=LEVEL,
        bootstrap_samples=0,
        permutations=0,
        measures=measures,
        rows=tuple(rows),
        runs=tuple(states or [RunState(run.label, run.seed, str(run.path), run.state) for run in runs]),
        notes=tuple(notes),
    )


def add_statistics(
    comparison: Comparison,
    runs: Sequence[Run],
    metrics: "Sequence[Scoring]",
    *,
    samples: int = 1000,
    permutations: int = 10000,
    by_source: bool = False,
) -> Comparison:
    """Add intervals, tests and scores by length to the summary of these runs.

    Each variant is tested against the baseline with the same decoder, over the seeds that both have. Lengths are those
    of the sources if ``by_source``, else those of the first references.
    """
    texts = _check_references(runs, comparison.split, by_source)
    bins, members, unit = length_bins(texts)
    by_name = {metric.name: metric for metric in metrics}
    metric_tables = [metric for run in runs for table in run.scores.values() for metric in table["metrics"].values()]
    if any(metric["statistics"].shape[1] > WIDE for metric in metric_tables):
        permutations = min(permutations, WIDE_PERMUTATIONS)

    def tested(row: Row, name: str, cell: Cell) -> Cell:
        score = by_name[name].score
        options: dict[str, Any] = {
            "level": comparison.level,
            "samples": samples,
            "score_range": _score_range(by_name[name]),
        }
        mine = _statistics(runs, comparison.split, row.variant, row.decoder, name)
        _, low, high = interval(score, list(mine.values()), **options)
        each = [[score(rows[chosen].sum(axis=0)) for rows in mine.values()] for chosen in members]
        cell = replace(cell, low=low, high=high, by_length=tuple(float(np.mean(values)) for values in each))
        baseline = _statistics(runs, comparison.split, comparison.baseline, row.decoder, name)
        seeds = [seed for seed in mine if seed in baseline]
        if row.variant == comparison.baseline or not seeds:
            return cell
        pair = [mine[seed] for seed in seeds], [baseline[seed] for seed in seeds]
        change = interval(score, *pair, **options)
        test = paired_test(score, *pair, samples=permutations)
        return replace(
            cell,
            difference=change.value,
            difference_low=change.low,
            difference_high=change.high,
            p_value=test.p_value,
            p_examples=test.p_examples,
        )

    rows = [
        replace(row, cells={name: tested(row, name, cell) for name, cell in row.cells.items()})
        for row in comparison.rows
    ]
    return replace(
        comparison,
        rows=tuple(rows),
        bootstrap_samples=samples,
        permutations=permutations if len({row.variant for row in rows}) > 1 else 0,
        lengths=bins,
        length_unit=unit and f"{unit} of the {'source' if by_source else 'reference'}",
    )


def _score_range(metric: "Scoring") -> tuple[float, float]:
    from unforced.protocols import HasRange

    return metric.score_range if isinstance(metric, HasRange) else (-math.inf, math.inf)


def decoders(runs: Iterable[Run], split: str) -> list[str]:
    """Return the decoders that these runs were scored with, in the order of the recipes."""
    named = dict.fromkeys(name for run in runs for name in run.recipe.get("decoding", {}))
    scored = {decoder for run in runs for each, decoder in run.scores if each == split}
    return [name for name in named if name in scored] + sorted(scored - set(named))


def best_run(runs: Sequence[Run], decoder: str, measure: Measure) -> Run | None:
    """Return the run with the best development score with this decoder; the smallest seed wins ties."""
    ranked = []
    for run in runs:
        found = _metric(run, "dev", decoder, measure.name)
        value = found["score"] if found else run.best["score"] if run.best else None
        if value is not None and not math.isnan(value):
            ranked.append((-value if measure.higher_is_better else value, run.seed, run))
    return min(ranked, key=lambda each: each[:2])[2] if ranked else None


def _metric(run: Run, split: str, decoder: str, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = run.scores.get((split, decoder), {"metrics": {}})["metrics"].get(name)
    return found


def _measures(runs: Iterable[Run], split: str) -> tuple[Measure, ...]:
    found: dict[str, Measure] = {}
    for run in runs:
        for (scored, _), table in run.scores.items():
            for name, metric in table["metrics"].items() if scored == split else ():
                found.setdefault(name, Measure(name, metric["higher_is_better"], metric["signature"]))
    return tuple(found.values())


def _cells(runs: Iterable[Run], split: str, decoder: str, measures: Sequence[Measure]) -> dict[str, Cell]:
    cells = {}
    scored = sorted((run for run in runs if (split, decoder) in run.scores), key=lambda run: run.seed)
    chosen = best_run(scored, decoder, measures[0])
    for measure in measures:
        found = [(run.seed, _metric(run, split, decoder, measure.name)) for run in scored]
        scores = {str(seed): float(metric["score"]) for seed, metric in found if metric and metric["score"] is not None}
        if scores:
            values = list(scores.values())
            cells[measure.name] = Cell(
                scores={**scores},
                mean=float(np.mean(values)),
                sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
                best_seed=chosen.seed if chosen else None,
                best=scores.get(str(chosen.seed)) if chosen else None,
            )
    return cells


def _cost(runs: Iterable[Run], variant: str, baseline: str) -> float | None:
    """Return the seconds per token relative to the baseline's; medians, because a run may have been suspended."""
    rates = []
    for label in (variant, baseline):
        ended = [run.finished for run in runs if run.label == label and run.finished]
        rates.append(np.median([end["seconds"] / end["tokens"] for end in ended if end["tokens"]] or [0.0]))
    return float(rates[0] / rates[1]) if all(rates) else None


def _effort(runs: Iterable[Run]) -> tuple[float | None, int | None]:
    """Return the median training time of the finished runs in minutes, and their number of threads."""
    seconds = [run.finished["seconds"] for run in runs if run.finished]
    threads = {run.info.get("threads") for run in runs if run.finished}
    return float(np.median(seconds)) / 60 if seconds else None, threads.pop() if len(threads) == 1 else None


def _statistics(runs: Iterable[Run], split: str, variant: str, decoder: str, name: str) -> dict[int, np.ndarray]:
    """Return the [N,D] statistics of a metric by seed."""
    found = {run.seed: _metric(run, split, decoder, name) for run in runs if run.label == variant}
    return {seed: metric["statistics"] for seed, metric in found.items() if metric}


def _check_references(runs: Sequence[Run], split: str, by_source: bool) -> list[str]:
    """Raise `InputError` unless all runs have the same references; return the texts whose lengths count."""
    found = [(run, run.predictions(split, decoder)) for run in runs for each, decoder in run.scores if each == split]
    for run, predictions in found[1:]:
        if predictions.answers != found[0][1].answers:
            raise InputError(f"{run.path} and {found[0][0].path} were tested on different references")
    sources, answers, _ = found[0][1] if found else ([], [], [])
    return sources if by_source else [each[0] if each else "" for each in answers]


def length_bins(texts: Sequence[str]) -> tuple[tuple[LengthBin, ...], list[np.ndarray], str]:
    """Return bins of lengths with about as many texts each, the members of each bin, and the unit.

    There are no bins if texts are images, all of one length, or too few.

    >>> length_bins(["a b"] * 30 + ["a b c"] * 20)[0]
    (LengthBin(low=2, high=2, examples=30), LengthBin(low=3, high=3, examples=20))
    """
    if not texts or texts[0].startswith("[["):
        return (), [], ""
    words = any(" " in text for text in texts)
    lengths = np.array([len(text.split()) if words else len(text) for text in texts])
    uppers = sorted({int(np.quantile(lengths, (i + 1) / BINS, method="higher")) for i in range(BINS)})
    edges = [int(lengths.min())]  # where each bin begins
    for upper in uppers[:-1]:
        enough = np.sum((lengths >= edges[-1]) & (lengths <= upper)) >= MIN_BIN
        if enough and np.sum(lengths > upper) >= MIN_BIN:
            edges.append(upper + 1)
    if len(edges) < 2:
        return (), [], ""
    ends = [edge - 1 for edge in edges[1:]] + [uppers[-1]]
    members = [np.flatnonzero((lengths >= low) & (lengths <= high)) for low, high in zip(edges, ends)]
    bins = tuple(LengthBin(low, high, len(chosen)) for low, high, chosen in zip(edges, ends, members))
    return bins, members, "words" if words else "characters"
