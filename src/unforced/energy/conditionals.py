"""The conditionals that belong to an energy, which are not a masked model's own (Goyal 2021, section 6.2.1)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from unforced.energy.energies import Kind
from unforced.energy.factored import factored_energies, shares_contexts
from unforced.energy.partition import ROWS, energies_in_parts
from unforced.energy.spaces import allowed_ids, groups, spaces
from unforced.types import Batch

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
