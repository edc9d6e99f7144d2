"""Scheduled sampling against closed forms on transition tables, and its soft forms against their limits."""

from typing import Any

import pytest
import torch
from objective_cases import batch_of, gradient, loss_of, network, sourced, toy
from scipy.stats import binomtest, chisquare
from torch import Tensor

from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.objectives import scheduled_sampling
from unforced.objectives.model_tokens import PICKS, draw_replaced
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import Linear
from unforced.ops import random_streams
from unforced.types import Batch, Sizes

FEEDS = ["argmax", "sample", "soft_argmax", "soft_sample"]


GOLD = [3, 4, 5, 6, 2]


def successor(size: int = 8) -> Any:
    """Return a model in which w + 1 follows w, and 3 the start symbol."""
    model = toy(size, order=1)
    with torch.no_grad():
        model.table.zero_()
        for token in range(size):
            model.table[token, min(token + 1, size - 1) if token > 2 else 3] = 4.0
    return model


def rolled(objective: ScheduledSampling, model: Any, batch: Batch, mixing: float, seed: int = 0) -> Tensor:
    keys = random_streams.keys(batch, torch.Generator().manual_seed(seed))
    replaced = draw_replaced(keys, batch, mixing)
    return objective.roll_out(model, batch, model.start(batch), replaced, random_streams.branch(keys, PICKS))


def expected_loss(model: Any, prefix: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
    """−Σ log p(gold_t | prefix_t) of an order-1 table."""
    log_p = model.table[prefix].log_softmax(-1).gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    return -log_p[mask].sum()


def test_the_model_reads_its_own_tokens() -> None:
    """After the start symbol the table continues with 3, 4, 5, 6."""
    batch, model = batch_of([[7, 7, 7, 7, 2]]), successor()
    objective = ScheduledSampling(feed="argmax", mixing=0.0)
    assert rolled(objective, model, batch, 0.0).tolist() == [[1, 3, 4, 5, 6]]
    prefix = torch.tensor([[1, 3, 4, 5, 6]])
    torch.testing.assert_close(
        loss_of(objective, model, batch).total, expected_loss(model, prefix, batch.gold, batch.mask)
    )


def test_every_token_is_drawn_independently() -> None:
    batch = batch_of([GOLD] * 4000)
    tossed = draw_replaced(random_streams.keys(batch, torch.Generator().manual_seed(1)), batch, 0.7)
    assert not tossed[:, -1].any()  # the last token is not read
    fed = tossed[:, :-1]
    assert binomtest(int(fed.sum()), fed.numel(), 0.3).pvalue > 0.001
    # independent within rows: the number of model tokens of a row is binomial
    expected = torch.tensor([0.7**4, 4 * 0.3 * 0.7**3, 6 * 0.09 * 0.49, 4 * 0.027 * 0.7, 0.0081])
    assert chisquare(fed.sum(1).bincount(minlength=5), expected.double() * 4000 / expected.sum()).pvalue > 0.001
    # independent across rows
    assert fed.float().var(dim=0).min() > 0.15


def test_nothing_is_replaced_after_the_end() -> None:
    batch = batch_of([[3, 2], [3, 4, 5, 2]])
    tossed = draw_replaced(torch.tensor([5, 6]), batch, 0.0)
    assert tossed.tolist() == [[True, False, False, False], [True, True, True, False]]


@pytest.mark.parametrize("spec", [LSTM(hidden=6, embedding=4, dropout=0.0), Toy(order=2)])
def test_soft_argmax_tends_to_the_hard_loss(spec: Any) -> None:
    torch.manual_seed(4)
    model = spec.build(Sizes(target=8)).double()
    batch = batch_of([GOLD] * 20)
    hard = loss_of(ScheduledSampling(feed="argmax", mixing=0.3), model, batch)
    gaps = []
    for alpha in (1.0, 10.0, 1e3, 1e6):
        soft = loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.3, alpha=alpha), model, batch)
        gaps.append(abs((soft.total - hard.total).item()))
        assert soft.count == hard.count
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-8
    assert gaps[-1] < gaps[1] < gaps[0]


