"""Energies of sequences under a masked model.

An energy is a sum over positions, each scored while it alone is masked (Goyal 2021, section 6.2):

    E_raw(y)   = −Σ_t f(y_t, h(y\\t))                      f: the model's score of token t
    E_local(y) = −Σ_t log softmax f(·, h(y\\t))[y_t]       normalised over the allowed tokens

B examples have K rows each: R = B·K rows, with the K rows of an example adjacent. T positions, V tokens.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.energy.masked_copies import COPIES, even_batches, example_of_row, measure_positions
from unforced.ops.masks import length_mask, token_mask, widened
from unforced.options import check_value
from unforced.types import Batch, Symbols

Kind = Literal["raw", "local"]
KINDS: tuple[Kind, ...] = ("raw", "local")


# ---- variables: the positions and tokens that an energy is a function of ----


def special_ids(symbols: Symbols) -> list[int]:
    """Return the ids that no variable takes: banned ids and the end symbol."""
    return sorted({*symbols.banned, *([] if symbols.eos is None else [symbols.eos])})


def allowed(symbols: Symbols, size: int, device: torch.device | str | None = None) -> Tensor:
    """Return a mask [V] of the ids below ``size`` that a variable may take.

    >>> allowed(Symbols(pad=0, bos=1, eos=2, banned=(0, 1)), 5)
    tensor([False, False, False,  True,  True])
    """
    return token_mask(size, special_ids(symbols), device)


def first_allowed(symbols: Symbols) -> int:
    """Return the first id that a variable may take, as a placeholder."""
    excluded = {symbols.pad, *special_ids(symbols)}
    return next(i for i in range(len(excluded) + 1) if i not in excluded)


def variables(batch: Batch) -> Tensor:
    """Return the positions [B,T] (bool) whose tokens vary: all but padding, the end symbol and other special tokens.

    >>> gold = torch.tensor([[5, 6, 2], [7, 2, 0]])
    >>> variables(Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1))))
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    fixed = torch.tensor(special_ids(batch.symbols), dtype=torch.long, device=batch.gold.device)
    return batch.mask & ~torch.isin(batch.gold, fixed)


def canvas(batch: Batch, lengths: Tensor) -> Batch:
    """Replace the targets by placeholders with ``lengths`` [B] variables, followed by the end symbol if there is one.

    >>> gold = torch.zeros(2, 1, dtype=torch.long)
    >>> batch = Batch.of_gold(gold, gold > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> canvas(batch, torch.tensor([2, 1])).gold
    tensor([[3, 3, 2],
            [3, 2, 0]])
    """
    symbols = batch.symbols
    sizes = lengths if symbols.eos is None else lengths + 1
    mask = length_mask(sizes, max(1, int(sizes.max())) if len(sizes) else 1)
    gold = torch.full(mask.shape, first_allowed(symbols), dtype=torch.long, device=lengths.device)
    if symbols.eos is not None:
        gold.scatter_(1, lengths.unsqueeze(1), symbols.eos)
    gold = gold.masked_fill(~mask, symbols.pad)
    prefix = Batch.of_gold(gold, mask, symbols).prefix
    return replace(batch, prefix=prefix, gold=gold, mask=mask, length=None if batch.length is None else sizes)


# ---- energies ----


class Terms(NamedTuple):
    """Terms of N sequences, and the features that they were computed from."""

    values: Tensor  # [N,T], the summands of −E
    features: Tensor  # [N,T,H], the model's features at each position while it is masked; H is 0 if they are not kept


def energy(model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = COPIES) -> Tensor:
    """Return E(y) of each row of tokens [R,T]: [R]. Gradients flow."""
    return -terms(model, batch, tokens, kind, rows).sum(dim=1)


def terms(model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = COPIES) -> Tensor:
    """Return the summands of −E at each position of tokens [R,T]: [R,T].

    They are 0 where there is no variable, and −inf for tokens that are not allowed. Gradients flow.
    """
    return terms_and_features(model, batch, example_of_row(batch, tokens), tokens, kind, rows).values


def terms_and_features(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    kind: Kind,
    rows: int = COPIES,
    where: Tensor | None = None,
    *,
    keep_features: bool = False,
) -> Terms:
    """Compute `terms` of rows [N,T] in any order, where row n belongs to example ``example[n]``.

    A mask ``where`` [N,T] restricts the computation to some variables; the others are 0.
    """
    check_value("kind", Kind, kind)
    wanted = variables(batch)[example]
    if where is not None:
        wanted = wanted & where
    measure = partial(token_terms, kind=kind, symbols=batch.symbols)
    batching = partial(even_batches, rows=rows)
    return Terms(
        *measure_positions(model, batch, example, tokens, wanted, measure, batching, keep_features=keep_features)
    )


def token_terms(scores: Tensor, tokens: Tensor, kind: Kind, symbols: Symbols) -> Tensor:
    """Return the terms of tokens [...] from scores [...,V]; −inf for tokens that are not allowed.

    >>> symbols = Symbols(pad=0, bos=0, eos=None, banned=(0,))
    >>> token_terms(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([2]), "local", symbols)
    tensor([-0.6931])
    """
    scores = widened(scores)
    mask = allowed(symbols, scores.shape[-1], scores.device)
    if kind == "local":  # log_softmax is faster than logsumexp
        scores = scores.masked_fill(~mask, -torch.inf).log_softmax(dim=-1)
    chosen = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~mask[tokens], -torch.inf)
