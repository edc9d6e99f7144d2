"""Exact top-k of many scores; ties go to the lower index."""

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 64  # tokens per maximum
SMALL = 80_000  # up to this many scores a plain top-k is fastest


def top(scores: Tensor, count: int, *, ties: bool = True) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest scores of each row [B,N] and their indices, in descending order.

    Equal scores are in order of their indices; without ``ties`` their order is arbitrary, which saves time. The order
    of entries of −inf is always arbitrary. If N < count, the result is padded with −inf and index 0.

    >>> top(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3)
    (tensor([[3., 3., 2.]]), tensor([[1, 2, 3]]))
    """
    n = scores.shape[1]
    values, indices = scores.topk(min(count + 1, n), dim=1)  # one more reveals a tie at the edge
    tied = values[:, 1:] == values[:, :-1]
    if ties and tied.any() and (tied & (values[:, 1:] > -torch.inf)).any():
        values, indices = scores.sort(dim=1, descending=True, stable=True)
    if n < count:
        values = F.pad(values, (0, count - n), value=-torch.inf)
        indices = F.pad(indices, (0, count - n))
    return values[:, :count], indices[:, :count]


def top_continuations(
    token_scores: Tensor, so_far: Tensor, count: int, *, ties: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best ``count`` of s̃[b,i,w] = so_far[b,i] + token_scores[b,i,w] (CRB Algorithm 1, lines 5 to 7).

    ``token_scores`` is [B,K,V] and ``so_far`` [B,K]; the result is values, hypotheses i and tokens w, [B,count] each.
    Ties go to the lower i, then to the lower w. The best ``count`` lie in the ``count`` blocks of tokens with the
    largest maxima, so with many scores only one vectorised pass for the maxima reads all K·V numbers.
    """
    k, v = token_scores.shape[1:]
    if token_scores.numel() <= SMALL or k * v <= 2 * count * BLOCK:
        values, chosen = top((token_scores + so_far.unsqueeze(2)).flatten(1), count, ties=ties)
        return values, *_divide(chosen, v)
    whole = v // BLOCK * BLOCK
    maxima = token_scores[:, :, :whole].unflatten(2, (-1, BLOCK)).amax(dim=3)
    if whole < v:
        maxima = torch.cat([maxima, token_scores[:, :, whole:].amax(dim=2, keepdim=True)], dim=2)
    best = top((maxima + so_far.unsqueeze(2)).flatten(1), count, ties=ties)[1]
    best = best.sort(dim=1).values  # keeps the gathered scores in order of their indices
    parents, blocks = _divide(best, maxima.shape[2])
    tokens = (blocks * BLOCK).unsqueeze(2) + torch.arange(BLOCK, device=best.device)  # [B,count,BLOCK]
    flat = ((parents * v).unsqueeze(2) + tokens).flatten(1)
    inside = flat if whole == v else flat.clamp(max=k * v - 1)
    values = token_scores.flatten(1).gather(1, inside).view_as(tokens) + so_far.gather(1, parents).unsqueeze(2)
    if whole < v:
        values = values.masked_fill(tokens >= v, -torch.inf)
    values, chosen = top(values.flatten(1), count, ties=ties)
    return values, *_divide(flat.gather(1, chosen), v)


def _divide(index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    quotient = index.div(size, rounding_mode="floor")
    return quotient, index - quotient * size
