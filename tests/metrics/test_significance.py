"""Intervals and tests against closed forms, scipy and simulated coverage."""

from typing import Any

import numpy as np
import pytest
import scipy.stats

from unforced.metrics.images import FrechetDistance
from unforced.metrics.significance import interval, paired_test
from unforced.metrics.text import Bleu


def mean(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / sums[..., 1]


def rows(values: np.ndarray) -> np.ndarray:
    """[N] values -> [N,2] statistics whose score is their mean."""
    return np.stack([values, np.ones_like(values)], axis=1)


# Intervals


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_the_interval_agrees_with_scipy(level: float) -> None:
    values = np.random.default_rng(1).exponential(size=300)
    ours = interval(mean, rows(values), level=level, samples=5000)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, confidence_level=level, n_resamples=5000, method="percentile", rng=2
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.08 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.08 * width)


def test_replicates_are_exact_on_a_tiny_sample() -> None:
    """Of two examples 0 and 1, a replicate's mean is 0, ½ or 1 with probabilities ¼, ½, ¼."""
    data = rows(np.array([0.0, 1.0]))
    assert interval(mean, data, level=0.4, samples=4000) == (0.5, 0.5, 0.5)
    assert interval(mean, data, level=0.6, samples=4000) == (0.5, 0.0, 1.0)


@pytest.mark.parametrize("seeds", [1, 5])
def test_the_interval_covers_the_truth(seeds: int) -> None:
    """Every seed has a bias as large as the noise of the test set; the coverage is near the level of 90 %."""
    rng = np.random.default_rng(3)
    covered, trials, n = 0, 200, 100
    for trial in range(trials):
        examples = rng.normal(size=n)
        bias = rng.normal(scale=0.1, size=seeds) if seeds > 1 else np.zeros(1)
        runs = [rows(examples + b + rng.normal(scale=0.5, size=n)) for b in bias]
        _, low, high = interval(mean, runs, level=0.9, samples=400, seed=trial)
        covered += low <= 0.0 <= high
    assert 0.83 < covered / trials < 0.96


def test_seeds_widen_the_interval_by_their_own_variance() -> None:
    """With no noise in the examples, the variance of the mean over S seeds is s²/S, not (S − 1)/S of it."""
    biases = [0.0, 1.0, 5.0]
    found = interval(mean, [rows(np.full(50, b)) for b in biases], level=0.998, samples=20000)
    stretched = [2.0 + np.sqrt(3 / 2) * (b - 2.0) for b in biases]
    assert found == pytest.approx((2.0, min(stretched), max(stretched)))


def test_the_paired_interval_is_narrow_where_systems_agree() -> None:
    rng = np.random.default_rng(10)
    values = rng.normal(scale=5.0, size=400)
    a, b = rows(values + 0.1 + rng.normal(scale=0.1, size=400)), rows(values)
    difference, low, high = interval(mean, a, b)
    assert low < difference < high
    assert high - low < 0.05
    assert high - low < 0.1 * (interval(mean, a).high - interval(mean, a).low)


def test_interval_of_a_biased_score_contains_the_score() -> None:
    """A Fréchet distance grows when examples repeat: all replicates are above the score, their interval is not."""

    class Itself:
        def features(self, images: Any) -> np.ndarray:
            return np.asarray(images)

    metric = FrechetDistance("distance", Itself)  # type: ignore[arg-type]
    rng = np.random.default_rng(12)
    data = metric.statistics(rng.normal(size=(60, 8)), rng.normal(size=(60, 1, 8)))
    drawn = rng.multinomial(60, np.full(60, 1 / 60), size=200).astype(float)
    seen, low, high = interval(metric.score, data)
    assert np.quantile(metric.score(drawn @ data), 0.05) > seen
    assert low < seen < high


def test_chunks_limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(11).normal(size=100)
    sizes = []

    def spy(sums: np.ndarray) -> np.ndarray:
        sizes.append(sums.shape)
        return mean(sums)

    monkeypatch.setattr("unforced.metrics.significance._CELLS", 700)
    _, low, high = interval(spy, rows(values), samples=1000)
    chunks = [shape[0] for shape in sizes if len(shape) == 3]
    assert max(chunks) == 7
    assert sum(chunks) == 1000
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / 10, rel=0.15)


def test_intervals_stay_in_the_range_of_the_metric() -> None:
    """Two seeds with BLEU 0 and 2.5 spread so much that part 2 leads below zero."""
    metric = Bleu(tokenize="none")
    answers = [["a b c d e"]] * 40
    good = metric.statistics(["a b c d e", *["x y z"] * 39], answers)
    bad = metric.statistics(["x y z"] * 40, answers)
    value, low, high = interval(metric.score, [good, bad])
    assert low < 0 < value < high
    assert interval(metric.score, [good, bad], score_range=metric.score_range) == (value, 0.0, high)
    full, empty, fifth = (rows(np.full(5, points)) for points in (100.0, 0.0, 20.0))
    assert interval(mean, [full, full], [empty, fifth]).high > 100
    assert interval(mean, [full, full], [empty, fifth], score_range=(0.0, 100.0)).high == 100


