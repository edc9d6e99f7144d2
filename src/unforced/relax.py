"""Continuous relaxations of picking a token: weights over the vocabulary in place of an index.

α is an inverse temperature: as it grows, a mixture of embeddings by these weights tends to the embedding of one token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def peaked_softmax(scores: Tensor, alpha: float) -> Tensor:
    """softmax(α · scores) over the last dimension; scores may be logits or log-probabilities alike.

    >>> peaked_softmax(torch.tensor([0.0, 1.0, 2.0]), alpha=100.0)
    tensor([0., 0., 1.])
    """
    return torch.softmax(scores * alpha, dim=-1)


def soft_argmax(scores: Tensor, alpha: float) -> Tensor:
    """The relaxed argmax (DSS section 3.1): ē = Σ_w e(w) · exp(α s_w) / Σ_v exp(α s_v), as weights over w."""
    return peaked_softmax(scores, alpha)


def soft_sample(scores: Tensor, alpha: float, uniforms: Tensor) -> Tensor:
    """The relaxed sample (DSS section 3.2): the soft argmax of scores + Gumbel noise, from ``uniforms`` in (0, 1).

    As α grows it becomes an exact draw from softmax(scores); one that is independent of other calls'.
    """
    return peaked_softmax(scores + gumbel(uniforms).to(scores.dtype), alpha)


def gumbel(uniforms: Tensor) -> Tensor:
    """−log(−log U), in float32 at least; numbers of 0 or 1 are moved inside, so that the noise is finite.

    >>> gumbel(torch.tensor([0.0, 0.5, 1.0])).isfinite().all()
    tensor(True)
    """
    u = uniforms if uniforms.dtype == torch.float64 else uniforms.float()
    least, most = torch.finfo(u.dtype).tiny, 1 - torch.finfo(u.dtype).eps / 2
    return -torch.log(-torch.log(u.clamp(least, most)))
