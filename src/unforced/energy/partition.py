"""Exact log Z and exact conditionals of energies, by enumeration of the sequences that an example can have.

    log Z = log Σ_y exp(−E(y)),    −log p(y) = E(y) + log Z

Z is a sum over sequences of one length, and for one source if there is a source. Any masked model is enumerated in
constant memory. Models whose score depends on a left and a right context (`SupportsContexts`, for example the model
``field``) encode each prefix and suffix once, which makes billions of sequences feasible.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unforced.energy import energies, masked_copies
from unforced.energy.energies import Kind
from unforced.energy.factored import CELLS, Space, factored_energies, factored_terms, shares_contexts
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
    values = torch.zeros(len(batch), dtype=torch.float64, device=batch.gold.device)
    with evaluation_mode(model):
        for examples, space, one in equal_spaces(batch, ids):
            value = cache.get(space.key) if batch.source is None else None
            if value is None:
                if shares_contexts(model, one):
                    parts = factored_terms(model, space, ids, kind, cells)
                else:
                    parts = _negative_energies(model, one, space, kind, rows, most)
                value = log_sum_exp(parts)
            if batch.source is None:
                cache[space.key] = value
            values[examples] = value
    return values


def _negative_energies(model: Any, one: Batch, space: Space, kind: Kind, rows: int, most: int) -> Iterator[Tensor]:
    _check_size(space, most)
    for start in range(0, space.size, rows):
        tokens = space.sequences(start, min(start + rows, space.size), one)
        yield -energies.energy(model, one, tokens, kind, rows)


def log_sum_exp(parts: Iterable[Tensor]) -> float:
    """Return log Σ exp of numbers that come in parts, summed in float64; the parts are overwritten.

    >>> round(log_sum_exp([torch.tensor([1.0, 2.0]), torch.tensor([3.0])]), 4)
    3.4076
    """
    highest, total = -math.inf, 0.0
    for values in parts:
        peak = float(values.max())
        if peak == -math.inf:
            continue
        if peak > highest:
            total *= math.exp(highest - peak)
            highest = peak
        total += float(values.sub_(highest).exp_().sum(dtype=torch.float64))
    return highest + math.log(total) if total else -math.inf


def log_partition_with_gradient(
    model: Any, batch: Batch, kind: Kind = "raw", rows: int = ROWS, most: int = MOST
) -> Tensor:
    """Compute log Z of each example with gradients: [B]. Spaces have at most ``most`` sequences.

    The backward pass computes energies again, part by part, so that ``rows`` bounds the memory.
    """
    batch = masked_copies.encode_sources(model, batch)
    ids = allowed_ids(model, batch)
    values, where = [], []
    for examples, space, one in equal_spaces(batch, ids):
        _check_size(space, most)
        if shares_contexts(model, batch):
            each = factored_energies(model, space, ids, kind)
        else:

            def sequences(start: int, stop: int, space: Space = space, one: Batch = one) -> tuple[Tensor, Tensor]:
                tokens = space.sequences(start, stop, one)
                return torch.zeros_like(tokens[:, 0]), tokens

            each = energies_in_parts(model, one, space.size, sequences, kind, rows)
        values.append(torch.logsumexp(-each, dim=0).expand(len(examples)))
        where += examples
    order = torch.tensor(where, device=batch.gold.device).argsort()
    return torch.cat(values).index_select(0, order)


# ---- spaces: the sequences to sum over ----


def equal_spaces(batch: Batch, ids: Tensor) -> list[tuple[list[int], Space, Batch]]:
    """Group the examples that have the same log Z: return their numbers, their space, and one of them as a batch.

    In a space, variables take the ``ids`` and other positions keep their token. With sources each example is a group.
    """
    if not bool(batch.mask.any(dim=1).all()):
        raise InputError("log Z needs the length of each example, but an example has no positions")
    groups: dict[Any, tuple[list[int], Space, Batch]] = {}
    variables, sizes = energies.variables(batch), masked_copies.extents(batch).tolist()
    for b, (gold, variable, size) in enumerate(zip(batch.gold, variables, sizes)):
        flags = variable[:size].tolist()
        choices = tuple(ids if flag else gold[t : t + 1] for t, flag in enumerate(flags))
        space = Space(choices, tuple(flags))
        key = space.key if batch.source is None else b
        if key not in groups:
            groups[key] = [], space, batch.select(torch.tensor([b], device=batch.gold.device))
        groups[key][0].append(b)
    return list(groups.values())


def allowed_ids(model: Any, batch: Batch) -> Tensor:
    """Return the ids that a variable may take, among those that the model scores: [A], ascending."""
    size = masked_copies.vocabulary_size(model, batch)
    ids = energies.allowed(batch.symbols, size, batch.gold.device).nonzero().squeeze(1)
    if not len(ids):
        raise InputError("the vocabulary has no allowed tokens, so there are no sequences to sum over")
    return ids


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
    """Return E of ``count`` sequences: [count]. Backward too, at most ``rows`` masked copies exist at a time.

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
    groups = equal_spaces(batch, ids)
    if sum(space.size for _, space, _ in groups) > WORTH * int(where.sum()) * len(ids):
        return None
    values, places = [], []
    for examples, space, _ in groups:
        table = factored_energies(model, space, ids, kind)
        strides = [math.prod(map(len, space.choices[t + 1 :])) for t in range(len(space.choices))]
        stride = torch.tensor(strides, device=ids.device)
        here = torch.zeros_like(where)
        here[examples] = where[examples]
        example, position = here.nonzero(as_tuple=True)
        variable = torch.tensor(space.variable, device=ids.device)
        digits = torch.searchsorted(ids, batch.gold[:, : len(strides)].contiguous()) * variable  # [B,L]
        number = (digits * stride).sum(dim=1)[example] - (digits * stride)[example, position]
        substitutes = torch.arange(len(ids), device=ids.device) * stride[position].unsqueeze(1)  # [n,A]
        values.append(table[number.unsqueeze(1) + substitutes])
        places.append(example * where.shape[1] + position)
    return torch.cat(values).index_select(0, torch.cat(places).argsort())
