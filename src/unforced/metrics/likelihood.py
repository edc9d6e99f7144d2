"""Metrics of the model itself: what it makes of the gold answers, whatever its outputs are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from unforced.errors import InputError
from unforced.protocols import LikelihoodMetric, LikelihoodRow


class _OfLikelihoods:
    """Per-example statistics of what a model makes of the answers: −log p, tokens, and 1."""

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        """[N,3]."""
        rows = _table(likelihoods)
        return np.concatenate([rows[:, :2], np.ones((len(rows), 1))], axis=1)


@dataclass
class Perplexity(_OfLikelihoods):
    """exp(Σ −log p(example) / Σ tokens), the end symbol counted as a token.

    >>> metric = Perplexity()
    >>> rows = metric.likelihood_statistics([(2.0, 1, 0.0, 0.0), (1.0, 2, 0.0, 0.0)])
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
    >>> rows = metric.likelihood_statistics([(2.0, 1, 0.0, 0.0), (1.0, 2, 0.0, 0.0)])
    >>> float(metric.score(rows.sum(axis=0)))
    1.5
    """

    name: str = "sequence_nll"
    higher_is_better: bool = field(default=False, init=False)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 0] / np.maximum(sums[..., 2], 1)

    def signature(self) -> str:
        return "negative log-likelihood per sequence in nats"


@dataclass
class FinalNLL(SequenceNLL):
    """``SequenceNLL`` of models whose exact likelihood takes minutes: left out while training and of development scores."""

    final: ClassVar[bool] = True


@dataclass
class PseudoNLL(SequenceNLL):
    """Σ −log p(y_t | y\\t) per sequence in nats, with the true conditionals of a masked model's raw energy."""

    name: str = "pseudo_nll"
    of: ClassVar[str] = "pseudo"

    def signature(self) -> str:
        return "negative pseudo-log-likelihood per sequence in nats, by true conditionals of the raw energy"


@dataclass
class MaskedNLL(SequenceNLL):
    """Σ −log p_mlm(y_t | y\\t) per sequence in nats, each token hidden by itself: the energy E_local."""

    name: str = "masked_nll"
    of: ClassVar[str] = "masked"

    def signature(self) -> str:
        return "negative log-probability per sequence in nats of each token hidden by itself, by the model's softmax"


@dataclass
class PseudoPerplexity(Perplexity):
    """exp(Σ −log p_mlm(y_t | y\\t) / Σ tokens) of a masked model (Salazar et al. 2020); the end symbol is not counted."""

    name: str = "pseudo_perplexity"
    of: ClassVar[str] = "masked"

    def signature(self) -> str:
        return "exp of the negative log-probability per token, each hidden by itself, end symbol not counted"


class _OfLogZ:
    """Per-example statistics of the log normalisers of the model's scores: tokens, Σ_t log Z_t and Σ_t (log Z_t)²."""

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        """[N,3]."""
        return _table(likelihoods)[:, 1:]


@dataclass
class LogZMean(_OfLogZ):
    """Σ log Z_t / Σ tokens; 0 where scores are log-probabilities already, so near 0 is best, on either side.

    >>> metric = LogZMean()
    >>> rows = metric.likelihood_statistics([(0.0, 1, 5.0, 25.0), (0.0, 2, 4.0, 10.0)])  # log Z: 5; 1 and 3
    >>> float(metric.score(rows.sum(axis=0)))
    3.0
    """

    name: str = "log_z_mean"
    higher_is_better: bool = field(default=False, init=False)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return sums[..., 1] / np.maximum(sums[..., 0], 1)

    def signature(self) -> str:
        return "mean over tokens of the log normaliser of the model's scores, teacher-forced; near 0 is best"


@dataclass
class LogZVariance(_OfLogZ):
    """Σ (log Z_t)² / Σ tokens less the square of the mean.

    >>> metric = LogZVariance()
    >>> rows = metric.likelihood_statistics([(0.0, 1, 5.0, 25.0), (0.0, 2, 4.0, 10.0)])  # log Z: 5; 1 and 3
    >>> round(float(metric.score(rows.sum(axis=0))), 4)
    2.6667
    """

    name: str = "log_z_variance"
    higher_is_better: bool = field(default=False, init=False)

    def score(self, sums: np.ndarray) -> np.ndarray:
        tokens = np.maximum(sums[..., 0], 1)
        return np.maximum(sums[..., 2] / tokens - (sums[..., 1] / tokens) ** 2, 0)

    def signature(self) -> str:
        return "variance over tokens of the log normaliser of the model's scores, teacher-forced"


Measure = Literal["nll", "final_nll", "pseudo_nll", "masked_nll", "perplexity", "pseudo_perplexity"]
MEASURES: dict[str, type[SequenceNLL] | type[Perplexity]] = {
    "nll": SequenceNLL,
    "final_nll": FinalNLL,
    "pseudo_nll": PseudoNLL,
    "masked_nll": MaskedNLL,
    "perplexity": Perplexity,
    "pseudo_perplexity": PseudoPerplexity,
}


def check_measures(measures: Sequence[str]) -> None:
    """Raise ``InputError`` unless the measures can be metrics of one task."""
    names = [MEASURES[measure]().name for measure in measures]
    if len(set(names)) < len(names):
        raise InputError(f"measures must have different names, got {', '.join(names)}")
    if all(getattr(MEASURES[measure], "final", False) for measure in measures):
        raise InputError("measures must name one that is quick enough to pick checkpoints by, besides final_nll.")


def measured(measures: Sequence[str]) -> tuple[LikelihoodMetric, ...]:
    """The metrics of these names, for tasks without outputs to judge."""
    return tuple(MEASURES[measure]() for measure in measures)


def log_z_metrics(wanted: bool = True) -> tuple[LikelihoodMetric, ...]:
    """The mean and variance of log Z, or nothing: what a task with the option ``log_z`` puts behind its own metrics."""
    return (LogZMean(), LogZVariance()) if wanted else ()


def _table(likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
    """[N,4] float64."""
    return np.asarray(likelihoods, dtype=np.float64).reshape(len(likelihoods), 4)
