"""The soft selection of the K best continuations (CRB Algorithm 2), of all of them or, with a certificate, of the best few.

p_i ∝ exp(−α (s̃ − m_i)²) over the k·V continuations, m_i being the i-th largest s̃. Only scores near some m_i carry weight, so it is
enough to weigh the M best. Were all the others as good as the worst of these, their part of p_i would be

    (k·V − M) · exp(−α (s̃_(M) − m_i)²) / Z_i

with Z_i summed over those weighed, so it is at most that, as long as no m_i lies below s̃_(M) (padding and banned tokens can bring
that about). M grows until this bound is under a tolerance for every i.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.search import Constraints, Found, Record, Selection, check_lengths, hypotheses, limits, search
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import state_rows
from unforced.ops.masks import FLOOR, full_precision, widened
from unforced.ops.relaxations import around, checked_alpha
from unforced.ops.topk import top_continuations
from unforced.options import Count, Fraction, Natural, Options, Positive
from unforced.protocols import Cost, StepDecoder, require
from unforced.types import Batch, DecoderState, Hypotheses, Symbols

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


def truncated_soft_top_k(scores: Tensor, k: int, alpha: float, keep: int = 64, tolerance: float = 1e-6) -> Truncated:
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
    found = offer.so_far.to(dtype).gather(1, parents) + offer.scores.flatten(1).gather(1, parents * v + tokens)
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
    return bound.masked_fill(few | below, torch.inf)  # those left out would fill the empty places, or be peaks


def _precision(scores: Tensor, count: int) -> torch.dtype:
    wide = count <= EXACT and scores.device.type != "mps"
    return torch.promote_types(scores.dtype, torch.float64 if wide else torch.float32)


# The continuous relaxation of beam search (Goyal et al. 2018, called CRB below).

LEAST = -69.0  # log of a mass that counts as none
NEGLIGIBLE = 1e-6  # of a mixture, or the tolerance if less: tokens that have less, all together, are not fed
DONE = -14.0  # log of the mass that may still be running when a decoder stops, if scores can't bring it back


class SoftMove(NamedTuple):
    """Hypothesis i continues the mixture ``back[b,i]`` of hypotheses, and is fed a mixture of tokens.

    That is ``weights[b,i]`` over the tokens ``tokens[b]``, or over the whole vocabulary where these are None.
    """

    weights: Tensor  # [B,K,M]
    tokens: Tensor | None  # [B,M] long
    back: Tensor  # [B,K,k]
    negligible: float  # what of a mixture may be left out where it is fed

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
    """What the hypotheses of each example have come to; [B,K] where nothing else is said."""

    scores: Tensor  # s_i, less ``offset``: the best is 0
    offset: Tensor  # [B]
    running: Tensor  # log(1 − φ_i), where φ_i is the mass that has ended
    ended: Tensor  # log φ_i
    filled: Tensor  # bool: whether the place holds a hypothesis
    costs: Tensor  # D_i
    prepared: Tensor | None  # [B,T,…] what costs depend on
    bound: Tensor  # [B] the largest bound of a step on what was left out
    kept: Tensor  # [B] continuations weighed, over all steps


@dataclass(frozen=True)
class SoftTop:
    """The soft selector: each of the K hypotheses is a mixture p_i of all continuations. As α grows it becomes ``Stay``.

        p_1 … p_K = soft top-k of s̃;  b_i[j] = Σ_w p_i[j,w];  a_i[w] = Σ_j p_i[j,w]
        input a_i · E;  state Σ_j b_i[j] h_j;  score Σ p_i s̃;  cost D_i = a_i · d_t + Σ_j b_i[j] D_j

    Where outputs end, φ_i is p_i's mass on EOS and padding, and s̃ is the log of a mixture: s̃[i,w] = s_i + log(1 − φ_i) + f(h_i, w),
    and s̃[i,pad] = s_i + log φ_i. CRB starts from K equal hypotheses, which stay K copies of one for ever; here there is one at
    first. The best score is taken off all at each step, which changes nothing but rounding.
    """

    constraints: Constraints
    width: int
    alpha: float
    keep: int | None
    tolerance: float
    cost: Cost | None = None  # d_t
    prepared: Tensor | None = None  # [B,T,…] by the cost
    margin: bool = False  # whether costs are added to s̃ as well
    watch: Callable[[Tensor], Tensor] | None = None  # what log p_i [B,K,M] of each step goes through
    tracing: bool = False  # for decoding: record the likeliest path, and stop when all has ended

    def begin(self, limits: Tensor) -> SoftMemory:
        wide = torch.float32 if limits.device.type == "mps" else torch.float64
        zeros = torch.zeros(limits.shape[0], self.width, dtype=wide, device=limits.device)
        filled = zeros.bool()
        filled[:, 0] = True
        none = zeros[:, 0]
        return SoftMemory(zeros, none, zeros, zeros + FLOOR, filled, zeros, self.prepared, none, none)

    def select(self, t: int, scores: Tensor, memory: SoftMemory, last: Tensor | None) -> Selection:
        with full_precision(scores.device):
            return self.selected(t, scores, memory)

    def selected(self, t: int, scores: Tensor, memory: SoftMemory) -> Selection:
        now = None if memory.prepared is None else memory.prepared[:, t]
        chosen = soft_top(self.offer(t, scores, memory, now), self.width, self.alpha, self.keep, self.tolerance)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        memory, move = self.go_on(chosen, scores.shape[1:], memory, now, dtype)
        if not memory.scores.isfinite().all():
            raise InputError(f"the model gave NaN or infinite scores at step {t}")
        running = torch.ones_like(memory.filled[:, 0])
        if not self.tracing:
            return Selection(memory, move, None, running)
        done = DONE if self.constraints.kind == "local" else LEAST
        running = (memory.filled & (memory.running > done)).any(dim=1)
        return Selection(memory, move, likeliest(chosen, scores.shape[2]), running)

    def offer(self, t: int, scores: Tensor, memory: SoftMemory, now: Tensor | None) -> Offer:
        """s̃, in its parts: CRB Algorithm 3, lines 4 and 5."""
        before, v = scores.shape[1:]
        s, running, ended, filled = (
            x[:, :before] for x in (memory.scores, memory.running, memory.ended, memory.filled)
        )
        scores = widened(scores)
        if self.constraints.kind == "local":
            scores = scores.log_softmax(dim=2)
        so_far = s + running
        extra = None
        if self.margin and self.cost is not None and now is not None:
            extra = self.cost(now, torch.arange(v, device=scores.device).expand(len(scores), v))
        offer = Offer(so_far, filled & (running > LEAST), scores, extra, self.constraints.banned_at(t))
        if self.constraints.eos is None:
            return offer
        stayed, pad = s + ended, self.constraints.pad
        if extra is not None:
            stayed = stayed + extra[:, pad : pad + 1]  # padding where the gold goes on costs, too
        return offer._replace(pad=pad, stayed=stayed, stays=filled & (ended > LEAST))

    def go_on(
        self, chosen: Chosen, size: torch.Size, memory: SoftMemory, now: Tensor | None, dtype: torch.dtype
    ) -> tuple[SoftMemory, SoftMove]:
        """Scores, costs and ends of the mixtures, and the move to them: CRB Algorithm 3, lines 8 to 15."""
        (before, v), candidates, filled, log_weights = (size, chosen.candidates, chosen.filled, chosen.log_weights)
        if self.watch is not None:
            log_weights = self.watch(log_weights)
        weights = log_weights.exp()  # [B,K,M]
        s = torch.bmm(weights, candidates.scores.unsqueeze(2)).squeeze(2)
        if candidates.tokens is None or candidates.parents is None:
            whole = weights.unflatten(2, (before, v))
            back, inputs = whole.sum(dim=3), whole.sum(dim=2)
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
        return memory, SoftMove(inputs.to(dtype), candidates.tokens, back.to(dtype), min(NEGLIGIBLE, self.tolerance))

    def masses(self, log_weights: Tensor, tokens: Tensor | None, before: int, v: int) -> tuple[Tensor, Tensor]:
        """log(1 − φ_i) and log φ_i, [B,K] each."""
        if self.constraints.eos is None:
            nothing = torch.zeros_like(log_weights[:, :, 0])
            return nothing, nothing + FLOOR
        if tokens is None:
            tokens = torch.arange(v, device=log_weights.device).repeat(before).expand(len(log_weights), -1)
        over = ((tokens == self.constraints.eos) | (tokens == self.constraints.pad)).unsqueeze(1)
        floored = log_weights.clamp(min=FLOOR)
        return tuple(floored.masked_fill(mask, FLOOR).logsumexp(dim=2) for mask in (over, ~over))  # type: ignore[return-value]


def likeliest(chosen: Chosen, v: int) -> Record:
    """The token and the hypothesis with the largest weight in each mixture."""
    best = chosen.log_weights.argmax(dim=2)  # [B,K]
    parents, tokens = chosen.candidates.parents, chosen.candidates.tokens
    if parents is None or tokens is None:
        return Record(best % v, best.div(v, rounding_mode="floor"))
    return Record(tokens.gather(1, best), parents.gather(1, best))


@dataclass(frozen=True)
class SoftBeam(Options):
    """Decode with the relaxed beam search (CRB section 2.4): its recurrence, and at the end the likeliest path through it.

    At each step the most probable hypothesis and token of each mixture p_i are noted; they are followed back from the
    mixture with the best score. As ``alpha`` grows this becomes beam search with ``finished = "stay"``.

    ``beam`` is K; ``scores`` "local" adds up log-probabilities, "global" the model's scores as they are. ``keep`` and
    ``tolerance`` are those of the objective ``soft_beam``. ``min_length`` and ``max_length`` are those of
    ``unforced.decoding.search``. The score of an output is that of its mixture.

    >>> from unforced.decoding.soft_beam import SoftBeam
    >>> SoftBeam(beam=3, alpha=10.0).scores
    'local'
    """

    beam: Count = 3
    alpha: Positive = 10.0
    scores: Literal["local", "global"] = "local"
    keep: Count | None = 64
    tolerance: Fraction = 1e-4
    min_length: Natural = 0
    max_length: Count | None = None

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        require(model, "soft_beam", "start", "embed", "embed_mix", "advance", "score")
        check_end(batch.symbols)
        constraints = Constraints.of(batch, self.min_length, self.scores)
        alpha = checked_alpha(self.alpha)
        selector = SoftTop(constraints, self.beam, alpha, self.keep, self.tolerance, tracing=True)
        with evaluation_mode(model):
            found = search(model, batch, selector, limits(batch, self.min_length, self.max_length))
            return read_back(found, batch)


def read_back(found: Found, batch: Batch) -> Hypotheses:
    """The path that leads to the best mixture of each example, up to its first end."""
    memory: SoftMemory = found.memory
    scores, nodes = memory.scores.masked_fill(~memory.filled, -torch.inf).max(dim=1, keepdim=True)
    ends = torch.full_like(nodes, -1)
    for t, (examples, _) in enumerate(found.trace):
        ends[examples] = t
    scores = scores + memory.offset.unsqueeze(1)
    tokens, lengths, *rest = hypotheses(found, batch, ends, nodes, scores, scores)
    symbols = batch.symbols
    if symbols.eos is None:
        return Hypotheses(tokens, lengths, *rest)
    open_ = (tokens != symbols.eos) & (tokens != symbols.pad)  # [B,1,T]
    before = open_.long().cumprod(dim=2).sum(dim=2)
    closed = F.pad(tokens == symbols.eos, (0, 1)).gather(2, before.unsqueeze(2)).squeeze(2)
    lengths = torch.minimum(lengths, before + closed)
    steps = torch.arange(tokens.shape[2], device=tokens.device)
    return Hypotheses(tokens.masked_fill(steps >= lengths.unsqueeze(2), symbols.pad), lengths, *rest)


def check_end(symbols: Symbols) -> None:
    """Raise ``InputError`` where the relaxed search can't tell an end from what comes behind it."""
    if symbols.eos is not None and symbols.eos == symbols.pad:
        raise InputError(
            f"soft_beam needs a padding symbol of its own, and here {symbols.pad} is both padding and the end; "
            "for a wrapped model, wrap(model, pad=…) gives one"
        )
