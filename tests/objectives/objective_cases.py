"""Small models, batches and a codec for the tests of objectives."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.protocols import fitted
from unforced.types import Batch, Encoded, Loss, Progress, Sizes, Symbols

ENDED = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
FIXED = ENDED._replace(eos=None)  # lengths are known, as in tagging
SIZE = 8
SPECS = {
    "lstm": LSTM(hidden=6, embedding=5, dropout=0.0),
    "fed": LSTM(hidden=6, embedding=5, dropout=0.0, input_feeding=True),
    "tagger": LSTM(hidden=6, embedding=5, dropout=0.0, attention="fixed"),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, dropout=0.0),
}
TARGETS = [[3, 4, 5, 2], [3, 3, 4, 2], [5, 4, 2], [4, 4, 3, 5, 3, 2], [5, 2], [3, 4, 2]]
EXAMPLES = [Encoded(None, target, (3, 4)) for target in TARGETS]


def batch_of(golds: Sequence[Sequence[int]], symbols: Symbols = ENDED, **rest: Any) -> Batch:
    """Return targets of any lengths, with the ids 10, 11, …"""
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    lengths = torch.tensor([len(g) for g in golds])
    if symbols.eos is None:
        rest["length"] = lengths
    mask = torch.arange(width) < lengths.unsqueeze(1)
    return Batch.of_gold(gold, mask, symbols, ids=torch.arange(len(golds)) + 10, **rest)


def sourced(symbols: Symbols = ENDED) -> Batch:
    """Return three examples with sources of one to three tokens."""
    golds = [[3, 4, 5], [4], [5, 6]]
    golds = golds if symbols.eos is None else [[*gold, 2] for gold in golds]
    source = torch.tensor([[1, 2, 3], [4, 0, 0], [2, 2, 0]])
    return batch_of(golds, symbols, source=source, source_mask=source > 0)


def toy(size: int = SIZE, order: int = 2, seed: int = 0) -> Any:
    """Return a table of normal scores in float64."""
    torch.manual_seed(seed)
    model = Toy(order=order).build(Sizes(target=size)).double()  # type: ignore[arg-type]
    with torch.no_grad():
        model.table.normal_()
    return model


def network(name: str, size: int = SIZE, seed: int = 0, scale: float = 1.0) -> Any:
    """Return a small network in float64; with a larger ``scale`` its scores are far from equal."""
    torch.manual_seed(seed)
    model = SPECS[name].build(Sizes(target=size, source=5)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def codec(size: int = SIZE, names: Sequence[str] | None = None, symbols: Symbols = ENDED, **more: Any) -> Any:
    """Return a codec with as many tokens as the models have."""
    names = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, size))) if names is None else tuple(names)
    return SimpleNamespace(symbols=symbols, sizes=Sizes(len(names)), token_names=lambda: names, **more)


def fit(objective: Any, codec_: Any = None, examples: Sequence[Encoded] = EXAMPLES) -> Any:
    return fitted(objective, codec() if codec_ is None else codec_, examples)


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0, **progress: Any) -> Loss:
    rng = torch.Generator().manual_seed(seed)
    loss: Loss = objective(model, batch, progress=Progress(**{"epoch": 0.0, "total": 10, **progress}), rng=rng)
    return loss


def metric(loss: Loss, name: str) -> float:
    total, count = loss.metrics[name]
    return float(total / count)


def gradient(total: Tensor, model: nn.Module) -> Tensor:
    """Return the gradient with respect to all parameters as one vector."""
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True, retain_graph=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(found, model.parameters())])


def assert_same(model: Any, loss: Tensor, expected: Tensor, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """Assert that the losses and their gradients are equal up to rounding."""
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(gradient(loss, model), gradient(expected, model), rtol=rtol, atol=atol)


def assert_equal_bits(model: Any, *losses: Loss) -> None:
    """Assert that two losses and their gradients are the same to the last bit."""
    first, second = losses
    assert torch.equal(first.total, second.total)
    assert torch.equal(gradient(first.total, model), gradient(second.total, model))
