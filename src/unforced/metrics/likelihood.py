"""Metrics of a model's likelihoods of the targets: negative log-likelihood, perplexity, log Z."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from unforced.errors import InputError
from unforced.options import Distinct, NotEmpty
from unforced.protocols import LikelihoodMetric, LikelihoodRow

Measure = Literal["nll", "final_nll", "pseudo_nll", "masked_nll", "perplexity", "pseudo_perplexity"]
Measures = Annotated[tuple[Measure, ...], NotEmpty(), Distinct()]
LIKELIHOODS = {
    "exact": "target fed, end symbol included",
    "masked": "each token masked alone, by the model's softmax",
    "pseudo": "each token given all others, by conditionals of the raw energy",
}


@dataclass
class NLL:
    """Negative log-likelihood of the targets in nats per sequence; with ``per_token``, perplexity.

    Statistics: [−log p, tokens, 1] of each example.

    >>> rows = NLL("nll").likelihood_statistics([(2.0, 1, 0.0, 0.0), (1.0, 2, 0.0, 0.0)])
    >>> float(NLL("nll").score(rows.sum(axis=0)))
    1.5
    >>> round(float(NLL("perplexity", per_token=True).score(rows.sum(axis=0))), 4)  # exp(3 / 3)
    2.7183
    """

    name: str
    of: Literal["exact", "masked", "pseudo"] = "exact"  # which likelihood; see `unforced.protocols.LikelihoodMetric`
    per_token: bool = False  # exp(Σ −log p / Σ tokens) instead of Σ −log p / N
    final: bool = False  # too expensive for development scores: computed on the test split only
    higher_is_better: bool = field(default=False, init=False)

    @property
    def score_range(self) -> tuple[float, float]:
        return float(self.per_token), np.inf

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        rows = _table(likelihoods)
        return np.concatenate([rows[:, :2], np.ones((len(rows), 1))], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        nll, tokens, sequences = np.moveaxis(sums, -1, 0)
        if self.per_token:
            return np.asarray(np.exp(nll / np.maximum(tokens, 1)))
        return np.asarray(nll / np.maximum(sequences, 1))

    def signature(self) -> str:
        score = "exp of the negative log-likelihood per token" if self.per_token else "negative log-likelihood in nats"
        return f"{score}, {LIKELIHOODS[self.of]}"


@dataclass
class LogZ:
    """Mean or variance over tokens of log Z, the log normaliser of the model's scores, with the target fed.

    log Z is 0 if scores are log-probabilities, so a mean near 0 is best. Statistics: [tokens, Σ log Z, Σ (log Z)²].

    >>> rows = LogZ("mean").likelihood_statistics([(0.0, 1, 5.0, 25.0), (0.0, 2, 4.0, 10.0)])  # log Z: 5; 1 and 3
    >>> float(LogZ("mean").score(rows.sum(axis=0))), round(float(LogZ("variance").score(rows.sum(axis=0))), 4)
    (3.0, 2.6667)
    """

    statistic: Literal["mean", "variance"]
    name: str = field(init=False)
    of: Literal["exact"] = field(default="exact", init=False)
    final: bool = field(default=False, init=False)
    higher_is_better: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.name = f"log_z_{self.statistic}"

    @property
    def score_range(self) -> tuple[float, float]:
        return -np.inf if self.statistic == "mean" else 0.0, np.inf

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        return _table(likelihoods)[:, 1:]

    def score(self, sums: np.ndarray) -> np.ndarray:
        tokens = np.maximum(sums[..., 0], 1)
        mean = sums[..., 1] / tokens
        if self.statistic == "mean":
            return np.asarray(mean)
        return np.asarray(np.maximum(sums[..., 2] / tokens - mean**2, 0))

    def signature(self) -> str:
        return f"{self.statistic} over tokens of the log normaliser of the model's scores, target fed"


MEASURES = {
    "nll": NLL("sequence_nll"),
    "final_nll": NLL("sequence_nll", final=True),
    "pseudo_nll": NLL("pseudo_nll", of="pseudo"),
    "masked_nll": NLL("masked_nll", of="masked"),
    "perplexity": NLL("perplexity", per_token=True),
    "pseudo_perplexity": NLL("pseudo_perplexity", of="masked", per_token=True),
}


def check_measures(measures: Sequence[str]) -> None:
    """Raise `InputError` unless the measures can be the metrics of one task."""
    names = [MEASURES[measure].name for measure in measures]
    if len(set(names)) < len(names):
        raise InputError(f"measures must have different names, got {', '.join(names)}")
    if all(MEASURES[measure].final for measure in measures):
        raise InputError("measures must name a metric to select checkpoints by, besides final_nll")


def likelihood_metrics(measures: Sequence[str], log_z: bool = False) -> tuple[LikelihoodMetric, ...]:
    """Return the named metrics; with ``log_z``, also the mean and variance of log Z."""
    return (*(MEASURES[measure] for measure in measures), *((LogZ("mean"), LogZ("variance")) if log_z else ()))


def _table(likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
    return np.asarray(likelihoods, dtype=np.float64).reshape(len(likelihoods), 4)
