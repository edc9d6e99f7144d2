"""Loss smoothing where numbers are hard: scores of −inf, temperatures next to nothing, half precision."""

from typing import Any

import pytest
import torch
from smoothing_toy import SIZE, SYMBOLS, loss_of, model, rows
from torch import Tensor

from unforced.models.toy import Toy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.smoothing.outputs import END
from unforced.objectives.smoothing.rewards import distances
from unforced.objectives.smoothing.targets import Target, near_words, smoothed_nll
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Sizes


class Certain:
    """A model that rules out what can't be emitted."""

    def __init__(self, inner: Any, score: float = -torch.inf) -> None:
        self.inner, self.lowest = inner, score

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def score(self, features: Tensor) -> Tensor:
        scores: Tensor = self.inner.score(features)
        return scores.index_fill(-1, torch.tensor(SYMBOLS.banned), self.lowest)


@pytest.mark.parametrize(
    "objective",
    [
        CrossEntropy(),
        LabelSmoothing(),
        TokenSmoothing(vectors="uniform", tau=0.5),
        TokenSmoothing(vectors="model", tau=0.5, nearest=2),
        SequenceSmoothing(lazy=True, samples=None, tau=0.5),
        SequenceSmoothing(tau=0.5, samples=3),
    ],
)
def test_what_is_ruled_out_has_no_part_in_a_loss(objective: Any) -> None:
    network, batch = model(), rows([3, 4, 5, 2], [6, 2])
    found = loss_of(objective, Certain(network), batch)
    with torch.no_grad():
        low = network.table.detach().clone()
        low[:, list(SYMBOLS.banned)] = -1e4
    (gradient,) = torch.autograd.grad(found.total, network.table)
    assert gradient.isfinite().all()
    network.table.data.copy_(low)
    wanted = loss_of(objective, network, batch).total
    if objective != TokenSmoothing(vectors="model", tau=0.5, nearest=2):  # whose vectors are the table's
        assert found.total.item() == pytest.approx(wanted.item(), rel=1e-9)


@pytest.mark.parametrize("floor", [-1e4, -1e9, -torch.inf])
def test_what_a_model_gives_to_banned_tokens_does_not_matter(floor: float) -> None:
    networks = [Certain(model().float(), score) for score in (-50.0, floor)]
    losses = [loss_of(LabelSmoothing(0.1), network, rows([3, 4, 2])).total for network in networks]
    torch.testing.assert_close(*losses)


class Without(torch.nn.Module):
    """A model that never emits one word."""

    def __init__(self, network: Any, never: int) -> None:
        super().__init__()
        self.network, self.never = network, never
        self.start, self.embed, self.advance = network.start, network.embed, network.advance

    def score(self, features: torch.Tensor) -> torch.Tensor:
        scores = self.network.score(features)
        return scores.index_fill(-1, torch.tensor([self.never]), -torch.inf)


