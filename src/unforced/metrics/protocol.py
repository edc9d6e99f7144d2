"""What a metric is: per-example statistics that add up, and a score of their sum.

Corpus scores of this kind (BLEU, error rates, F1, Fréchet distance …) can be resampled and permuted without looking at
the outputs again, so one bootstrap and one paired test serve them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

LikelihoodRow = tuple[float, int, float, float]  # −log p(gold), tokens, Σ_t log Z_t, Σ_t (log Z_t)²


@runtime_checkable
class Metric(Protocol):
    name: str
    higher_is_better: bool

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        """[N,D] float64: row i describes output i against its acceptable answers. Raises on unequal numbers."""
        ...

    def score(self, sums: np.ndarray) -> np.ndarray:
        """[...,D] sums of rows -> [...] scores."""
        ...

    def signature(self) -> str:
        """How the figure was computed, for a table's foot."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """A metric that is not for all data."""

    def doubts(self, answers: Sequence[Sequence[Any]]) -> str | None:
        """Why these answers are little use to it, as a clause; None where all is well."""
        ...


@runtime_checkable
class LikelihoodMetric(Protocol):
    """A metric of the model and not of its outputs: it is given what the model makes of the gold answers.

    A metric of masked models may have an attribute ``of`` that says what stands for −log p(gold): "exact" likelihood, which
    is meant where there is none, or that of "masked" tokens, each given all others, by the model's softmax or by the
    "pseudo"-conditionals of its energy. One with a true attribute ``final`` is too dear for anything but test scores.
    """

    name: str
    higher_is_better: bool

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        """A row (−log p(gold), tokens, Σ_t log Z_t, Σ_t (log Z_t)²) for each example -> [N,D] float64.

        log Z_t is the log of the sum over the vocabulary of exp(score), with gold tokens fed.
        """
        ...

    def score(self, sums: np.ndarray) -> np.ndarray: ...

    def signature(self) -> str: ...
