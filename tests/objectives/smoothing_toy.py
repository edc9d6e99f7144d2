"""A table model, batches of short targets and a codec of eight tokens, for tests of loss smoothing."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.protocols import fitted
from unforced.types import Batch, Encoded, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
SIZE = 8
SPECS = {
    "lstm": LSTM(hidden=6, embedding=5, dropout=0.0),
    "fed": LSTM(hidden=6, embedding=5, dropout=0.0, input_feeding=True),
    "tagger": LSTM(hidden=6, embedding=5, dropout=0.0, attention="fixed"),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, dropout=0.0),
}
TARGETS = [[3, 4, 5, 2], [3, 3, 4, 2], [5, 4, 2], [4, 4, 3, 5, 3, 2], [5, 2], [3, 4, 2]]
EXAMPLES = [Encoded(None, target, (3, 4)) for target in TARGETS]


def codec(size: int = SIZE, names: Sequence[str] | None = None, symbols: Symbols = SYMBOLS, **more: Any) -> Any:
    """A codec with as many tokens as the models have."""
    names = ("<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, size))) if names is None else tuple(names)
    return SimpleNamespace(symbols=symbols, sizes=Sizes(len(names)), token_names=lambda: names, **more)


def batch_of(golds: Sequence[Sequence[int]], symbols: Symbols = SYMBOLS, **rest: Any) -> Batch:
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    lengths = torch.tensor([len(g) for g in golds])
    if symbols.eos is None:
        rest["length"] = lengths
    mask = torch.arange(width) < lengths.unsqueeze(1)
    return Batch.of_gold(gold, mask, symbols, ids=torch.arange(len(golds)) + 10, **rest)


def sourced(symbols: Symbols = SYMBOLS) -> Batch:
    golds = [[3, 4, 5], [4], [5, 6]]
    golds = golds if symbols.eos is None else [[*gold, 2] for gold in golds]
    source = torch.tensor([[1, 2, 3], [4, 0, 0], [2, 2, 0]])
    return batch_of(golds, symbols, source=source, source_mask=source > 0)


def toy(size: int = SIZE, order: int = 2) -> Any:
    torch.manual_seed(0)
    model = Toy(order=order).build(Sizes(target=size)).double()
    with torch.no_grad():
        model.table.normal_()
    return model


def network(name: str, size: int = SIZE) -> Any:
    torch.manual_seed(0)
    return SPECS[name].build(Sizes(target=size, source=5)).double()


def fit(objective: Any, codec_: Any = None, examples: Sequence[Encoded] = EXAMPLES) -> Any:
    return fitted(objective, codec() if codec_ is None else codec_, examples)


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0) -> Loss:
    loss: Loss = objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))
    return loss


def metric(loss: Loss, name: str) -> float:
    total, count = loss.metrics[name]
    return float(total / count)


def assert_same(model: Any, loss: torch.Tensor, expected: torch.Tensor, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    """The losses and their gradients are equal up to rounding."""
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=atol)
    parameters = list(model.parameters())
    gradients = (torch.autograd.grad(value, parameters, retain_graph=True) for value in (loss, expected))
    for mine, other in zip(*gradients):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=atol)
