"""Bahdanau's additive attention (2015), without ever holding its [R,T,S,A] tensor for the backward pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unforced.masking import FLOOR, full_precision, widened
from unforced.models._sources import Memory

LIMIT = 20.0  # |Wq|, |Uk| beyond this saturate: e^(2·2·20) is still a float32
_CHUNK = 1 << 19  # entries of [rows,T,S,A] worked on at a time, so that they stay in the cache


class Keys(NamedTuple):
    """A memory made ready for attention; rows first, so that it can be part of a decoder's shared state."""

    powers: Tensor  # [R,S,A], e^(2 U k)
    values: Tensor  # [R,S,M]
    mask: Tensor | None  # [R,S] bool


class AdditiveAttention(nn.Module):
    """Context of each query: Σ_s a_ts · m_s with a_ts = softmax_s(vᵀ tanh(W q_t + U m_s)).

    ``start`` projects the memory once; calling the module with queries [R,T,Q] then gives contexts [R,T,M]. A row
    whose memory is entirely masked has the zero context.

    >>> attention = AdditiveAttention(query=4, memory=6, size=5)
    >>> keys = attention.start(Memory(torch.randn(2, 3, 6), None, torch.zeros(2, 6)))
    >>> attention(torch.randn(2, 7, 4), keys).shape
    torch.Size([2, 7, 6])
    """

    def __init__(self, query: int, memory: int, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, size)
        self.key = nn.Linear(memory, size, bias=False)
        self.energy = nn.Parameter(torch.empty(size).uniform_(-1, 1) / math.sqrt(size))
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.query.bias)

    def start(self, memory: Memory) -> Keys:
        return Keys(_powers(self.key(memory.states)), memory.states, memory.mask)

    def forward(self, queries: Tensor, keys: Keys) -> Tensor:
        scores = additive_scores(_powers(self.query(queries)), keys.powers, self.energy)  # [R,T,S]
        if keys.mask is None:
            return scores.softmax(dim=-1) @ keys.values
        hidden = ~keys.mask.unsqueeze(1)
        weights = scores.masked_fill(hidden, FLOOR).softmax(dim=-1).masked_fill(hidden, 0.0)
        return weights @ keys.values


def _powers(x: Tensor) -> Tensor:
    wide = widened(x)
    return (wide.clamp(-LIMIT, LIMIT) * 2).exp()


def additive_scores(queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
    """vᵀ tanh(q_t + k_s) for all t and s, given e^(2q) [R,T,A], e^(2k) [R,S,A] and v [A]; scores are [R,T,S].

    tanh(q + k) = 1 − 2 / (1 + e^(2q) e^(2k)), so a pair costs a product and a reciprocal, and the exponentials are
    taken T + S times, not T · S times.

    >>> q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(4)
    >>> plain = torch.tanh(q[:, :, None] + k[:, None]) @ v
    >>> torch.allclose(additive_scores((2 * q).exp(), (2 * k).exp(), v), plain, atol=1e-5)
    True
    """
    with full_precision(queries.device):
        return _AdditiveScores.apply(queries, keys, energy.to(queries.dtype))


class _AdditiveScores(torch.autograd.Function):
    """Σ_a v_a (1 − 2 r) with r = 1 / (1 + Q K); the backward pass makes r again rather than keeping it."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, energy)
        n = _rows_at_a_time(queries, keys)
        parts = [_shares(q, k) @ energy for q, k in zip(queries.split(n), keys.split(n))]
        return energy.sum() - 2 * (parts[0] if len(parts) == 1 else torch.cat(parts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, energy = ctx.saved_tensors
        with full_precision(grad.device):
            return _gradients(queries, keys, energy, grad.contiguous())


def _gradients(queries: Tensor, keys: Tensor, energy: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_queries, to_keys, to_energy = [], [], torch.zeros_like(energy)
    rows = _rows_at_a_time(queries, keys)
    for q, k, g in zip(queries.split(rows), keys.split(rows), grad.split(rows)):
        r = _shares(q, k)  # [n,T,S,A]
        to_energy += g.reshape(-1) @ r.flatten(0, 2)
        slope = torch.addcmul(r, r, r, value=-1)  # r − r² = Q·∂(−r)/∂Q = K·∂(−r)/∂K
        n, t, s, a = slope.shape
        to_queries.append(torch.bmm(g.reshape(n * t, 1, s), slope.view(n * t, s, a)).view(n, t, a))
        to_keys.append(slope.mul_(g.unsqueeze(-1)).sum(dim=1))
    twice = 2 * energy
    return (
        torch.cat(to_queries).mul_(twice).div_(queries),
        torch.cat(to_keys).mul_(twice).div_(keys),
        grad.sum() - 2 * to_energy,
    )


def _shares(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(2) * k.unsqueeze(1)).add_(1).reciprocal_()


def _rows_at_a_time(queries: Tensor, keys: Tensor) -> int:
    return max(1, _CHUNK // max(1, queries.shape[1] * keys.shape[1] * keys.shape[2]))
