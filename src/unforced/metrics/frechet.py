"""The Fréchet distance between generated and real images, in the features of a classifier the caller names.

With Inception-v3 as that classifier it would be FID (Heusel et al. 2017); with any other it is not comparable with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from unforced.metrics.counts import same_number


class Features(Protocol):
    """What turns images into vectors."""

    def features(self, images: Sequence[Any]) -> np.ndarray:
        """N images -> [N,d] float64."""
        ...

    def describe(self) -> str: ...


class FrechetDistance:
    """|μ − μ'|² + tr(Σ + Σ' − 2(ΣΣ')^½) for the means and covariances of real and generated features.

    Both sides are part of the statistics, so that the score is a function of their sums alone:
    [1, f, f fᵀ, f', f' f'ᵀ], the products' upper triangles only, hence D = 1 + 3d + d².
    The ``classifier`` is a function so that nothing is trained before a score is asked for.

    >>> class Identity:
    ...     def features(self, images): return np.array(images, dtype=float)
    ...     def describe(self): return "the image itself"
    >>> metric = FrechetDistance("distance", Identity)
    >>> rows = metric.statistics([[0.0], [2.0]], [[[3.0]], [[5.0]]])  # equal spread, means 1 and 4
    >>> round(float(metric.score(rows.sum(axis=0))), 6)
    9.0
    """

    higher_is_better = False

    def __init__(self, name: str, classifier: Callable[[], Features]) -> None:
        self.name = name
        self._classifier = classifier

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        same_number(outputs, answers)
        sides = [self._classifier().features(side) for side in (outputs, [group[0] for group in answers])]
        return np.concatenate([np.ones((len(outputs), 1)), *map(_moments, sides)], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        size = (sums.shape[-1] - 1) // 2
        made = _mean_and_covariance(sums[..., 0], sums[..., 1 : 1 + size])
        real = _mean_and_covariance(sums[..., 0], sums[..., 1 + size :])
        return frechet(*made, *real)

    def signature(self) -> str:
        return f"Fréchet distance (not FID) in the features of {self._classifier().describe()}"


def _moments(features: np.ndarray) -> np.ndarray:
    """[N,d] -> [N, d + d(d+1)/2]: the features and the upper triangle of their products."""
    rows, columns = np.triu_indices(features.shape[1])
    return np.concatenate([features, features[:, rows] * features[:, columns]], axis=1)


def _mean_and_covariance(count: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[...] counts and [...,M] sums of ``_moments`` -> [...,d] mean and [...,d,d] covariance (divisor n − 1)."""
    d = int((np.sqrt(9 + 8 * sums.shape[-1]) - 3) / 2 + 0.5)  # M = d + d(d+1)/2
    count = np.maximum(count, 1)[..., None]
    mean = sums[..., :d] / count
    rows, columns = np.triu_indices(d)
    products = np.zeros((*sums.shape[:-1], d, d))
    products[..., rows, columns] = products[..., columns, rows] = sums[..., d:]
    scatter = products - count[..., None] * mean[..., :, None] * mean[..., None, :]
    return mean, scatter / np.maximum(count - 1, 1)[..., None]


def frechet(
    mean_a: np.ndarray, covariance_a: np.ndarray, mean_b: np.ndarray, covariance_b: np.ndarray
) -> np.ndarray:
    """The distance between Gaussians, batched: means [...,d], covariances [...,d,d] -> [...].

    tr (AB)^½ is the sum of the square roots of the eigenvalues of A^½ B A^½, which is symmetric.
    """
    values, vectors = np.linalg.eigh(covariance_a)
    root = (vectors * np.sqrt(values.clip(min=0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    cross = np.sqrt(np.linalg.eigvalsh(root @ covariance_b @ root).clip(min=0)).sum(axis=-1)
    trace = np.trace(covariance_a, axis1=-2, axis2=-1) + np.trace(covariance_b, axis1=-2, axis2=-1)
    return np.maximum(((mean_a - mean_b) ** 2).sum(axis=-1) + trace - 2 * cross, 0)
