"""A masked model that is a table: small enough to write its energies as loops."""

from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.types import Batch, Sizes, Symbols


@dataclass(frozen=True)
class ToyMasked:
    """score(y_t = w) = Σ over visible s < t of table[y_s, w] + Σ over visible s > t of table[V + y_s, w] + source."""

    scale: float = 1.0

    def build(self, sizes: Sizes) -> "ToyMaskedModel":
        return ToyMaskedModel(self, sizes)


class ToyMaskedModel(nn.Module):
    def __init__(self, spec: ToyMasked, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        rows = 2 * sizes.target + (sizes.source or 0)
        self.table = nn.Parameter(spec.scale * torch.randn(rows, sizes.target))

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        copies = len(tokens) // len(batch)
        inside = batch.mask.repeat_interleave(copies, dim=0) & ~masked
        visible = F.one_hot(tokens.clamp(min=0), self.sizes.target).to(self.table.dtype) * inside.unsqueeze(-1)
        before = visible.cumsum(dim=1) - visible
        after = visible.flip(1).cumsum(dim=1).flip(1) - visible
        features = [before, after]
        if self.sizes.source is not None:
            assert batch.source is not None
            assert batch.source_mask is not None
            counts = F.one_hot(batch.source, self.sizes.source).to(self.table.dtype)
            counts = (counts * batch.source_mask.unsqueeze(-1)).sum(dim=1).repeat_interleave(copies, dim=0)
            features.append(counts.unsqueeze(1).expand(-1, tokens.shape[1], -1))
        return torch.cat(features, dim=-1) @ self.table


ENDED = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
ENDLESS = Symbols(pad=4, bos=3, eos=None, banned=(3, 4))


def toy(size: int, seed: int = 0, scale: float = 1.0) -> ToyMaskedModel:
    """Return a toy model in float64."""
    torch.manual_seed(seed)
    return ToyMasked(scale).build(Sizes(target=size)).double()


def ended(*rows: list[int]) -> Batch:
    """Return sequences of ids from 3 on of any lengths, each with an end symbol."""
    width = max(map(len, rows)) + 1
    gold = torch.tensor([[*row, 2] + [0] * (width - len(row) - 1) for row in rows])
    return Batch.of_gold(gold, gold != 0, ENDED, ids=torch.arange(len(rows)) + 20)


def strings(length: int, letters: int = 3) -> Batch:
    """Return all strings over ids 0, 1, …, without an end symbol."""
    gold = torch.tensor(list(product(range(letters), repeat=length)))
    symbols = Symbols(pad=letters + 1, bos=letters, eos=None, banned=(letters, letters + 1))
    return Batch.of_gold(gold, gold >= 0, symbols, ids=torch.arange(len(gold)))


def slow_energy(model: ToyMaskedModel, batch: Batch, b: int, tokens: list[int], kind: str = "raw") -> Tensor:
    """Return E of ``tokens`` in place of the target of example b, by one masked pass for each variable."""
    special = {*batch.symbols.banned, batch.symbols.eos}
    ids = [w for w in range(model.sizes.target) if w not in special]
    one = batch.select(torch.tensor([b]))
    row = torch.tensor([tokens])
    total = torch.zeros((), dtype=torch.float64)
    for t in range(row.shape[1]):
        if not one.mask[0, t] or int(one.gold[0, t]) in special:
            continue
        masked = torch.zeros_like(one.mask)
        masked[0, t] = True
        scores = model.scores(one, row, masked)[0, t]
        term = scores[row[0, t]]
        total = total - (term if kind == "raw" else term - torch.logsumexp(scores[ids], dim=0))
    return total


def slow_log_z(model: ToyMaskedModel, batch: Batch, b: int, kind: str = "raw") -> Tensor:
    special = {*batch.symbols.banned, batch.symbols.eos}
    ids = [w for w in range(model.sizes.target) if w not in special]
    places = [t for t in range(batch.gold.shape[1]) if batch.mask[b, t] and int(batch.gold[b, t]) not in special]
    found = []
    for choice in product(ids, repeat=len(places)):
        tokens = batch.gold[b].tolist()
        for t, w in zip(places, choice):
            tokens[t] = w
        found.append(-slow_energy(model, batch, b, tokens, kind))
    return torch.logsumexp(torch.stack(found), dim=0)


def slow_conditional(model: ToyMaskedModel, batch: Batch, b: int, t: int, kind: str = "raw") -> Tensor:
    """Return log p(y_t = w | y\\t) of the energy model for the tokens that are allowed, in the order of their ids."""
    special = {*batch.symbols.banned, batch.symbols.eos}
    found = []
    for w in range(model.sizes.target):
        if w not in special:
            tokens = batch.gold[b].tolist()
            tokens[t] = w
            found.append(-slow_energy(model, batch, b, tokens, kind))
    return torch.log_softmax(torch.stack(found), dim=0)