def test_soft_sample_tends_to_the_gumbel_argmax() -> None:
    """With the same noise, α → ∞ feeds argmax(scores + noise) at every step; found here by hand on a table."""
    model, batch = toy(order=1, seed=3), batch_of([GOLD] * 50)
    soft = loss_of(ScheduledSampling(feed="soft_sample", mixing=0.0, alpha=1e7), model, batch)
    keys = random_streams.branch(random_streams.keys(batch, torch.Generator().manual_seed(0)), PICKS)
    prefix = batch.prefix.clone()
    for t in range(4):
        scores = model.table[prefix[:, t]].detach().clone()
        scores[:, [0, 1]] = -torch.inf
        u = random_streams.uniform_rows(random_streams.branch(keys, t), 8).double()
        prefix[:, t + 1] = (scores - torch.log(-torch.log(u))).argmax(-1)
    torch.testing.assert_close(soft.total, expected_loss(model, prefix, batch.gold, batch.mask))
    assert len(prefix.unique(dim=0)) > 20  # the rows' noise differs


@pytest.mark.parametrize("feed", ["sample", "soft_sample"])
def test_fed_tokens_have_the_frequencies_of_the_model(feed: Any) -> None:
    """The first token fed, over many examples, against softmax over the tokens that may be emitted."""
    model, batch, n = toy(order=1, seed=5), batch_of([[3, 2]] * 20_000), 20_000
    expected = model.table[1].detach().clone()
    expected[[0, 1]] = -torch.inf
    if feed == "sample":
        tokens = rolled(ScheduledSampling(feed="sample"), model, batch, 0.0)[:, 1]
    else:
        seen: list[Tensor] = []
        mix, model.embed_mix = model.embed_mix, lambda w: seen.append(w) or mix(w)
        loss_of(ScheduledSampling(feed="soft_sample", mixing=0.0, alpha=1e6), model, batch)
        tokens = seen[0][:, 0].argmax(-1)
    counts = tokens.bincount(minlength=8)
    assert counts[:2].tolist() == [0, 0]
    assert chisquare(counts[2:], expected.softmax(-1)[2:] * n).pvalue > 0.001


def first_row_gradient(feed: Any, alpha: float = 3.0) -> tuple[Tensor, Any, Batch]:
    model, batch = toy(order=1, seed=6), batch_of([[3, 4, 2]])
    loss_of(ScheduledSampling(feed=feed, mixing=0.0, alpha=alpha), model, batch).total.backward()
    return model.table.grad[1], model, batch


def test_gradients_flow_through_soft_inputs_only() -> None:
    """A table has no state: the scores of step 0 are its row for the start symbol, and hard feeding stops there."""
    hard, model, _ = first_row_gradient("argmax")
    own = model.table[1].softmax(-1).detach()
    own[3] -= 1
    torch.testing.assert_close(hard, own)  # the first step's own loss and nothing else
    soft, model, _ = first_row_gradient("soft_argmax")
    table = model.table.detach().clone().requires_grad_()
    allowed = torch.tensor([-torch.inf] * 2 + [0.0] * 6, dtype=torch.float64)
    first = table[1]
    second = (3.0 * (first + allowed)).softmax(-1) @ table.detach()
    third = (3.0 * (second + allowed)).softmax(-1) @ table.detach()
    total = -sum(s.log_softmax(-1)[g] for s, g in ((first, 3), (second, 4), (third, 2)))
    (by_hand,) = torch.autograd.grad(total, table)
    torch.testing.assert_close(soft, by_hand[1])
    assert (soft - own).abs().max() > 1e-3


