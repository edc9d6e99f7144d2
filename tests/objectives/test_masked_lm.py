"""Masked language modelling: what is hidden, what is scored, and lengths beside it."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from masked_toy import ended, strings, toy
from torch import Tensor

from unforced.energy import energies
from unforced.errors import InputError
from unforced.models.masked import ConditionalMasked
from unforced.objectives.masked_lm import MaskedLM
from unforced.ops import random_streams
from unforced.types import Batch, Loss, Progress, Sizes


def loss_of(objective: MaskedLM, model: Any, batch: Batch, seed: int = 0) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))


def draws(objective: MaskedLM, batch: Batch, times: int) -> Tensor:
    """[times,B,T] bool: what is hidden of so many examples that differ in their numbers alone."""
    many = batch.select(torch.arange(len(batch)).repeat(times))
    many = replace(many, ids=torch.arange(len(many)))
    found = objective.draw_masked(many, random_streams.keys(many, torch.Generator().manual_seed(0)))
    return found.view(times, len(batch), -1)


def nearby(found: float, expected: float, n: int, deviations: float = 5.0) -> None:
    """A share of n coins against its probability."""
    assert abs(found - expected) < deviations * math.sqrt(max(expected * (1 - expected), 1e-9) / n)


def test_one_position_is_the_mean_over_positions() -> None:
    """E[loss] = (1/n) Σ_t −log p_mlm(y_t | y\\t): taken over the choices themselves, not over samples."""
    model, batch = toy(6), ended([3, 4, 5], [5, 3])
    n = [3, 2]
    per_choice: dict[tuple[int, int], set[float]] = {}
    for seed in range(60):
        objective, keys = MaskedLM(hidden="one"), random_streams.keys(batch, torch.Generator().manual_seed(seed))
        masked = objective.draw_masked(batch, keys)
        assert masked.sum(dim=1).tolist() == [1, 1]
        for b in range(2):
            alone = loss_of(objective, model, batch.select(torch.tensor([b])), seed)
            assert alone.count == 1
            per_choice.setdefault((b, int(masked[b].nonzero())), set()).add(round(float(alone.total.detach()), 10))
    assert sorted(per_choice) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    example, position = energies.variables(batch).nonzero(as_tuple=True)
    scores = energies.scores_at(model, batch, batch.gold, example, position.unsqueeze(1))[:, 0, 3:]
    nll = -torch.log_softmax(scores, dim=1).gather(1, batch.gold[example, position].unsqueeze(1) - 3)
    for b in range(2):
        mean = sum(next(iter(per_choice[b, t])) for t in range(n[b])) / n[b]
        assert all(len(per_choice[b, t]) == 1 for t in range(n[b]))
        assert mean == pytest.approx(float(nll[example == b].mean().detach()), abs=1e-8)
        every = loss_of(MaskedLM(hidden="each"), model, batch.select(torch.tensor([b])))
        assert float(every.mean.detach()) == pytest.approx(mean, abs=1e-8)
        assert every.count == n[b]


def test_each_position_is_as_likely() -> None:
    batch, times = ended([3, 4, 5], [5, 3]), 4000
    found = draws(MaskedLM(hidden="one"), batch, times).float().mean(dim=0)
    for b, n in ((0, 3), (1, 2)):
        for t in range(n):
            nearby(float(found[b, t]), 1 / n, times)
    assert found[0, 3] == found[1, 2] == found[1, 3] == 0  # the end symbol and what lies behind it


def test_uniform_numbers() -> None:
    batch, times = ended([3, 4, 5, 3]), 4000
    found = draws(MaskedLM(), batch, times).sum(dim=2).flatten()
    for number in range(1, 5):
        nearby(float((found == number).float().mean()), 1 / 4, times)


@pytest.mark.parametrize(("rate", "expected"), [(0.01, 1), (0.5, 5), (0.34, 3), (1.0, 10)])
def test_fixed_numbers(rate: float, expected: int) -> None:
    batch = ended([3, 4, 5, 3, 4, 5, 3, 4, 5, 3], [4])
    found = draws(MaskedLM(hidden="fixed", rate=rate), batch, 20).sum(dim=2)
    assert (found[:, 0] == expected).all()
    assert (found[:, 1] == 1).all()


def test_loss_is_that_of_what_is_hidden() -> None:
    model, batch = toy(7, seed=2), ended([3, 4, 5, 6], [5, 3])
    objective = MaskedLM()
    masked = objective.draw_masked(batch, random_streams.keys(batch, torch.Generator().manual_seed(5)))
    loss = loss_of(objective, model, batch, 5)
    scores = model.scores(batch, batch.gold, masked)
    total = 0.0
    for b, t in masked.nonzero().tolist():
        log_probs = torch.log_softmax(scores[b, t, 3:], dim=0)  # nothing special can stand there
        total -= float(log_probs[batch.gold[b, t] - 3].detach())
    assert float(loss.total.detach()) == pytest.approx(total)
    assert loss.count == masked.sum()
    share, of = loss.metrics["hidden"]
    assert (float(share), float(of)) == (float(masked.sum()), 6.0)


def test_strings_without_an_end() -> None:
    loss = loss_of(MaskedLM(hidden="fixed", rate=1.0), toy(5), strings(3))
    assert loss.count == 81
    assert float(loss.total.detach()) == pytest.approx(81 * math.log(3))  # nothing is seen, and the toy has no bias


def conditional(longest: int = 6) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    spec = ConditionalMasked(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, longest=longest)
    batch = ended([3, 4, 5], [5, 3])
    source = torch.tensor([[1, 2], [3, 4]])
    sourced = Batch.of_gold(batch.gold, batch.mask, batch.symbols, source=source, ids=batch.ids)
    return spec.build(Sizes(target=6, source=5)).double().eval(), sourced


def test_lengths_are_learnt_along() -> None:
    model, batch = conditional()
    without = loss_of(MaskedLM(length_weight=0.0), model, batch)
    found = loss_of(MaskedLM(length_weight=0.7), model, batch)
    log_probs = torch.log_softmax(model.length_scores(batch), dim=1)
    nll = torch.stack([-log_probs[0, 2], -log_probs[1, 1]])
    masked = MaskedLM().draw_masked(batch, random_streams.keys(batch, torch.Generator().manual_seed(0)))
    expected = without.total + 0.7 * (nll * masked.sum(dim=1)).sum()
    torch.testing.assert_close(found.total, expected)
    assert found.count == without.count
    assert float(found.metrics["length_nll"][0]) == pytest.approx(float(nll.sum().detach()), rel=1e-5)
    assert "length_nll" not in without.metrics


def test_complaints() -> None:
    model, batch = conditional(longest=2)
    with pytest.raises(InputError, match="a target has 3 tokens, but the model predicts up to 2"):
        loss_of(MaskedLM(), model, batch)
    with pytest.raises(InputError, match="MaskedLM needs a model with scores"):
        loss_of(MaskedLM(), torch.nn.Linear(1, 1), batch)
