"""Task costs per token, given the target; after the end of the target every token but padding costs 1."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.options import NonEmptyStr, NonNegative, Options
from unforced.protocols import Codec, Cost, SupportsFitting
from unforced.tasks.files import read_tsv
from unforced.types import Batch


def fitted_cost(cost: Cost, codec: Codec) -> Cost:
    """Return the cost with the ids of the tokens that it names, if it names any."""
    return cost.fitted(codec) if isinstance(cost, SupportsFitting) else cost


def gold_steps(batch: Batch, steps: int) -> Tensor:
    """Return the target [B,steps], padded after its end.

    >>> from unforced.types import Symbols
    >>> gold = torch.tensor([[5, 2], [2, 9]])
    >>> batch = Batch.of_gold(gold, gold < 9, Symbols(pad=0, bos=1, eos=2))
    >>> gold_steps(batch, 3)
    tensor([[5, 2, 0],
            [2, 0, 0]])
    """
    pad = batch.symbols.pad
    gold = torch.where(batch.mask, batch.gold, batch.gold.new_tensor(pad))[:, :steps]
    return F.pad(gold, (0, steps - gold.shape[1]), value=pad)


@dataclass(frozen=True)
class Hamming(Options):
    """1 for every wrong token.

    >>> Hamming()(torch.tensor([3]), torch.tensor([[3, 4]]))
    tensor([[0., 1.]])
    """

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        return gold_steps(batch, steps)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        return (tokens != now.unsqueeze(1)).float()


class InsideCost(Hamming):
    """Base of costs that differ from 1 only inside the target; `prepare` marks the steps after its end.

    The costs name tokens, so `fitted` looks up their ids.
    """

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        gold = gold_steps(batch, steps)
        inside = F.pad(batch.mask, (0, max(0, steps - batch.mask.shape[1])))[:, :steps]
        return torch.where(inside, gold, -1 - gold)  # negative after the end

    def compare(self, now: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the target [B,1], whether it has ended [B,1], and 1 for every wrong token [B,M]."""
        ended = now < 0
        gold = torch.where(ended, -1 - now, now)
        return gold.unsqueeze(1), ended.unsqueeze(1), super().__call__(gold, tokens)


@dataclass(frozen=True)
class WeightedHamming(InsideCost):
    """``weight`` for a wrong ``token``, 1 for any other wrong token.

    For entity tags, a wrong ``O`` costs two (CRB section 3.1).

    >>> WeightedHamming(id=7)(torch.tensor([3]), torch.tensor([[3, 4, 7]]))
    tensor([[0., 1., 2.]])
    """

    token: str = "O"  # the token, as the data spells it
    weight: NonNegative = 2.0  # its cost where it is wrong
    id: int | None = field(default=None, repr=False)  # of the token; set by `fitted`

    def fitted(self, codec: Codec) -> "WeightedHamming":
        return replace(self, id=id_lookup(codec)(self.token, "weighted_hamming"))

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        if self.id is None:
            raise InputError("WeightedHamming names a token: call fitted(codec) to look up its id")
        _, ended, wrong = self.compare(now, tokens)
        return torch.where((tokens == self.id) & ~ended, wrong * self.weight, wrong)


class ListedCosts(NamedTuple):
    """Costs of N pairs of a target token and a wrong one."""

    size: int  # number of ids
    pairs: Tensor  # [N] target id · size + wrong id, ascending
    costs: Tensor  # [N]


@dataclass(frozen=True)
class Confusions(InsideCost):
    """Costs of single mistakes from a file.

    Each line has a target token, the wrong token and a cost, separated by tabs.
    """

    file: NonEmptyStr  # a text file; tokens are spelled as in the data
    other: NonNegative = 1.0  # cost of mistakes that are not listed
    listed: ListedCosts | None = field(default=None, repr=False, compare=False)  # set by `fitted`

    def fitted(self, codec: Codec) -> "Confusions":
        size, lookup, costs = len(codec.token_names()), id_lookup(codec), dict[int, float]()
        for number, (gold, token, shown) in read_tsv(self.file, 3):
            where = f"{self.file}:{number}"
            pair = lookup(gold, where) * size + lookup(token, where)
            if gold == token:
                raise InputError(f'{where}: "{gold}" for itself is not a mistake')
            if pair in costs:
                raise InputError(f"{where}: this mistake is already listed")
            costs[pair] = parse_cost(shown, where)
        pairs = sorted(costs)
        listed = ListedCosts(size, torch.tensor(pairs), torch.tensor([costs[pair] for pair in pairs]))
        return replace(self, listed=listed)

    @property
    def files(self) -> tuple[Path, ...]:
        return (Path(self.file),)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        if self.listed is None:
            raise InputError("Confusions names tokens: call fitted(codec) to look up their ids")
        gold, ended, wrong = self.compare(now, tokens)
        size, pairs, listed = self.listed
        costs = torch.where(ended, 1.0, self.other).expand_as(wrong)
        if len(pairs):
            pairs, listed = pairs.to(tokens.device), listed.to(tokens.device)
            keys = gold * size + tokens
            place = torch.searchsorted(pairs, keys).clamp(max=len(pairs) - 1)
            named = (tokens < size) & (gold < size)  # a model may have more ids than the codec has names
            costs = torch.where((pairs[place] == keys) & named & ~ended, listed[place], costs)
        return wrong * costs


def id_lookup(codec: Codec) -> Callable[[str, str], int]:
    """Return a function from a token's name, and the place of an error, to its id.

    Of equal names the last wins, because reserved names come first.
    """
    ids = {name: id for id, name in enumerate(codec.token_names())}

    def lookup(name: str, where: str) -> int:
        if name not in ids:
            raise InputError(f'{where}: "{name}" is not among the tokens of this data')
        return ids[name]

    return lookup


def parse_cost(text: str, where: str) -> float:
    try:
        cost = float(text)
    except ValueError:
        cost = -1.0
    if not 0 <= cost < float("inf"):
        raise InputError(f"{where}: a cost must be a number of at least 0, got {text!r}")
    return cost


@dataclass(frozen=True)
class Table:
    """Costs from a function: ``table(batch)`` is [B,T,V], the cost of each token at each step of the target.

    >>> from unforced.types import Symbols
    >>> gold = torch.tensor([[3, 2]])
    >>> batch = Batch.of_gold(gold, gold > 0, Symbols(pad=0, bos=1, eos=2))
    >>> cost = Table(lambda batch: torch.arange(8.0).reshape(1, 2, 4))
    >>> cost(cost.prepare(batch, 3)[:, 1], torch.tensor([[0, 2]]))
    tensor([[4., 6.]])
    """

    table: Callable[[Batch], Tensor]

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        found = self.table(batch)
        if found.dim() != 3 or found.shape[:2] != batch.gold.shape:
            raise InputError(
                f"table(batch) must have the shape [B,T,V] with [B,T] = {list(batch.gold.shape)}, got "
                f"{list(found.shape)}"
            )
        if not bool((found[batch.mask].isfinite() & (found[batch.mask] >= 0)).all()):
            raise InputError("table(batch) must have finite entries of at least 0")
        after = found.new_ones(found.shape[2])
        after[batch.symbols.pad] = 0
        found = torch.where(batch.mask.unsqueeze(2), found, after)[:, :steps]
        rest = after.expand(len(batch), steps - found.shape[1], -1)
        return torch.cat([found, rest], dim=1)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        if now.shape[1] <= int(tokens.max()):
            raise InputError(f"table(batch) has costs of {now.shape[1]} tokens, none for token {int(tokens.max())}")
        return now.gather(1, tokens)
