"""The words nearest to a word, and how a smoothed target weighs them and all the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unforced.masking import full_precision
from unforced.objectives._smoothed import Target

CELLS = 1 << 23  # distances that exist together while a table is made: 32 MB


class Near(NamedTuple):
    """For each of U words the n that are nearest to it, itself first, and their weights in

        r(w | y) = exp(−d(w, y) / τ) / Z,  d = 1 − cosine,  Z over all words that have a vector

    What the weights lack of one belongs to the words that are not listed. A word without a vector is alone with itself.
    """

    tokens: Tensor  # [U,n] int32
    weights: Tensor  # [U,n]

    def to(self, device: torch.device) -> Near:
        return Near(*(part.to(device) for part in self))


def near_words(units: Tensor, there: Tensor, words: Tensor, tau: float, count: int | None = None) -> Near:
    """The ``count`` words nearest to each of ``words`` [U] (all if None), by unit vectors [V,E] of those that are ``there``.

    Distances are made for some words at a time: memory is V numbers for each of a few, never V × V.

    >>> units = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.0, 0.0]])
    >>> near = near_words(units, units.any(dim=1), torch.tensor([0, 3]), tau=0.5, count=2)
    >>> near.tokens.tolist(), near.weights
    ([[0, 1], [3, 3]], tensor([[0.6310, 0.2835],
            [1.0000, 0.0000]]))
    """
    size = len(units)
    kept = size if count is None else min(count, size)
    tokens = torch.empty(len(words), kept, dtype=torch.int32, device=units.device)
    weights = torch.empty(len(words), kept, dtype=units.dtype, device=units.device)
    block, tau = max(1, CELLS // size), max(tau, torch.finfo(units.dtype).tiny)
    lost = (~there).nonzero().squeeze(1)
    for start in range(0, len(words), block):
        some = words[start : start + block]
        own = some.unsqueeze(1)
        one = units.new_full((), -1 / tau)
        with full_precision(units.device):
            logits = torch.addmm(one, units[some] / tau, units.T).clamp_(max=0.0)  # −d/τ: [u,V]
        logits.index_fill_(1, lost, -torch.inf)
        logits.index_fill_(0, (~there[some]).nonzero().squeeze(1), -torch.inf)
        logits.scatter_(1, own, -torch.inf)
        z = 1 + logits.exp().sum(dim=1, keepdim=True)  # d(y, y) = 0
        logits.scatter_(1, own, 1.0)  # first, whatever else is as near
        best = logits.topk(kept, dim=1)
        top = best.values.exp()
        top[:, 0] = 1.0
        weights[start : start + block] = top / z
        tokens[start : start + block] = torch.where(top > 0, best.indices, own)
    return Near(tokens, weights)


def near_table(units: Tensor, there: Tensor, tau: float, count: int) -> Near:
    """``near_words`` of all V words, looked for among those that are ``there`` alone: few of a large vocabulary may be.

    >>> units = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    >>> near = near_table(units, units.any(dim=1), tau=0.5, count=100)
    >>> near.tokens.tolist(), near.weights
    ([[0, 0], [1, 2], [2, 1]], tensor([[1.0000, 0.0000],
            [0.6900, 0.3100],
            [0.6900, 0.3100]]))
    """
    known = there.nonzero().squeeze(1)
    among = near_words(units[known], there[known], torch.arange(len(known)), tau, count)
    tokens = torch.arange(len(there), dtype=torch.int32).unsqueeze(1).repeat(1, among.tokens.shape[1])
    weights = among.weights.new_zeros(tokens.shape)
    weights[:, 0] = 1.0  # each alone with itself
    tokens[known], weights[known] = known[among.tokens.long()].to(torch.int32), among.weights
    return Near(tokens, weights)


def near_target(
    near: Near, there: Tensor, dtype: torch.dtype, mix: float = 1.0
) -> tuple[Target, Tensor, Tensor]:
    """α r + (1 − α) δ as a target, with what words that are not listed have in r [U], and the entropy of r [U].

    That mass is spread evenly over them. ``there`` says which words have a vector.
    """
    tokens, weights = near.tokens.long(), near.weights.to(dtype)
    words = int(there.sum())
    others = words - weights.shape[1]  # words that a word with a vector doesn't list
    if others > 0:
        rest = (1 - weights.sum(dim=1)).clamp(min=0.0)
        each = rest / others
    else:
        weights = weights / weights.sum(dim=1, keepdim=True)
        rest = each = torch.zeros_like(weights[:, 0])
    entropy = -torch.special.xlogy(weights, weights).sum(dim=1) - torch.special.xlogy(rest, each)
    mixed = mix * (weights - each.unsqueeze(1))  # ``share`` gives the even part to those listed, too
    mixed[:, 0] += 1 - mix
    if others <= 0:
        return Target(tokens, mixed), rest, entropy
    return Target(tokens, mixed, mix * each * words, there.to(dtype) / words), rest, entropy
