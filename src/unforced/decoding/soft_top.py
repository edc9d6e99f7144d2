"""The soft selection of the K best continuations (CRB Algorithm 2), of all of them or, with a certificate, of the best few.

p_i ∝ exp(−α (s̃ − m_i)²) over the k·V continuations, m_i being the i-th largest s̃. Only scores near some m_i carry weight, so it is
enough to weigh the M best. Were all the others as good as the worst of these, their part of p_i would be

    (k·V − M) · exp(−α (s̃_(M) − m_i)²) / Z_i

with Z_i summed over those weighed, so it is at most that, as long as no m_i lies below s̃_(M) (padding and banned tokens can bring
that about). M grows until this bound is under a tolerance for every i.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.top import top_continuations
from unforced.errors import InputError
from unforced.masking import FLOOR
from unforced.relax import around, checked_alpha

SHARE = 4  # from a quarter of all continuations on, all are weighed
EXACT = 4096  # up to so many are weighed in double precision


class Offer(NamedTuple):
    """What a step offers: s̃[b,i,w] = so_far[b,i] + scores[b,i,w] (+ extra[b,w]), and padding for what has ended.

    ``extra`` are the costs that a margin asks for. Where a place of the beam is empty, or has wholly ended, nothing is
    offered by it; where it has not ended at all, no padding.
    """

    so_far: Tensor  # [B,k]
    runs: Tensor  # [B,k] bool
    scores: Tensor  # [B,k,V]
    extra: Tensor | None  # [B,V]
    banned: Tensor  # [·] long
    pad: int | None = None  # None where outputs have no end
    stayed: Tensor | None = None  # [B,k] s̃ of padding
    stays: Tensor | None = None  # [B,k] bool


class Candidates(NamedTuple):
    """Continuations that are weighed; where ``parents`` and ``tokens`` are None all are, hypothesis by hypothesis."""

    scores: Tensor  # [B,M] s̃, ``FLOOR`` for those that are not there
    there: Tensor  # [B,M] bool
    parents: Tensor | None = None  # [B,M] long
    tokens: Tensor | None = None  # [B,M] long
    worst: Tensor | None = None  # [B] s̃_(M), −inf where nothing was left out
    left: int = 0  # how many were left out


class Chosen(NamedTuple):
    """K mixtures of candidates."""

    candidates: Candidates
    log_weights: Tensor  # [B,K,M] log p_i
    peaks: Tensor  # [B,K] m_i
    log_z: Tensor  # [B,K] log Z_i
    filled: Tensor  # [B,K] bool: with fewer than K candidates places stay empty; their p_i is the first one's
    bound: Tensor  # [B] on what of any p_i was left out


def soft_top(offer: Offer, k: int, alpha: float, keep: int | None, tolerance: float) -> Chosen:
    """Choose K mixtures. ``keep`` None weighs all continuations; else the best ``keep``, or more if it takes more."""
    everything = offer.scores.shape[1] * offer.scores.shape[2]
    keep = None if keep is None else max(keep, k)
    if keep is None or keep * SHARE >= everything:
        return among(all_of(offer), k, alpha)
    with torch.no_grad():
        ranked = offer.scores if offer.extra is None else offer.scores + offer.extra.unsqueeze(1)
    while keep * SHARE < everything:
        chosen = among(best_of(offer, ranked, keep), k, alpha)
        if float(chosen.bound.max()) <= tolerance:
            return chosen
        keep = max(2 * keep, needed(offer, ranked, chosen, alpha, tolerance))
    return among(all_of(offer), k, alpha)


class Truncated(NamedTuple):
    """A soft top-k of which only some entries were weighed."""

    weights: Tensor  # [...,k,M], each of the k sums to one
    indices: Tensor  # [...,M] which scores they are
    bound: Tensor  # [...] on what any of the k mixtures would have had elsewhere


def truncated_soft_top_k(
    scores: Tensor, k: int, alpha: float, keep: int = 64, tolerance: float = 1e-6
) -> Truncated:
    """``relax.soft_top_k`` of scores [...,N] by the best ``keep``, or more until the bound is under ``tolerance``.

    From a quarter of all scores on, all are weighed, and the bound is 0. Gradients flow as in the full form.

    >>> scores = torch.linspace(0, 50, 1000)
    >>> found = truncated_soft_top_k(scores, 2, alpha=10.0, keep=8)
    >>> found.indices.shape[0] < 250, bool(found.bound <= 1e-6)
    (True, True)
    """
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise InputError(f"k must lie between 1 and {n}, the number of scores, not {k}")
    if keep < 1 or not tolerance >= 0:
        raise InputError(f"keep must be at least 1 and tolerance at least 0, not {keep} and {tolerance}")
    rows = scores.reshape(-1, 1, n)
    one = rows.new_zeros(len(rows), 1)
    nothing = torch.zeros(0, dtype=torch.long, device=scores.device)
    chosen = soft_top(Offer(one, one == 0, rows, None, nothing), k, checked_alpha(alpha), keep, tolerance)
    indices = chosen.candidates.tokens
    if indices is None:
        indices = torch.arange(n, device=scores.device).expand(len(rows), n)
    shape, weighed = scores.shape[:-1], indices.shape[1]
    return Truncated(
        chosen.log_weights.exp().view(*shape, k, weighed).to(scores.dtype),
        indices.reshape(*shape, weighed),
        chosen.bound.view(shape).to(scores.dtype),
    )


@torch.no_grad()
def needed(offer: Offer, ranked: Tensor, chosen: Chosen, alpha: float, tolerance: float) -> int:
    """How many it takes: those so near the last peak that the rest, all as far as the farthest, has too little weight."""
    found, peaks = chosen.candidates, chosen.peaks
    far = (math.log(found.left) - math.log(max(tolerance, 1e-300)) - chosen.log_z).clamp(min=0)
    edges = (peaks - (far / alpha).sqrt()).amin(dim=1, keepdim=True) - offer.so_far  # [B,k]
    edges = edges.masked_fill(~offer.runs, torch.inf).to(ranked.dtype)
    return int((ranked >= edges.unsqueeze(2)).sum(dim=(1, 2)).max()) + 1


def all_of(offer: Offer) -> Candidates:
    """All continuations."""
    b, k, v = offer.scores.shape
    dtype = _precision(offer.scores, k * v)
    found = offer.so_far.to(dtype).unsqueeze(2) + offer.scores
    if offer.extra is not None:
        found = found + offer.extra.unsqueeze(1).to(dtype)
    there = offer.runs.unsqueeze(2).expand(b, k, v).index_fill(2, offer.banned, False)
    if offer.stayed is not None and offer.stays is not None:
        column = torch.tensor([offer.pad], device=found.device)
        found = found.index_copy(2, column, offer.stayed.to(dtype).unsqueeze(2))
        there = there.index_copy(2, column, offer.stays.unsqueeze(2))
    there = there & (found.detach() > FLOOR / 2)  # the model itself may exclude tokens
    found = torch.where(there, found, found.new_tensor(FLOOR))
    return Candidates(found.flatten(1), there.flatten(1))


def best_of(offer: Offer, ranked: Tensor, count: int) -> Candidates:
    """The best ``count`` by ``ranked`` [B,k,V], scores with their extras, and all padding; what is banned is not there."""
    b, k, v = offer.scores.shape
    dtype = _precision(offer.scores, count)
    with torch.no_grad():
        so_far = offer.so_far.to(ranked.dtype).masked_fill(~offer.runs, -torch.inf)
        values, parents, tokens = top_continuations(ranked, so_far, count, ties=False)
        there = (values > -torch.inf) & ~torch.isin(tokens, offer.banned)
    found = offer.so_far.to(dtype).gather(1, parents) + offer.scores.flatten(1).gather(
        1, parents * v + tokens
    )
    if offer.extra is not None:
        found = found + offer.extra.gather(1, tokens)
    worst = torch.where(values[:, -1] > -torch.inf, found.detach()[:, -1], -torch.inf)
    if offer.stayed is not None and offer.stays is not None and offer.pad is not None:
        places = torch.arange(k, device=found.device).expand(b, k)
        found = torch.cat([found, offer.stayed.to(dtype)], dim=1)
        there = torch.cat([there, offer.stays], dim=1)
        parents = torch.cat([parents, places], dim=1)
        tokens = torch.cat([tokens, torch.full_like(places, offer.pad)], dim=1)
    found = torch.where(there, found, found.new_tensor(FLOOR))
    return Candidates(found, there, parents, tokens, worst, k * v - count)


def among(found: Candidates, k: int, alpha: float) -> Chosen:
    """The soft top-k of some candidates, and the bound on what the others could have had."""
    missing = max(0, k - found.scores.shape[1])
    peaks = F.pad(found.scores, (0, missing), value=FLOOR).topk(k, dim=1).values  # m_i
    filled = peaks > FLOOR / 2
    peaks = torch.where(filled, peaks, peaks[:, :1])
    log_weights = around(found.scores, peaks, alpha, found.there)
    with torch.no_grad():
        first = log_weights.argmax(dim=2)  # any candidate with weight tells log Z_i
        distance = -alpha * (found.scores.gather(1, first) - peaks).square()
        log_z = distance - log_weights.gather(2, first.unsqueeze(2)).squeeze(2)
        bound = _bound(found, peaks, log_z, alpha)
    return Chosen(found, log_weights, peaks, log_z, filled, bound)


def _bound(found: Candidates, peaks: Tensor, log_z: Tensor, alpha: float) -> Tensor:
    if found.worst is None or not found.left:
        return torch.zeros_like(peaks[:, 0])
    others = math.log(found.left) - alpha * (found.worst.unsqueeze(1) - peaks).square()
    bound = (others - log_z).amax(dim=1).exp()
    few = (found.there.sum(dim=1) < peaks.shape[1]) & (found.worst > -torch.inf)
    below = (peaks < found.worst.unsqueeze(1)).any(dim=1)  # banned tokens took the places of better ones
    return bound.masked_fill(
        few | below, torch.inf
    )  # those left out would fill the empty places, or be peaks


def _precision(scores: Tensor, count: int) -> torch.dtype:
    wide = count <= EXACT and scores.device.type != "mps"
    return torch.promote_types(scores.dtype, torch.float64 if wide else torch.float32)
