"""Fréchet distance, inception-style score, and the classifier whose features they use."""

import numpy as np
import pytest
import scipy.linalg
import torch

from unforced.metrics.images import FEATURES, Classifier, FrechetDistance, InceptionStyleScore, frechet


class Raw:
    """Images that are their own features and probabilities."""

    def features(self, images):
        return np.asarray(images, dtype=float)

    probabilities = features

    def describe(self):
        return "the images themselves"


def reference(a, b):
    """The usual formula on whole samples, with scipy's matrix square root."""
    covariance_a, covariance_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(covariance_a @ covariance_b).real
    return ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(covariance_a + covariance_b - 2 * root)


def samples(n=200, d=5):
    rng = np.random.default_rng(3)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)), 0.5 + rng.normal(size=(n, d)) * rng.random(d)


def test_distance_equals_the_formula_on_whole_samples():
    a, b = samples()
    metric = FrechetDistance("distance", Raw)
    rows = metric.statistics(list(a), [[image] for image in b])
    assert rows.shape == (200, 1 + 3 * 5 + 5**2)
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(reference(a, b), abs=1e-9)


def test_a_resampled_sum_is_the_distance_of_the_resampled_images():
    a, b = samples()
    metric = FrechetDistance("distance", Raw)
    rows = metric.statistics(list(a), [[image] for image in b])
    picks = np.random.default_rng(0).integers(len(a), size=(4, len(a)))
    scores = metric.score(np.stack([rows[pick].sum(axis=0) for pick in picks]))
    assert scores == pytest.approx([reference(a[pick], b[pick]) for pick in picks], abs=1e-9)


def test_distance_of_one_dimensional_gaussians():
    """(μ − μ')² + (σ − σ')²."""
    found = frechet(np.array([1.0]), np.array([[4.0]]), np.array([3.0]), np.array([[25.0]]))
    assert float(found) == pytest.approx(4 + 9)


def test_singular_covariances_and_single_examples_give_finite_distances():
    flat = np.zeros((10, 3))
    flat[:, 0] = np.arange(10)
    metric = FrechetDistance("distance", Raw)
    rows = metric.statistics(list(flat), [[image] for image in flat[::-1] + 1])
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(3, abs=1e-9)
    assert np.isfinite(metric.score(rows)).all()


def test_inception_style_score_from_sums_equals_the_mean_divergence():
    p = np.random.default_rng(0).dirichlet(np.full(4, 0.3), size=50)
    metric = InceptionStyleScore("score", Raw)
    rows = metric.statistics(list(p), [[0]] * 50)
    divergence = (p * np.log(p / p.mean(axis=0))).sum(axis=1).mean()
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(np.exp(divergence))


def test_inception_style_score_has_its_bounds():
    metric = InceptionStyleScore("score", Raw)
    varied = metric.statistics(list(np.eye(4)), [[0]] * 4)
    same = metric.statistics([np.eye(4)[0]] * 4, [[0]] * 4)
    assert metric.score(np.stack([varied.sum(axis=0), same.sum(axis=0)])) == pytest.approx([4, 1])


@pytest.fixture(scope="module")
def stripes():
    """Upright against level stripes with noise."""
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=200)
    clean = np.zeros((200, 6, 6), dtype=int)
    clean[labels == 0, ::2] = 3
    clean[labels == 1, :, ::2] = 3
    return np.where(rng.random(clean.shape) < 0.2, rng.integers(4, size=clean.shape), clean), labels


def test_classifier_learns_and_standardises_its_features(stripes):
    images, labels = stripes
    classifier = Classifier.fit("stripes", images, labels, levels=4, classes=2, steps=100)
    assert classifier.accuracy(images, labels) > 0.95
    features = classifier.features(images)
    assert features.shape == (200, FEATURES)
    assert features.mean(axis=0) == pytest.approx(np.zeros(FEATURES), abs=1e-3)
    assert classifier.probabilities(images).sum(axis=1) == pytest.approx(np.ones(200))


def test_classifier_is_a_function_of_its_data_and_seed(stripes):
    images, labels = stripes
    one = Classifier.fit("stripes", images, labels, levels=4, classes=2, steps=20)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        two = Classifier.fit("stripes", images, labels, levels=4, classes=2, steps=20)
    before = torch.get_rng_state()
    other = Classifier.fit("stripes", images, labels, levels=4, classes=2, steps=20, seed=1)
    assert (torch.get_rng_state() == before).all()  # it has a generator of its own
    assert (one.features(images) == two.features(images)).all()
    assert one.describe() == two.describe() != other.describe()


def test_distance_in_the_classifiers_features_tells_noise_from_stripes(stripes):
    images, labels = stripes
    classifier = Classifier.fit("stripes", images[:100], labels[:100], levels=4, classes=2, steps=100)
    metric = FrechetDistance("stripes_classifier_frechet_distance", lambda: classifier)
    noise = np.random.default_rng(5).integers(4, size=(100, 6, 6))
    answers = [[image] for image in images[100:]]
    real = metric.statistics(list(images[:100]), answers).sum(axis=0)
    fake = metric.statistics(list(noise), answers).sum(axis=0)
    assert 5 * metric.score(real) < metric.score(fake)


def test_classifier_of_colour_images():
    images = np.zeros((4, 5, 7, 3), dtype=int)
    classifier = Classifier.fit("plain", images, [0, 1, 0, 1], levels=2, classes=2, steps=1)
    assert classifier.features(images).shape == (4, FEATURES)
