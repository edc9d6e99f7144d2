"""Scheduled sampling at its edges: extreme temperatures, models that have diverged, gradients of a part, narrow numbers."""

from typing import Any

import pytest
import torch

import unforced
from unforced.models.lstm import LSTM
from unforced.models.transformer import Transformer
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.types import Batch, Progress, Sizes, Symbols

SPECS = {
    "lstm": LSTM(hidden=8, embedding=8, dropout=0.0),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=16, dropout=0.0),
}


def made(name: str, size: int) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    model = SPECS[name].build(Sizes(target=size, source=12))
    gold = torch.tensor([[3, 4, 5, 6, 2], [7, 3, 2, 0, 0]])
    source = torch.tensor([[3, 4, 5], [6, 7, 8]])
    symbols = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    return model, Batch.of_gold(gold, gold != 0, symbols, source=source, ids=torch.arange(2))


def loss(model: Any, batch: Batch, **options: Any) -> torch.Tensor:
    objective = ScheduledSampling(mixing=0.0, **options)
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(1)).mean


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("alpha", [1e-20, 1e37])
def test_no_temperature_ends_in_nan(alpha: float, name: str, size: int) -> None:
    model, batch = made(name, size)
    found = loss(model, batch, feed="soft_argmax", alpha=alpha)
    found.backward()
    assert bool(found.isfinite())
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    if alpha > 1:
        torch.testing.assert_close(found, loss(model, batch, feed="argmax"))


@pytest.mark.parametrize("size", [12, 400])
@pytest.mark.parametrize("feed", ["argmax", "sample", "soft_argmax", "soft_sample"])
def test_a_diverged_model_has_no_loss(feed: str, size: int) -> None:
    """The trainer stops at a loss that is no number; nothing else may fail before."""
    model, batch = made("lstm", size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    assert bool(loss(model, batch, feed=feed, **({"alpha": 10.0} if "soft" in feed else {})).isnan())


@pytest.mark.parametrize("name", SPECS)
def test_a_gradient_of_some_weights_leaves_nothing_behind(name: str) -> None:
    model, batch = made(name, 12)
    loss(model, batch, feed="soft_argmax", alpha=2.0).backward()
    wanted = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    again = loss(model, batch, feed="soft_argmax", alpha=2.0)
    other = next(p for key, p in model.named_parameters() if "norm" in key or "combine" in key)
    torch.autograd.grad(again, [other], retain_graph=True)
    again.backward()
    for key, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, wanted[key])


def test_models_in_half_precision_take_soft_feeds() -> None:
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

    _, batch = made("lstm", 12)
    found = loss(Plain().bfloat16(), batch, feed="soft_argmax", alpha=1.0)
    found.backward()
    assert bool(found.isfinite())
