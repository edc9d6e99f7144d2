"""Pseudo-likelihood and KL projection against plain loops, and the thesis's conditionals that belong to no joint."""

from typing import Any

import pytest
import torch
from masked_toy import ended, slow_conditional, strings, toy
from torch import Tensor

from unforced.energy import energies, partition
from unforced.energy.factored import shares_contexts
from unforced.energy.partition import log_partition, true_conditionals
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.objectives.kl_projection import KLProjection, free_conditionals
from unforced.objectives.pseudo_likelihood import PseudoLikelihood
from unforced.types import Batch, Loss, Progress, Sizes

BATCH = ended([3, 4, 5], [5, 3], [4])
KINDS: tuple[Any, ...] = ("raw", "local")


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))


def positions(batch: Batch) -> list[tuple[int, int]]:
    return [(b, t) for b, t in energies.variables(batch).nonzero().tolist()]


def gradient(loss: Tensor, model: torch.nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("rows", [1, 20, 10_000])
@pytest.mark.parametrize("kind", KINDS)
def test_pseudo_likelihood_is_the_loop(kind: Any, rows: int) -> None:
    model = toy(6)
    expected = -sum(slow_conditional(model, BATCH, b, t, kind)[BATCH.gold[b, t] - 3] for b, t in positions(BATCH))
    loss = loss_of(PseudoLikelihood(energy=kind, rows=rows), model, BATCH)
    assert loss.count == 6
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(gradient(loss.total, model), gradient(expected, model))


def test_positions_drawn_have_the_right_mean() -> None:
    """With one position of n, n times its loss; over the choices themselves this is the sum."""
    model = toy(6, seed=1)
    for b in range(3):
        one = BATCH.select(torch.tensor([b]))
        n = int(energies.variables(one).sum())
        found = {
            round(float(loss_of(PseudoLikelihood(positions=1), model, one, s).total.detach()), 9) for s in range(40)
        }
        assert len(found) == n
        whole = float(loss_of(PseudoLikelihood(), model, one).total.detach())
        assert sum(found) / n == pytest.approx(whole)
        assert float(loss_of(PseudoLikelihood(positions=5), model, one).total.detach()) == pytest.approx(whole)


@pytest.mark.parametrize("worth", [0, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_shortcuts_of_a_field(kind: Any, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass for a sequence, or a table of all sequences: values and gradients of masked copies one by one."""
    monkeypatch.setattr(partition, "WORTH", worth)
    torch.manual_seed(0)
    model = Field(hidden=5, embedding=4).build(Sizes(target=6)).double()
    model.bias.data.normal_()

    class Slow:
        def scores(self, *inputs: Any) -> Tensor:
            return model.scores(*inputs)

    objective = PseudoLikelihood(energy=kind)
    fast, slow = (loss_of(objective, each, BATCH).total for each in (model, Slow()))
    torch.testing.assert_close(fast, slow)
    used = [p for name, p in model.named_parameters() if name != "mask"]  # nothing is hidden in one pass
    for a, b in zip(torch.autograd.grad(fast, used), torch.autograd.grad(slow, used)):
        torch.testing.assert_close(a, b)


def test_shortcuts_are_not_for_dropout() -> None:
    """Contexts that are shared know no dropout, so they serve a model that has some only where it is off."""
    model = Field(hidden=5, embedding=4, dropout=0.5).build(Sizes(target=6)).double()
    assert not shares_contexts(model, BATCH)
    first, second = (loss_of(PseudoLikelihood(), model, BATCH).total for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    assert shares_contexts(model, BATCH)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_kl_projection_is_the_loop(kind: Any, weight: float) -> None:
    model, teacher = toy(6), toy(6, seed=5)
    where = energies.variables(BATCH)
    expected = torch.zeros((), dtype=torch.float64)
    for b, t in positions(BATCH):
        hidden = torch.zeros_like(where)
        hidden[b, t] = True
        free = torch.log_softmax(teacher.scores(BATCH, BATCH.gold, hidden)[b, t, 3:], dim=0).detach()
        true = slow_conditional(model, BATCH, b, t, kind)
        expected = expected + (free.exp() * (free - true)).sum() - weight * true[BATCH.gold[b, t] - 3]
    objective = KLProjection(teacher=teacher, pseudo_likelihood=weight, energy=kind, rows=15)
    loss = loss_of(objective, model, BATCH)
    torch.testing.assert_close(loss.total, expected)
    torch.testing.assert_close(gradient(loss.total, model), gradient(expected, model))
    assert all(p.grad is None for p in teacher.parameters())
    assert float(loss.metrics["kl"][0]) >= 0


def test_kl_projection_onto_itself() -> None:
    """Without a teacher both sides are the model's, and gradients flow through both."""
    model = toy(6, seed=2)
    where = energies.variables(BATCH)
    free = free_conditionals(model, BATCH, where, 100)[:, 3:]
    true, ids = true_conditionals(model, BATCH, where, "raw", 100)
    assert ids.tolist() == [3, 4, 5]
    kl = (free.exp() * (free - true)).sum()
    nll = loss_of(PseudoLikelihood(), model, BATCH).total
    loss = loss_of(KLProjection(pseudo_likelihood=0.5), model, BATCH)
    torch.testing.assert_close(loss.total, kl + 0.5 * nll)
    torch.testing.assert_close(gradient(loss.total, model), gradient(kl + 0.5 * nll, model))
    with pytest.raises(InputError, match="needs a teacher or a positive pseudo_likelihood"):
        KLProjection(pseudo_likelihood=0.0)


def test_a_teacher_is_loaded_by_the_trainer() -> None:
    model, teacher = toy(6), toy(6, seed=5)
    objective = KLProjection(teacher="runs/teacher")
    with pytest.raises(InputError, match="is not loaded; call with_models"):
        loss_of(objective, model, BATCH)
    folders = []
    ready = objective.with_models(lambda folder: folders.append(folder) or teacher)  # type: ignore[func-returns-value]
    assert folders == ["runs/teacher"]
    found = loss_of(ready, model, BATCH).total
    assert torch.equal(found, loss_of(KLProjection(teacher=teacher), model, BATCH).total)
    assert found.requires_grad


# ---- free conditionals need not belong to a joint distribution (Goyal 2021, section 6.2.1) ----


def thesis() -> tuple[Any, Batch]:
    """p(y1 | y2) = [[.99, .01], [.01, .99]] and p(y2 | y1) = 1/2: two letters, two positions."""
    batch = strings(2, letters=2)
    model = toy(4)
    model.table.data.zero_()
    model.table.data[4:6, :2] = torch.tensor([[0.99, 0.01], [0.01, 0.99]]).double().log()  # what stands behind
    return model, batch


def test_the_thesis_two_by_two() -> None:
    model, batch = thesis()
    free = free_conditionals(model, batch, energies.variables(batch), 100)[:, :2]
    free = free.detach().exp().view(2, 2, 2, 2)
    # [y1, y2, position, w]
    torch.testing.assert_close(free[0, 0, 0], torch.tensor([0.99, 0.01]).double())
    torch.testing.assert_close(free[0, 1, 0], torch.tensor([0.01, 0.99]).double())
    torch.testing.assert_close(free[0, 0, 1], torch.tensor([0.5, 0.5]).double())
    # were there a joint p with these, p(a,a) p(b,b) / (p(a,b) p(b,a)) would be the same from either conditional
    odds = [
        free[0, 0, 0, 0] * free[1, 1, 0, 1] / (free[0, 0, 0, 1] * free[1, 1, 0, 0]),
        free[0, 0, 1, 0] * free[1, 1, 1, 1] / (free[0, 0, 1, 1] * free[1, 1, 1, 0]),
    ]
    assert float(odds[0]) == pytest.approx(99**2)
    assert float(odds[1]) == pytest.approx(1)


def test_true_conditionals_belong_to_the_joint() -> None:
    model, batch = thesis()
    joint = (-energies.energy(model, batch, batch.gold, "raw").double() - log_partition(model, batch)).exp().view(2, 2)
    assert float(joint.sum()) == pytest.approx(1)
    true, _ = true_conditionals(model, batch, energies.variables(batch), "raw", 100)
    true = true.exp().detach().view(2, 2, 2, 2)
    for first in range(2):
        for second in range(2):
            torch.testing.assert_close(true[first, second, 0], joint[:, second] / joint[:, second].sum())
            torch.testing.assert_close(true[first, second, 1], joint[first] / joint[first].sum())
    assert float(true[0, 0, 1, 0]) == pytest.approx(0.99)  # E_raw counts y1's score, so y1 does predict y2


def test_complaints() -> None:
    with pytest.raises(InputError, match="PseudoLikelihood needs a model with scores"):
        loss_of(PseudoLikelihood(), torch.nn.Linear(1, 1), BATCH)
