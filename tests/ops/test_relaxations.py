"""Relaxations against their limits and against the distributions they stand for."""

import pytest
import torch
from scipy.stats import chisquare

from unforced.ops.random_streams import branch, uniform_rows
from unforced.ops.relaxations import add_gumbel, peaked_softmax, peaked_support


def noise(rows: int, columns: int) -> torch.Tensor:
    return uniform_rows(branch(torch.arange(rows), 7), columns)


def test_weights_sum_to_one_and_sharpen_into_the_argmax():
    torch.manual_seed(0)
    scores = torch.randn(20, 9, dtype=torch.float64)
    one_hot = torch.nn.functional.one_hot(scores.argmax(-1), 9).double()
    gaps = [(peaked_softmax(scores, alpha) - one_hot).abs().max().item() for alpha in (1.0, 10.0, 100.0, 1e6)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-12
    torch.testing.assert_close(peaked_softmax(scores, 1.0), scores.softmax(-1))
    torch.testing.assert_close(peaked_softmax(scores, 3.0).sum(-1), torch.ones(20, dtype=torch.float64))


def test_shifting_the_scores_changes_nothing():
    scores = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(peaked_softmax(scores + 5, 7.0), peaked_softmax(scores, 7.0))


def test_gumbel_samples_have_the_frequencies_of_the_softmax():
    scores = torch.tensor([1.0, 0.0, -1.0, 2.0])
    n = 40_000
    drawn = peaked_softmax(add_gumbel(scores.expand(n, 4), noise(n, 4)), 1e6)
    assert (drawn.max(dim=1).values > 0.999).double().mean() > 0.999  # a hard choice but for near ties
    counts = drawn.argmax(dim=1).bincount(minlength=4)
    assert chisquare(counts, scores.double().softmax(0) * n).pvalue > 0.001
    hotter = (scores.double() / 1.1).softmax(0)
    assert chisquare(counts, hotter * n).pvalue < 0.001  # the test could fail


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gumbel_noise_is_finite_in_every_precision(dtype):
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 1e-7, 1.0]).to(dtype)
    noisy = add_gumbel(torch.zeros(5), u)
    assert noisy.isfinite().all()
    assert peaked_softmax(noisy.to(dtype), 100.0).isfinite().all()


@pytest.mark.parametrize("alpha", [10.0, 30.0, 100.0])
def test_the_support_has_all_the_weight_but_a_millionth_and_the_same_gradient(alpha):
    torch.manual_seed(1)
    scores = (3 * torch.randn(6, 400, dtype=torch.float64)).requires_grad_()
    values = torch.randn(6, 400, dtype=torch.float64)
    found = peaked_support(scores, alpha)
    assert found is not None
    rows, tokens, weights = found
    assert len(rows) < 6 * 400 / 16
    dense = peaked_softmax(scores, alpha)
    sparse = torch.zeros_like(dense).index_put((rows, tokens), weights)
    torch.testing.assert_close(sparse.sum(-1), torch.ones(6, dtype=torch.float64))
    assert (sparse - dense).abs().sum(-1).max() < 2e-6
    gradients = [torch.autograd.grad((w * values).sum(), scores, retain_graph=True)[0] for w in (sparse, dense)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5 * alpha)
    assert gradients[0].abs().max() > 0


def test_flat_distributions_have_no_sparse_support():
    assert peaked_support(torch.randn(3, 400), 0.5) is None
    assert peaked_support(torch.randn(3, 8), 1e6) is None


def test_tokens_that_may_not_be_emitted_get_no_weight_and_no_gradient():
    scores = torch.tensor([[1.0, float("-inf"), 0.5]], requires_grad=True)
    weights = peaked_softmax(scores, 50.0)
    assert weights[0, 1] == 0
    (weights * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 1] == 0
