"""The relaxed beam search at its edges: costs of padding, dropout, banned tokens on top, tables of costs, odd temperatures."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unforced.decoding import search
from unforced.decoding.soft_beam import Continuations, all_candidates, best_candidates, mixtures
from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Causal
from unforced.objectives.costs import Table
from unforced.objectives.minimum_risk import MinimumRisk
from unforced.objectives.soft_beam import SoftBeam
from unforced.types import Batch, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))


def batch_of(*golds: list[int]) -> Batch:
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    mask = torch.arange(width) < torch.tensor([[len(g)] for g in golds])
    return Batch.of_gold(gold, mask, SYMBOLS, ids=torch.arange(len(golds)))


def toy(size: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Toy().build(Sizes(target=size)).double()


def loss_of(objective: Any, model: Any, batch: Batch) -> Loss:
    return objective(model, batch, progress=Progress(0, 0.0, 1), rng=torch.Generator().manual_seed(1))


# ---- a margin over outputs that end early ----


def outputs(steps: int, size: int, done: bool = False) -> Iterator[list[int]]:
    """All that a search can come to in so many steps: padding behind the end, and nowhere else."""
    if not steps:
        yield []
        return
    for token in [0] if done else range(2, size):
        for rest in outputs(steps - 1, size, done or token == 2):
            yield [token, *rest]


def augmented(model: Any, output: list[int], gold: list[int]) -> float:
    """The global score of an output, and one for each token that isn't the gold's, padding mixtures them."""
    total, last = 0.0, 1
    for token, right in zip(output, gold):
        if token != 0:
            total += float(model.table.detach()[last, token])
        total += token != right
        last = token
    return total


@pytest.mark.parametrize("keep", [None, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_hinge_is_that_of_the_best_output_with_its_costs(seed: int, keep: int | None) -> None:
    model, gold = toy(5, seed), [3, 4, 3, 2]
    every = list(outputs(len(gold), 5))
    best = max(augmented(model, output, gold) for output in every)
    wanted = max(0.0, best - augmented(model, gold, gold))
    objective = SoftBeam(beam=len(every), alpha=1e9, loss="hinge", scores="global", keep=keep)
    found = loss_of(objective, model, batch_of(gold)).total.item()
    assert found == pytest.approx(wanted, abs=1e-5)


def test_an_empty_output_has_to_lose_by_all_its_costs() -> None:
    model = toy(6)
    with torch.no_grad():
        model.table.fill_(-30.0)
        for last, token in ((1, 3), (3, 4), (4, 5), (5, 2)):
            model.table[last, token] = 0.0
        model.table[1, 2] = -0.9  # the end at once
    objective = SoftBeam(beam=3, alpha=1e6, loss="hinge", scores="global")
    assert loss_of(objective, model, batch_of([3, 4, 5, 2])).total.item() == pytest.approx(3.1, abs=1e-6)


# ---- dropout ----


def causal() -> Any:
    torch.manual_seed(1)
    return Causal(width=8, heads=2, layers=2, feedforward=8, dropout=0.5).build(Sizes(target=7)).double()


@pytest.mark.parametrize("loss", ["direct", "hinge"])
def test_dropout_has_no_part_in_the_search_unless_asked_for(loss: Any) -> None:
    model, batch = causal(), batch_of([3, 4, 5, 6, 2], [5, 2])
    model.train()

    def seeded(seed: int, **fields: Any) -> float:
        torch.manual_seed(seed)
        return loss_of(SoftBeam(loss=loss, alpha=1.0, **fields), model, batch).total.item()

    assert seeded(1) == seeded(2) == pytest.approx(seeded(3, checkpoint=True), rel=1e-12)
    assert seeded(1, dropout=True) != seeded(2, dropout=True)
    assert all(module.training for module in model.modules())
    model.eval()
    assert seeded(1, dropout=True) == seeded(1)


def test_steps_that_are_made_again_have_no_dropout_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENDING", 0)
    model, batch = causal(), batch_of([3, 4, 5, 6, 2, 2][:5], [5, 6, 2])
    model.train()
    gradients = []
    for checkpoint in (False, True):
        model.zero_grad()
        loss_of(SoftBeam(loss="hinge", alpha=1.0, checkpoint=checkpoint), model, batch).total.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_the_encoder_keeps_its_dropout() -> None:
    torch.manual_seed(1)
    model = LSTM(hidden=6, embedding=5, dropout=0.5).build(Sizes(target=7, source=7)).double()
    source = torch.tensor([[3, 4, 5]])
    batch = replace(batch_of([3, 4, 2]), source=source, source_mask=source > 0)
    found = set()
    for seed in range(3):
        torch.manual_seed(seed)
        found.add(loss_of(SoftBeam(alpha=1.0), model.train(), batch).total.item())
    assert len(found) == 3


# ---- what is left out ----


def test_the_bound_holds_where_banned_tokens_score_best() -> None:
    rng = torch.Generator().manual_seed(1)
    k, v, banned = 3, 40, torch.tensor([0, 1])
    seen = 0
    for _ in range(300):
        scores = 2 * torch.randn(1, k, v, generator=rng, dtype=torch.float64)
        scores[:, :, banned] += 6
        offer = Continuations(
            torch.randn(1, k, generator=rng, dtype=torch.float64),
            torch.ones(1, k, dtype=torch.bool),
            scores,
            None,
            banned,
            0,
            8 * torch.randn(1, k, generator=rng, dtype=torch.float64),
            torch.rand(1, k, generator=rng) < 0.7,
        )
        keep, alpha = (int(torch.randint(3, 30, (), generator=rng)), float(5 * torch.rand((), generator=rng)) + 0.1)
        whole, some = (
            mixtures(all_candidates(offer), k, alpha),
            mixtures(best_candidates(offer, scores, keep), k, alpha),
        )
        left = 1 - weight_of(some, whole, v)
        seen += bool(some.bound.isinf().any())
        assert (left <= some.bound.unsqueeze(1) + 1e-9).all()
    assert seen > 10


def weight_of(some: Any, whole: Any, v: int) -> Tensor:
    """What the candidates of a choice mixtures some have in the choice mixtures all: [B,K]."""
    places = some.candidates.parents * v + some.candidates.tokens
    weights = whole.log_weights.exp().gather(2, places.unsqueeze(1).expand(-1, whole.peaks.shape[1], -1))
    return (weights * some.candidates.valid.unsqueeze(1)).sum(dim=2)


# ---- costs and temperatures of one's own ----


def test_tables_of_costs_are_looked_at() -> None:
    model, batch = toy(6), batch_of([3, 4, 2])

    def complaint(table: Tensor, loss: Any = "direct") -> str:
        with pytest.raises(InputError) as refused:
            loss_of(SoftBeam(cost=Table(lambda _: table), loss=loss), model, batch)
        return str(refused.value)

    assert "costs of 4 tokens, none for token" in complaint(torch.ones(1, 3, 4))
    odd = torch.ones(1, 3, 6)
    odd[0, 1, 4] = torch.nan
    for loss in ("direct", "hinge"):
        assert "must have finite entries" in complaint(odd, loss)
    with pytest.raises(InputError, match="minimum_risk needs the cost of a whole output"):
        MinimumRisk(cost=Table(lambda _: odd))  # type: ignore[arg-type]
