"""Task costs that are a sum over steps: what each token costs at a step, given the gold.

Behind the end of the gold every token but padding costs one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.types import Batch


@runtime_checkable
class Cost(Protocol):
    """What tokens cost. A cost that names tokens has a method ``fitted(codec)``, which gives one that knows their ids."""

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        """[B,steps,…]: what the costs of each example and step depend on."""
        ...

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        """One step's part of that, [B,…], and tokens [B,M] -> their costs [B,M]."""
        ...


def fitted_cost(cost: Cost, codec: Any) -> Cost:
    """The cost, knowing the ids of the tokens it names: what its own ``fitted(codec)`` gives, if it has such a thing."""
    own = getattr(cost, "fitted", None)
    return cost if own is None else own(codec)


def gold_steps(batch: Batch, steps: int) -> Tensor:
    """The gold [B,steps], padding behind its end.

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
class Hamming:
    """1 for every token that isn't the gold.

    >>> Hamming()(torch.tensor([3]), torch.tensor([[3, 4]]))
    tensor([[0., 1.]])
    """

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        return gold_steps(batch, steps)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        return (tokens != now.unsqueeze(1)).float()


@dataclass(frozen=True)
class WeightedHamming:
    """``weight`` for the token ``token`` where it isn't the gold, 1 for any other that isn't.

    For entities, where most tags are ``O``, a wrong ``O`` costs two (CRB section 3.1).
    """

    token: str = "O"  # the token, as the data spells it
    weight: float = 2.0  # what it costs where it is wrong

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise InputError(f"weight must be a number from 0 on, not {self.weight}")

    def fitted(self, codec: Any) -> Weighted:
        names = codec.token_names() if hasattr(codec, "token_names") else ()
        if self.token not in names:
            raise InputError(f'weighted_hamming: "{self.token}" is not among the tokens of this data')
        return Weighted(
            len(names) - 1 - names[::-1].index(self.token), self.weight
        )  # reserved names come first

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        raise InputError(f'weighted_hamming does not know the id of "{self.token}" yet: call fitted(codec)')

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        raise InputError(f'weighted_hamming does not know the id of "{self.token}" yet: call fitted(codec)')


@dataclass(frozen=True)
class Weighted(Hamming):
    """``WeightedHamming`` of the token with this id.

    >>> Weighted(7, 2.0)(torch.tensor([3]), torch.tensor([[3, 4, 7]]))
    tensor([[0., 1., 2.]])
    """

    id: int
    weight: float

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        wrong = super().__call__(now, tokens)
        return torch.where(tokens == self.id, wrong * self.weight, wrong)


@dataclass(frozen=True)
class Table:
    """Costs of the user's own: ``table(batch)`` is [B,T,V], the cost of each token at each step of the gold.

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
                f"a table of costs for gold of the shape {tuple(batch.gold.shape)} can't have the shape {tuple(found.shape)}"
            )
        if not bool(found[batch.mask].isfinite().all()):
            raise InputError("a table of costs must be finite, and this one has NaN or infinite entries")
        behind = torch.ones_like(found[0, 0])
        behind[batch.symbols.pad] = 0
        found = torch.where(batch.mask.unsqueeze(2), found, behind)[:, :steps]
        rest = behind.expand(len(batch), steps - found.shape[1], -1)
        return torch.cat([found, rest], dim=1)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        if now.shape[1] <= int(tokens.max()):
            raise InputError(
                f"a table of costs for {now.shape[1]} tokens has none for the token {int(tokens.max())}"
            )
        return now.gather(1, tokens)
