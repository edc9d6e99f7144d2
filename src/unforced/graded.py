"""How good the sequences of chains are by a task's metrics, sweep by sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from unforced.metrics.protocol import Metric
from unforced.training.files import read_json, replace_json

FILE = "scores.json"  # beside the chains: {metric: [[sweep, score], …]}
Scores = dict[str, list[tuple[int, float]]]  # by metric: the sweeps that were kept, and the score of each


def graded(
    samples: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[Any]], metrics: Sequence[Any]
) -> Scores:
    """The score of all examples' outputs together, for each sweep that is kept: the mean over chains.

    ``samples`` are lines of samples.jsonl, ``answers`` what each example's output may be. Metrics of models, not outputs, are
    left out.
    """
    outputs: dict[int, dict[int, dict[int, str]]] = {}  # by sweep, chain and example
    for line in samples:
        outputs.setdefault(line["sweep"], {}).setdefault(line["chain"], {})[line["example"]] = line["output"]
    found: Scores = {}
    for metric in metrics:
        if isinstance(metric, Metric):
            found[metric.name] = [
                (sweep, fmean(_score(metric, chain, answers) for chain in chains.values()))
                for sweep, chains in sorted(outputs.items())
            ]
    return found


def _score(metric: Metric, outputs: Mapping[int, str], answers: Sequence[Sequence[Any]]) -> float:
    texts = [outputs[example] for example in sorted(outputs)]
    gold = [answers[example] for example in sorted(outputs)]
    return float(metric.score(metric.statistics(texts, gold).sum(axis=0)))


def write(folder: Path, scores: Scores) -> None:
    replace_json(folder / FILE, scores)


def read(folder: Path) -> Scores:
    """The scores beside chains; none where they were not graded."""
    if not (folder / FILE).is_file():
        return {}
    return {name: [(int(s), float(x)) for s, x in rows] for name, rows in read_json(folder / FILE).items()}
