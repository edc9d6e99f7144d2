"""Exact likelihood by enumeration: values by loops, gradients by finite differences, and the maximum where it must be."""

from typing import Any

import pytest
import torch
from masked_toy import ended, slow_energy, slow_log_z, strings, toy
from torch.autograd import gradcheck

from unforced.energy.partition import log_partition
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.models.masked import Masked
from unforced.objectives.exact_likelihood import ExactLikelihood
from unforced.types import Batch, Loss, Progress, Sizes

BATCH = ended([3, 4, 5], [5, 3], [4], [3, 3, 3])
KINDS: tuple[Any, ...] = ("raw", "local")


def loss_of(objective: Any, model: Any, batch: Batch) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_loop(kind: Any) -> None:
    model = toy(6)
    expected = sum(
        slow_energy(model, BATCH, b, BATCH.gold[b].tolist(), kind) + slow_log_z(model, BATCH, b, kind) for b in range(4)
    )
    loss = loss_of(ExactLikelihood(energy=kind, rows=17), model, BATCH)
    torch.testing.assert_close(loss.total, torch.as_tensor(expected))
    assert loss.count == 9
    assert float(loss.metrics["sequence_nll"][1]) == 4
    found = torch.autograd.grad(loss.total, model.table)[0]
    torch.testing.assert_close(found, torch.autograd.grad(torch.as_tensor(expected), model.table)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spec",
    [Field(hidden=4, embedding=3), Masked(width=4, heads=2, layers=1, feedforward=4, dropout=0.0)],
    ids=["field", "masked"],
)
def test_gradients_by_finite_differences(spec: Any, kind: Any) -> None:
    torch.manual_seed(1)
    model = spec.build(Sizes(target=6)).double()
    batch = ended([3, 4, 5], [5, 3])
    names = [name for name, _ in model.named_parameters()]

    class Caller(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            return loss_of(ExactLikelihood(energy=kind, rows=11), self.model, batch).total

    caller = Caller()

    def total(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(caller, {f"model.{n}": v for n, v in zip(names, values)}, ())

    inputs = tuple(p.detach().clone().requires_grad_() for p in model.parameters())
    assert gradcheck(total, inputs, eps=1e-6, atol=1e-5, fast_mode=True)


def test_the_gradient_is_data_less_model() -> None:
    """d(−log p)/dθ = dE(y)/dθ − E_p[dE/dθ]: zero on average over the model's own distribution."""
    model, batch = toy(5, seed=3), strings(3)
    probabilities = torch.exp(
        torch.stack([-slow_energy(model, batch, b, batch.gold[b].tolist()) for b in range(27)])
        - slow_log_z(model, batch, 0)
    ).detach()
    assert float(probabilities.sum()) == pytest.approx(1)
    each = [loss_of(ExactLikelihood(), model, batch.select(torch.tensor([b]))).total for b in range(27)]
    mean = sum(p * loss for p, loss in zip(probabilities, each))
    assert isinstance(mean, torch.Tensor)
    (gradient,) = torch.autograd.grad(mean, model.table)
    assert gradient.abs().max() < 1e-12
    (elsewhere,) = torch.autograd.grad(loss_of(ExactLikelihood(), model, batch).total, model.table)
    assert elsewhere.abs().max() > 1e-3


def test_metrics_and_log_z() -> None:
    model = toy(6, seed=4)
    loss = loss_of(ExactLikelihood(), model, BATCH)
    total, count = loss.metrics["log_z"]
    assert float(total / count) == pytest.approx(float(log_partition(model, BATCH).mean()), rel=1e-5)


def test_complaints() -> None:
    with pytest.raises(InputError, match="27 sequences are too many"):
        loss_of(ExactLikelihood(most=20), toy(6), BATCH)
