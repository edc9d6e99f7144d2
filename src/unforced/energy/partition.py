"""Exact log Z and exact conditionals of energy models, by enumeration of all sequences with the variables of an
example.

    log Z = log Σ_y exp(−E(y)),    −log p(y) = E(y) + log Z

Z is a sum over sequences of one length, and for one source if there is a source. Any masked model is enumerated in
constant memory. Models whose score depends on a left and a right context (`SupportsContexts`, for example the model
``field``) encode each prefix and suffix once, which makes billions of sequences feasible.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unforced.energy import energies, masked_copies
from unforced.energy.energies import Kind
from unforced.energy.factored import CELLS, factored_energies, factored_terms, shares_contexts
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.options import Count, check_value
from unforced.protocols import SupportsConditionals
from unforced.types import Batch

ROWS = 2048  # masked copies in a micro-batch, or sequences if the model scores all positions in one pass
MOST = 2**22  # sequences that are enumerated one by one

# ---- log Z ----


def log_partition(
    model: Any,
    batch: Batch,
    kind: Kind = "raw",
    *,
    rows: int = ROWS,
    most: int = MOST,
    cells: int = CELLS,
    cache: dict[Any, float] | None = None,
) -> Tensor:
    """Compute log Z of each example without gradients and with dropout off: [B] float64.

    A model with `SupportsContexts` sums over spaces of any size with ``cells`` energies in memory. Other models
    enumerate at most ``most`` sequences, ``rows`` at a time. Without sources, a ``cache`` shared by several batches
    avoids repeated sums; it is valid for one model, kind and set of symbols.
    """
    check_value("kind", Kind, kind)
    cache = {} if cache is None else cache
    ids = allowed_ids(model, batch)
    spaces = spaces_of(batch, ids)
    values = torch.zeros(len(batch), dtype=torch.float64, device=batch.gold.device)
    for group in equal_spaces(batch, spaces):
        space, one = spaces[group[0]], batch.select(torch.tensor(group[:1], device=batch.gold.device))
        value = cache.get(space.key) if batch.source is None else None
        if value is None:
            with evaluation_mode(model):
                value = _sum_space(model, one, space, ids, kind, rows, most, cells)
        if batch.source is None:
            cache[space.key] = value
        values[group] = value
    return values


def _sum_space(
    model: Any, one: Batch, space: "Space", ids: Tensor, kind: Kind, rows: int, most: int, cells: int
) -> float:
    total = LogSum()
    if shares_contexts(model, one):
        for part in factored_terms(model, space.choices, space.variable, ids, kind, cells):
            total.add(part)
        return total.value
    _check_size(space, most)
    for start in range(0, space.size, rows):
        tokens = space.sequences(start, min(start + rows, space.size), one)
        total.add(-energies.energy(model, one, tokens, kind, rows))
    return total.value


def log_partition_with_gradient(
    model: Any, batch: Batch, kind: Kind = "raw", rows: int = ROWS, most: int = MOST
) -> Tensor:
    """Compute log Z of each example with gradients: [B]. Spaces have at most ``most`` sequences.

    The backward pass computes energies again, part by part, so that ``rows`` bounds the memory.
    """
    batch = masked_copies.encode_sources(model, batch)
    ids = allowed_ids(model, batch)
    spaces = spaces_of(batch, ids)
    values, where = [], []
    for group in equal_spaces(batch, spaces):
        space, one = spaces[group[0]], batch.select(torch.tensor(group[:1], device=batch.gold.device))
        _check_size(space, most)
        if shares_contexts(model, batch):
            each = factored_energies(model, space.choices, space.variable, ids, kind)
        else:

            def sequences(start: int, stop: int, space: Space = space, one: Batch = one) -> tuple[Tensor, Tensor]:
                tokens = space.sequences(start, stop, one)
                return torch.zeros_like(tokens[:, 0]), tokens

            each = energies_in_parts(model, one, space.size, sequences, kind, rows)
        values.append(torch.logsumexp(-each, dim=0).expand(len(group)))
        where += group
    order = torch.tensor(where, device=batch.gold.device).argsort()
    return torch.cat(values).index_select(0, order)


class LogSum:
    """log Σ exp of numbers that come in parts, summed in float64.

    >>> total = LogSum()
    >>> total.add(torch.tensor([1.0, 2.0]))
    >>> total.add(torch.tensor([3.0]))
    >>> round(total.value, 4)
    3.4076
    """

    def __init__(self) -> None:
        self.peak, self.sum = -math.inf, 0.0

    def add(self, values: Tensor) -> None:
        """Add exp of the values, which are overwritten."""
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


# ---- spaces: the sequences to sum over ----


class Space(NamedTuple):
    """All sequences with the variables of one example."""

    choices: tuple[Tensor, ...]  # the ids of each position; one id where there is no variable
    variable: tuple[bool, ...]

    @property
    def size(self) -> int:
        return math.prod(map(len, self.choices))

    @property
    def key(self) -> tuple[int, ...]:
        """What distinguishes spaces over the same ids: −1 for a variable, else the fixed id."""
        return tuple(-1 if flag else int(ids[0]) for ids, flag in zip(self.choices, self.variable))

    def sequences(self, start: int, stop: int, one: Batch) -> Tensor:
        """Return sequences ``start`` to ``stop`` − 1 in lexicographic order, padded like a batch: [n,T]."""
        number = torch.arange(start, stop, device=self.choices[0].device)
        columns = []
        for ids in reversed(self.choices):
            columns.append(ids[number % len(ids)])
            number = number // len(ids)
        padding = one.gold.shape[1] - len(columns)
        return torch.nn.functional.pad(torch.stack(columns[::-1], dim=1), (0, padding), value=one.symbols.pad)


def spaces_of(batch: Batch, ids: Tensor) -> list[Space]:
    """Return the space of each example, in which variables take the ``ids`` and other positions keep their token."""
    if not bool(batch.mask.any(dim=1).all()):
        raise InputError("log Z needs the length of each example, but an example has no positions")
    spaces = []
    for gold, variable, size in zip(batch.gold, energies.variables(batch), masked_copies.extents(batch).tolist()):
        flags = variable[:size].tolist()
        choices = tuple(ids if flag else gold[t : t + 1] for t, flag in enumerate(flags))
        spaces.append(Space(choices, tuple(flags)))
    return spaces


def allowed_ids(model: Any, batch: Batch) -> Tensor:
    """Return the ids that a variable may take, among those that the model scores: [A], ascending."""
    one = batch.select(torch.zeros(1, dtype=torch.long, device=batch.gold.device))
    with evaluation_mode(model):
        size = int(model.scores(one, one.gold, torch.zeros_like(one.mask)).shape[-1])
    ids = energies.allowed(batch.symbols, size, batch.gold.device).nonzero().squeeze(1)
    if not len(ids):
        raise InputError("the vocabulary has no allowed tokens, so there are no sequences to sum over")
    return ids


def equal_spaces(batch: Batch, spaces: Sequence[Space]) -> list[list[int]]:
    """Group the examples that have the same log Z: those with equal spaces if there is no source."""
    if batch.source is not None:
        return [[b] for b in range(len(batch))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for b, space in enumerate(spaces):
        groups.setdefault(space.key, []).append(b)
    return list(groups.values())


def _check_size(space: Space, most: int) -> None:
    if space.size > most:
        raise InputError(
            f"{space.size} sequences are too many to enumerate one by one (at most {most}): use a model such as field"
        )


# ---- energies of many sequences, with gradients and in bounded memory ----

Sequences = Callable[[int, int], tuple[Tensor, Tensor]]  # start, stop -> examples [n] and tokens [n,T]


def energies_in_parts(
    model: Any, batch: Batch, count: int, sequences: Sequences, kind: Kind = "raw", rows: int = ROWS
) -> Tensor:
    """Return E of ``count`` sequences, [count]. At most ``rows`` masked copies exist at a time, also in the backward
    pass.

    ``sequences(start, stop)`` returns the tokens of some sequences and the number of the example of each.
    """
    check_value("rows", Count, rows)
    batch = masked_copies.encode_sources(model, batch)
    at_once = rows
    if not isinstance(model, SupportsConditionals):
        at_once = max(1, rows // max(1, int(energies.variables(batch).sum(dim=1).max())))

    def part(start: int) -> Tensor:
        example, tokens = sequences(start, min(start + at_once, count))
        return energies.energy(model, batch.select(example), tokens, kind, rows)

    starts = range(0, count, at_once)
    if len(starts) < 2 or not torch.is_grad_enabled():
        found = [part(start) for start in starts]
    else:
        found = [checkpoint(part, start, use_reentrant=False) for start in starts]
    return torch.cat(found) if found else torch.zeros(0, device=batch.gold.device)


# ---- conditionals of the energy, which differ from the masked model's own softmax (Goyal 2021, section 6.2.1) ----

WORTH = 8  # how many times cheaper a sequence is if its contexts are shared with all others


def true_conditionals(
    model: Any, batch: Batch, where: Tensor, kind: Kind = "raw", rows: int = ROWS
) -> tuple[Tensor, Tensor]:
    """Compute log p(y_i = w | y\\i) ∝ −E(y with w at i) at the N positions in the mask ``where`` [B,T].

    Return [N,A] for the A allowed tokens, and their ids [A]. Each of the N·A sequences needs its own energy.
    """
    ids = allowed_ids(model, batch)
    energy = _from_tables(model, batch, where, ids, kind)
    if energy is None:
        energy = _one_by_one(model, batch, where, ids, kind, rows)
    return torch.log_softmax(-energy, dim=1), ids


def _one_by_one(model: Any, batch: Batch, where: Tensor, ids: Tensor, kind: Kind, rows: int) -> Tensor:
    """Compute the energies [N,A] of the targets with each token at each of N positions."""
    example, position = where.nonzero(as_tuple=True)

    def sequences(start: int, stop: int) -> tuple[Tensor, Tensor]:
        number = torch.arange(start, stop, device=ids.device)
        which = number // len(ids)
        tokens = batch.gold[example[which]].scatter(
            1, position[which].unsqueeze(1), ids[number % len(ids)].unsqueeze(1)
        )
        return example[which], tokens

    count = len(example) * len(ids)
    return energies_in_parts(model, batch, count, sequences, kind, rows).view(len(example), len(ids))


def _from_tables(model: Any, batch: Batch, where: Tensor, ids: Tensor, kind: Kind) -> Tensor | None:
    """Look the same energies up among those of all sequences; None if that is more work."""
    if not shares_contexts(model, batch):
        return None
    spaces = spaces_of(batch, ids)
    groups = equal_spaces(batch, spaces)
    if sum(spaces[group[0]].size for group in groups) > WORTH * int(where.sum()) * len(ids):
        return None
    values, places = [], []
    for group in groups:
        space = spaces[group[0]]
        table = factored_energies(model, space.choices, space.variable, ids, kind)
        strides = [math.prod(map(len, space.choices[t + 1 :])) for t in range(len(space.choices))]
        stride = torch.tensor(strides, device=ids.device)
        here = torch.zeros_like(where)
        here[group] = where[group]
        example, position = here.nonzero(as_tuple=True)
        variable = torch.tensor(space.variable, device=ids.device)
        digits = torch.searchsorted(ids, batch.gold[:, : len(strides)].contiguous()) * variable  # [B,L]
        number = (digits * stride).sum(dim=1)[example] - (digits * stride)[example, position]
        substitutes = torch.arange(len(ids), device=ids.device) * stride[position].unsqueeze(1)  # [n,A]
        values.append(table[number.unsqueeze(1) + substitutes])
        places.append(example * where.shape[1] + position)
    return torch.cat(values).index_select(0, torch.cat(places).argsort())
