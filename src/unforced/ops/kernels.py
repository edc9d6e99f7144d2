"""Kernels that are faster than PyTorch's own."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from unforced.ops.masks import full_precision

_STEPS = 1 << 16  # dropout compares 16 random bits per entry with a threshold
_CHUNK = 1 << 19  # entries of [rows,T,S,A] that attention works on at a time, so that they stay in the cache


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Set entries of ``x`` to zero with probability ``rate`` and scale the others to keep the mean.

    On a CPU one 64-bit draw of torch's global generator serves four entries, because drawing costs more than applying
    the mask. The rate is therefore rounded to a multiple of 2⁻¹⁶. Other devices use PyTorch's own dropout.

    >>> dropout(torch.ones(2), 0.5, training=False)
    tensor([1., 1.])
    >>> _ = torch.manual_seed(0)
    >>> sorted(set(dropout(torch.ones(1000), 0.5, training=True).tolist()))
    [0.0, 2.0]
    """
    if not training or rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate, training=True)
    dropped = round(rate * _STEPS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # uniform over −2¹⁵ … 2¹⁵−1
    noise = (bits >= dropped - _STEPS // 2).to(x.dtype)
    return x * noise.mul_(_STEPS / (_STEPS - dropped))


def additive_scores(queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
    """Return vᵀ tanh(q_t + k_s) [R,T,S] for all t and s, given e^(2q) [R,T,A], e^(2k) [R,S,A] and v [A].

    tanh(q + k) = 1 − 2 / (1 + e^(2q) e^(2k)), so a pair costs a product and a reciprocal, and the exponentials are
    computed T + S times instead of T · S times. The [R,T,S,A] tensor is never stored for the backward pass.

    >>> q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(4)
    >>> plain = torch.tanh(q[:, :, None] + k[:, None]) @ v
    >>> torch.allclose(additive_scores((2 * q).exp(), (2 * k).exp(), v), plain, atol=1e-5)
    True
    """
    with full_precision(queries.device):
        scores: Tensor = _AdditiveScores.apply(queries, keys, energy.to(queries.dtype))  # type: ignore[no-untyped-call]
        return scores


class _AdditiveScores(torch.autograd.Function):
    """Σ_a v_a (1 − 2 r) with r = 1 / (1 + Q K); the backward pass recomputes r."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, energy)
        n = _rows_per_chunk(queries, keys)
        parts = [_reciprocals(q, k) @ energy for q, k in zip(queries.split(n), keys.split(n))]
        return energy.sum() - 2 * (parts[0] if len(parts) == 1 else torch.cat(parts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, energy = ctx.saved_tensors
        to_queries, to_keys, to_energy = [], [], torch.zeros_like(energy)
        n = _rows_per_chunk(queries, keys)
        with full_precision(grad.device):
            for q, k, g in zip(queries.split(n), keys.split(n), grad.contiguous().split(n)):
                r = _reciprocals(q, k)  # [n,T,S,A]
                to_energy += g.reshape(-1) @ r.flatten(0, 2)
                slope = torch.addcmul(r, r, r, value=-1)  # r − r² = Q·∂(−r)/∂Q = K·∂(−r)/∂K
                rows, t, s, a = slope.shape
                to_queries.append(torch.bmm(g.reshape(rows * t, 1, s), slope.view(rows * t, s, a)).view(rows, t, a))
                to_keys.append(slope.mul_(g.unsqueeze(-1)).sum(dim=1))
            twice = 2 * energy
            return (
                torch.cat(to_queries).mul_(twice).div_(queries),
                torch.cat(to_keys).mul_(twice).div_(keys),
                grad.sum() - 2 * to_energy,
            )


def _reciprocals(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(2) * k.unsqueeze(1)).add_(1).reciprocal_()


def _rows_per_chunk(queries: Tensor, keys: Tensor) -> int:
    return max(1, _CHUNK // max(1, queries.shape[1] * keys.shape[1] * keys.shape[2]))
