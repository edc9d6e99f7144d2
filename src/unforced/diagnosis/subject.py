"""What is diagnosed: a trained model, examples with targets, and the metric that headroom is measured in."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import nn

from unforced.errors import InputError
from unforced.metrics.significance import Interval, interval
from unforced.ops.random_streams import generator
from unforced.protocols import Decoder, FittedTask, LikelihoodMetric, require
from unforced.training.batching import source_length
from unforced.training.evaluation import map_examples
from unforced.types import Batch, Encoded, Example

T = TypeVar("T")
Ids = list[int]


@dataclass(frozen=True)
class Finding:
    """One row of a diagnosis."""

    name: str
    headroom: Interval
    unit: str
    meaning: str  # one sentence
    details: dict[str, Any]  # curves and shares, as plain data

    def to_json(self) -> dict[str, Any]:
        return {
            "headroom": self.headroom.value,
            "interval": [self.headroom.low, self.headroom.high],
            "unit": self.unit,
            "meaning": self.meaning,
            "details": self.details,
        }


class Subject:
    """A trained step decoder with the examples on which it is diagnosed."""

    def __init__(
        self, model: nn.Module, task: FittedTask, examples: Sequence[Example], batch_rows: int = 64, seed: int = 1
    ) -> None:
        require(model, "diagnose", "start", "embed", "advance", "score")
        if not examples:
            raise InputError("there are no examples to diagnose with")
        metrics = [metric for metric in task.task.metrics() if not isinstance(metric, LikelihoodMetric)]
        if not metrics:
            raise InputError(f"diagnose needs a metric of outputs, but {type(task.task).__name__} has none")
        self.model: Any = model
        self.task, self.examples = task, examples
        self.batch_rows, self.seed = batch_rows, seed
        self.metric = metrics[0]
        encoded = [task.codec.encode(example) for example in examples]
        self.golds = [self.strip(list(map(int, each.target))) for each in encoded]  # without end symbols

    @property
    def fixed_length(self) -> bool:
        """Whether each output has one token for each input, as in tagging."""
        return self.task.codec.symbols.eos is None

    def strip(self, ids: Ids) -> Ids:
        """Return ids without the end symbol."""
        end = self.task.codec.symbols.eos
        return ids[:-1] if ids and ids[-1] == end else ids

    def map(self, compute: Callable[[Batch], Sequence[T]], examples: Sequence[Example] | None = None) -> list[T]:
        """Compute a result for each example; batches hold similar lengths and their targets."""

        def length(example: Encoded) -> int:
            return max(source_length(example.source), len(example.target))

        chosen = self.examples if examples is None else examples
        return map_examples(compute, self.model, self.task, chosen, length, self.batch_rows)

    def decode(self, decoder: Decoder) -> list["Found"]:
        """Return the outputs of each example, best first."""
        symbols = self.task.codec.symbols

        def found(batch: Batch) -> list[Found]:
            result = decoder(self.model, batch, rng=generator(batch.gold.device, self.seed))
            ranks = [result.ids(symbols, best) for best in range(result.tokens.shape[1])]
            return [
                Found([rank[i] if score > -math.inf else ranks[0][i] for rank, score in zip(ranks, scores)], scores)
                for i, scores in enumerate(result.scores.tolist())
            ]

        return self.map(found)

    def statistics(self, outputs: Sequence[Ids], answers: Sequence[Sequence[Any]] | None = None) -> np.ndarray:
        """Return the metric's row of each output [N,D]; ``answers`` are those of the examples by default."""
        raw = [self.task.codec.decode(ids) for ids in outputs]
        return self.metric.statistics(
            raw, [example.answers for example in self.examples] if answers is None else answers
        )

    def candidate_statistics(self, candidates: Sequence[Sequence[Ids]]) -> np.ndarray:
        """Return the rows of K outputs of each example: [N,K,D]."""
        return np.stack([self.statistics(column) for column in zip(*candidates, strict=True)], axis=1)

    def score(self, rows: np.ndarray) -> float:
        return float(self.metric.score(rows.sum(axis=0)))

    def gain(self, better: np.ndarray, base: np.ndarray) -> Interval:
        """Return by how many points ``better`` [N,D] is better than ``base`` [N,D]."""
        change = interval(self.metric.score, better, base)
        if self.metric.higher_is_better:
            return change
        return Interval(*(0.0 - each for each in (change.value, change.high, change.low)))

    def best_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows [N,D] of the best of K outputs of each example [N,K,D]; the first wins ties.

        An output is as good as the score of the corpus in which it replaces the first output of its example.
        """
        others = rows[:, 0].sum(axis=0) - rows[:, 0]  # [N,D] without each example
        scores = self.metric.score(others[:, None] + rows)  # [N,K]
        chosen = (scores if self.metric.higher_is_better else -scores).argmax(axis=1)
        best: np.ndarray = rows[np.arange(len(rows)), chosen]
        return best


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the first of two sums [...,2] per unit of the second."""
    return np.asarray(sums[..., 0] / np.maximum(sums[..., 1], 1))


def halves(size: int) -> np.ndarray:
    """Return 0 or 1 for each example: a random half, to fit one number on each half and use it on the other."""
    return np.random.default_rng(0).permutation(size) % 2


def points(value: Interval) -> dict[str, Any]:
    """Return a figure of the details as plain data."""
    return {"points": value.value, "interval": [value.low, value.high]}


class Found(NamedTuple):
    """The outputs of an example, best first; the first also replaces outputs that do not exist (score −inf)."""

    outputs: list[Ids]  # without end symbols
    scores: list[float]  # what they are ranked by
