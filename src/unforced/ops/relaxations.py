"""Continuous relaxations of choosing a token or the k best: weights in place of indices.

α is an inverse temperature: as it grows, the weights tend to a one-hot vector.
"""

import math

import torch
from torch import Tensor

from unforced.ops.masks import widened

DENSE = 1 / 16  # with more than this share of all tokens, a sparse mixture saves nothing
SMALL = 256  # with fewer tokens than this, neither


def peaked_softmax(scores: Tensor, alpha: float) -> Tensor:
    """Return softmax(α · scores) over the last dimension: the relaxed argmax (DSS section 3.1).

    >>> peaked_softmax(torch.tensor([0.0, 1.0, 2.0]), alpha=10.0)
    tensor([2.0611e-09, 4.5398e-05, 9.9995e-01])
    """
    return torch.softmax(scores * alpha, dim=-1)


def peaked_support(scores: Tensor, alpha: float, tolerance: float = 1e-6) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the peaked softmax of scores [N,V] as a sparse list: rows [L], tokens [L] and weights [L].

    Tokens with exp(α (s − best)) < tolerance / V are left out: together they have at most ``tolerance`` of the weight
    of their row's best token. The weights of a row sum to one. The result is None if the dense form is cheaper.

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


def add_gumbel(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Add Gumbel noise −log(−log U), made from uniform numbers U in [0, 1].

    The argmax of the result is a draw from softmax(scores). U is clamped, so that the noise is finite.
    """
    u = widened(uniforms)
    least, most = torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2
    return scores - torch.log(-torch.log(u.clamp(least, most))).to(scores.dtype)


def peaks_log_softmax(scores: Tensor, peaks: Tensor, alpha: float, valid: Tensor) -> Tensor:
    """Return log softmax(−α (s − m)²) over scores s [...,N] for each peak m [...,k]: [...,k,N] (CRB Algorithm 2).

    With m_i the i-th largest score this is the relaxed selection of the k best. Scores where ``valid`` [...,N] is false
    get −inf and no gradient. Gradients flow through scores and peaks.
    """
    distances = -alpha * (scores.unsqueeze(-2) - peaks.unsqueeze(-1)).square()
    return torch.log_softmax(distances.masked_fill(~valid.unsqueeze(-2), float("-inf")), dim=-1)
