"""Sets of sequences to sum over: all that have the variables of an example."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.types import Batch


class Space(NamedTuple):
    """All sequences that have the variables of one example: the ids that each position may have."""

    choices: tuple[Tensor, ...]  # of each position that there is; one id where it is no variable
    variable: tuple[bool, ...]

    @property
    def size(self) -> int:
        return math.prod(map(len, self.choices))

    def sequences(self, start: int, stop: int) -> Tensor:
        """Numbers ``start`` to ``stop`` − 1 in alphabetical order: [n,L]."""
        number = torch.arange(start, stop, device=self.choices[0].device)
        columns = []
        for ids in reversed(self.choices):
            columns.append(ids[number % len(ids)])
            number = number // len(ids)
        return torch.stack(columns[::-1], dim=1)

    def padded(self, width: int, pad: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
        """What ``energies_in_parts`` asks for, of a batch of one example with ``width`` positions."""

        def sequences(start: int, stop: int) -> tuple[Tensor, Tensor]:
            found = self.sequences(start, stop)
            tokens = torch.nn.functional.pad(found, (0, width - found.shape[1]), value=pad)
            return torch.zeros_like(tokens[:, 0]), tokens

        return sequences


def spaces(batch: Batch, ids: Tensor) -> list[Space]:
    """The space of each example, with ``ids`` the tokens that a variable may take; what stands around those stays as it is."""
    if not bool(batch.mask.any(dim=1).all()):
        raise InputError("log Z is asked for an example without a single position: its length isn't known")
    found = []
    for gold, variable, size in zip(batch.gold, energies.variables(batch), energies.extents(batch).tolist()):
        flags = variable[:size].tolist()
        choices = tuple(ids if flag else gold[t : t + 1] for t, flag in enumerate(flags))
        found.append(Space(choices, tuple(flags)))
    return found


def allowed_ids(model: Any, batch: Batch) -> Tensor:
    """The tokens that a variable may take, of those that the model scores: [A], ascending."""
    one = batch.select(torch.zeros(1, dtype=torch.long, device=batch.gold.device))
    with evaluation_mode(model):
        size = int(model.scores(one, one.gold, torch.zeros_like(one.mask)).shape[-1])
    ids = energies.allowed(batch.symbols, size, batch.gold.device).nonzero().squeeze(1)
    if not len(ids):
        raise InputError("no token is allowed, so there are no sequences to sum over")
    return ids


def groups(batch: Batch, found: Sequence[Space]) -> list[list[int]]:
    """Examples that have the same log Z: those of the same space, if there is no source."""
    if batch.source is not None:
        return [[b] for b in range(len(batch))]
    alike: dict[Any, list[int]] = {}
    for b, space in enumerate(found):
        alike.setdefault(key_of(space), []).append(b)
    return list(alike.values())


def key_of(space: Space) -> tuple[int, ...]:
    """−1 for a variable, else the id that stands there."""
    return tuple(-1 if flag else int(ids[0]) for ids, flag in zip(space.choices, space.variable))


class Running:
    """log Σ exp of numbers that come in parts, the sum in float64.

    >>> total = Running()
    >>> total.add(torch.tensor([1.0, 2.0]))
    >>> total.add(torch.tensor([3.0]))
    >>> round(total.value, 4)
    3.4076
    """

    def __init__(self) -> None:
        self.peak, self.sum = -math.inf, 0.0

    def add(self, values: Tensor) -> None:
        """Add exp of the values, which are written over."""
        peak = float(values.max())
        if peak == -math.inf:
            return
        if peak > self.peak:
            self.sum *= math.exp(self.peak - peak)
            self.peak = peak
        self.sum += float(values.sub_(self.peak).exp_().sum(dtype=torch.float64))

    @property
    def value(self) -> float:
        return self.peak + math.log(self.sum) if self.sum else -math.inf
