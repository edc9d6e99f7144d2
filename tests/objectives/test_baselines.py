"""Cross-entropy and label smoothing against closed forms and PyTorch's own."""

import math

import torch
import torch.nn.functional as F
from objective_cases import ENDED, batch_of, loss_of, toy

from unforced.models.toy import Toy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.types import Sizes


def test_cross_entropy_of_a_table() -> None:
    model = Toy(order=1).build(Sizes(target=4)).double()
    log_probs = torch.log_softmax(model.table, dim=-1)
    expected = -(log_probs[1, 3] + log_probs[3, 3] + log_probs[3, 2])
    torch.testing.assert_close(loss_of(CrossEntropy(), model, batch_of([[3, 3, 2]])).total, expected)


def test_label_smoothing_equals_pytorch() -> None:
    """Padding and start symbol are the end symbol here, so nothing is banned."""
    model, batch = toy(6), batch_of([[3, 5, 4, 2]], ENDED._replace(pad=2, bos=2, banned=()))
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    expected = F.cross_entropy(model.score(features)[0], batch.gold[0], label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss_of(LabelSmoothing(0.2), model, batch).total, expected)


def test_label_smoothing_excludes_banned_tokens() -> None:
    """The target is read from the gradient of a score: probability − target."""
    model, batch = toy(6), batch_of([[3, 5, 2]])
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    model.score = lambda features: scores  # type: ignore[assignment]
    loss = loss_of(LabelSmoothing(0.3), model, batch)
    (gradient,) = torch.autograd.grad(loss.total, scores)
    target = torch.softmax(scores, dim=-1) - gradient
    expected = torch.full((3, 6), 0.3 / 4, dtype=torch.float64)
    expected[:, [0, 1]] = 0.0
    expected[torch.arange(3), batch.gold[0]] += 0.7
    torch.testing.assert_close(target.detach(), expected)


def test_metrics_are_those_of_the_plain_likelihood() -> None:
    model, batch = toy(6), batch_of([[3, 5, 4, 2]])
    smooth, plain = loss_of(LabelSmoothing(0.2), model, batch), loss_of(CrossEntropy(), model, batch)
    torch.testing.assert_close(smooth.metrics["nll"][0].double(), plain.total.detach(), rtol=1e-6, atol=1e-6)
    assert math.isclose(smooth.mean.item(), smooth.total.item() / 4)
