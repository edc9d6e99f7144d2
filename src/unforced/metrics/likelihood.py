"""Metrics of the model itself, for tasks whose outputs have nothing to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


class _OfLikelihoods:
    """Per-example statistics of what a model makes of the answers: −log p, tokens, and 1."""

    def likelihood_statistics(self, likelihoods: Sequence[tuple[float, int]]) -> np.ndarray:
        """Pairs (−log p(example), tokens) -> [N,3]."""
        pairs = np.asarray(likelihoods, dtype=np.float64).reshape(len(likelihoods), 2)
        return np.concatenate([pairs, np.ones((len(pairs), 1))], axis=1)


@dataclass
class Perplexity(_OfLikelihoods):
    """exp(Σ −log p(example) / Σ tokens), the end symbol counted as a token.

    >>> metric = Perplexity()
    >>> rows = metric.likelihood_statistics([(2.0, 1), (1.0, 2)])
    >>> round(float(metric.score(rows.sum(axis=0))), 4)
    2.7183
    """

    name: str = "perplexity"
    higher_is_better: bool = field(default=False, init=False)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return np.exp(sums[..., 0] / np.maximum(sums[..., 1], 1))

    def signature(self) -> str:
        return "exp of the negative log-likelihood per token, teacher-forced, end symbol included"


@dataclass
class SequenceNLL(_OfLikelihoods):
    """Σ −log p(example) / N in nats: comparable with the entropy of the distribution the examples come from.

    >>> metric = SequenceNLL()
    >>> float(metric.score(metric.likelihood_statistics([(2.0, 1), (1.0, 2)]).sum(axis=0)))
    1.5
    """

    name: str = "sequence_nll"
    higher_is_better: bool = field(default=False, init=False)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / np.maximum(sums[..., 2], 1)

    def signature(self) -> str:
        return "negative log-likelihood per sequence in nats, teacher-forced"
