"""Exact log Z of energy models, by enumeration of all sequences that have the variables of an example.

    log Z = log Σ_y exp(−E(y)),    −log p(y) = E(y) + log Z

The number of tokens is given, so Z is a matter of the length (and of the source, where there is one). Any masked model is
enumerated in constant memory. Where scores come from what stands before a token and what stands behind it (``Factored``), as
they do in the model ``field``, prefixes and suffixes are read once and joined as matrix products: billions of strings are
then a matter of minutes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.factored import CELLS, factored_energies, factored_log_z, shares_contexts
from unforced.energy.spaces import Running, Space, allowed_ids, groups, key_of, spaces
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.options import check_value
from unforced.types import Batch

ROWS = 2048  # masked copies, or sequences where a model scores all their positions at once, that are run together
MOST = 2**22  # sequences that are enumerated one by one


# ---- energies of many sequences, with gradients and in bounded memory ----


def energies_in_parts(
    model: Any,
    batch: Batch,
    count: int,
    sequences: Callable[[int, int], tuple[Tensor, Tensor]],
    kind: Kind = "raw",
    rows: int = ROWS,
) -> Tensor:
    """E of ``count`` sequences, [count]; at most ``rows`` masked copies of them exist at a time, also in the backward pass.

    ``sequences(start, stop)`` gives the examples [n] that some of them belong to and their tokens [n,T].
    """
    if rows < 1:
        raise InputError(f"rows must be at least 1, not {rows}")
    batch = energies.prepare(model, batch)
    at_once = rows
    if not callable(getattr(model, "conditional_scores", None)):
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


# ---- log Z ----


def log_partition_with_gradient(
    model: Any, batch: Batch, kind: Kind = "raw", rows: int = ROWS, most: int = MOST
) -> Tensor:
    """log Z of each example, [B], through which gradients flow: for spaces of at most ``most`` sequences.

    Energies are computed again in the backward pass, part by part, so that memory stays bounded by ``rows``.
    """
    batch = energies.prepare(model, batch)
    ids = allowed_ids(model, batch)
    found = spaces(batch, ids)
    values, where = [], []
    for group in groups(batch, found):
        space, one = found[group[0]], batch.select(torch.tensor(group[:1], device=batch.gold.device))
        _check_size(space, most)
        if shares_contexts(model, batch):
            each = factored_energies(model, space, ids, kind)
        else:
            sequences = space.padded(batch.gold.shape[1], batch.symbols.pad)
            each = energies_in_parts(model, one, space.size, sequences, kind, rows)
        values.append(torch.logsumexp(-each, dim=0).expand(len(group)))
        where += group
    order = torch.tensor(where, device=batch.gold.device).argsort()
    return torch.cat(values).index_select(0, order)


def log_partition(
    model: Any, batch: Batch, kind: Kind = "raw", *, rows: int = ROWS, most: int = MOST, cells: int = CELLS
) -> Tensor:
    """log Z of each example, [B] in float64, without gradients and with dropout off. See ``Partition``."""
    return Partition(model, kind, rows=rows, most=most, cells=cells)(batch)


class Partition:
    """log Z of the examples of any number of batches: each space is summed over once, if there is no source.

    A ``Factored`` model takes spaces of any size, with the energies of ``cells`` strings in memory; other models are
    enumerated sequence by sequence, and refused beyond ``most``.
    """

    def __init__(
        self, model: Any, kind: Kind = "raw", *, rows: int = ROWS, most: int = MOST, cells: int = CELLS
    ) -> None:
        check_value("kind", Kind, kind)
        self.model, self.kind = model, kind
        self.rows, self.most, self.cells = rows, most, cells
        self.known: dict[tuple[int, ...], float] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """[B] float64."""
        ids = allowed_ids(self.model, batch)
        found = spaces(batch, ids)
        values = torch.zeros(len(batch), dtype=torch.float64, device=batch.gold.device)
        for group in groups(batch, found):
            one = batch.select(torch.tensor(group[:1], device=batch.gold.device))
            values[group] = self._of(one, found[group[0]], ids)
        return values

    def nll(self, batch: Batch, lengths: Tensor | None = None) -> Tensor:
        """−log p(y) of the gold in nats, [B] float64: E(y) + log Z, and −log p(T) where ``lengths`` gives log p(T).

        T is the number of variables. Without ``lengths`` the length is taken as given; a task whose outputs are all of one
        length needs none, others may use ``length_log_probs`` of the training data.
        """
        with evaluation_mode(self.model):
            energy = energies.energy(self.model, batch, batch.gold, self.kind, self.rows).double()
        found = energy + self(batch)
        if lengths is None:
            return found
        counts = energies.variables(batch).sum(dim=1)
        known = torch.cat([lengths, lengths.new_full((1,), -torch.inf)]).to(found)  # longer ones never occur
        return found - known[counts.clamp(max=len(lengths))]

    def _of(self, one: Batch, space: Space, ids: Tensor) -> float:
        if one.source is not None:
            return self._summed(one, space, ids)
        key = key_of(space)
        if key not in self.known:
            self.known[key] = self._summed(one, space, ids)
        return self.known[key]

    def _summed(self, one: Batch, space: Space, ids: Tensor) -> float:
        with evaluation_mode(self.model):
            if shares_contexts(self.model, one):
                return factored_log_z(self.model, space, ids, self.kind, self.cells)
            _check_size(space, self.most)
            total = Running()
            sequences = space.padded(one.gold.shape[1], one.symbols.pad)
            for start in range(0, space.size, self.rows):
                _, tokens = sequences(start, min(start + self.rows, space.size))
                total.add(-energies.energy(self.model, one, tokens, self.kind, self.rows))
            return total.value


def length_log_probs(lengths: Sequence[int], longest: int | None = None) -> Tensor:
    """log p(T) for T = 0, 1, … as the lengths of training examples have it: −inf for those that never occur.

    >>> length_log_probs([2, 2, 1, 2]).exp()
    tensor([0.0000, 0.2500, 0.7500], dtype=torch.float64)
    """
    counts = torch.bincount(torch.tensor(list(lengths), dtype=torch.long), minlength=(longest or 0) + 1)
    return (counts.double() / counts.sum()).log()


def _check_size(space: Space, most: int) -> None:
    if space.size > most:
        raise InputError(
            f"{space.size} sequences are too many to enumerate one by one (at most {most}); a model of the kind of "
            "field has a faster way"
        )


# The conditionals that belong to an energy, which are not a masked model's own (Goyal 2021, section 6.2.1).

WORTH = 8  # how many times cheaper a sequence is whose contexts are shared with all others


def true_conditionals(
    model: Any, batch: Batch, where: Tensor, kind: Kind = "raw", rows: int = ROWS
) -> tuple[Tensor, Tensor]:
    """log p(y_i = w | y\\i) of the energy model at the N positions ``where`` [B,T]: [N,A] for the A tokens allowed, and [A] their ids.

    p(y_i = w | y\\i) ∝ exp(−E(y with w at i)): each of the N·A sequences has an energy of its own (Goyal 2021, 6.2.1).
    """
    ids = allowed_ids(model, batch)
    energy = _from_tables(model, batch, where, ids, kind)
    if energy is None:
        energy = _one_by_one(model, batch, where, ids, kind, rows)
    return torch.log_softmax(-energy, dim=1), ids


def _one_by_one(model: Any, batch: Batch, where: Tensor, ids: Tensor, kind: Kind, rows: int) -> Tensor:
    """The energies [N,A] of the gold with each token at each of N positions."""
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
    """The same, looked up among the energies of all sequences, where that is less work than their own; else None."""
    if not shares_contexts(model, batch):
        return None
    found = spaces(batch, ids)
    alike = groups(batch, found)
    if sum(found[group[0]].size for group in alike) > WORTH * int(where.sum()) * len(ids):
        return None
    values, places = [], []
    for group in alike:
        space = found[group[0]]
        table = factored_energies(model, space, ids, kind)
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
