"""Intervals and paired tests for metrics that are functions of summed statistics (``unforced.protocols``).

A system is given as the ``[N,D]`` statistics of its outputs, or as a list of S such arrays, one a training seed, all
over the same N test examples in the same order. Its *figure* is the mean over seeds of ``score(rows summed)``.

Two things are random, the test examples and the training seeds. Say that seed s scores x_s = μ + a_s + noise of the examples,
some of it common to all seeds and some its own. Every replicate has two parts:

1. examples are drawn anew (``interval``, ``paired_bootstrap``: N with replacement) or swapped between the systems
   (``paired_test``), the same ones in all seeds and both systems, since they share the test set;
2. with S > 1 seeds, the deviations x_s − x̄ of S seeds drawn with replacement are added on average, times √(S/(S − 1)), because
   S draws from S values vary too little by that much (Rao and Wu, 1988), and times √(Var a / Var x), because the examples' own
   noise in x_s is in the first part already. Var a is estimated as Var x less the variance over replicates of a seed's
   deviation from the mean of seeds.

In simulations with two to five seeds, 95 % intervals cover 93 to 96 % and a 5 % test rejects 3 to 7 % of equal systems; where the seeds
vary three times as much as the test set does, two seeds cover 84 % and reject 15 % (the test that swaps examples only: 35 %), five
seeds cover 92 % and reject 8 %. With one seed nothing is known about others: the figures speak of the one trained model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from unforced.errors import InputError

Score = Callable[[np.ndarray], np.ndarray]  # [...,D] sums of rows -> [...]
Statistics = np.ndarray | Sequence[np.ndarray]  # [N,D], or S of them

_CELLS = 2**22  # numbers held by one chunk of replicates: 32 MB


class Interval(NamedTuple):
    low: float
    high: float


class Difference(NamedTuple):
    """Figure of a minus figure of b, with its interval."""

    difference: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """Figure of a minus figure of b, and the two-sided probability of one as large under equal systems.

    ``p_examples`` asks about these trained models and other examples, ``p_value`` about other seeds too.
    """

    difference: float
    p_value: float
    p_examples: float


def figure(score: Score, statistics: Statistics) -> float:
    """Mean over seeds of the score of the summed rows.

    >>> hits = np.array([[1.0, 1.0], [0.0, 1.0]])  # correct, counted
    >>> figure(lambda sums: sums[..., 0] / sums[..., 1], hits)
    0.5
    """
    return float(np.mean([score(rows.sum(axis=0)) for rows in _seeds(statistics)]))


def interval(
    score: Score, statistics: Statistics, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile interval of the figure, from bootstrap replicates over examples and seeds.

    >>> hits = np.array([[1.0, 1.0], [0.0, 1.0]] * 200)
    >>> low, high = interval(lambda sums: sums[..., 0] / sums[..., 1], hits)
    >>> bool(0.44 < low < 0.46 and 0.54 < high < 0.56)  # 0.5 ± 1.96 · 0.5 / √400
    True
    """
    systems = _seeds(statistics)
    rng = np.random.default_rng(seed)
    weights = _weights(len(systems[0]), _width(systems), samples, rng)
    scores = np.concatenate([_scores(score, systems, drawn) for drawn in weights])  # [samples,S]
    seen = np.array([score(rows.sum(axis=0)) for rows in systems])
    return Interval(*_percentiles(_with_seeds(scores, seen, rng), level, float(seen.mean())))


def paired_bootstrap(
    score: Score, a: Statistics, b: Statistics, *, level: float = 0.95, samples: int = 1000, seed: int = 0
) -> Difference:
    """Difference of two systems' figures with its percentile interval; seed s of a is paired with seed s of b."""
    first, second = _pair(a, b)
    rng = np.random.default_rng(seed)
    weights = _weights(len(first[0]), _width(first), samples, rng)
    changes = [_scores(score, first, drawn) - _scores(score, second, drawn) for drawn in weights]
    seen = _changes(score, first, second)
    replicates = _with_seeds(np.concatenate(changes), seen, rng)
    difference = float(seen.mean())
    return Difference(difference, *_percentiles(replicates, level, difference))


