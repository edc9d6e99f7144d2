"""Confidence intervals and paired tests for metrics that are functions of summed statistics.

A system is given by the [N,D] statistics of its outputs, or by a list of S such arrays, one a training seed, all over
the same N test examples. Its score is the mean over seeds of ``score(rows summed)``.

Both the test examples and the training seeds are random. The score of seed s is x_s = μ + a_s + noise of the examples.
Each replicate has two parts:

1. The examples are drawn with replacement (`interval`, `paired_bootstrap`) or swapped between the systems
   (`paired_test`), the same ones in all seeds and both systems.
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

from unforced.errors import InputError

ScoreFunction = Callable[[np.ndarray], np.ndarray]  # [...,D] sums of rows -> [...]
Statistics = np.ndarray | Sequence[np.ndarray]  # [N,D], or S of them

_CELLS = 2**22  # numbers in one chunk of replicates: 32 MB


class Interval(NamedTuple):
    """Bounds of a score."""

    low: float
    high: float


class Difference(NamedTuple):
    """A difference of scores with its interval."""

    difference: float  # score of a minus score of b
    low: float
    high: float


class PairedTest(NamedTuple):
    """A difference of scores, and the two-sided probability of one as large if the systems are equal."""

    difference: float  # score of a minus score of b
    p_value: float  # for other examples and other seeds
    p_examples: float  # for other examples and these trained models


def mean_score(score: ScoreFunction, statistics: Statistics) -> float:
    """Return the mean over seeds of the score of the summed rows.

    >>> hits = np.array([[1.0, 1.0], [0.0, 1.0]])  # correct, counted
    >>> mean_score(lambda sums: sums[..., 0] / sums[..., 1], hits)
    0.5
    """
    return float(np.mean([score(rows.sum(axis=0)) for rows in _seeds(statistics)]))


def interval(
    score: ScoreFunction, statistics: Statistics, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Interval:
    """Return the percentile interval of the score, from bootstrap replicates over examples and seeds.

    >>> hits = np.array([[1.0, 1.0], [0.0, 1.0]] * 200)
    >>> low, high = interval(lambda sums: sums[..., 0] / sums[..., 1], hits)
    >>> bool(0.44 < low < 0.46 and 0.54 < high < 0.56)  # 0.5 ± 1.96 · 0.5 / √400
    True
    """
    systems = _seeds(statistics)
    rng = np.random.default_rng(seed)
    weights = _weights(len(systems[0]), systems[0].shape[1], samples, rng)
    scores = np.concatenate([_scores(score, systems, drawn) for drawn in weights])  # [samples,S]
    seen = np.array([score(rows.sum(axis=0)) for rows in systems])
    return Interval(*_percentiles(_with_seeds(scores, seen, rng), level, float(seen.mean())))


def paired_bootstrap(
    score: ScoreFunction, a: Statistics, b: Statistics, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Difference:
    """Return the difference of two scores with its percentile interval; seed s of a is paired with seed s of b."""
    first, second = _pair(a, b)
    rng = np.random.default_rng(seed)
    weights = _weights(len(first[0]), first[0].shape[1], samples, rng)
    changes = [_scores(score, first, drawn) - _scores(score, second, drawn) for drawn in weights]
    seen = _changes(score, first, second)
    replicates = _with_seeds(np.concatenate(changes), seen, rng)
    difference = float(seen.mean())
    return Difference(difference, *_percentiles(replicates, level, difference))


def paired_test(
    score: ScoreFunction, a: Statistics, b: Statistics, *, samples: int = 10000, seed: int = 0
) -> PairedTest:
    """Test a difference by approximate randomisation: swap the outputs of each example with probability ½ (Noreen,
    1989).

    If c of n permuted differences are at least as large as the observed one, p = (c + 1)/(n + 1).

    >>> hits = np.array([[1.0], [0.0], [1.0]])
    >>> paired_test(lambda sums: sums[..., 0] / 3, hits, hits).p_value
    1.0
    """
    first, second = _pair(a, b)
    rng = np.random.default_rng(seed)
    seen = _changes(score, first, second)  # [S]
    sums = [(x.sum(axis=0), y.sum(axis=0), y - x) for x, y in zip(first, second)]
    permuted = []
    for size in _chunks(len(first[0]), first[0].shape[1], samples):
        swapped = rng.integers(0, 2, size=(size, len(first[0])), dtype=np.int8).astype(np.float64)
        moved = [(x, y, swapped @ change) for x, y, change in sums]  # [C,N] @ [N,D]
        permuted.append(np.stack([score(x + m) - score(y - m) for x, y, m in moved], axis=1))
    differences = np.concatenate(permuted)  # [samples,S]
    scale = max(abs(mean_score(score, first)), abs(mean_score(score, second)), 1.0)
    least = abs(float(seen.mean())) - 1e-12 * scale

    def p(replicates: np.ndarray) -> float:
        return float((np.sum(np.abs(replicates) >= least) + 1) / (samples + 1))

    both = p(_with_seeds(differences, seen, rng))
    return PairedTest(float(seen.mean()), both, p(differences.mean(axis=1)))


def _seeds(statistics: Statistics) -> list[np.ndarray]:
    arrays = [statistics] if isinstance(statistics, np.ndarray) and statistics.ndim == 2 else list(statistics)
    systems = [np.asarray(rows, dtype=np.float64) for rows in arrays]
    if not systems or systems[0].ndim != 2 or not len(systems[0]):
        raise InputError("statistics must be one or more non-empty arrays of shape [examples, numbers]")
    if any(rows.shape != systems[0].shape for rows in systems):
        shapes = ", ".join(str(rows.shape) for rows in systems)
        raise InputError(f"the statistics of several seeds must have one shape, got {shapes}")
    return systems


def _pair(a: Statistics, b: Statistics) -> tuple[list[np.ndarray], list[np.ndarray]]:
    first, second = _seeds(a), _seeds(b)
    if len(first) != len(second) or first[0].shape != second[0].shape:
        raise InputError(
            f"paired systems need the same seeds and test examples, got {len(first)} seeds of {first[0].shape} "
            f"and {len(second)} of {second[0].shape}"
        )
    return first, second


def _chunks(examples: int, width: int, samples: int) -> Iterator[int]:
    """Yield sizes of chunks of replicates whose arrays have at most ``_CELLS`` numbers."""
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")
    most = max(1, _CELLS // max(examples, width))
    for start in range(0, samples, most):
        yield min(most, samples - start)


def _weights(examples: int, width: int, samples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield [C,N] counts of how often each example is drawn in each replicate; rows sum to N."""
    for size in _chunks(examples, width, samples):
        drawn = rng.integers(0, examples, size=(size, examples))
        drawn += examples * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * examples).reshape(size, examples).astype(np.float64)


def _scores(score: ScoreFunction, systems: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Return [C,S] scores of each seed in each replicate."""
    return np.stack([score(weights @ rows) for rows in systems], axis=1)


def _changes(score: ScoreFunction, a: list[np.ndarray], b: list[np.ndarray]) -> np.ndarray:
    """Return [S] differences of the systems' scores for each seed."""
    return np.array([score(x.sum(axis=0)) - score(y.sum(axis=0)) for x, y in zip(a, b)])


def _with_seeds(scores: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return [C] means of the [C,S] scores of replicates, with the variance of the [S] observed scores added (part 2)."""
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


def _percentiles(replicates: np.ndarray, level: float, centre: float) -> tuple[float, float]:
    """Return the bounds of the middle ``level`` of the replicates, shifted by their bias if it is large.

    A resample has fewer different examples than the sample, which biases scores such as a Fréchet distance. A bias of
    less than a quarter of the standard error is ignored (Efron and Tibshirani, 1993, section 10.3).
    """
    if not 0 < level < 1:
        raise InputError(f"level must be above 0 and below 1, got {level}")
    bias = float(np.mean(replicates)) - centre
    if abs(bias) > 0.25 * float(np.std(replicates)) + 1e-12 * abs(centre):
        replicates = replicates - bias
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