@pytest.mark.parametrize("feed", ["soft_argmax", "soft_sample"])
@pytest.mark.parametrize("tie", [False, True])
def test_sparse_mixtures_change_nothing(feed: Any, tie: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse mixtures on a large vocabulary equal dense ones."""
    torch.manual_seed(0)
    model = LSTM(hidden=12, embedding=12, dropout=0.0, tie=tie).build(Sizes(target=300)).double()
    with torch.no_grad():  # untrained features are small: scores that differ
        model.combine.weight *= 20
    batch, objective = batch_of([GOLD] * 6), ScheduledSampling(feed=feed, mixing=0.3, alpha=60.0)
    found, used = [], []
    support = scheduled_sampling.relaxations.peaked_support

    def watched(*arguments: Any) -> Any:
        used.append(support(*arguments))
        return used[-1]

    for fast in (True, False):
        monkeypatch.setattr(scheduled_sampling.relaxations, "peaked_support", watched if fast else lambda *_: None)
        model.zero_grad()
        loss = loss_of(objective, model, batch)
        loss.total.backward()
        found.append((loss.total.detach(), [p.grad.clone() for p in model.parameters()]))
    assert any(found_support is not None for found_support in used)
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-6)
    for mine, plain in zip(found[0][1], found[1][1]):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


def test_schedules_must_stay_in_range() -> None:
    away = Linear(start=1.0, end=-1.0, over=2)
    with pytest.raises(InputError, match="mixing must be between 0 and 1, got -1"):
        loss_of(ScheduledSampling(mixing=away), toy(), batch_of([GOLD]))
    with pytest.raises(InputError, match="alpha must be above 0, got -1"):
        loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=away), toy(), batch_of([GOLD]))


@pytest.mark.parametrize("feed", FEEDS)
def test_cached_steps_equal_one_pass(feed: Any) -> None:
    """Feed the inputs of all steps at once: the loss is the same."""
    model, batch, fed = network("transformer"), sourced(), []
    advance = model.advance
    model.advance = lambda state, inputs: (torch.is_grad_enabled() and fed.append(inputs)) or advance(state, inputs)
    loss = loss_of(ScheduledSampling(feed=feed, mixing=0.4, alpha=2.0), model, batch)
    features, _ = advance(model.start(batch), torch.cat(fed, dim=1))
    log_p = model.score(features).log_softmax(-1).gather(-1, batch.gold.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.total, -log_p[batch.mask].sum())
    assert loss.metrics["fed"][0] > 0


# Numerical limits


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("alpha", [1e-20, 1e37])
def test_extreme_temperatures_are_finite(alpha: float, size: int) -> None:
    model, batch = network("lstm", size).float(), sourced()
    found = loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=alpha), model, batch).total
    assert bool(gradient(found, model).isfinite().all())
    if alpha > 1:
        torch.testing.assert_close(found, loss_of(ScheduledSampling(mixing=0.0), model, batch).total)


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("feed", FEEDS)
def test_diverged_models_have_a_nan_loss(feed: Any, size: int) -> None:
    """The trainer stops at a NaN loss; nothing raises before."""
    model = network("lstm", size, scale=torch.nan)
    assert loss_of(ScheduledSampling(feed=feed, mixing=0.0), model, sourced()).total.isnan()


def test_models_in_half_precision_accept_mixtures() -> None:
    model = toy().bfloat16()
    found = loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=1.0), model, sourced())
    assert gradient(found.total, model).isfinite().all()


def test_bad_input() -> None:
    away = Linear(start=1.0, end=-1.0, over=2)
    for fields, message in (
        ({"mixing": away}, "mixing must be between 0 and 1, got -1"),
        ({"feed": "soft_argmax", "alpha": away}, "alpha must be above 0, got -1"),
        ({"feed": "soft_sample", "dropout": False}, "dropout cannot be off"),
    ):
        with pytest.raises(InputError, match=message):
            ScheduledSampling(**fields)  # type: ignore[arg-type]
