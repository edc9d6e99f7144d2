"""The figures of a comparison that need no metric: means and spreads over seeds, best development seed, cost."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from unforced.experiments.comparison import Cell, Comparison, Measure, Row, RunState
from unforced.reports.runs import Run


def summarize(
    runs: Sequence[Run],
    *,
    name: str,
    description: str = "",
    command: str = "",
    baseline: str | None = None,
    states: Sequence[RunState] = (),
    level: float = 0.95,
) -> Comparison:
    """What the scores files of these runs hold, as a comparison without intervals and tests."""
    variants = list(dict.fromkeys(run.label for run in runs))
    baseline = baseline or (variants[0] if variants else "")
    split = "test" if any(s == "test" for run in runs for s, _ in run.scores) else "dev"
    measures = _measures(runs, split)
    rows = [
        Row(variant, decoder, _cost(runs, variant, baseline), cells, *_effort(runs, variant))
        for variant in variants
        for decoder in (decoders(runs, split) if measures else [])
        if (cells := _cells([run for run in runs if run.label == variant], split, decoder, measures))
    ]
    counts = {found.get("examples") for run in runs for (s, _), found in run.scores.items() if s == split}
    return Comparison(
        name=name,
        description=description,
        command=command,
        baseline=baseline,
        split=split,
        examples=counts.pop() if len(counts) == 1 else None,
        level=level,
        bootstrap_samples=0,
        permutations=0,
        measures=measures,
        rows=tuple(rows),
        runs=tuple(states) or tuple(_state(run) for run in runs),
    )


def decoders(runs: Iterable[Run], split: str) -> list[str]:
    """The decoders that these runs were scored with, in the recipes' order."""
    named = dict.fromkeys(name for run in runs for name in run.recipe.get("decoding", {}))
    scored = {decoder for run in runs for s, decoder in run.scores if s == split}
    return [name for name in named if name in scored] + sorted(scored - set(named))


def best_seed(runs: Sequence[Run], decoder: str, measure: Measure) -> Run | None:
    """The run with the best development score, by the first metric with this decoder; earlier seeds win ties."""

    def score(run: Run) -> float:
        found = run.scores.get(("dev", decoder), {"metrics": {}})["metrics"].get(measure.name)
        value = found["score"] if found else run.best["score"] if run.best else None
        if value is None or math.isnan(value):
            return -math.inf
        return value if measure.higher_is_better else -value

    ranked = [(score(run), run) for run in sorted(runs, key=lambda run: run.seed)]
    known = [(value, run) for value, run in ranked if value > -math.inf]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def _measures(runs: Iterable[Run], split: str) -> tuple[Measure, ...]:
    found: dict[str, Measure] = {}
    for run in runs:
        for (s, _), scores in run.scores.items():
            if s == split:
                for name, metric in scores["metrics"].items():
                    measure = Measure(name, metric["higher_is_better"], metric["signature"])
                    found.setdefault(name, measure)
    return tuple(found.values())


def _cells(runs: list[Run], split: str, decoder: str, measures: Sequence[Measure]) -> dict[str, Cell]:
    cells = {}
    chosen = best_seed([run for run in runs if (split, decoder) in run.scores], decoder, measures[0])
    for measure in measures:
        scores = {
            str(run.seed): float(found["score"])
            for run in sorted(runs, key=lambda run: run.seed)
            if (found := run.scores.get((split, decoder), {"metrics": {}})["metrics"].get(measure.name))
            and found["score"] is not None
        }
        if scores:
            values = list(scores.values())
            cells[measure.name] = Cell(
                scores=scores,
                mean=float(np.mean(values)),
                sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
                best_seed=chosen.seed if chosen else None,
                best=scores.get(str(chosen.seed)) if chosen else None,
            )
    return cells


def _cost(runs: Iterable[Run], variant: str, baseline: str) -> float | None:
    """Seconds per token of a variant's finished runs, the median (a run may have had to wait), as a ratio to the baseline's."""
    rates = {}
    for label in (variant, baseline):
        ended = [run.finished for run in runs if run.label == label and run.finished]
        each = [end["seconds"] / end["tokens"] for end in ended if end["tokens"]]
        rates[label] = float(np.median(each)) if each else 0.0
    return rates[variant] / rates[baseline] if rates[variant] and rates[baseline] else None


def _effort(runs: Iterable[Run], variant: str) -> tuple[float | None, int | None]:
    """Minutes that a variant's finished runs trained, the median, and the threads they had."""
    ended = [run for run in runs if run.label == variant and run.finished]
    seconds = [run.finished["seconds"] for run in ended if run.finished]
    threads = {run.info.get("threads") for run in ended}
    return float(np.median(seconds)) / 60 if seconds else None, threads.pop() if len(threads) == 1 else None


def _state(run: Run) -> RunState:
    return RunState(run.label, run.seed, str(run.folder.path), "finished" if run.finished else "unfinished")
