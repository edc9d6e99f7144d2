"""Metrics of generated images: Fréchet distance and inception-style score, with a small classifier."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from unforced.metrics.text import check_answers

Images = Sequence[Any] | np.ndarray
FEATURES = 16
BATCH, RATE = 64, 3e-3
EPOCHS, FEWEST, MOST = 30, 100, 1500  # the latter two in updates


class ConvNet(nn.Module):
    """Two 3×3 convolutions, 2×2 pooling, ``FEATURES`` features, class scores: [N,C,H,W] -> [N,d], [N,classes]."""

    def __init__(self, shape: tuple[int, int, int], classes: int, rng: torch.Generator) -> None:
        super().__init__()
        channels, height, width = shape
        self.first = skip_init(nn.Conv2d, channels, 16, 3, padding=1, dtype=torch.float32)
        self.second = skip_init(nn.Conv2d, 16, 32, 3, padding=1, dtype=torch.float32)
        self.squeeze = skip_init(nn.Linear, 32 * (-(-height // 4)) * (-(-width // 4)), FEATURES, dtype=torch.float32)
        self.classify = skip_init(nn.Linear, FEATURES, classes, dtype=torch.float32)
        for weights in self.parameters():
            if weights.dim() == 1:
                nn.init.zeros_(weights)
            else:
                nn.init.kaiming_uniform_(weights, nonlinearity="relu", generator=rng)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.max_pool2d(F.relu(self.first(images)), 2, ceil_mode=True)
        hidden = F.max_pool2d(F.relu(self.second(hidden)), 2, ceil_mode=True)
        features = self.squeeze(hidden.flatten(1))
        return features, self.classify(F.relu(features))


class Classifier:
    """A trained image classifier with standardised features and class probabilities.

    Images are integer arrays [H,W] or [H,W,C] with ``levels`` grey or colour levels. Training is deterministic: it
    uses its own generator and one thread.

    >>> images = np.repeat([np.zeros((4, 4)), np.ones((4, 4))], 8, axis=0).astype(int)
    >>> labels = np.repeat([0, 1], 8)
    >>> classifier = Classifier.fit("toy", images, labels, levels=2, classes=2, steps=30)
    >>> classifier.features(images).shape, classifier.probabilities(images).shape
    ((16, 16), (16, 2))
    >>> classifier.accuracy(images, labels)
    1.0
    """

    def __init__(self, name: str, net: ConvNet, shape: tuple[int, ...], levels: int, trained_on: int) -> None:
        self.name = name
        self.shape = shape
        self.levels = levels
        self.trained_on = trained_on
        self._net = net
        self._shift, self._scale = np.zeros(FEATURES), np.ones(FEATURES)

    @classmethod
    def fit(
        cls,
        name: str,
        images: Images,
        labels: Sequence[int] | np.ndarray,
        *,
        levels: int,
        classes: int,
        seed: int = 0,
        steps: int | None = None,
    ) -> "Classifier":
        """Train with Adam and a linearly decreasing learning rate; ``steps`` is 30 epochs, within bounds, if None."""
        shape = np.shape(images[0])
        steps = min(max(EPOCHS * len(images) // BATCH, FEWEST), MOST) if steps is None else steps
        with _training():
            rng = torch.Generator().manual_seed(seed)
            net = ConvNet((shape[2] if len(shape) == 3 else 1, shape[0], shape[1]), classes, rng)
            result = cls(name, net, shape, levels, len(images))
            pixels, targets = result._pixels(images), torch.as_tensor(np.asarray(labels), dtype=torch.long)
            optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
            for step in range(steps):
                optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
                rows = torch.randint(len(targets), (BATCH,), generator=rng)
                optimizer.zero_grad()
                F.cross_entropy(net(pixels[rows])[1], targets[rows]).backward()
                optimizer.step()
        net.requires_grad_(False)
        raw = result.features(images)
        result._shift, result._scale = raw.mean(axis=0), raw.std(axis=0) + 1e-6
        return result

    def features(self, images: Images) -> np.ndarray:
        """Return standardised features [N,d], float64."""
        return (self._run(images)[0].double().numpy() - self._shift) / self._scale

    def probabilities(self, images: Images) -> np.ndarray:
        """Return class probabilities [N,classes], float64."""
        return torch.softmax(self._run(images)[1].double(), dim=-1).numpy()

    def accuracy(self, images: Images, labels: Sequence[int] | np.ndarray) -> float:
        """Return the share of images that are classified correctly."""
        return float((self.probabilities(images).argmax(axis=1) == np.asarray(labels)).mean())

    def describe(self) -> str:
        """Describe the classifier, with a hash of its weights: distances are comparable only in the same features."""
        weights = b"".join(weights.detach().numpy().tobytes() for weights in self._net.parameters())
        mark = hashlib.sha256(weights).hexdigest()[:8]
        return (
            f"the {self.name} classifier ({FEATURES} features of a small convolutional network "
            f"trained on {self.trained_on} images, weights {mark})"
        )

    def _run(self, images: Images) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            parts = [self._net(part) for part in self._pixels(images).split(1000)]
        return torch.cat([features for features, _ in parts]), torch.cat([scores for _, scores in parts])

    def _pixels(self, images: Images) -> Tensor:
        """Convert N images of integer levels to [N,C,H,W] float32 in [0,1]."""
        stacked = np.asarray(images).reshape(len(images), *self.shape)
        pixels = torch.tensor(stacked, dtype=torch.float32) / max(self.levels - 1, 1)
        return pixels.movedim(3, 1).contiguous() if pixels.dim() == 4 else pixels.unsqueeze(1)


@contextmanager
def _training() -> Iterator[None]:
    """Enable gradients and full precision, and use one thread, so that sums have a fixed order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_num_threads(threads)


