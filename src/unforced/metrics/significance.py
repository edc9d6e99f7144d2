"""Confidence intervals and paired tests for metrics that are functions of summed statistics.

A system is given by the [N,D] statistics of its outputs, or by the [S,N,D] statistics of S training seeds, all over
the same N test examples. Its score is the mean over seeds of ``score(rows summed)``.

Both the test examples and the training seeds are random. The score of seed s is x_s = μ + a_s + noise of the examples.
Each replicate has two parts:

1. The examples are drawn with replacement (`interval`) or swapped between the systems (`paired_test`), the same ones
   in all seeds and both systems.
2. With S > 1 seeds, the mean of S deviations x_s − x̄ drawn with replacement is added. It is scaled by √(S/(S − 1)),
   because draws from S values vary too little by this factor (Rao and Wu, 1988), and by √(Var a / Var x), because
   part 1 has the noise of the examples already. Var a is Var x minus the variance over replicates of a seed's
   deviation.

In simulations with two to five seeds, 95 % intervals cover 93 to 96 % and a 5 % test rejects 3 to 7 % of equal
systems. If seeds vary three times as much as the test set does, two seeds cover 84 % and reject 15 % (the test
without part 2: 35 %), five seeds cover 92 % and reject 8 %. With one seed, intervals and tests are about that trained
model only.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

ScoreFunction = Callable[[np.ndarray], np.ndarray]  # [...,D] sums of rows -> [...]
Statistics = np.ndarray | Sequence[np.ndarray]  # [N,D], or S of them

_CELLS = 2**22  # numbers in one chunk of replicates: 32 MB


class Interval(NamedTuple):
    """The mean score over seeds, or its difference from a baseline's, with its bounds."""

    value: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """The two-sided probability of a difference as large as the observed one if the systems are equal."""

    p_value: float  # for other examples and other seeds
    p_examples: float  # for other examples and these trained models


def interval(
    score: ScoreFunction,
    system: Statistics,
    baseline: Statistics | None = None,
    *,
    level: float = 0.95,
    samples: int = 1000,
    seed: int = 0,
    score_range: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """Return the score of a system with its percentile interval, from bootstrap replicates over examples and seeds.

    With a ``baseline``, return the difference from its score: seed s of one is paired with seed s of the other. Bounds
    stay within the lowest and highest possible score or difference.

    >>> hits = np.array([[1.0, 1.0], [0.0, 1.0]] * 200)
    >>> value, low, high = interval(lambda sums: sums[..., 0] / sums[..., 1], hits)
    >>> value, bool(0.44 < low < 0.46 and 0.54 < high < 0.56)  # 0.5 ± 1.96 · 0.5 / √400
    (0.5, True)
    """
    systems = [_by_seed(each) for each in (system, baseline) if each is not None]
    rng = np.random.default_rng(seed)
    _, examples, width = systems[0].shape
    drawn = [
        _scores(score, [_products(weights, rows) for rows in systems])
        for weights in _weights(examples, width, samples, rng)
    ]
    seen = _scores(score, [rows.sum(axis=1) for rows in systems])  # [S]
    replicates = _add_seeds(np.concatenate(drawn), seen, rng)
    value = float(seen.mean())
    # A resample has fewer different examples than the sample, which biases scores such as a Fréchet distance. A bias
    # of less than a quarter of the standard error is ignored (Efron and Tibshirani, 1993, section 10.3).
    bias = float(np.mean(replicates)) - value
    if abs(bias) > 0.25 * float(np.std(replicates)) + 1e-12 * abs(value):
        replicates = replicates - bias
    lowest, highest = score_range
    if baseline is not None:
        lowest, highest = lowest - highest, highest - lowest
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]).clip(lowest, highest)
    return Interval(value, float(low), float(high))


def paired_test(
    score: ScoreFunction, system: Statistics, baseline: Statistics, *, samples: int = 10000, seed: int = 0
) -> PairedTest:
    """Test a difference by approximate randomisation: swap the outputs of each example with probability ½.

    If c of n permuted differences are at least as large as the observed one, p = (c + 1)/(n + 1) (Noreen, 1989).

    >>> hits = np.array([[1.0], [0.0], [1.0]])
    >>> paired_test(lambda sums: sums[..., 0] / 3, hits, hits).p_value
    1.0
    """
    ours, theirs = _by_seed(system), _by_seed(baseline)
    rng = np.random.default_rng(seed)
    x, y, change = ours.sum(axis=1), theirs.sum(axis=1), theirs - ours
    _, examples, width = ours.shape
    permuted = []
    for size in _chunks(examples, width, samples):
        swapped = rng.integers(0, 2, size=(size, examples), dtype=np.int8).astype(np.float64)
        moved = _products(swapped, change)
        permuted.append(_scores(score, [x + moved, y - moved]))
    differences = np.concatenate(permuted)  # [samples,S]
    seen = _scores(score, [x, y])
    scale = max(abs(float(score(x).mean())), abs(float(score(y).mean())), 1.0)
    least = abs(float(seen.mean())) - 1e-12 * scale

    def p(replicates: np.ndarray) -> float:
        return float((np.sum(np.abs(replicates) >= least) + 1) / (samples + 1))

    return PairedTest(p(_add_seeds(differences, seen, rng)), p(differences.mean(axis=1)))


def _by_seed(statistics: Statistics) -> np.ndarray:
    """Return statistics as [S,N,D]."""
    return np.array(statistics, dtype=np.float64, ndmin=3)


def _products(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return [C,S,D] sums of rows [S,N,D] with weights [C,N]."""
    return np.stack([weights @ each for each in rows], axis=1)


def _scores(score: ScoreFunction, sums: list[np.ndarray]) -> np.ndarray:
    """Return the scores of one system, or the differences of two."""
    first, *second = map(score, sums)
    return first - second[0] if second else first


def _chunks(examples: int, width: int, samples: int) -> Iterator[int]:
    """Yield sizes of chunks of replicates whose arrays have at most ``_CELLS`` numbers."""
    most = max(1, _CELLS // max(examples, width))
    for start in range(0, samples, most):
        yield min(most, samples - start)


def _weights(examples: int, width: int, samples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield [C,N] counts of how often each example is drawn in each replicate; rows sum to N."""
    for size in _chunks(examples, width, samples):
        drawn = rng.integers(0, examples, size=(size, examples))
        drawn += examples * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * examples).reshape(size, examples).astype(np.float64)


def _add_seeds(scores: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the mean score [C] of each replicate's seeds, from scores [C,S] (part 2).

    The variance of the observed scores [S] is added.
    """
    size, seeds = scores.shape
    mean: np.ndarray = scores.mean(axis=1)
    variance = float(seen.var(ddof=1)) if seeds > 1 else 0.0
    if variance == 0:
        return mean
    of_examples = float((scores - mean[:, None]).var(axis=0).mean()) * seeds / (seeds - 1)
    share = max(0.0, 1 - of_examples / variance)  # Var a / Var x
    drawn = seen[rng.integers(0, seeds, size=(size, seeds))].mean(axis=1)
    mean += np.sqrt(share * seeds / (seeds - 1)) * (drawn - seen.mean())
    return mean
