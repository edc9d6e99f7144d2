"""Scheduled sampling against closed forms on transition tables, and its soft forms against their limits."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scipy.stats import binomtest, chisquare
from torch import Tensor

import unforced
from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.objectives import scheduled_sampling
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.model_tokens import PICKS, draw_replaced
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import InverseSigmoid, Linear
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
    """Return a model in which w + 1 follows w, and 3 the start symbol."""
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


def test_the_model_reads_its_own_tokens() -> None:
    """After the start symbol the table continues with 3, 4, 5, 6."""
    batch, model = make_batch(gold=(7, 7, 7, 7, 2)), successor()
    objective = ScheduledSampling(feed="argmax", mixing=0.0)
    assert rolled(objective, model, batch, 0.0).tolist() == [[1, 3, 4, 5, 6]]
    prefix = torch.tensor([[1, 3, 4, 5, 6]])
    torch.testing.assert_close(
        loss_of(objective, model, batch).total, expected_loss(model, prefix, batch.gold, batch.mask)
    )


def test_target_tokens_restart_the_chain() -> None:
    model, batch = successor(), make_batch(64, gold=(6, 4, 6, 4, 2))
    prefix = rolled(ScheduledSampling(feed="argmax"), model, batch, 0.5)
    keys = random_streams.keys(batch, torch.Generator().manual_seed(0))
    replaced = draw_replaced(keys, batch, 0.5)
    follows = {1: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 7}
    for row in range(64):
        for t in range(4):
            mine, fed = replaced[row, t], prefix[row, t + 1].item()
            assert fed == (follows[prefix[row, t].item()] if mine else batch.gold[row, t].item())


def test_every_token_is_drawn_independently() -> None:
    batch = make_batch(4000)
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
    gold = torch.tensor([[3, 2, 0, 0], [3, 4, 5, 2]])
    batch = Batch.of_gold(gold, gold != 0, SYMBOLS)
    tossed = draw_replaced(torch.tensor([5, 6]), batch, 0.0)
    assert tossed.tolist() == [[True, False, False, False], [True, True, True, False]]


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("mixing", [1.0, InverseSigmoid(k=5.0, warmup=9.0)])
def test_target_tokens_alone_equal_cross_entropy_bitwise(feed: Any, mixing: Any) -> None:
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


def test_soft_sample_tends_to_the_gumbel_argmax() -> None:
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
def test_fed_tokens_have_the_frequencies_of_the_model(feed: Any) -> None:
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


@pytest.mark.parametrize("feed", FEEDS)
def test_cached_steps_equal_one_pass(feed: Any) -> None:
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


def test_dropout_while_sampling_is_optional() -> None:
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


def test_schedules_must_stay_in_range() -> None:
    away = Linear(start=1.0, end=-1.0, over=2)
    with pytest.raises(InputError, match="mixing must be between 0 and 1, got -1"):
        loss_of(ScheduledSampling(mixing=away), toy(), make_batch())
    with pytest.raises(InputError, match="alpha must be above 0, got -1"):
        loss_of(ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=away), toy(), make_batch())


def test_soft_samples_need_dropout_everywhere() -> None:
    with pytest.raises(InputError, match="dropout"):
        ScheduledSampling(feed="soft_sample", dropout=False)


# Numerical limits

SPECS = {
    "lstm": LSTM(hidden=8, embedding=8, dropout=0.0),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=16, dropout=0.0),
}


def make_model(name: str, size: int) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    model = SPECS[name].build(Sizes(target=size, source=12))
    gold = torch.tensor([[3, 4, 5, 6, 2], [7, 3, 2, 0, 0]])
    source = torch.tensor([[3, 4, 5], [6, 7, 8]])
    symbols = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    return model, Batch.of_gold(gold, gold != 0, symbols, source=source, ids=torch.arange(2))


def mean_loss(model: Any, batch: Batch, **options: Any) -> torch.Tensor:
    objective = ScheduledSampling(mixing=0.0, **options)
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(1)).mean


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("alpha", [1e-20, 1e37])
def test_extreme_temperatures_are_finite(alpha: float, name: str, size: int) -> None:
    model, batch = make_model(name, size)
    found = mean_loss(model, batch, feed="soft_argmax", alpha=alpha)
    found.backward()
    assert bool(found.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    if alpha > 1:
        torch.testing.assert_close(found, mean_loss(model, batch, feed="argmax"))


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("feed", ["argmax", "sample", "soft_argmax", "soft_sample"])
def test_diverged_models_have_a_nan_loss(feed: str, size: int) -> None:
    """The trainer stops at a NaN loss; nothing raises before."""
    model, batch = make_model("lstm", size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    assert bool(mean_loss(model, batch, feed=feed, **({"alpha": 10.0} if "soft" in feed else {})).isnan())


@pytest.mark.parametrize("name", SPECS)
def test_gradients_of_some_weights_change_no_others(name: str) -> None:
    model, batch = make_model(name, 12)
    mean_loss(model, batch, feed="soft_argmax", alpha=2.0).backward()
    wanted = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    again = mean_loss(model, batch, feed="soft_argmax", alpha=2.0)
    other = next(p for key, p in model.named_parameters() if "norm" in key or "combine" in key)
    torch.autograd.grad(again, [other], retain_graph=True)
    again.backward()
    for key, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, wanted[key])


def test_models_in_half_precision_accept_mixtures() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = torch.nn.Embedding(12, 8), torch.nn.Linear(8, 12)

        def start(self, batch: Batch) -> Any:
            return unforced.DecoderState(self.table(batch.source).sum(dim=1), None)

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids)

        def embed_mix(self, weights: torch.Tensor) -> torch.Tensor:
            return weights @ self.table.weight

        def advance(self, state: Any, inputs: torch.Tensor) -> Any:
            carried = state.carry.unsqueeze(1) + inputs.cumsum(dim=1)
            return carried, unforced.DecoderState(carried[:, -1], None)

        def score(self, features: torch.Tensor) -> torch.Tensor:
            return self.out(features)

    _, batch = make_model("lstm", 12)
    found = mean_loss(Plain().bfloat16(), batch, feed="soft_argmax", alpha=1.0)
    found.backward()
    assert bool(found.isfinite())
