"""Sparse target distributions: the cross-entropy to them, and targets for words with near neighbours."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from unforced.ops.masks import full_precision, widened

BLOCK = 1 << 19  # numbers in a block of rows of the backward pass: small enough for the cache
CELLS = 1 << 23  # distances in memory at once while neighbours are looked up: 32 MB


class Target(NamedTuple):
    """A distribution over the vocabulary at each of N positions:

        r_n(w) = Σ_k weights[n,k] · [w = tokens[n,k]] + rest[n] · share[w]

    A token may be listed twice. ``share`` sums to one.
    """

    tokens: Tensor  # [N,K] ids
    weights: Tensor  # [N,K]
    rest: Tensor | None = None  # [N]
    share: Tensor | None = None  # [V]


# The loss


def smoothed_nll(scores: Tensor, tokens: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """Return −Σ_w r_n(w) log p_n(w) [N] with p = softmax(scores [N,V]), and −log p_n [N] of ``tokens`` [N].

    The second has no gradient. The first is D_KL(r ‖ p) plus the entropy of r.

    >>> scores, tokens = torch.randn(2, 5), torch.tensor([3, 4])
    >>> torch.equal(*smoothed_nll(scores, tokens, one_hot(tokens)))
    True
    """
    scores = widened(scores)
    weights, rest, share = (None if part is None else part.detach().to(scores.dtype) for part in target[1:])
    apply: Any = _SmoothedNLL.apply
    losses, nll = apply(scores, tokens, target.tokens, weights, rest, share)
    return losses, nll


class _SmoothedNLL(torch.autograd.Function):
    """The gradient with respect to scores is p − r; the table r [N,V] is never computed."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        gold: Tensor,
        tokens: Tensor,
        weights: Tensor,
        rest: Tensor | None,
        share: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(scores, dim=-1)
        listed = torch.where(weights == 0, 0.0, log_probs.gather(1, tokens))  # 0 · −inf counts as 0
        losses = -(weights * listed).sum(dim=1)
        if rest is not None and share is not None:
            losses = losses - torch.where(rest == 0, 0.0, rest * expected_value(log_probs, share))
        nll = -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1)
        ctx.save_for_backward(log_probs, tokens, weights, rest, share)
        ctx.mark_non_differentiable(nll)
        return losses, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        log_probs, tokens, weights, rest, share = ctx.saved_tensors
        gradient = torch.empty_like(log_probs)
        size = max(1, BLOCK // max(1, log_probs.shape[1]))
        for start in range(0, len(log_probs), size):
            rows = slice(start, start + size)
            g = outer[rows].unsqueeze(1)
            block = torch.exp(log_probs[rows], out=gradient[rows])
            if rest is not None:
                block.addr_(rest[rows], share, alpha=-1)
            block.mul_(g).scatter_add_(1, tokens[rows], -g * weights[rows])
        return gradient, None, None, None, None, None


def expected_value(values: Tensor, share: Tensor) -> Tensor:
    """Return Σ_w share(w) values(w) [N] of values [N,V]; a value of −inf without a share counts as 0.

    >>> expected_value(torch.tensor([[1.0, 3.0, -torch.inf]]), torch.tensor([0.5, 0.5, 0.0]))
    tensor([2.])
    """
    with full_precision(values.device):
        mean = values @ share
        if bool(mean.isnan().any()):  # 0 · −inf
            mean = values.masked_fill(share == 0, 0.0) @ share
    return mean


# Operations on targets


def one_hot(tokens: Tensor) -> Target:
    """Return targets with all mass on the tokens [N]."""
    return Target(tokens.unsqueeze(1), torch.ones_like(tokens, dtype=torch.float64).unsqueeze(1))


def own_mass(target: Target, tokens: Tensor) -> Tensor:
    """Return the mass [N] of each target on its token [N]."""
    own = (target.weights * (target.tokens == tokens.unsqueeze(1))).sum(dim=1)
    if target.rest is None or target.share is None:
        return own
    return own + target.rest * target.share[tokens]


def mixture(target: Target, weights: Tensor) -> Target:
    """Return N targets that mix K adjacent ones of ``target`` (N · K positions) by weights [N,K].

    >>> mixture(one_hot(torch.tensor([3, 4])), torch.tensor([[0.25, 0.75]])).weights
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    (n, k), listed = weights.shape, target.weights.shape[1]
    weights = weights.to(target.weights.dtype)
    mixed = (target.weights.view(n, k, listed) * weights.unsqueeze(2)).flatten(1)
    rest = None if target.rest is None else (target.rest.view(n, k) * weights).sum(dim=1)
    return Target(target.tokens.view(n, k * listed), mixed, rest, target.share)


# Targets around a word: r(w | y) = exp(−d(w, y) / τ) / Z, mixed with a one-hot target of weight 1 − α


def uniform_target(
    tokens: Tensor, covered: Tensor, tau: float, mix: float, dtype: torch.dtype
) -> tuple[Target, Tensor, Tensor]:
    """Return α r + (1 − α) δ for tokens [N], the moved mass [N] and r's entropy [N]; d is 1 between covered words."""
    count, inside = int(covered.sum()), covered[tokens].to(dtype)
    e = torch.exp(torch.tensor(-1 / tau, dtype=dtype, device=tokens.device))
    each = inside * e / (1 + (count - 1) * e)  # r of every other word: [N]
    own = 1 - (count - 1) * each
    entropy = -torch.special.xlogy(own, own) - (count - 1) * torch.special.xlogy(each, each)
    weights = (1 - mix * count * each).unsqueeze(1)
    target = Target(tokens.unsqueeze(1), weights, mix * count * each, covered.to(dtype) / count)
    return target, (count - 1) * each, entropy


def near_words(units: Tensor, covered: Tensor, words: Tensor, tau: float, count: int | None = None) -> Target:
    """Return the ``count`` words nearest to each of ``words`` [U] (all if None), itself first, and their weights in r.

    ``units`` [V,E] are unit vectors of the words that are ``covered`` [V]; d = 1 − cosine. The missing mass belongs to
    words that are not listed. A word without a vector lists itself alone. Distances are computed in blocks of words.

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
    uncovered = (~covered).nonzero().squeeze(1)
    for start in range(0, len(words), block):
        some = words[start : start + block]
        own = some.unsqueeze(1)
        with full_precision(units.device):  # −d/τ: [u,V]
            logits = torch.addmm(units.new_full((), -1 / tau), units[some] / tau, units.T).clamp_(max=0.0)
        logits.index_fill_(1, uncovered, -torch.inf)
        logits.index_fill_(0, (~covered[some]).nonzero().squeeze(1), -torch.inf)
        logits.scatter_(1, own, -torch.inf)
        z = 1 + logits.exp().sum(dim=1, keepdim=True)  # d(y, y) = 0
        logits.scatter_(1, own, 1.0)  # the word itself is first, even if others are as near
        best = logits.topk(kept, dim=1)
        top = best.values.exp()
        top[:, 0] = 1.0
        weights[start : start + block] = top / z
        tokens[start : start + block] = torch.where(top > 0, best.indices, own)
    return Target(tokens, weights)


def near_table(units: Tensor, covered: Tensor, tau: float, count: int) -> Target:
    """Return `near_words` of all V words; only covered words are compared.

    >>> units = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    >>> near_table(units, units.any(dim=1), tau=0.5, count=100).tokens.tolist()
    [[0, 0], [1, 2], [2, 1]]
    """
    known = covered.nonzero().squeeze(1)
    near = near_words(units[known], covered[known], torch.arange(len(known)), tau, count)
    tokens = torch.arange(len(covered), dtype=torch.int32).unsqueeze(1).repeat(1, near.tokens.shape[1])
    weights = near.weights.new_zeros(tokens.shape)
    weights[:, 0] = 1.0
    tokens[known], weights[known] = known[near.tokens.long()].to(torch.int32), near.weights
    return Target(tokens, weights)


def near_target(near: Target, covered: Tensor, mix: float, dtype: torch.dtype) -> tuple[Target, Tensor, Tensor]:
    """Return α r + (1 − α) δ for words listed by `near_words`, r's mass of unlisted words [N], and r's entropy [N].

    The mass of unlisted words is spread evenly over them.
    """
    tokens, weights = near.tokens.long(), near.weights.to(dtype)
    words = int(covered.sum())
    others = words - weights.shape[1]  # unlisted words of a word with a vector
    if others > 0:
        rest = (1 - weights.sum(dim=1)).clamp(min=0.0)
        each = rest / others
    else:
        weights = weights / weights.sum(dim=1, keepdim=True)
        rest = each = torch.zeros_like(weights[:, 0])
    entropy = -torch.special.xlogy(weights, weights).sum(dim=1) - torch.special.xlogy(rest, each)
    mixed = mix * (weights - each.unsqueeze(1))  # ``share`` gives the even part to listed words, too
    mixed[:, 0] += 1 - mix
    if others <= 0:
        return Target(tokens, mixed), rest, entropy
    return Target(tokens, mixed, mix * each * words, covered.to(dtype) / words), rest, entropy
