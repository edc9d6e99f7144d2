"""An inception-style score: the formula of Salimans et al. (2016) with a classifier the caller names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from unforced.metrics.counts import same_number


class Probabilities(Protocol):
    """What gives each image a distribution over classes."""

    def probabilities(self, images: Sequence[Any]) -> np.ndarray:
        """N images -> [N,C] float64, rows sum to one."""
        ...

    def describe(self) -> str: ...


class InceptionStyleScore:
    """exp(H(mean of p) − mean of H(p)): between 1 and the number of classes, high if outputs are clear and varied.

    Statistics are [1, H(p), p] for each output; answers are not looked at. There are no splits to average over.

    >>> class Sure:
    ...     def probabilities(self, images): return np.eye(2)[images]
    ...     def describe(self): return "a toy"
    >>> metric = InceptionStyleScore("score", Sure)
    >>> both = metric.statistics([0, 1], [[0], [0]])
    >>> round(float(metric.score(both.sum(axis=0))), 6)
    2.0
    """

    higher_is_better = True

    def __init__(self, name: str, classifier: Callable[[], Probabilities]) -> None:
        self.name = name
        self._classifier = classifier

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        same_number(outputs, answers)
        p = self._classifier().probabilities(outputs)
        return np.concatenate([np.ones((len(p), 1)), _entropy(p)[:, None], p], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        means = sums[..., 1:] / np.maximum(sums[..., :1], 1)
        return np.exp(_entropy(means[..., 1:]) - means[..., 0])

    def signature(self) -> str:
        return f"inception-style score (not the Inception score), no splits, with {self._classifier().describe()}"


def _entropy(p: np.ndarray) -> np.ndarray:
    """[...,C] distributions -> [...] nats, with 0 log 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
