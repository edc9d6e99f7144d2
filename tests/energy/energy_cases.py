"""Small masked models and batches for energies and samplers, and the plain loops they are compared with."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from unforced.models.field import Field
from unforced.models.masked import ConditionalMasked, Masked
from unforced.ops.random_streams import GAMMA, mix64
from unforced.types import Batch, Sizes, Symbols

CELLS = 8_191


class TableModel(nn.Module):
    """Scores from a table of random numbers, looked up by a hash of everything that the position can see.

    That is the position, all tokens that are not masked, their places, and the source. Conditionals are arbitrary and
    belong to no joint distribution. ``seen`` has the shapes of the calls.
    """

    def __init__(self, size: int, seed: int = 1, scale: float = 1.5) -> None:
        super().__init__()
        self.size = size
        rng = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(scale * torch.randn(CELLS, size, generator=rng, dtype=torch.float64))
        self.seen: list[tuple[int, int]] = []

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        self.seen.append(tuple(tokens.shape))
        k = len(tokens) // len(batch)
        valid = batch.mask.repeat_interleave(k, dim=0)
        shown = tokens.masked_fill(masked, self.size) + 1
        places = mix64(torch.arange(1, tokens.shape[1] + 1) * GAMMA)
        code = (mix64(shown * GAMMA + places) * valid).sum(dim=1) + self._source(batch).repeat_interleave(k)
        cells = mix64(code.unsqueeze(1) + places) % CELLS
        return self.table[cells]

    def _source(self, batch: Batch) -> Tensor:
        if batch.source is None:
            return torch.zeros(len(batch), dtype=torch.long)
        valid = torch.ones_like(batch.source) if batch.source_mask is None else batch.source_mask.long()
        places = torch.arange(1, batch.source.shape[1] + 1)
        return mix64((mix64(batch.source + 7) * valid * places).sum(dim=1))


class InParts(TableModel):
    """Base of tables with features; counts projected positions, and calls of ``scores``."""

    def score(self, features: Tensor) -> Tensor:
        self.scored += features[..., 0].numel()
        return features

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        self.whole += 1
        return super().scores(batch, tokens, masked)

    scored = whole = 0


class WithFeatures(InParts):
    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return TableModel.scores(self, batch, tokens, masked)


class WithFeaturesAt(InParts):
    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor) -> Tensor:
        found = TableModel.scores(self, batch, tokens, masked)
        return found.gather(1, positions.unsqueeze(2).expand(-1, -1, self.size))


class Pair(nn.Module):
    """Conditionals that no joint distribution has (Goyal 2021, section 6.2.1).

    y₁ follows y₂ with probability 0.99, and y₂ is uniform.
    """

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        follows = torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64).log()
        uniform = torch.full((len(tokens), 2), 0.5, dtype=torch.float64).log()
        first = torch.where(masked[:, 1:], uniform, follows[tokens[:, 1]])
        return torch.stack([first, uniform], dim=1)


def letters(alphabet: int, lengths: Sequence[int], width: int = 0) -> Batch:
    """Strings of letters 0, 1, … of given lengths; the start symbol and padding are the next ids."""
    symbols = Symbols(pad=alphabet + 1, bos=alphabet, eos=None, banned=(alphabet, alphabet + 1))
    size = max([width, *lengths])
    mask = torch.arange(size) < torch.tensor(lengths).unsqueeze(1)
    gold = torch.zeros(mask.shape, dtype=torch.long).masked_fill(~mask, symbols.pad)
    return Batch.of_gold(gold, mask, symbols, length=torch.tensor(lengths), ids=torch.arange(len(lengths)))


def ended(
    rows: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]] | None = None,
    ids: Sequence[int] | None = None,
    width: int = 0,
) -> Batch:
    """Sequences followed by the end symbol 2, and sources."""
    size = max([width, *(len(row) + 1 for row in rows)])
    gold = torch.tensor([[*row, 2, *[0] * (size - len(row) - 1)] for row in rows])
    rest: dict[str, Any] = {"ids": torch.tensor(range(len(rows)) if ids is None else ids)}
    if sources is not None:
        longest = max(map(len, sources))
        rest["source"] = torch.tensor([[*row, *[0] * (longest - len(row))] for row in sources])
        rest["source_mask"] = torch.arange(longest) < torch.tensor([len(row) for row in sources]).unsqueeze(1)
    return Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)), **rest)


def alone(batch: Batch, b: int) -> Batch:
    """One example without padding."""
    one = batch.select(torch.tensor([b]))
    size = int(one.mask.sum())
    parts = {"prefix": one.prefix[:, :size], "gold": one.gold[:, :size], "mask": one.mask[:, :size]}
    if one.source_mask is not None and one.source is not None:
        n = int(one.source_mask.sum())
        parts |= {"source": one.source[:, :n], "source_mask": one.source_mask[:, :n]}
    return Batch(**{**vars(one), **parts})


def free_of(batch: Batch, b: int) -> list[int]:
    """The variables of an example."""
    special = {*batch.symbols.banned, batch.symbols.eos}
    return [t for t, token in enumerate(batch.gold[b].tolist()) if batch.mask[b, t] and token not in special]


def kept_of(symbols: Symbols, size: int) -> list[int]:
    return [i for i in range(size) if i not in symbols.banned and i != symbols.eos]


@torch.no_grad()
def plain_scores(model: Any, one: Batch, tokens: Sequence[int], hidden: Sequence[int]) -> Tensor:
    """One forward pass of one sequence with some positions masked: [T,V]."""
    masked = torch.tensor([[t in hidden for t in range(len(tokens))]])
    return model.scores(one, torch.tensor([list(tokens)]), masked)[0]


def plain_terms(model: Any, one: Batch, tokens: Sequence[int], kind: str) -> dict[int, float]:
    """The terms of one sequence, one forward pass for each."""
    found = {}
    for t in free_of(one, 0):
        scores = plain_scores(model, one, tokens, [t])[t]
        kept = kept_of(one.symbols, len(scores))
        normalizer = scores[kept].logsumexp(0) if kind == "local" else 0.0
        found[t] = float(scores[tokens[t]] - normalizer)
    return found


def plain_energy(model: Any, one: Batch, tokens: Sequence[int], kind: str) -> float:
    return -sum(plain_terms(model, one, tokens, kind).values())


def all_states(batch: Batch, b: int, size: int) -> Tensor:
    """Every sequence of an example, padded like the batch: [S,T]."""
    free = free_of(batch, b)
    choices = list(product(kept_of(batch.symbols, size), repeat=len(free)))
    states = batch.gold[b].repeat(len(choices), 1)
    states[:, free] = torch.tensor(choices)
    return states


def target_of(model: Any, batch: Batch, b: int, size: int, kind: str, temperature: float = 1.0) -> Tensor:
    """exp(−E/T)/Z of every sequence of an example, by plain loops: [S]."""
    one = alone(batch, b)
    width = one.gold.shape[1]
    found = [plain_energy(model, one, row[:width], kind) for row in all_states(batch, b, size).tolist()]
    return (-torch.tensor(found, dtype=torch.float64) / temperature).softmax(0)


# ---- one model of each kind, with a batch ----

MODELS = ("table", "field", "masked", "conditional")
SOURCES = [[1, 2], [3], [2, 2, 1], [4, 1]]


def model_and_batch(name: str, rows: Sequence[Sequence[int]], dropout: float = 0.0) -> tuple[Any, Batch]:
    """Return a model in double precision, with weights that make scores differ, and a batch of rows."""
    batch = ended(rows, SOURCES if name in ("table", "conditional") else None)
    small: Any = {"width": 8, "heads": 2, "feedforward": 12, "dropout": dropout}
    if name == "table":
        return TableModel(6), batch
    model: Any
    if name == "field":
        model = Field(hidden=5, embedding=4).build(Sizes(target=6))
    elif name == "masked":
        model = Masked(**small, layers=2).build(Sizes(target=6))
    else:
        model = ConditionalMasked(**small, encoder_layers=1, decoder_layers=1).build(Sizes(target=6, source=6))
    rng = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))
    return model.double().train(dropout > 0), batch
