"""Scheduled sampling against closed forms on transition tables, and its soft forms against their limits."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import Tensor

from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.objectives import scheduled_sampling
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.model_tokens import COINS, PICKS, draw_replaced
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import Always, InverseSigmoid, Linear
from unforced.ops import random_streams
from unforced.types import Batch, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
FEEDS = ["argmax", "sample", "soft_argmax", "soft_sample"]


def make_batch(rows: int = 1, gold: Sequence[int] = (3, 4, 5, 6, 2)) -> Batch:
    targets = torch.tensor([list(gold)] * rows)
    return Batch.of_gold(targets, targets != 0, SYMBOLS, ids=torch.arange(rows))


def toy(order: int = 1, seed: int = 0, size: int = 8, scale: float = 1.0) -> Any:
    torch.manual_seed(seed)
    return Toy(order=order, scale=scale).build(Sizes(target=size)).double()  # type: ignore[arg-type]


def successor(size: int = 8) -> Any:
    """A model that believes w + 1 follows w, and 3 the start symbol."""
    model = toy(size=size)
    with torch.no_grad():
        model.table.zero_()
        for token in range(size):
            model.table[token, min(token + 1, size - 1) if token > 2 else 3] = 4.0
    return model


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0, epoch: float = 5.0) -> Loss:
    rng = torch.Generator().manual_seed(seed)
    return objective(model, batch, progress=Progress(step=50, epoch=epoch, total=100), rng=rng)


def rolled(objective: ScheduledSampling, model: Any, batch: Batch, mixing: float, seed: int = 0) -> Tensor:
    keys = random_streams.keys(batch, torch.Generator().manual_seed(seed))
    replaced = draw_replaced(keys, batch, mixing)
    return objective.roll_out(model, batch, model.start(batch), replaced, random_streams.branch(keys, PICKS))


def expected_loss(model: Any, prefix: Tensor, gold: Tensor, mask: Tensor) -> Tensor:
    """−Σ log p(gold_t | prefix_t) of an order-1 table."""
    log_p = model.table[prefix].log_softmax(-1).gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    return -log_p[mask].sum()


def test_the_model_is_fed_its_own_chain_and_not_one_off() -> None:
    """From the start symbol the table goes 3, 4, 5, 6: what it picks at t is the input behind t."""
    batch, model = make_batch(gold=(7, 7, 7, 7, 2)), successor()
    objective = ScheduledSampling(feed="argmax", mixing=0.0)
    assert rolled(objective, model, batch, 0.0).tolist() == [[1, 3, 4, 5, 6]]
    prefix = torch.tensor([[1, 3, 4, 5, 6]])
    torch.testing.assert_close(
        loss_of(objective, model, batch).total, expected_loss(model, prefix, batch.gold, batch.mask)
    )


def test_a_gold_token_in_between_restarts_the_chain() -> None:
    model, batch = successor(), make_batch(64, gold=(6, 4, 6, 4, 2))
    prefix = rolled(ScheduledSampling(feed="argmax"), model, batch, 0.5)
    keys = random_streams.keys(batch, torch.Generator().manual_seed(0))
    replaced = draw_replaced(keys, batch, 0.5)
    follows = {1: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 7}
    for row in range(64):
        for t in range(4):
            mine, fed = replaced[row, t], prefix[row, t + 1].item()
            assert fed == (follows[prefix[row, t].item()] if mine else batch.gold[row, t].item())


def test_there_is_a_coin_for_every_token() -> None:
    batch = make_batch(4000)
    tossed = draw_replaced(random_streams.keys(batch, torch.Generator().manual_seed(1)), batch, 0.7)
    assert not tossed[:, -1].any()  # nobody is fed the last token
    fed = tossed[:, :-1]
    assert binomtest(int(fed.sum()), fed.numel(), 0.3).pvalue > 0.001
    # independent along rows: the number of model tokens in a row is binomial, with no all-or-nothing
    expected = torch.tensor([0.7**4, 4 * 0.3 * 0.7**3, 6 * 0.09 * 0.49, 4 * 0.027 * 0.7, 0.0081])
    assert chisquare(fed.sum(1).bincount(minlength=5), expected.double() * 4000 / expected.sum()).pvalue > 0.001
    # and across rows: a coin per step for the whole batch would have all rows alike
    assert fed.float().var(dim=0).min() > 0.15


def test_nothing_is_replaced_behind_the_end() -> None:
    gold = torch.tensor([[3, 2, 0, 0], [3, 4, 5, 2]])
    batch = Batch.of_gold(gold, gold != 0, SYMBOLS)
    tossed = draw_replaced(torch.tensor([5, 6]), batch, 0.0)
    assert tossed.tolist() == [[True, False, False, False], [True, True, True, False]]


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("mixing", [1.0, InverseSigmoid(k=5.0, warmup=9.0)])
def test_all_gold_is_cross_entropy_bitwise(feed: Any, mixing: Any) -> None:
    torch.manual_seed(1)
    batch = make_batch(3)
    for spec in (LSTM(hidden=6, embedding=4), Transformer(width=8, heads=2, feedforward=8)):
        source = torch.tensor([[1, 2], [3, 1], [2, 2]])
        with_source = Batch.of_gold(batch.gold, batch.mask, SYMBOLS, source=source, ids=batch.ids)
        model = spec.build(Sizes(target=8, source=5))
        found = []
        for objective in (ScheduledSampling(feed=feed, mixing=mixing), CrossEntropy()):
            model.zero_grad()
            torch.manual_seed(2)  # dropout
            loss = loss_of(objective, model, with_source)
            loss.total.backward()
            found.append((loss.total.detach(), [p.grad for p in model.parameters()]))
        assert torch.equal(found[0][0], found[1][0])
        assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [LSTM(hidden=6, embedding=4, dropout=0.0), Toy(order=2)])
def test_soft_argmax_tends_to_the_hard_loss(spec: Any) -> None:
    torch.manual_seed(4)
    model = spec.build(Sizes(target=8)).double()
    batch = make_batch(20)
    hard = loss_of(ScheduledSampling(feed="argmax", mixing=0.3), model, batch)
    gaps = []
    for alpha in (1.0, 10.0, 1e3, 1e6):
        soft = loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.3, alpha=alpha), model, batch)
        gaps.append(abs((soft.total - hard.total).item()))
        assert soft.count == hard.count
    assert gaps[0] > 1e-3
    assert gaps[-1] < 1e-8
    assert gaps[-1] < gaps[1] < gaps[0]


def test_soft_sample_tends_to_feeding_the_gumbel_argmax() -> None:
    """With the same noise, α → ∞ feeds argmax(scores + noise) at every step; found here by hand on a table."""
    model, batch = toy(order=1, seed=3), make_batch(50)
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
def test_what_is_fed_has_the_models_frequencies(feed: Any) -> None:
    """The first token fed, over many examples, against softmax over the tokens that may be emitted."""
    model, batch, n = toy(seed=5), make_batch(20_000, gold=(3, 2)), 20_000
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
    model, batch = toy(seed=6), make_batch(1, gold=(3, 4, 2))
    loss_of(ScheduledSampling(feed=feed, mixing=0.0, alpha=alpha), model, batch).total.backward()
    return model.table.grad[1], model, batch


def test_credit_reaches_earlier_scores_through_soft_inputs_and_not_through_hard_ones() -> None:
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


@pytest.mark.parametrize("feed", FEEDS)
def test_cached_steps_equal_whole_passes(feed: Any) -> None:
    """The Transformer's steps with key/value state give the loss that feeding the same inputs at once gives."""
    torch.manual_seed(0)
    model = Transformer(width=8, heads=2, feedforward=8, dropout=0.0).build(Sizes(target=8, source=4)).double()
    gold = torch.tensor([[3, 4, 5, 6, 2], [5, 3, 2, 0, 0]])
    batch = Batch.of_gold(gold, gold != 0, SYMBOLS, source=torch.tensor([[1, 2], [3, 3]]), ids=torch.arange(2))
    fed: list[Tensor] = []
    embed, mix, advance = model.embed, model.embed_mix, model.advance

    def recording(state: Any, inputs: Tensor) -> Any:
        if torch.is_grad_enabled():
            fed.append(inputs)
        return advance(state, inputs)

    model.advance = recording
    loss = loss_of(ScheduledSampling(feed=feed, mixing=0.4, alpha=2.0), model, batch)
    features, _ = advance(model.start(batch), torch.cat(fed, dim=1))
    log_p = model.score(features).log_softmax(-1).gather(-1, gold.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.total, -log_p[batch.mask].sum())
    assert loss.metrics["fed"][0] > 0
    del embed, mix