@pytest.mark.parametrize(
    "objective",
    [
        TokenSmoothing(vectors="uniform", tau=1e-3),
        TokenSmoothing(vectors="model", tau=1e-3, nearest=2),
        TokenSmoothing(vectors="model", tau=1e-3, nearest=None),
        SequenceSmoothing(tau=1e-3, lazy=True, samples=None),
        SequenceSmoothing(tau=1e-3, lazy=True, samples=None, vocabulary="batch"),
        TokenSequenceSmoothing(TokenSmoothing(vectors="uniform", tau=1e-3), SequenceSmoothing(tau=1e-3)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_words_without_mass_may_be_impossible(objective: Any) -> None:
    network, batch = Without(model(), 7), rows([3, 4, 5, 2], [6, 2])
    loss = loss_of(objective, network, batch)
    torch.testing.assert_close(loss.total, loss_of(CrossEntropy(), network, batch).total, rtol=1e-12, atol=0)
    assert all(bool(total.isfinite()) for total, _ in loss.metrics.values())


def test_a_weight_of_zero_on_an_impossible_word_costs_nothing() -> None:
    scores = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    target = Target(torch.tensor([[1, 2]]), torch.tensor([[1.0, 0.0]]))
    losses, nll = smoothed_nll(scores, torch.tensor([1]), target)
    assert torch.equal(losses, nll)
    losses.sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_parallel_vectors_at_next_to_no_temperature() -> None:
    units = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    near = near_words(units, units.any(dim=1), torch.arange(3), tau=1e-50, count=2)
    assert near.weights.tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]
    torch.manual_seed(0)
    for _ in range(20):  # whose products with themselves are one and a rounding error, up or down
        one = torch.nn.functional.normalize(torch.randn(1, 40), dim=1)
        near = near_words(one.expand(2, -1), torch.ones(2, dtype=torch.bool), torch.arange(2), tau=1e-9, count=2)
        assert (near.weights.amax(dim=1) >= 0.5).all()
        torch.testing.assert_close(near.weights.sum(dim=1), torch.ones(2))


@pytest.mark.parametrize("longest", [None, 5])
def test_a_tau_next_to_nothing_takes_the_best_sample(longest: int | None) -> None:
    """All weight is on those nearest to the gold, by 1 / q where several are; too long ones are none of them."""
    proposal = "hamming" if longest is None else "edit"
    objective = SequenceSmoothing(
        reward="edit", tau=1e-310, proposal=proposal, proposal_tau=0.4, samples=6, longest=longest
    )
    batch = rows([3, 4, 5, 6, 2], [7, 2])
    torch.set_flush_denormal(True)  # as in training: such a τ is then divided by as if it were zero
    drawn = objective.drawing.draws(batch, SIZE, torch.tensor([7, 8]))
    torch.set_flush_denormal(False)
    d = distances("edit", drawn.outputs, batch.gold.masked_fill(~batch.mask, END), end=2)
    fits = (drawn.outputs != END).sum(dim=2) <= (6 if longest is None else 5)
    assert (d.masked_fill(~fits, torch.inf).amin(dim=1) < d.amax(dim=1)).any()
    best = fits & (d == d.masked_fill(~fits, torch.inf).amin(dim=1, keepdim=True))
    assert torch.equal(drawn.weights > 0, best)
    torch.testing.assert_close(drawn.weights.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_the_nearest_sample_may_be_too_long_to_count() -> None:
    """The best of the others has all the weight then, however small τ is."""
    objective = SequenceSmoothing(reward="edit", tau=1e-300, proposal="edit", proposal_tau=0.33, samples=4, longest=5)
    batch, keys = rows(*[[3, 4, 5, 6, 2]] * 6000), torch.arange(6000)
    drawn = objective.drawing.draws(batch, SIZE, keys)
    d = distances("edit", drawn.outputs, batch.gold, end=2)
    fits = (drawn.outputs != END).sum(dim=2) <= 5
    least = d.masked_fill(~fits, torch.inf).amin(dim=1, keepdim=True)
    best = fits & (d == least)
    assert ((d.amin(dim=1) < least.squeeze(1)) & (best.sum(dim=1) > 1)).any()
    assert torch.equal(drawn.weights > 0, best)
    by_q = -objective.drawing.around(batch, SIZE).log_prob(drawn.outputs)  # several that are as near weigh 1 / q
    torch.testing.assert_close(drawn.weights, by_q.masked_fill(~best, -torch.inf).softmax(dim=1))


def test_targets_and_losses_keep_their_precision_under_autocast() -> None:
    torch.manual_seed(0)
    network, tokens = Toy().build(Sizes(target=SIZE)), torch.tensor([3, 4, 5, 7])
    with torch.no_grad():
        network.table.normal_()
    scores = 5 * torch.randn(4, SIZE)
    exact = TokenSmoothing(tau=0.5, nearest=3).smoothed(network, SYMBOLS, tokens, scores).target
    half = TokenSmoothing(tau=0.5, nearest=3).smoothed(network, SYMBOLS, tokens, scores.bfloat16()).target
    assert torch.equal(half.weights, exact.weights)  # scores in half precision are no reason for such targets
    for vectors, tau in (("model", 0.01), ("model", 1e-5), ("uniform", 0.5)):
        objective, found = TokenSmoothing(vectors=vectors, tau=tau, nearest=3), []
        for on in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                target = objective.smoothed(network, SYMBOLS, tokens, scores).target
                found.append((target.weights, *smoothed_nll(scores, tokens, target)))
        for exact, same in zip(*found):
            assert torch.equal(exact, same)


@pytest.mark.parametrize("nearest", [3, None])
def test_vectors_of_a_model_in_half_precision_are_compared_in_full(nearest: int | None) -> None:
    """Only what the weights were rounded to differs: targets are those of the same numbers in full precision."""
    objective, tokens = TokenSmoothing(tau=0.02, nearest=nearest), torch.tensor([3, 4, 5, 7])
    half = model().bfloat16()
    full = model().float()
    with torch.no_grad():
        full.table.copy_(half.table)
    scores = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1))
    found = objective.smoothed(half, SYMBOLS, tokens, scores.bfloat16())
    wanted = objective.smoothed(full, SYMBOLS, tokens, scores)
    assert found.target.weights.dtype == torch.float32
    assert torch.equal(found.target.tokens, wanted.target.tokens)
    torch.testing.assert_close(found.target.weights, wanted.target.weights)
    loss = loss_of(objective, half, rows([3, 4, 5, 2], [6, 2]))
    loss.total.backward()
    assert loss.total.isfinite()
    assert half.table.grad.isfinite().all()
