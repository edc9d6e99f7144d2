"""A table of a model, rows of few tokens, and a vocabulary of eight: what tests of loss smoothing share."""

from types import SimpleNamespace
from typing import Any

import torch

from unforced.models.toy import Toy
from unforced.types import Batch, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
SIZE = 8


def rows(*golds: list[int]) -> Batch:
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    mask = torch.arange(width) < torch.tensor([[len(g)] for g in golds])
    return Batch.of_gold(gold, mask, SYMBOLS, ids=torch.arange(len(golds)))


def model() -> Any:
    torch.manual_seed(1)
    made = Toy().build(Sizes(target=SIZE))
    with torch.no_grad():
        made.table.normal_()
    return made.double()


def loss_of(objective: Any, network: Any, batch: Batch) -> Loss:
    return objective(network, batch, progress=Progress(0, 0.0, 1), rng=torch.Generator().manual_seed(1))


def codec(names: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "a", "b", "c", "d", "e")) -> Any:
    return SimpleNamespace(symbols=SYMBOLS, sizes=Sizes(target=len(names)), token_names=lambda: names)


def gapped(fill: int) -> Batch:
    """Rows with a prompt in them, which is fed and not scored."""
    gold = torch.tensor([[fill, fill, 5, 6, 3, 2], [fill, 7, 4, 3, 2, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    prefix = torch.cat([torch.ones(2, 1, dtype=torch.long), gold[:, :-1]], dim=1)
    return Batch(prefix, gold, mask, SYMBOLS, ids=torch.arange(2))