@pytest.mark.parametrize("feed", ["soft_argmax", "soft_sample"])
@pytest.mark.parametrize("tie", [False, True])
def test_sparse_mixtures_change_nothing(feed: Any, tie: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse mixtures on a large vocabulary equal dense ones."""
    torch.manual_seed(0)
    model = LSTM(hidden=12, embedding=12, dropout=0.0, tie=tie).build(Sizes(target=300)).double()
    with torch.no_grad():  # untrained features are small: scores that differ
        model.combine.weight *= 20
    batch, objective = make_batch(6), ScheduledSampling(feed=feed, mixing=0.3, alpha=60.0)
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


def test_dropout_while_sampling_is_an_option() -> None:
    torch.manual_seed(0)
    model = LSTM(hidden=16, embedding=8, dropout=0.5).build(Sizes(target=8)).double()
    batch = make_batch(50)
    modes: list[bool] = []
    model.recurrence.register_forward_hook(lambda module, *_: modes.append(module.training))
    off = [rolled(ScheduledSampling(feed="argmax", dropout=False), model, batch, 0.0) for _ in range(2)]
    assert not any(modes)
    assert model.recurrence.training
    assert torch.equal(*off)
    on = [rolled(ScheduledSampling(feed="argmax"), model, batch, 0.0) for _ in range(2)]
    assert modes[-1]
    assert not torch.equal(*on)


def test_eos_in_mid_sequence_does_not_shorten_the_loss() -> None:
    model, batch = successor(), make_batch()
    with torch.no_grad():
        model.table[1, 2] = 9.0  # it wants to end at once
    loss = loss_of(ScheduledSampling(feed="argmax", mixing=0.0), model, batch)
    assert loss.count == 5
    assert rolled(ScheduledSampling(feed="argmax"), model, batch, 0.0)[0, 1] == 2


def test_the_share_that_is_the_models_is_reported() -> None:
    loss = loss_of(ScheduledSampling(feed="sample", mixing=0.25), toy(), make_batch(3000))
    fed, count = loss.metrics["fed"]
    assert count == 4 * 3000
    assert fed / count == pytest.approx(0.75, abs=0.02)


def test_schedules_move_with_progress() -> None:
    objective = ScheduledSampling(feed="argmax", mixing=Always(warmup=2))
    early, late = (loss_of(objective, toy(), make_batch(), epoch=epoch) for epoch in (1.5, 2.0))
    assert early.metrics["fed"][0] == 0
    assert late.metrics["fed"][0] == 4


def test_schedules_that_leave_their_range_are_told_so() -> None:
    away = Linear(start=1.0, end=-1.0, over=2)
    with pytest.raises(InputError, match="mixing must be between 0 and 1, got -1"):
        loss_of(ScheduledSampling(mixing=away), toy(), make_batch())
    with pytest.raises(InputError, match="alpha must be above 0, got -1"):
        loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=away), toy(), make_batch())


class NoMixing:
    """A model that follows the protocol but for mixtures."""

    def __init__(self) -> None:
        model = toy()
        self.start, self.embed, self.advance, self.score = (model.start, model.embed, model.advance, model.score)


def test_a_model_that_lacks_something_is_told_what() -> None:
    batch = make_batch()
    assert loss_of(ScheduledSampling(feed="argmax", mixing=0.0), NoMixing(), batch).count == 5
    with pytest.raises(InputError, match=r"soft_argmax needs a model with embed_mix, but NoMixing"):
        loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0), NoMixing(), batch)
    with pytest.raises(InputError, match="start and embed and advance and score"):
        loss_of(ScheduledSampling(), object(), batch)


@pytest.mark.parametrize(
    ("fields", "word"), [({"feed": "soft_sample", "dropout": False}, "dropout"), ({"feed": "beam"}, "feed")]
)
def test_wrong_fields_are_refused(fields: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        ScheduledSampling(**fields)


def test_streams_are_told_apart() -> None:
    keys = torch.arange(1000)
    assert (
        abs(
            torch.corrcoef(
                torch.stack([random_streams.uniform(random_streams.branch(keys, s), 0) for s in (COINS, PICKS)])
            )[0, 1]
        )
        < 0.1
    )
