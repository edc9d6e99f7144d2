"""Cross-entropy to a target that is a few tokens and a constant: what every form of loss smoothing comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from unforced.masking import full_precision, widened
from unforced.types import Symbols

CHUNK = 2048  # tokens that are projected together, where there are very many
BLOCK = 1 << 19  # numbers of a block of rows: few enough that a second pass finds them in the cache


class Target(NamedTuple):
    """A distribution over the vocabulary at each of N positions. It sums to one:

        r_n(w) = Σ_k weights[n,k] · [w = tokens[n,k]] + rest[n] · share[w]

    A token may be listed twice. ``share`` sums to one; without ``rest`` there is nothing but the tokens listed.
    """

    tokens: Tensor  # [N,K] long
    weights: Tensor  # [N,K]
    rest: Tensor | None = None  # [N]
    share: Tensor | None = None  # [V]


def massless(symbols: Symbols) -> frozenset[int]:
    """The ids that an even share leaves out: what is banned, and padding and the start symbol, banned or not, unless they end outputs.

    >>> sorted(massless(Symbols(pad=0, bos=1, eos=2, banned=(4,)))), sorted(massless(Symbols(pad=2, bos=2, eos=2)))
    ([0, 1, 4], [])
    """
    return frozenset(symbols.banned) | ({symbols.pad, symbols.bos} - {symbols.eos})


def emittable(
    size: int, without: frozenset[int], device: torch.device, vocabulary: int | None = None
) -> Tensor:
    """[V] bool, false for the ids ``without`` and for those that a model has beyond its ``vocabulary``.

    >>> emittable(4, frozenset({0, 2}), torch.device("cpu")), emittable(4, frozenset({0}), torch.device("cpu"), vocabulary=3)
    (tensor([False,  True, False,  True]), tensor([False,  True,  True, False]))
    """
    found = torch.ones(size, dtype=torch.bool, device=device)
    found[[id for id in without if id < size]] = False
    if vocabulary is not None:
        found[vocabulary:] = False
    return found


def shared(values: Tensor, share: Tensor) -> Tensor:
    """Σ_w share(w) values(w) of [N,V] and [V]: [N]. What has no share counts for nothing, whatever its value.

    >>> shared(torch.tensor([[1.0, 3.0, -torch.inf]]), torch.tensor([0.5, 0.5, 0.0]))
    tensor([2.])
    """
    with full_precision(values.device):
        found = values @ share
        if bool(found.isnan().any()):  # 0 · −inf
            found = values.masked_fill(share == 0, 0.0) @ share
    return found


def own_mass(target: Target, tokens: Tensor) -> Tensor:
    """How much of each target is on its token [N]: [N].

    >>> own_mass(Target(torch.tensor([[3, 1]]), torch.tensor([[0.5, 0.2]]), torch.tensor([0.3]), torch.ones(4) / 4), torch.tensor([3]))
    tensor([0.5750])
    """
    own = (target.weights * (target.tokens == tokens.unsqueeze(1))).sum(dim=1)
    if target.rest is None or target.share is None:
        return own
    return own + target.rest * target.share[tokens]


def one_hot(tokens: Tensor) -> Target:
    """All on the token: [N]."""
    return Target(tokens.unsqueeze(1), torch.ones_like(tokens, dtype=torch.float64).unsqueeze(1))


def blended(target: Target, weights: Tensor) -> Target:
    """Of targets for N · K positions, K in turn, the mixture by weights [N,K]: a target for N.

    >>> both = Target(torch.tensor([[3], [4]]), torch.tensor([[1.0], [1.0]]))
    >>> blended(both, torch.tensor([[0.25, 0.75]]))
    Target(tokens=tensor([[3, 4]]), weights=tensor([[0.2500, 0.7500]]), rest=None, share=None)
    """
    (n, k), listed = weights.shape, target.weights.shape[1]
    weights = weights.to(target.weights.dtype)
    mixed = (target.weights.view(n, k, listed) * weights.unsqueeze(2)).flatten(1)
    rest = None if target.rest is None else (target.rest.view(n, k) * weights).sum(dim=1)
    return Target(target.tokens.view(n, k * listed), mixed, rest, target.share)


def smoothed_nll(scores: Tensor, tokens: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """−Σ_w r_n(w) log p_n(w) with p = softmax(scores [N,V]), and −log p_n of ``tokens`` [N] without gradient: [N] each.

    The first is D_KL(r ‖ p) and the entropy of r, which no weight moves.

    >>> scores, tokens = torch.randn(2, 5), torch.tensor([3, 4])
    >>> losses, nll = smoothed_nll(scores, tokens, one_hot(tokens))
    >>> torch.equal(losses, nll)
    True
    """
    scores = widened(scores)
    weights, rest, share = (
        None if part is None else part.detach().to(scores.dtype)
        for part in (target.weights, target.rest, target.share)
    )
    return _SmoothedNLL.apply(scores, tokens, target.tokens, weights, rest, share)


def priced(
    model: Any, features: Tensor, tokens: Tensor, smooth: Callable[[Tensor, Tensor], Target], most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``smoothed_nll`` of tokens [N] at features [N,H], and whether no other token scores higher: [N] each.

    ``smooth(tokens, scores)`` makes the targets. More than ``most`` tokens are projected a part at a time, and once more
    in the backward pass, so that the scores of many outputs never exist together.
    """

    def some(features: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = model.score(features)
        losses, nll = smoothed_nll(scores, tokens, smooth(tokens, scores))
        with torch.no_grad():
            best = scores.gather(1, tokens.unsqueeze(1)).squeeze(1) >= scores.amax(dim=1)
        return losses, nll, best

    if len(tokens) <= most:
        return some(features, tokens)
    parts = zip(features.split(CHUNK), tokens.split(CHUNK))
    losses, nll, best = zip(*(checkpoint(some, *part, use_reentrant=False) for part in parts))
    return torch.cat(losses), torch.cat(nll), torch.cat(best)


class _SmoothedNLL(torch.autograd.Function):
    """The gradient with respect to scores is p − r, written at once: neither r nor its gradient is ever a table [N,V]."""

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
        listed = torch.where(
            weights == 0, 0.0, log_probs.gather(1, tokens)
        )  # a model may give −inf to what has no weight
        found = -(weights * listed).sum(dim=1)
        if rest is not None and share is not None:
            found = found - torch.where(rest == 0, 0.0, rest * shared(log_probs, share))
        nll = -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1)
        ctx.save_for_backward(log_probs, tokens, weights, rest, share)
        ctx.mark_non_differentiable(nll)
        return found, nll

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
