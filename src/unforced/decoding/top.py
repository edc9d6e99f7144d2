"""The best few of very many scores: exact, with ties going to the lower index."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
SMALL = 2048  # below this many scores looking at blocks first does not pay


def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row [B,N] and their indices, in order, the lower index first where they tie.

    Where N < count the rest is −inf with index 0. (Where entries of −inf are reached, their order is arbitrary.)

    >>> top(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3)
    (tensor([[3., 3., 2.]]), tensor([[1, 2, 3]]))
    """
    n = scores.shape[1]
    values, indices = scores.topk(
        min(count + 1, n), dim=1
    )  # one more than asked for: it shows a tie at the edge
    tied = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
    if tied.any():
        values, indices = scores.sort(dim=1, descending=True, stable=True)
    if n < count:
        values = torch.nn.functional.pad(values, (0, count - n), value=-torch.inf)
        indices = torch.nn.functional.pad(indices, (0, count - n))
    return values[:, :count], indices[:, :count]


def top_continuations(token_scores: Tensor, so_far: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best ``count`` of s̃[b,i,w] = so_far[b,i] + token_scores[b,i,w] over i and w: CRB Algorithm 1, lines 5 to 7.

    ``token_scores`` is [B,K,V], ``so_far`` [B,K]; the result is values, hypotheses i and tokens w, [B,count] each.
    Ties go to the lower i, then the lower w. The sum is never formed where it can't matter: the best ``count`` scores
    lie in the ``count`` blocks of tokens with the largest maxima, so one vectorised pass for the maxima is all that
    touches K·V numbers.
    """
    k, v = token_scores.shape[1:]
    if k * v <= max(SMALL, 2 * count * BLOCK):
        values, chosen = top((token_scores + so_far.unsqueeze(2)).flatten(1), count)
        return values, chosen // v, chosen % v
    whole = v // BLOCK * BLOCK
    maxima = token_scores[..., :whole].unflatten(2, (-1, BLOCK)).amax(dim=3)
    if whole < v:
        maxima = torch.cat([maxima, token_scores[..., whole:].amax(dim=2, keepdim=True)], dim=2)
    blocks = maxima.shape[2]
    _, best = top((maxima + so_far.unsqueeze(2)).flatten(1), count)
    best = best.sort(dim=1).values  # so that the order of the gathered scores is that of their indices
    inside = torch.arange(BLOCK, device=best.device)
    tokens = (best % blocks).unsqueeze(2) * BLOCK + inside  # [B,count,BLOCK]
    parents = (best // blocks).unsqueeze(2).expand_as(tokens)
    flat = (parents * v + tokens.clamp(max=v - 1)).flatten(1)
    values = token_scores.flatten(1).gather(1, flat) + so_far.gather(1, parents.flatten(1))
    if whole < v:
        values = values.masked_fill(tokens.flatten(1) >= v, -torch.inf)
    values, chosen = top(values, count)
    flat = flat.gather(1, chosen)
    return values, flat // v, flat % v