def paired_test(score: Score, a: Statistics, b: Statistics, *, samples: int = 10000, seed: int = 0) -> PairedTest:
    """Approximate randomisation (Noreen, 1989): swap the two outputs of each example with probability one half.

    With c of n permuted differences at least as large as the one seen, p = (c + 1)/(n + 1). Seeds enter as above.

    >>> hits = np.array([[1.0], [0.0], [1.0]])
    >>> paired_test(lambda sums: sums[..., 0] / 3, hits, hits).p_value
    1.0
    """
    first, second = _pair(a, b)
    rng = np.random.default_rng(seed)
    seen = _changes(score, first, second)  # [S]
    sums = [(x.sum(axis=0), y.sum(axis=0), y - x) for x, y in zip(first, second)]
    permuted = []
    for size in _chunks(len(first[0]), _width(first), samples):
        swapped = rng.integers(0, 2, size=(size, len(first[0])), dtype=np.int8).astype(np.float64)
        moved = [(x, y, swapped @ change) for x, y, change in sums]  # [C,N] @ [N,D]
        permuted.append(np.stack([score(x + m) - score(y - m) for x, y, m in moved], axis=1))
    differences = np.concatenate(permuted)  # [samples,S]
    scale = max(abs(figure(score, first)), abs(figure(score, second)), 1.0)
    least = abs(float(seen.mean())) - 1e-12 * scale

    def p(replicates: np.ndarray) -> float:
        return float((np.sum(np.abs(replicates) >= least) + 1) / (samples + 1))

    both = p(_with_seeds(differences, seen, rng))
    return PairedTest(float(seen.mean()), both, p(differences.mean(axis=1)))


def _seeds(statistics: Statistics) -> list[np.ndarray]:
    arrays = [statistics] if isinstance(statistics, np.ndarray) and statistics.ndim == 2 else list(statistics)
    systems = [np.asarray(rows, dtype=np.float64) for rows in arrays]
    if not systems or systems[0].ndim != 2 or not len(systems[0]):
        raise InputError("statistics must be one or more arrays of shape [examples, numbers] that are not empty")
    if any(rows.shape != systems[0].shape for rows in systems):
        shapes = ", ".join(str(rows.shape) for rows in systems)
        raise InputError(f"statistics of several seeds must be of one shape, not {shapes}")
    return systems


def _pair(a: Statistics, b: Statistics) -> tuple[list[np.ndarray], list[np.ndarray]]:
    first, second = _seeds(a), _seeds(b)
    if len(first) != len(second) or first[0].shape != second[0].shape:
        raise InputError(
            f"paired systems need the same seeds and test examples, not {len(first)} seeds of {first[0].shape} "
            f"and {len(second)} of {second[0].shape}"
        )
    return first, second


def _width(systems: list[np.ndarray]) -> int:
    return systems[0].shape[1]


def _chunks(examples: int, width: int, samples: int) -> Iterator[int]:
    """Sizes of chunks of replicates that keep each array within ``_CELLS`` numbers."""
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    most = max(1, _CELLS // max(examples, width))
    for start in range(0, samples, most):
        yield min(most, samples - start)


def _weights(examples: int, width: int, samples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """[C,N] how often each example is drawn in each replicate of a chunk (multinomial: the rows sum to N)."""
    for size in _chunks(examples, width, samples):
        drawn = rng.integers(0, examples, size=(size, examples))
        drawn += examples * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * examples).reshape(size, examples).astype(np.float64)


def _scores(score: Score, systems: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """[C,S] the score of each seed in each replicate."""
    return np.stack([score(weights @ rows) for rows in systems], axis=1)


def _changes(score: Score, a: list[np.ndarray], b: list[np.ndarray]) -> np.ndarray:
    """[S] the difference of the systems' scores for each seed."""
    return np.array([score(x.sum(axis=0)) - score(y.sum(axis=0)) for x, y in zip(a, b)])


def _with_seeds(scores: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[C,S] scores of replicates over examples and [S] scores of the seeds -> [C] means with the seeds' own variance added."""
    size, seeds = scores.shape
    mean = scores.mean(axis=1)
    variance = float(seen.var(ddof=1)) if seeds > 1 else 0.0
    if variance == 0:
        return mean
    of_examples = float((scores - mean[:, None]).var(axis=0).mean()) * seeds / (seeds - 1)
    share = max(0.0, 1 - of_examples / variance)  # Var a / Var x
    drawn = seen[rng.integers(0, seeds, size=(size, seeds))].mean(axis=1)
    return mean + np.sqrt(share * seeds / (seeds - 1)) * (drawn - seen.mean())


def _percentiles(replicates: np.ndarray, level: float, centre: float) -> tuple[float, float]:
    """The middle ``level`` of the replicates, moved onto ``centre`` where they lie clearly beside it.

    A resample has fewer different examples than the sample, which biases scores such as a Fréchet distance. A bias of
    less than a quarter of the standard error is left alone (Efron and Tibshirani, 1993, section 10.3).
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    bias = float(np.mean(replicates)) - centre
    if abs(bias) > 0.25 * float(np.std(replicates)) + 1e-12 * abs(centre):
        replicates = replicates - bias
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
