"""Soft beam search: the continuous relaxation of beam search (Goyal et al. 2018, cited as CRB).

The soft top-k (CRB Algorithm 2) gives K mixtures p_i ∝ exp(−α (s̃ − m_i)²) over the k·V continuations, where m_i is
the i-th largest s̃. Only scores near some m_i carry weight, so it is enough to weigh the best M. The mass of p_i on
all others is at most

    (k·V − M) · exp(−α (s̃_(M) − m_i)²) / Z_i

with Z_i summed over the weighed continuations, as long as no m_i is below s̃_(M) (padding and banned tokens can cause
that). M grows until this bound is below a tolerance for every i.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.search import (
    Constraints,
    Nodes,
    ScoreType,
    SearchResult,
    Selection,
    check_lengths,
    hypotheses,
    limits,
    search,
)
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import state_rows
from unforced.ops.masks import FLOOR, full_precision, widened
from unforced.ops.relaxations import peaks_log_softmax
from unforced.ops.topk import top_continuations
from unforced.options import Count, Fraction, Natural, Options, Positive
from unforced.protocols import Cost, StepDecoder, require
from unforced.types import Batch, DecoderState, Hypotheses, Symbols

# The soft top-k of the continuations

SHARE = 4  # if a quarter of all continuations would be weighed, weigh all
EXACT = 4096  # up to this many are weighed in double precision


class Continuations(NamedTuple):
    """The continuations at a step: s̃[b,i,w] = so_far[b,i] + scores[b,i,w] (+ extra[b,w]), and padding of finished
    mass.

    An empty place of the beam, or one that has ended completely, has none; one that has not ended at all has no
    padding.
    """

    so_far: Tensor  # [B,k]
    runs: Tensor  # [B,k] bool
    scores: Tensor  # [B,k,V]
    extra: Tensor | None  # [B,V], costs of a margin
    banned: Tensor  # [·] long
    pad: int | None = None  # None if outputs have no end
    stayed: Tensor | None = None  # [B,k] s̃ of padding
    stays: Tensor | None = None  # [B,k] bool


class Candidates(NamedTuple):
    """The M continuations that are weighed; all of them, by hypothesis, if ``parents`` and ``tokens`` are None."""

    scores: Tensor  # [B,M] s̃, `FLOOR` where not valid
    valid: Tensor  # [B,M] bool
    parents: Tensor | None = None  # [B,M] long
    tokens: Tensor | None = None  # [B,M] long
    worst: Tensor | None = None  # [B] s̃_(M), −inf if nothing was left out
    left: int = 0  # number of continuations left out


class Mixtures(NamedTuple):
    """K mixtures of candidates."""

    candidates: Candidates
    log_weights: Tensor  # [B,K,M] log p_i
    peaks: Tensor  # [B,K] m_i
    log_z: Tensor  # [B,K] log Z_i
    filled: Tensor  # [B,K] bool: false for empty places (fewer than K candidates), which repeat the first mixture
    bound: Tensor  # [B] upper bound on the mass of any p_i that was left out


def soft_top(offer: Continuations, k: int, alpha: float, keep: int | None, tolerance: float) -> Mixtures:
    """Choose K mixtures of the best ``keep`` continuations.

    More continuations are used where the tolerance needs them, and all of them if ``keep`` is None.
    """
    count = offer.scores.shape[1] * offer.scores.shape[2]
    keep = None if keep is None else max(keep, k)
    if keep is None or keep * SHARE >= count:
        return mixtures(all_candidates(offer), k, alpha)
    with torch.no_grad():
        ranked = offer.scores if offer.extra is None else offer.scores + offer.extra.unsqueeze(1)
    while keep * SHARE < count:
        chosen = mixtures(best_candidates(offer, ranked, keep), k, alpha)
        if float(chosen.bound.max()) <= tolerance:
            return chosen
        keep = max(2 * keep, _needed(offer, ranked, chosen, alpha, tolerance))
    return mixtures(all_candidates(offer), k, alpha)


@torch.no_grad()
def _needed(offer: Continuations, ranked: Tensor, chosen: Mixtures, alpha: float, tolerance: float) -> int:
    """Estimate how many candidates meet the tolerance if all others are as close to the last peak as the farthest."""
    found, peaks = chosen.candidates, chosen.peaks
    far = (math.log(found.left) - math.log(max(tolerance, 1e-300)) - chosen.log_z).clamp(min=0)
    edges = (peaks - (far / alpha).sqrt()).amin(dim=1, keepdim=True) - offer.so_far  # [B,k]
    edges = edges.masked_fill(~offer.runs, torch.inf).to(ranked.dtype)
    return int((ranked >= edges.unsqueeze(2)).sum(dim=(1, 2)).max()) + 1


def all_candidates(offer: Continuations) -> Candidates:
    """Return all continuations."""
    b, k, v = offer.scores.shape
    dtype = _precision(offer.scores, k * v)
    found = offer.so_far.to(dtype).unsqueeze(2) + offer.scores
    if offer.extra is not None:
        found = found + offer.extra.unsqueeze(1).to(dtype)
    valid = offer.runs.unsqueeze(2).expand(b, k, v).index_fill(2, offer.banned, False)
    if offer.stayed is not None and offer.stays is not None:
        column = torch.tensor([offer.pad], device=found.device)
        found = found.index_copy(2, column, offer.stayed.to(dtype).unsqueeze(2))
        valid = valid.index_copy(2, column, offer.stays.unsqueeze(2))
    valid = valid & (found.detach() > FLOOR / 2)  # the model itself may exclude tokens
    found = torch.where(valid, found, found.new_tensor(FLOOR))
    return Candidates(found.flatten(1), valid.flatten(1))


def best_candidates(offer: Continuations, ranked: Tensor, count: int) -> Candidates:
    """Return the best ``count`` continuations by ``ranked`` [B,k,V], and all padding.

    ``ranked`` are the scores with extras. Banned continuations are not valid.
    """
    b, k, v = offer.scores.shape
    dtype = _precision(offer.scores, count)
    with torch.no_grad():
        so_far = offer.so_far.to(ranked.dtype).masked_fill(~offer.runs, -torch.inf)
        values, parents, tokens = top_continuations(ranked, so_far, count, ties=False)
        valid = (values > -torch.inf) & ~torch.isin(tokens, offer.banned)
    found = offer.so_far.to(dtype).gather(1, parents) + offer.scores.flatten(1).gather(1, parents * v + tokens)
    if offer.extra is not None:
        found = found + offer.extra.gather(1, tokens)
    worst = torch.where(values[:, -1] > -torch.inf, found.detach()[:, -1], -torch.inf)
    if offer.stayed is not None and offer.stays is not None and offer.pad is not None:
        places = torch.arange(k, device=found.device).expand(b, k)
        found = torch.cat([found, offer.stayed.to(dtype)], dim=1)
        valid = torch.cat([valid, offer.stays], dim=1)
        parents = torch.cat([parents, places], dim=1)
        tokens = torch.cat([tokens, torch.full_like(places, offer.pad)], dim=1)
    found = torch.where(valid, found, found.new_tensor(FLOOR))
    return Candidates(found, valid, parents, tokens, worst, k * v - count)


def mixtures(candidates: Candidates, k: int, alpha: float) -> Mixtures:
    """Return the soft top-k of the candidates and the bound on the mass of the continuations left out."""
    missing = max(0, k - candidates.scores.shape[1])
    peaks = F.pad(candidates.scores, (0, missing), value=FLOOR).topk(k, dim=1).values  # m_i
    filled = peaks > FLOOR / 2
    peaks = torch.where(filled, peaks, peaks[:, :1])
    log_weights = peaks_log_softmax(candidates.scores, peaks, alpha, candidates.valid)
    with torch.no_grad():
        heaviest = log_weights.argmax(dim=2)  # log Z_i follows from any candidate with weight
        distance = -alpha * (candidates.scores.gather(1, heaviest) - peaks).square()
        log_z = distance - log_weights.gather(2, heaviest.unsqueeze(2)).squeeze(2)
        bound = _bound(candidates, peaks, log_z, alpha)
    return Mixtures(candidates, log_weights, peaks, log_z, filled, bound)


def _bound(candidates: Candidates, peaks: Tensor, log_z: Tensor, alpha: float) -> Tensor:
    if candidates.worst is None or not candidates.left:
        return torch.zeros_like(peaks[:, 0])
    others = math.log(candidates.left) - alpha * (candidates.worst.unsqueeze(1) - peaks).square()
    bound = (others - log_z).amax(dim=1).exp()
    few = (candidates.valid.sum(dim=1) < peaks.shape[1]) & (candidates.worst > -torch.inf)
    below = (peaks < candidates.worst.unsqueeze(1)).any(dim=1)  # banned tokens took the places of better ones
    return bound.masked_fill(few | below, torch.inf)  # those left out would fill empty places, or be peaks


def _precision(scores: Tensor, count: int) -> torch.dtype:
    wide = count <= EXACT and scores.device.type != "mps"
    return torch.promote_types(scores.dtype, torch.float64 if wide else torch.float32)


# The selector

LEAST = -69.0  # log of a mass that counts as zero
NEGLIGIBLE = 1e-6  # total share of tokens that are not fed, or the tolerance if that is less
DONE = -14.0  # log of the running mass at which a decoder stops, if scores are log-probabilities


class SoftMove(NamedTuple):
    """What the K hypotheses continue and read.

    Hypothesis i continues the mixture ``back[b,i]`` of hypotheses and reads the mixture ``weights[b,i]`` of tokens.
    """

    weights: Tensor  # [B,K,M]
    tokens: Tensor | None  # [B,M] long; None for the whole vocabulary
    back: Tensor  # [B,K,k]
    negligible: float  # share of a mixture that may be left out of its embedding

    def follow(self, state: DecoderState) -> DecoderState:
        return state_rows.mix(state, self.back)

    def inputs(self, model: StepDecoder) -> Tensor:
        if self.tokens is None:
            return model.embed_mix(self.weights.flatten(0, 1).unsqueeze(1))
        b, k, m = self.weights.shape
        examples, places = (self.weights.amax(dim=1) > self.negligible / m).nonzero(as_tuple=True)  # [L] each
        vectors = model.embed(self.tokens[examples, places].unsqueeze(0))[0]  # [L,E]
        weights = self.weights[examples, :, places].to(vectors.dtype)  # [L,K]
        parts = (weights.unsqueeze(2) * vectors.unsqueeze(1)).flatten(1)  # [L,K·E]
        return parts.new_zeros(b, parts.shape[1]).index_add(0, examples, parts).view(b * k, 1, -1)


class SoftMemory(NamedTuple):
    """The hypotheses of each example; [B,K] unless another shape is given."""

    scores: Tensor  # s_i minus ``offset``: the best is 0
    offset: Tensor  # [B]
    running: Tensor  # log(1 − φ_i), where φ_i is the mass that has ended
    ended: Tensor  # log φ_i
    filled: Tensor  # bool: whether the place holds a hypothesis
    costs: Tensor  # D_i
    prepared: Tensor | None  # [B,T,…] from `Cost.prepare`
    bound: Tensor  # [B] the largest bound of any step on the mass left out
    kept: Tensor  # [B] number of continuations weighed, over all steps


@dataclass(frozen=True)
class SoftTop:
    """The soft selector: each of the K hypotheses is a mixture p_i of all continuations (CRB Algorithm 3).

        p_1 … p_K = soft top-k of s̃;  b_i[j] = Σ_w p_i[j,w];  a_i[w] = Σ_j p_i[j,w]
        input a_i · E;  state Σ_j b_i[j] h_j;  score Σ p_i s̃;  cost D_i = a_i · d_t + Σ_j b_i[j] D_j

    φ_i is the mass of p_i on EOS and padding, and s̃ the log of a mixture: s̃[i,w] = s_i + log(1 − φ_i) + f(h_i, w) and
    s̃[i,pad] = s_i + log φ_i. As α grows, this becomes `unforced.decoding.beam.Stay`. CRB starts from K equal
    hypotheses, which stay equal; here the beam starts with one. The best score is subtracted at each step, for
    precision.
    """

    constraints: Constraints
    width: int
    alpha: float
    keep: int | None
    tolerance: float
    cost: Cost | None = None  # d_t
    prepared: Tensor | None = None  # [B,T,…] from `Cost.prepare`
    margin: bool = False  # whether costs are added to s̃ as well
    watch: Callable[[Tensor], Tensor] | None = None  # applied to log p_i [B,K,M] at each step
    tracing: bool = False  # for decoding: record the most probable path, and stop when all mass has ended

    def begin(self, limits: Tensor) -> SoftMemory:
        wide = torch.float32 if limits.device.type == "mps" else torch.float64
        zeros = torch.zeros(limits.shape[0], self.width, dtype=wide, device=limits.device)
        filled = zeros.bool()
        filled[:, 0] = True
        none = zeros[:, 0]
        return SoftMemory(zeros, none, zeros, zeros + FLOOR, filled, zeros, self.prepared, none, none)

    def select(self, t: int, scores: Tensor, memory: SoftMemory, last: Tensor | None) -> Selection:
        with full_precision(scores.device):
            now = None if memory.prepared is None else memory.prepared[:, t]
            offer = self.continuations(t, scores, memory, now)
            chosen = soft_top(offer, self.width, self.alpha, self.keep, self.tolerance)
            memory, move = self.next(chosen, scores, memory, now)
        if not memory.scores.isfinite().all():
            raise InputError(f"the model gave NaN or infinite scores at step {t}")
        running = torch.ones_like(memory.filled[:, 0])
        if not self.tracing:
            return Selection(memory, move, None, running)
        done = DONE if self.constraints.kind == "local" else LEAST
        running = (memory.filled & (memory.running > done)).any(dim=1)
        return Selection(memory, move, most_probable(chosen, scores.shape[2]), running)

    def continuations(self, t: int, scores: Tensor, memory: SoftMemory, now: Tensor | None) -> Continuations:
        """Compute the parts of s̃: CRB Algorithm 3, lines 4 and 5."""
        before, v = scores.shape[1:]
        s, running, ended, filled = (
            x[:, :before] for x in (memory.scores, memory.running, memory.ended, memory.filled)
        )
        scores = widened(scores)
        if self.constraints.kind == "local":
            scores = scores.log_softmax(dim=2)
        extra = None
        if self.margin and self.cost is not None and now is not None:
            extra = self.cost(now, torch.arange(v, device=scores.device).expand(len(scores), v))
        offer = Continuations(s + running, filled & (running > LEAST), scores, extra, self.constraints.banned_at(t))
        if self.constraints.eos is None:
            return offer
        stayed, pad = s + ended, self.constraints.pad
        if extra is not None:
            stayed = stayed + extra[:, pad : pad + 1]  # padding before the end of the reference has a cost, too
        return offer._replace(pad=pad, stayed=stayed, stays=filled & (ended > LEAST))

    def next(
        self, chosen: Mixtures, scores: Tensor, memory: SoftMemory, now: Tensor | None
    ) -> tuple[SoftMemory, SoftMove]:
        """Compute scores, costs and ends of the mixtures, and the move to them: CRB Algorithm 3, lines 8 to 15."""
        (before, v), candidates, filled, log_weights = (
            scores.shape[1:],
            chosen.candidates,
            chosen.filled,
            chosen.log_weights,
        )
        if self.watch is not None:
            log_weights = self.watch(log_weights)
        weights = log_weights.exp()  # [B,K,M]
        s = torch.bmm(weights, candidates.scores.unsqueeze(2)).squeeze(2)
        if candidates.tokens is None or candidates.parents is None:
            by_parent = weights.unflatten(2, (before, v))
            back, inputs = by_parent.sum(dim=3), by_parent.sum(dim=2)
            tokens = torch.arange(v, device=s.device).expand(s.shape[0], v)
        else:
            back = torch.bmm(weights, F.one_hot(candidates.parents, before).to(weights.dtype))
            inputs, tokens = weights, candidates.tokens
        wide = memory.costs.dtype
        costs = torch.bmm(back.to(wide), memory.costs[:, :before].unsqueeze(2)).squeeze(2)
        if self.cost is not None and now is not None:
            costs = costs + torch.bmm(inputs.to(wide), self.cost(now, tokens).to(wide).unsqueeze(2)).squeeze(2)
        running, ended = self.masses(log_weights, candidates.tokens, before, v)
        best = s.detach().masked_fill(~filled, FLOOR).amax(dim=1)
        memory = SoftMemory(
            scores=(s - best.unsqueeze(1)).to(wide),
            offset=memory.offset + best,
            running=running.to(wide),
            ended=ended.to(wide),
            filled=filled,
            costs=costs,
            prepared=memory.prepared,
            bound=torch.maximum(memory.bound, chosen.bound.to(memory.bound.dtype)),
            kept=memory.kept + candidates.scores.shape[1],
        )
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return memory, SoftMove(inputs.to(dtype), candidates.tokens, back.to(dtype), min(NEGLIGIBLE, self.tolerance))

    def masses(self, log_weights: Tensor, tokens: Tensor | None, before: int, v: int) -> tuple[Tensor, Tensor]:
        """Return log(1 − φ_i) and log φ_i, [B,K] each."""
        if self.constraints.eos is None:
            zeros = torch.zeros_like(log_weights[:, :, 0])
            return zeros, zeros + FLOOR
        if tokens is None:
            tokens = torch.arange(v, device=log_weights.device).repeat(before).expand(len(log_weights), -1)
        over = ((tokens == self.constraints.eos) | (tokens == self.constraints.pad)).unsqueeze(1)
        floored = log_weights.clamp(min=FLOOR)
        return floored.masked_fill(over, FLOOR).logsumexp(dim=2), floored.masked_fill(~over, FLOOR).logsumexp(dim=2)


def most_probable(chosen: Mixtures, v: int) -> Nodes:
    """Return the token and the hypothesis with the largest weight in each mixture."""
    best = chosen.log_weights.argmax(dim=2)  # [B,K]
    parents, tokens = chosen.candidates.parents, chosen.candidates.tokens
    if parents is None or tokens is None:
        return Nodes(best % v, best.div(v, rounding_mode="floor"))
    return Nodes(tokens.gather(1, best), parents.gather(1, best))


# The decoder


@dataclass(frozen=True)
class SoftBeamSearch(Options):
    """Decode with the relaxed beam search (CRB section 2.4) and return the most probable path through it.

    At each step the most probable hypothesis and token of each mixture are recorded. They are followed back from the
    mixture with the best score, which is the score of the output. As ``alpha`` grows, this becomes beam search with
    ``finished="stay"``.
    """

    beam: Count = 3  # K
    alpha: Positive = 10.0  # inverse temperature of the soft top-k
    scores: ScoreType = "local"  # sum log-probabilities ("local") or the model's unnormalised scores ("global")
    keep: Count | None = 64  # number of continuations to weigh at first; all if none
    tolerance: Fraction = 1e-4  # most mass of a mixture that may be left out
    min_length: Natural = 0  # smallest number of tokens before the end symbol
    # largest number of tokens, end symbol included; by default it depends on the source
    max_length: Count | None = None

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        require(model, "soft_beam", "start", "embed", "embed_mix", "advance", "score")
        check_end(batch.symbols)
        constraints = Constraints.of(batch, self.min_length, self.scores)
        selector = SoftTop(constraints, self.beam, self.alpha, self.keep, self.tolerance, tracing=True)
        with evaluation_mode(model):
            result = search(model, batch, selector, limits(batch, self.min_length, self.max_length))
            return read_back(result, batch)


def read_back(result: SearchResult, batch: Batch) -> Hypotheses:
    """Return the path that leads to the best mixture of each example, up to its first end symbol."""
    memory: SoftMemory = result.memory
    scores, nodes = memory.scores.masked_fill(~memory.filled, -torch.inf).max(dim=1, keepdim=True)
    ends = torch.full_like(nodes, -1)
    for t, (examples, _) in enumerate(result.trace):
        ends[examples] = t
    scores = scores + memory.offset.unsqueeze(1)
    tokens, lengths, *rest = hypotheses(result, batch, ends, nodes, scores, scores)
    symbols = batch.symbols
    if symbols.eos is None:
        return Hypotheses(tokens, lengths, *rest)
    running = (tokens != symbols.eos) & (tokens != symbols.pad)  # [B,1,T]
    before = running.long().cumprod(dim=2).sum(dim=2)
    closed = F.pad(tokens == symbols.eos, (0, 1)).gather(2, before.unsqueeze(2)).squeeze(2)
    lengths = torch.minimum(lengths, before + closed)
    steps = torch.arange(tokens.shape[2], device=tokens.device)
    return Hypotheses(tokens.masked_fill(steps >= lengths.unsqueeze(2), symbols.pad), lengths, *rest)


def check_end(symbols: Symbols) -> None:
    """Raise `InputError` if the relaxed search cannot tell the end symbol from padding."""
    if symbols.eos is not None and symbols.eos == symbols.pad:
        raise InputError(
            f"soft_beam needs separate ids for padding and the end symbol, but both are {symbols.pad}; "
            "for a wrapped model, set one with wrap(model, pad=…)"
        )
