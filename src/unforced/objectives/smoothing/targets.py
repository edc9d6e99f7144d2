"""Cross-entropy to a target that is a few tokens and a constant: what every form of loss smoothing comes to."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from unforced.ops.masks import full_precision, widened
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


def emittable(size: int, without: frozenset[int], device: torch.device, vocabulary: int | None = None) -> Tensor:
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
        None if part is None else part.detach().to(scores.dtype) for part in (target.weights, target.rest, target.share)
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


# The words nearest to a word, and how a smoothed target weighs them and all the others.

CELLS = 1 << 23  # distances that exist together while a table is made: 32 MB


class Near(NamedTuple):
    """For each of U words the n that are nearest to it, itself first, and their weights in

        r(w | y) = exp(−d(w, y) / τ) / Z,  d = 1 − cosine,  Z over all words that have a vector

    What the weights lack of one belongs to the words that are not listed. A word without a vector is alone with itself.
    """

    tokens: Tensor  # [U,n] int32
    weights: Tensor  # [U,n]

    def to(self, device: torch.device) -> "Near":
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


def near_target(near: Near, there: Tensor, dtype: torch.dtype, mix: float = 1.0) -> tuple[Target, Tensor, Tensor]:
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