# Tests


def test_identical_systems_have_p_one_and_no_difference() -> None:
    values = np.random.default_rng(4).normal(size=80)
    assert paired_test(mean, rows(values), rows(values), samples=500) == (1.0, 1.0)
    assert interval(mean, rows(values), rows(values), samples=100) == (0.0, 0.0, 0.0)


def test_the_test_agrees_with_scipy() -> None:
    rng = np.random.default_rng(6)
    a = rng.normal(size=40)
    b = a + rng.normal(0.15, 0.6, size=40)
    ours = paired_test(mean, rows(a), rows(b), samples=20000)
    theirs = scipy.stats.permutation_test(
        (a, b), lambda x, y: np.mean(x) - np.mean(y), permutation_type="samples", n_resamples=20000, rng=7
    )
    assert interval(mean, rows(a), rows(b), samples=1).value == pytest.approx(theirs.statistic)
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=0.02)
    assert 0.02 < ours.p_value < 0.5


def test_the_test_is_exact_by_enumeration() -> None:
    """Differences 1, 2, 4: all eight signs give sums of distinct size, two of them as large as the observed one."""
    a, b = rows(np.array([1.0, 2.0, 4.0])), rows(np.zeros(3))
    assert paired_test(mean, a, b, samples=40000).p_value == pytest.approx(2 / 8, abs=0.01)


def test_permutations_swap_an_example_in_all_seeds() -> None:
    """Ten copies of one seed are one seed: they do not make a difference more certain."""
    rng = np.random.default_rng(9)
    a, b = rows(rng.normal(0.2, 1.0, size=50)), rows(rng.normal(size=50))
    one = paired_test(mean, a, b, samples=2000, seed=3)
    assert one.p_value == one.p_examples
    assert paired_test(mean, [a] * 10, [b] * 10, samples=2000, seed=3) == pytest.approx(one)


def test_a_difference_smaller_than_that_of_seeds_is_not_significant() -> None:
    """Three seeds of a differ by 0, 0 and 1 from b on every example: certain for these models, not for the method."""
    values = np.random.default_rng(14).normal(size=100)
    a, b = [rows(values), rows(values), rows(values + 1.0)], [rows(values)] * 3
    result = paired_test(mean, a, b, samples=2000)
    assert result.p_examples < 0.01
    assert result.p_value > 0.1
    difference, low, high = interval(mean, a, b)
    assert difference == pytest.approx(1 / 3)
    assert low < 0 < high


@pytest.mark.parametrize(("of_seeds", "own"), [(0.0, 0.5), (0.0, 3.0), (0.1, 1.0)])
def test_equal_methods_are_rejected_at_the_level(of_seeds: float, own: float) -> None:
    """Differences of three seeds with noise of their own and noise common to all; 5 % level, 300 trials."""
    rng = np.random.default_rng(15)
    rejected, trials, n, seeds = 0, 300, 100, 3
    for trial in range(trials):
        common = rng.normal(size=n)
        a = [rows(common + rng.normal(scale=of_seeds) + rng.normal(scale=own, size=n)) for _ in range(seeds)]
        p = paired_test(mean, a, [rows(np.zeros(n))] * seeds, samples=199, seed=trial).p_value
        rejected += p <= 0.05
    assert 0.01 < rejected / trials < 0.1


def test_the_same_seed_gives_the_same_numbers() -> None:
    a, b = (rows(np.random.default_rng(s).normal(size=60)) for s in (1, 2))
    assert interval(mean, a, seed=5) == interval(mean, a, seed=5) != interval(mean, a, seed=6)
    assert paired_test(mean, a, b, seed=5, samples=300) == paired_test(mean, a, b, seed=5, samples=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_seeds", "own", "seeds", "coverage", "rejections"),
    [
        (0.0, 0.5, 2, (0.92, 0.97), (0.02, 0.08)),
        (0.0, 3.0, 3, (0.92, 0.97), (0.02, 0.08)),
        (0.1, 2.0, 5, (0.92, 0.97), (0.02, 0.08)),
        (0.3, 0.5, 2, (0.80, 0.88), (0.12, 0.19)),
        (0.3, 0.5, 5, (0.89, 0.95), (0.05, 0.11)),
    ],
)
def test_documented_simulations(
    of_seeds: float, own: float, seeds: int, coverage: tuple[float, float], rejections: tuple[float, float]
) -> None:
    rng = np.random.default_rng(16)
    covered, rejected, trials, n = 0, 0, 1000, 100
    zeros = [rows(np.zeros(n))] * seeds
    for trial in range(trials):
        common = rng.normal(size=n)
        runs = [rows(common + rng.normal(scale=of_seeds) + rng.normal(scale=own, size=n)) for _ in zeros]
        _, low, high = interval(mean, runs, samples=400, seed=trial)
        covered += low <= 0 <= high
        rejected += paired_test(mean, runs, zeros, samples=399, seed=trial).p_value <= 0.05
    assert coverage[0] < covered / trials < coverage[1]
    assert rejections[0] < rejected / trials < rejections[1]
