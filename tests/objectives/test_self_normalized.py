"""Self-normalisation: closed forms on a table, the gradient, and what training does to the normaliser."""

from typing import Any

import pytest
import torch
from objective_cases import ENDED, batch_of, loss_of, metric

from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.self_normalized import SelfNormalized
from unforced.types import Batch, Loss, Sizes

GOLDS = [[3, 4, 5, 2], [4, 2], [5, 5, 2], [3, 3, 4, 2]]


def variance(loss: Loss) -> float:
    return metric(loss, "log_z_squared") - metric(loss, "log_z") ** 2


def test_the_loss_of_a_table() -> None:
    """Z includes banned tokens."""
    torch.manual_seed(0)
    model = Toy(order=1).build(Sizes(target=4)).double()
    table = model.table.detach()
    log_z = table.exp().sum(dim=-1).log()
    contexts, gold = [1, 3, 3], [3, 3, 2]
    nll = sum(log_z[c] - table[c, w] for c, w in zip(contexts, gold))
    penalty = sum(log_z[c] ** 2 for c in contexts)
    loss = loss_of(SelfNormalized(0.3), model, batch_of([gold]))
    torch.testing.assert_close(loss.total.detach(), nll + 0.3 * penalty)
    assert loss.count == 3
    values = log_z[contexts]
    assert metric(loss, "nll") == pytest.approx(float(nll) / 3)
    assert metric(loss, "log_z") == pytest.approx(values.mean().item())
    assert metric(loss, "log_z_squared") == pytest.approx(values.square().mean().item())
    assert variance(loss) == pytest.approx(values.var(correction=0).item(), abs=1e-6)


def test_the_gradient_of_scores() -> None:
    """(1 + 2 λ log Z_t) p_t(w) − 1[w = y*_t]."""
    batch = batch_of([[3, 5, 2]])
    scores = (3 * torch.randn(3, 6, dtype=torch.float64)).requires_grad_()
    model = Toy().build(Sizes(target=6)).double()
    model.score = lambda features: scores  # type: ignore[assignment,method-assign]
    (gradient,) = torch.autograd.grad(loss_of(SelfNormalized(0.2), model, batch).total, scores)
    log_z = scores.detach().logsumexp(dim=-1, keepdim=True)
    expected = (1 + 0.4 * log_z) * scores.detach().softmax(dim=-1)
    expected[torch.arange(3), batch.gold[0]] -= 1
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_strength_it_is_cross_entropy_bit_for_bit(dtype: torch.dtype) -> None:
    """Over so many tokens that the order of summing shows."""
    torch.manual_seed(1)
    gold = torch.randint(2, 300, (40, 30))
    batch = Batch.of_gold(gold, torch.rand(gold.shape) < 0.8, ENDED)
    model = Toy(scale=5.0).build(Sizes(target=300)).to(dtype)
    losses = [loss_of(objective, model, batch) for objective in (SelfNormalized(0.0), CrossEntropy())]
    assert torch.equal(losses[0].total, losses[1].total)
    assert losses[0].total.dtype == torch.promote_types(dtype, torch.float32)
    gradients = [torch.autograd.grad(loss.total, model.table)[0] for loss in losses]
    assert torch.equal(*gradients)
    for name, (total, count) in losses[1].metrics.items():
        assert torch.equal(losses[0].metrics[name][0], total)
        assert torch.equal(losses[0].metrics[name][1], count)


def trained(objective: Any, steps: int = 150) -> tuple[Loss, Loss]:
    """Return the loss of a network with large scores before and after training."""
    torch.manual_seed(0)
    model = LSTM(hidden=16, embedding=8, dropout=0.0).build(Sizes(target=6))
    score = model.score
    shift = torch.nn.Parameter(torch.tensor(4.0))
    model.score = lambda features: score(features) + shift
    optimizer = torch.optim.Adam([*model.parameters(), shift], lr=0.02)
    before = loss_of(SelfNormalized(0.0), model, batch_of(GOLDS))
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(objective, model, batch_of(GOLDS)).mean.backward()
        optimizer.step()
    return before, loss_of(SelfNormalized(0.0), model, batch_of(GOLDS))


def test_training_moves_log_z_to_zero() -> None:
    before, after = trained(SelfNormalized(0.1))
    _, plain = trained(CrossEntropy())
    assert metric(before, "log_z") > 5
    assert abs(metric(after, "log_z")) < 0.1
    assert variance(after) < 0.1
    assert metric(plain, "log_z") > 5  # cross-entropy is invariant
    assert variance(plain) > 1
    assert metric(after, "nll") < metric(before, "nll") / 2
    assert metric(after, "nll") == pytest.approx(metric(plain, "nll"), abs=0.05)