# Inception-style score: the formula of Salimans et al. (2016) with any classifier


class InceptionStyleScore:
    """exp(H(mean of p) − mean of H(p)): between 1 and the number of classes; high if outputs are clear and varied.

    Answers are ignored, and there are no splits. Statistics: [1, H(p), p] of each output.

    >>> class Sure:
    ...     def probabilities(self, images): return np.eye(2)[images]
    ...     def describe(self): return "a toy"
    >>> metric = InceptionStyleScore("score", Sure)
    >>> both = metric.statistics([0, 1], [[0], [0]])
    >>> round(float(metric.score(both.sum(axis=0))), 6)
    2.0
    """

    higher_is_better = True
    score_range = (1.0, np.inf)

    def __init__(self, name: str, classifier: Callable[[], Classifier]) -> None:
        self.name = name
        self._classifier = classifier

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        check_answers(outputs, answers)
        p = self._classifier().probabilities(outputs)
        return np.concatenate([np.ones((len(p), 1)), _entropy(p)[:, None], p], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        means = sums[..., 1:] / np.maximum(sums[..., :1], 1)
        return np.asarray(np.exp(_entropy(means[..., 1:]) - means[..., 0]))

    def signature(self) -> str:
        return f"inception-style score (not the Inception score), no splits, with {self._classifier().describe()}"


def _entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy [...] in nats of distributions [...,C], with 0 log 0 = 0."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1))


# Fréchet distance between generated and real images, in the features of any classifier


class FrechetDistance:
    """|μ − μ'|² + tr(Σ + Σ' − 2(ΣΣ')^½) for the means and covariances of real and generated features.

    Statistics: [1, f, f fᵀ, f', f' f'ᵀ] with features f of the output and f' of the answer, and the upper triangles of
    products. ``classifier`` is a function, so that training starts only when a score is computed.

    >>> class Identity:
    ...     def features(self, images): return np.array(images, dtype=float)
    ...     def describe(self): return "the image itself"
    >>> metric = FrechetDistance("distance", Identity)
    >>> rows = metric.statistics([[0.0], [2.0]], [[[3.0]], [[5.0]]])  # equal spread, means 1 and 4
    >>> round(float(metric.score(rows.sum(axis=0))), 6)
    9.0
    """

    higher_is_better = False
    score_range = (0.0, np.inf)

    def __init__(self, name: str, classifier: Callable[[], Classifier]) -> None:
        self.name = name
        self._classifier = classifier

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        check_answers(outputs, answers)
        sides = [self._classifier().features(side) for side in (outputs, [group[0] for group in answers])]
        return np.concatenate([np.ones((len(outputs), 1)), *map(_moments, sides)], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        size = (sums.shape[-1] - 1) // 2
        generated = _mean_and_covariance(sums[..., 0], sums[..., 1 : 1 + size])
        real = _mean_and_covariance(sums[..., 0], sums[..., 1 + size :])
        return frechet(*generated, *real)

    def signature(self) -> str:
        return f"Fréchet distance (not FID) in the features of {self._classifier().describe()}"


def _moments(features: np.ndarray) -> np.ndarray:
    """Return features [N,d] and the upper triangle of their products, [N, d + d(d+1)/2]."""
    rows, columns = np.triu_indices(features.shape[1])
    return np.concatenate([features, features[:, rows] * features[:, columns]], axis=1)


def _mean_and_covariance(count: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean [...,d] and covariance [...,d,d] (divisor n − 1) from counts and sums of ``_moments`` [...,M]."""
    d = int((np.sqrt(9 + 8 * sums.shape[-1]) - 3) / 2 + 0.5)  # M = d + d(d+1)/2
    count = np.maximum(count, 1)[..., None]
    mean = sums[..., :d] / count
    rows, columns = np.triu_indices(d)
    products = np.zeros((*sums.shape[:-1], d, d))
    products[..., rows, columns] = products[..., columns, rows] = sums[..., d:]
    scatter = products - count[..., None] * mean[..., :, None] * mean[..., None, :]
    return mean, scatter / np.maximum(count - 1, 1)[..., None]


def frechet(mean_a: np.ndarray, covariance_a: np.ndarray, mean_b: np.ndarray, covariance_b: np.ndarray) -> np.ndarray:
    """Return the Fréchet distance between Gaussians with means [...,d] and covariances [...,d,d].

    tr (AB)^½ is the sum of the square roots of the eigenvalues of A^½ B A^½, which is symmetric.
    """
    values, vectors = np.linalg.eigh(covariance_a)
    root = (vectors * np.sqrt(values.clip(min=0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    cross = np.sqrt(np.linalg.eigvalsh(root @ covariance_b @ root).clip(min=0)).sum(axis=-1)
    trace = np.trace(covariance_a, axis1=-2, axis2=-1) + np.trace(covariance_b, axis1=-2, axis2=-1)
    return np.asarray(np.maximum(((mean_a - mean_b) ** 2).sum(axis=-1) + trace - 2 * cross, 0))
