"""Continuous relaxations of picking a token, or the k best: weights in place of indices.

α is an inverse temperature: as it grows, a mixture of embeddings by these weights tends to the embedding of one token.
"""

import math

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.ops.masks import widened

DENSE, SMALL = (
    1 / 16,
    256,
)  # where more of all tokens matter, or there are fewer at all, a sparse mixture saves nothing


def checked_alpha(value: float) -> float:
    """The value, if it is an inverse temperature: a schedule may leave that range in the course of training.

    Beyond 10³⁰, where single precision would end and nothing changes any more, it is 10³⁰, and below 10⁻³⁰ that.
    """
    if not 0 < value < float("inf"):
        raise InputError(f"alpha must be positive, not {value}")
    return min(max(value, 1e-30), 1e30)


def peaked_softmax(scores: Tensor, alpha: float) -> Tensor:
    """softmax(α · scores) over the last dimension; scores may be logits or log-probabilities alike.

    >>> peaked_softmax(torch.tensor([0.0, 1.0, 2.0]), alpha=10.0)
    tensor([2.0611e-09, 4.5398e-05, 9.9995e-01])
    """
    return torch.softmax(scores * alpha, dim=-1)


def peaked_support(scores: Tensor, alpha: float, tolerance: float = 1e-6) -> tuple[Tensor, Tensor, Tensor] | None:
    """The peaked softmax of [N,V] scores as a list of the tokens that matter: rows [L], tokens [L], weights [L].

    Left out are tokens so far below their row's best that all of them together have at most ``tolerance`` of its weight:
    those with exp(α (s − best)) < tolerance / V. Weights of a row sum to one. None where so many tokens
    matter that the dense form is cheaper.

    >>> scores = torch.zeros(2, 300)
    >>> scores[0, [3, 7]] = 3.0
    >>> scores[1, 5] = 9.0
    >>> peaked_support(scores, alpha=10.0)
    (tensor([0, 0, 1]), tensor([3, 7, 5]), tensor([0.5000, 0.5000, 1.0000]))
    """
    size = scores.shape[-1]
    if size < SMALL:
        return None
    with torch.no_grad():
        best = scores.amax(dim=-1, keepdim=True)
        near = scores >= best - math.log(size / tolerance) / alpha
        if int(near.count_nonzero()) > DENSE * near.numel() or not bool(best.isfinite().all()):
            return None
        rows, tokens = near.nonzero(as_tuple=True)
    powers = torch.exp((scores[rows, tokens] - best.squeeze(-1)[rows]) * alpha)
    totals = torch.zeros_like(best.squeeze(-1)).index_add(0, rows, powers)
    return rows, tokens, powers / totals[rows]


def soft_argmax(scores: Tensor, alpha: float) -> Tensor:
    """The relaxed argmax (DSS section 3.1): ē = Σ_w e(w) · exp(α s_w) / Σ_v exp(α s_v), as weights over w."""
    return peaked_softmax(scores, alpha)


def soft_sample(scores: Tensor, alpha: float, uniforms: Tensor) -> Tensor:
    """The relaxed sample (DSS section 3.2): the soft argmax of scores + Gumbel noise, from ``uniforms`` in (0, 1).

    As α grows it becomes an exact draw from softmax(scores).
    """
    return soft_argmax(perturbed(scores, uniforms), alpha)


def perturbed(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Scores with Gumbel noise: their argmax is a draw from softmax(scores)."""
    return scores + gumbel(uniforms).to(scores.dtype)


def gumbel(uniforms: Tensor) -> Tensor:
    """−log(−log U), in float32 at least; numbers of 0 or 1 are moved inside, so that the noise is finite.

    >>> gumbel(torch.tensor([0.0, 0.5, 1.0])).isfinite().all()
    tensor(True)
    """
    u = widened(uniforms)
    least, most = torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2
    return -torch.log(-torch.log(u.clamp(least, most)))


def soft_top_k(scores: Tensor, k: int, alpha: float) -> Tensor:
    """The relaxed selection of the k best (CRB Algorithm 2): [...,N] -> weights [...,k,N], each of the k sums to one.

    p_i = softmax(−α (s − m_i)²), with m_i the i-th largest score. Gradients flow through s and m alike.

    >>> soft_top_k(torch.tensor([0.0, 3.0, 1.0]), 2, alpha=10.0).argmax(dim=-1)
    tensor([1, 2])
    """
    if not 1 <= k <= scores.shape[-1]:
        raise InputError(f"k must lie between 1 and {scores.shape[-1]}, the number of scores, not {k}")
    return around(scores, scores.topk(k).values, checked_alpha(alpha)).exp()


def around(scores: Tensor, peaks: Tensor, alpha: float, there: Tensor | None = None) -> Tensor:
    """log softmax(−α (s − m)²) over scores [...,N] for each peak m [...,k]: [...,k,N].

    With ``there`` [...,N] only some of the scores count; the others get −inf, and no gradient whatever they are.
    """
    distances = -alpha * (scores.unsqueeze(-2) - peaks.unsqueeze(-1)).square()
    if there is not None:
        distances = distances.masked_fill(~there.unsqueeze(-2), float("-inf"))
    return torch.log_softmax(distances, dim=-1)
