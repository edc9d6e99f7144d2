"""Confidence: calibration of token probabilities, and the likelihood that one temperature wins."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.diagnosis.subject import Finding, Subject, halves, points, ratio
from unforced.metrics.significance import interval
from unforced.ops.masks import widened
from unforced.training.evaluation import spread
from unforced.types import Batch, Example

TEMPERATURES = 2.0 ** (np.arange(-10, 17) / 10)
ONE = 10  # index of the temperature 1
BINS = 15  # of equal width, for the calibration error
UNIT = "nats per token"


def measure_confidence(subject: Subject, train: list[Example] | None = None) -> Finding:
    """Measure the log-likelihood that one temperature wins, the calibration error and the gap between train and dev.

    The temperature for one half of the examples is fitted to the other half.
    """
    tables = subject.map(lambda batch: token_table(subject, batch))
    losses = np.stack([table.losses for table in tables])  # [N,J] −log p of the targets at each temperature
    tokens = np.array([table.bins[:, 0].sum() for table in tables])  # [N]
    now = losses[:, ONE]
    chosen, half = np.empty(len(losses)), halves(len(losses))
    for own in (0, 1):
        chosen[half == own] = losses[half == own, losses[half != own].sum(axis=0).argmin()]
    rows = np.stack([now - chosen, tokens], axis=1)
    headroom = interval(ratio, rows)
    bins = np.stack([table.bins.ravel() for table in tables])  # [N,BINS·3]
    best = float(TEMPERATURES[losses.sum(axis=0).argmin()])
    error = interval(calibration_error, bins)
    details: dict[str, Any] = {
        "temperature": best,
        "nll": float(now.sum() / tokens.sum()),
        "calibration_error": points(error),
        "reliability": reliability(bins.sum(axis=0).reshape(BINS, 3)),
    }
    if train:
        details["train_nll"] = train_likelihood(subject, train)
    manner = "overconfident" if best > 1 else "underconfident"
    meaning = f"The calibration error is {error.value:.1f} points; the best temperature is {best:.2f}"
    meaning += f" ({manner})." if abs(best - 1) > 0.03 else " (well calibrated)."
    return Finding("confidence", headroom, UNIT, meaning, details)


class TokenTable:
    """The sums over the tokens of an example that confidence is measured by."""

    def __init__(self, losses: np.ndarray, bins: np.ndarray) -> None:
        self.losses = losses  # [J] −log p of the target at each temperature
        self.bins = bins  # [BINS,3] number of tokens, summed confidence, correct tokens


def token_table(subject: Subject, batch: Batch) -> list[TokenTable]:
    """Return the sums of each example in a batch, with target history."""
    scores, gold = gold_scores(subject.model, batch)
    scores = widened(scores)
    examples = batch.mask.nonzero()[:, 0]
    target = scores.gather(1, gold.unsqueeze(1)).squeeze(1)
    losses = [torch.logsumexp(scores / t, dim=1) - target / t for t in TEMPERATURES.tolist()]
    by_example = torch.zeros(len(batch), len(losses), dtype=torch.float64, device=scores.device)
    by_example.index_add_(0, examples, torch.stack(losses, dim=1).double())
    confidence, best = scores.softmax(dim=1).max(dim=1)
    which = (confidence * BINS).long().clamp(max=BINS - 1)
    values = torch.stack([torch.ones_like(confidence), confidence, (best == gold).to(confidence)], dim=1).double()
    bins = torch.zeros(len(batch) * BINS, 3, dtype=torch.float64, device=scores.device)
    bins.index_add_(0, examples * BINS + which, values)
    return [TokenTable(*pair) for pair in zip(_numpy(by_example), _numpy(bins).reshape(len(batch), BINS, 3))]


def calibration_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error in points, from summed bins [...,BINS·3]."""
    counts, confidence, correct = np.moveaxis(sums.reshape(*sums.shape[:-1], BINS, 3), -1, 0)
    total = np.maximum(counts.sum(axis=-1), 1)
    return np.asarray(100 * np.abs(confidence - correct).sum(axis=-1) / total)


def reliability(bins: np.ndarray) -> list[dict[str, float]]:
    """Return confidence, accuracy and number of tokens of each bin that has tokens."""
    return [
        {"confidence": confidence / count, "accuracy": correct / count, "tokens": count}
        for count, confidence, correct in bins.tolist()
        if count
    ]


def train_likelihood(subject: Subject, train: list[Example]) -> dict[str, Any]:
    """Return −log p per token of as many training examples, with its interval."""
    tables = subject.map(lambda batch: token_table(subject, batch), spread(train, len(subject.examples)))
    rows = np.array([[table.losses[ONE], table.bins[:, 0].sum()] for table in tables])
    return points(interval(ratio, rows))


def _numpy(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.cpu().numpy()
    return array
