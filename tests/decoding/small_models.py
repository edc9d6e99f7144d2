"""Small models and batches that decoding is tested on."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.types import Batch, Sizes, Symbols

ENDED = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
FIXED = Symbols(pad=0, bos=1, eos=None, banned=(0, 1))
SOURCES = ([3, 4], [4, 4, 3], [3], [5, 3, 4, 5])


def make_batch(
    sources: Sequence[Sequence[int]], symbols: Symbols = ENDED, ids: Sequence[int] | None = None, width: int = 0
) -> Batch:
    """A batch for decoding: no gold, sources padded to ``width`` or the longest; lengths are those of the sources."""
    width = max([width, *map(len, sources)])
    source = torch.tensor([[*s, *[0] * (width - len(s))] for s in sources]).reshape(len(sources), width)
    gold = torch.zeros(len(sources), 1, dtype=torch.long)
    return Batch.of_gold(
        gold,
        gold > 0,
        symbols,
        source=source,
        source_mask=torch.arange(width) < torch.tensor([len(s) for s in sources]).unsqueeze(1),
        length=None if symbols.eos is not None else torch.tensor([len(s) for s in sources]),
        ids=torch.tensor(range(len(sources)) if ids is None else ids),
    )


def toy(seed: int, vocabulary: int = 5, scale: float = 1.0) -> nn.Module:
    """A second-order table in float64, conditioned on the bag of source tokens."""
    torch.manual_seed(seed)
    return Toy(order=2, scale=scale).build(Sizes(target=vocabulary, source=6)).double()


def lstm(seed: int, vocabulary: int = 5) -> nn.Module:
    """A small recurrent model in float64 whose scores are far from uniform and whose state matters."""
    torch.manual_seed(seed)
    model = LSTM(hidden=6, embedding=5, dropout=0.3).build(Sizes(target=vocabulary, source=6)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


BUILDERS = pytest.mark.parametrize("build", [toy, lstm], ids=["toy", "lstm"])
