"""Beam-search optimisation (Wiseman and Rush 2016): keep the target in the beam at every step, by a margin."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.search import Constraints, HardMove, Nodes, ScoreType, SearchResult, Selection, follow, search
from unforced.decoding.teacher_forcing import gold_scores, output_features
from unforced.models.modes import evaluation_mode
from unforced.objectives.costs import Hamming, fitted_cost, gold_steps
from unforced.objectives.cross_entropy import token_metrics
from unforced.objectives.schedules import at, check_ends
from unforced.ops.masks import widened
from unforced.ops.topk import top, top_continuations
from unforced.options import AtLeast, Count, Natural, NonNegative, Options
from unforced.protocols import Cost, Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

Width = Annotated[float, AtLeast(1)]  # of a beam, rounded down


class GoldMemory(NamedTuple):
    """The beams of a batch, with the target in the first place, and the violations found so far."""

    leads: Tensor  # [B,1+K] s(ŷ) − s(y*); 0 for the target, −inf for an empty place
    finished: Tensor  # [B,1+K] bool
    costs: Tensor  # [B,1+K] Δ(ŷ)
    gold: Tensor  # [B,T], padded
    lengths: Tensor  # [B] target tokens
    prepared: Tensor  # [B,T,…] from cost.prepare
    places: Tensor  # [B,T] place of the hypothesis that violates the margin at a step; 0 without violation
    weights: Tensor  # [B,T] Δ of that hypothesis
    rivals: Tensor  # [B,T] s(ŷ^(K)) − s(y*) at a step; −inf without such a hypothesis


@dataclass(frozen=True)
class GoldBeam:
    """Selector of a beam with the target and the best K other hypotheses; restarts from the target after a violation.

    Scores are relative to the target's. Hypotheses that have ended keep their place.
    """

    constraints: Constraints
    beam: int  # K
    margin: float
    cost: Cost
    gold: Tensor  # [B,T]
    lengths: Tensor  # [B]
    prepared: Tensor  # [B,T,…]

    @property
    def width(self) -> int:
        return 1 + self.beam

    def begin(self, limits: Tensor) -> GoldMemory:
        zeros = torch.zeros(limits.shape[0], self.width, device=limits.device)
        leads = zeros.index_fill(1, torch.arange(1, self.width, device=limits.device), -torch.inf)
        nothing = torch.zeros(self.gold.shape, device=limits.device)
        places = torch.zeros_like(self.gold)
        own = (self.gold, self.lengths, self.prepared)
        return GoldMemory(leads, zeros > 0, zeros, *own, places, nothing, nothing - torch.inf)

    def select(self, t: int, scores: Tensor, memory: GoldMemory, last: Tensor | None) -> Selection:
        k, before = self.beam, scores.shape[1]
        so_far, finished, costs = (leaf[:, :before] for leaf in memory[:3])
        gold, rows = memory.gold[:, t], torch.arange(len(scores), device=scores.device)
        over = t >= memory.lengths  # the target has ended
        token_scores = self.constraints.token_scores(t, scores)
        token_scores[rows, 0, gold] = -torch.inf  # the target is not its own rival
        longer = so_far.masked_fill(finished, -torch.inf)
        longer[:, 0].masked_fill_(over, -torch.inf)
        leads, parents, tokens = top_continuations(token_scores, longer, k)
        if self.constraints.eos is not None:
            places = torch.arange(before, device=gold.device).expand(len(gold), before)
            stayed = so_far.masked_fill(~finished, -torch.inf)
            leads, chosen = top(torch.cat([leads, stayed], dim=1), k)
            parents = torch.cat([parents, places], dim=1).gather(1, chosen)
            pads = torch.full_like(places, self.constraints.pad)
            tokens = torch.cat([tokens, pads], dim=1).gather(1, chosen)
        own = token_scores_at(scores[:, 0], rows, gold, self.constraints.kind).masked_fill(over, 0.0)
        leads = leads - own.unsqueeze(1)
        finished = finished.gather(1, parents) | self.constraints.is_end(tokens)
        costs = torch.maximum(costs.gather(1, parents), self.cost(memory.prepared[:, t], tokens))

        place = torch.where(t + 1 >= memory.lengths, 1, k)  # the place that the target must beat
        rival, weight = (leaf.gather(1, place.unsqueeze(1) - 1).squeeze(1) for leaf in (leads, costs))
        violated = (rival > -self.margin) & (weight > 0)
        leads = leads.masked_fill(violated.unsqueeze(1), -torch.inf)  # LaSO: restart from the target

        def with_column(leaf: Tensor, now: Tensor) -> Tensor:  # [B,T] with the column t
            dtype = torch.promote_types(leaf.dtype, now.dtype)
            return leaf.to(dtype).index_copy(1, rows.new_tensor([t]), now.unsqueeze(1).to(dtype))

        memory = memory._replace(
            leads=F.pad(leads, (1, 0)),
            finished=F.pad(finished, (1, 0)),
            costs=F.pad(costs, (1, 0)),
            places=with_column(memory.places, place * violated),
            weights=with_column(memory.weights, weight),
            rivals=with_column(memory.rivals, rival),
        )
        record = Nodes(torch.cat([gold.unsqueeze(1), tokens], dim=1), F.pad(parents, (1, 0)))
        move = HardMove(record.tokens, record.parents, before)
        return Selection(memory, move, record, torch.ones_like(violated))


def token_scores_at(scores: Tensor, places: Tensor, tokens: Tensor, kind: ScoreType) -> Tensor:
    """Return the scores [M] of M tokens, each at one of the N places of ``scores`` [N,V]."""
    scores = widened(scores)
    found = scores[places, tokens]
    return found if kind == "global" else found - scores.logsumexp(dim=-1)[places]


class Violations(NamedTuple):
    """The M violations of a batch. Before ``first``, hypothesis and target are equal, and so are their scores."""

    examples: Tensor  # [M]
    tokens: Tensor  # [M,T] the hypothesis ŷ^(K), padded
    weights: Tensor  # [M] Δ
    first: Tensor  # [M] the first step at which it differs from the target
    inside: Tensor  # [M,T] bool: the steps from there to the violation
    scored: Tensor  # [M,T] bool: those up to the end of the hypothesis


def find_violations(found: SearchResult, batch: Batch) -> Violations:
    """Return the violations that a search found, ordered by example and step."""
    memory: GoldMemory = found.memory
    there = memory.places > 0  # [B,T]
    most = int(there.sum(dim=1).max()) if len(there) else 0
    steps = there.byte().argsort(dim=1, descending=True, stable=True)[:, :most]  # [B,N]
    real = there.gather(1, steps)
    ends = torch.where(real, steps, -1)
    tokens = follow(found, ends, memory.places.gather(1, steps), batch.symbols.pad)[real]  # [M,T]
    examples, until = real.nonzero()[:, 0], steps[real].unsqueeze(1)
    now = torch.arange(tokens.shape[1], device=tokens.device)
    wrong = (tokens != memory.gold[examples, : tokens.shape[1]]) & (now <= until)
    first = wrong.byte().argmax(dim=1) if wrong.numel() else examples
    inside = (now >= first.unsqueeze(1)) & (now <= until)
    scored = inside
    if batch.symbols.eos is not None:
        ended = inside & (tokens == batch.symbols.eos)
        scored = inside & (ended.cumsum(dim=1) - ended.long() == 0)
    weights = memory.weights.gather(1, steps)[real]
    return Violations(examples, tokens, weights, first, inside, scored)


@dataclass(frozen=True)
class BeamSearchOptimization(Options):
    """Minimise Σ_t Δ(ŷ_1:t) · max(0, m − s(y*_1:t) + s(ŷ_1:t)), where ŷ_1:t is the K-th best wrong hypothesis.

    The hypotheses are those of a beam search. At every step the target prefix must outscore ŷ by the margin m, and so
    stay in a beam of K. From the last target step on, K is 1. Where the margin is violated, the beam restarts from the
    target prefix (LaSO, Daumé and Marcu 2005). No gradient flows through the search: the target and the violating
    hypotheses are scored again afterwards.

    Δ is the largest cost of the tokens of a prefix; with Hamming it is 1 for every wrong prefix, as in the paper. The
    score of a prefix is the sum over its tokens, as in this library's beam search; the paper takes the last token's
    score. A hypothesis that ended before the target keeps its score and place.

    The total is divided by the number of target tokens. Start from a model trained with cross-entropy, or with
    ``self_normalized`` for global scores. Metrics: ``violations`` per example, the share ``clean`` of examples
    without any, and ``lead``, the mean over steps of s(y*_1:t) − s(ŷ_1:t).
    """

    beam: Count | Schedule = 5  # K, the beam at test time; a schedule is rounded down (the paper's beam is one larger)
    margin: NonNegative = 1.0  # m
    scores: ScoreType = "global"  # raw scores, or log-probabilities
    cost: Cost = field(default_factory=Hamming)  # cost of each token
    beyond: Natural = 0  # search steps after the end of the target; with global scores, one or two are worth their time
    dropout: bool = False  # whether dropout is on in the decoder during the search

    def check(self) -> None:
        check_ends("beam", self.beam, Width)

    def fitted(self, codec: Any, examples: Any = ()) -> "BeamSearchOptimization":
        return replace(self, cost=fitted_cost(self.cost, codec))

    def schedules(self) -> dict[str, float | Schedule]:
        return {"beam": self.beam}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "beam_search_optimization", "start", "embed", "advance", "score")
        beam, state = math.floor(at(self.beam, progress, "beam", Width)), model.start(batch)
        found = self.run_search(model, batch, state, beam)
        violated = find_violations(found, batch)
        scores, gold = gold_scores(model, batch, state)  # [N,V] and [N]
        total = self.hinges(model, batch, state, scores, violated)
        with torch.no_grad():
            nll = -token_scores_at(scores, torch.arange(len(gold), device=gold.device), gold, "local").sum()
        metrics = token_metrics(scores, gold, nll)
        rivals = found.memory.rivals
        met, where = rivals.isfinite(), batch.mask.any(dim=1)
        clean = where & ~(found.memory.places > 0).any(dim=1)
        examples = where.sum().float()
        metrics["violations"] = (torch.tensor(float(len(violated.first)), device=gold.device), examples)
        metrics["clean"] = (clean.sum().float(), examples)
        metrics["lead"] = (-rivals[met].sum().float(), met.sum().float())
        return Loss(total, metrics["nll"][1], metrics)

    def run_search(self, model: StepDecoder, batch: Batch, state: DecoderState, beam: int) -> SearchResult:
        """Search with the target in the beam, for as many steps as it has and ``beyond`` more."""
        beyond, lengths = 0 if batch.symbols.eos is None else self.beyond, batch.mask.sum(dim=1)
        steps = batch.gold.shape[1] + beyond
        selector = GoldBeam(
            Constraints.of(batch, kind=self.scores),
            beam,
            self.margin,
            self.cost,
            gold_steps(batch, steps),
            lengths,
            self.cost.prepare(batch, steps),
        )
        limits = torch.where(lengths > 0, lengths + beyond, 0)
        with evaluation_mode(model, dropout=self.dropout):
            return search(model, batch, selector, limits, state=state)

    def hinges(
        self, model: StepDecoder, batch: Batch, state: DecoderState, scores: Tensor, violated: Violations
    ) -> Tensor:
        """Return Σ Δ · max(0, m − s(y*) + s(ŷ)) over the violations; ``scores`` [N,V] are at the target positions.

        The common prefix is left out. The first token that differs is scored from ``scores``, the rest by a new pass.
        """
        examples, tokens, weights, first, inside, scored = violated
        number = batch.mask.flatten().cumsum(0).view_as(batch.mask) - 1  # [B,T], of a position among the N
        count, size = len(scores), tokens.shape[1]
        own = first.unsqueeze(1)
        found = token_scores_at(
            scores,
            torch.cat([number[batch.mask], number[examples, first]]),
            torch.cat([batch.gold[batch.mask], tokens.gather(1, own).squeeze(1) if size else first]),
            self.scores,
        )
        if not len(first):
            return found[:0].sum()  # zero, with a gradient of zero for all parameters
        gold = found.new_zeros(batch.mask.shape).masked_scatter(batch.mask, found[:count])
        gold = F.pad(gold, (0, max(0, size - gold.shape[1])))
        rest = scored.scatter(1, own, False)  # positions whose input is a token of the hypothesis
        leads = found[count:] - torch.where(inside, gold[examples, :size], 0.0).sum(dim=1)
        leads = leads + self.score_rest(model, batch, state, examples, tokens, rest).to(leads.dtype)
        return (weights.to(leads.dtype) * (self.margin + leads).clamp(min=0.0)).sum()

    def score_rest(
        self, model: StepDecoder, batch: Batch, state: DecoderState, examples: Tensor, tokens: Tensor, wanted: Tensor
    ) -> Tensor:
        """Return the summed scores [M] of the hypotheses' ``tokens`` [M,T] where ``wanted`` [M,T] is true."""
        some = wanted.any(dim=1).nonzero().squeeze(1)
        if not some.numel():
            return torch.zeros(len(tokens), device=tokens.device)
        size = int(wanted.any(dim=0).nonzero().max()) + 1
        examples, tokens_, wanted = examples[some], tokens[some, :size], wanted[some, :size]
        scores = model.score(output_features(model, batch, state, tokens_, wanted, examples))
        everything = torch.arange(len(scores), device=scores.device)
        found = token_scores_at(scores, everything, tokens_[wanted], self.scores)
        return found.new_zeros(len(tokens)).index_add(0, some[wanted.nonzero()[:, 0]], found)
