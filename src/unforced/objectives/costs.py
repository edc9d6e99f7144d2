"""Task costs that are a sum over steps: what each token costs at a step, given the gold.

Behind the end of the gold every token but padding costs one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.options import NonEmptyStr, NonNegative, Options
from unforced.protocols import Cost, SupportsFitting
from unforced.types import Batch


def fitted_cost(cost: Cost, codec: Any) -> Cost:
    """The cost, knowing the ids of the tokens it names: what its own ``fitted(codec)`` gives, if it has such a thing."""
    return cost.fitted(codec) if isinstance(cost, SupportsFitting) else cost


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
class WeightedHamming(Options):
    """``weight`` for the token ``token`` where it isn't the gold, 1 for any other that isn't.

    For entities, where most tags are ``O``, a wrong ``O`` costs two (CRB section 3.1).
    """

    token: str = "O"  # the token, as the data spells it
    weight: NonNegative = 2.0  # what it costs where it is wrong

    def fitted(self, codec: Any) -> "Weighted":
        names = codec.token_names() if hasattr(codec, "token_names") else ()
        if self.token not in names:
            raise InputError(f'weighted_hamming: "{self.token}" is not among the tokens of this data')
        return Weighted(len(names) - 1 - names[::-1].index(self.token), self.weight)  # reserved names come first

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        raise InputError(f'weighted_hamming does not know the id of "{self.token}" yet: call fitted(codec)')

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        raise InputError(f'weighted_hamming does not know the id of "{self.token}" yet: call fitted(codec)')


class Inside(Hamming):
    """A cost that is other than one inside of the gold alone: steps behind its end are marked."""

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        gold = gold_steps(batch, steps)
        inside = F.pad(batch.mask, (0, max(0, steps - batch.mask.shape[1])))[:, :steps]
        return torch.where(inside, gold, -1 - gold)  # negative behind the end

    def wrong(self, now: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step's gold [B,1], whether it has ended [B,1], and 1 for every token [B,M] that isn't it."""
        ended = now < 0
        gold = torch.where(ended, -1 - now, now)
        return gold.unsqueeze(1), ended.unsqueeze(1), super().__call__(gold, tokens)


@dataclass(frozen=True)
class Weighted(Inside):
    """``WeightedHamming`` of the token with this id; behind the end of the gold it costs one as any other does.

    >>> Weighted(7, 2.0)(torch.tensor([3]), torch.tensor([[3, 4, 7]]))
    tensor([[0., 1., 2.]])
    """

    id: int
    weight: float

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        _, ended, wrong = self.wrong(now, tokens)
        return torch.where((tokens == self.id) & ~ended, wrong * self.weight, wrong)


@dataclass(frozen=True)
class Confusions(Options):
    """What single mistakes cost, by a file: lines with the gold token, the one in its place and a number, tabs between them.

    Tokens are spelled as in the data. Mistakes that the file doesn't list cost ``other``.
    """

    file: NonEmptyStr  # a text file
    other: NonNegative = 1.0  # what a mistake costs that isn't listed

    def fitted(self, codec: Any) -> "Listed":
        names = codec.token_names() if hasattr(codec, "token_names") else ()
        ids = {name: id for id, name in enumerate(names)}  # reserved names come first, so a word of that name wins
        found: dict[int, float] = {}
        for number, (gold, token, cost) in self._rows():
            unknown = next((name for name in (gold, token) if name not in ids), None)
            if unknown is not None:
                raise InputError(f'{self.file}, line {number}: "{unknown}" is not among the tokens of this data')
            pair = ids[gold] * len(names) + ids[token]
            if gold == token:
                raise InputError(f'{self.file}, line {number}: "{gold}" in its own place is no mistake')
            if pair in found:
                raise InputError(f"{self.file}, line {number}: this mistake has a cost already")
            found[pair] = cost
        order = sorted(found)
        return Listed(len(names), torch.tensor(order), torch.tensor([found[pair] for pair in order]), self.other)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it reads, which a resumed run must find as they were."""
        return (Path(self.file),)

    def _rows(self) -> Iterator[tuple[int, tuple[str, str, float]]]:
        try:
            text = Path(self.file).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"{self.file}: can't be read: {reason}") from None
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            cells = line.rstrip("\r").split("\t")
            try:
                gold, token, shown = cells
                cost = float(shown)
            except ValueError:
                cost = -1.0
            if not 0 <= cost < float("inf"):
                raise InputError(
                    f"{self.file}, line {number}: should be a gold token, the one in its place and a cost from 0 on, tabs between"
                )
            yield number, (gold, token, cost)

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        raise InputError("confusions does not know the ids of its tokens yet: call fitted(codec)")

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        raise InputError("confusions does not know the ids of its tokens yet: call fitted(codec)")


@dataclass(frozen=True, eq=False)
class Listed(Inside):
    """``Confusions`` of tokens with ids below ``size``; those behind the end of the gold cost one.

    >>> cost = Listed(9, torch.tensor([3 * 9 + 4]), torch.tensor([5.0]), other=0.5)
    >>> cost(torch.tensor([3]), torch.tensor([[3, 4, 7]]))
    tensor([[0.0000, 5.0000, 0.5000]])
    >>> cost(torch.tensor([2]), torch.tensor([[9 + 4]]))  # no name, so not listed
    tensor([[0.5000]])
    """

    size: int
    pairs: Tensor  # [N] gold · size + token, ascending
    costs: Tensor  # [N]
    other: float

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        gold, ended, wrong = self.wrong(now, tokens)
        costs = torch.where(ended, 1.0, self.other).expand_as(wrong)
        if len(self.pairs):
            pairs, known = self.pairs.to(tokens.device), self.costs.to(tokens.device)
            asked = gold * self.size + tokens
            place = torch.searchsorted(pairs, asked).clamp(max=len(pairs) - 1)
            named = (tokens < self.size) & (gold < self.size)  # a model may have more ids than there are names
            listed = (pairs[place] == asked) & named & ~ended
            costs = torch.where(listed, known[place], costs)
        return wrong * costs


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
        if not isinstance(found, Tensor):
            raise InputError(f"a table of costs is a tensor, not {type(found).__name__}")
        if found.dim() != 3 or found.shape[:2] != batch.gold.shape:
            raise InputError(
                f"a table of costs for gold of the shape {tuple(batch.gold.shape)} can't have the shape {tuple(found.shape)}"
            )
        if not bool(found[batch.mask].isfinite().all()):
            raise InputError("a table of costs must be finite, and this one has NaN or infinite entries")
        if bool((found[batch.mask] < 0).any()):
            raise InputError("a table of costs must have numbers from 0 on, and this one has negative entries")
        behind = found.new_ones(found.shape[2])
        behind[batch.symbols.pad] = 0
        found = torch.where(batch.mask.unsqueeze(2), found, behind)[:, :steps]
        rest = behind.expand(len(batch), steps - found.shape[1], -1)
        return torch.cat([found, rest], dim=1)

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        if now.shape[1] <= int(tokens.max()):
            raise InputError(f"a table of costs for {now.shape[1]} tokens has none for the token {int(tokens.max())}")
        return now.gather(1, tokens)
