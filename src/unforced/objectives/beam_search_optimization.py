"""Beam-search optimisation (Wiseman and Rush 2016): at every step of a beam search the gold must stay in the beam, by a margin."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, NamedTuple

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
    """The beam of an example, the gold in its first place, and what the search has seen."""

    leads: Tensor  # [B,1+K] s(ŷ) − s(y*); 0 for the gold, −inf where a place is empty
    finished: Tensor  # [B,1+K] bool
    costs: Tensor  # [B,1+K] Δ(ŷ)
    gold: Tensor  # [B,T], padding behind its end
    lengths: Tensor  # [B] how many tokens it has
    prepared: Tensor  # [B,T,…] by the cost
    places: Tensor  # [B,T] the place of the hypothesis that violates the margin at a step, 0 where none does
    weights: Tensor  # [B,T] its Δ
    rivals: Tensor  # [B,T] the lead of ŷ^(K) at a step, −inf where there is no such hypothesis


@dataclass(frozen=True)
class GoldBeam:
    """Beam search of the gold and the best K others, as ``Stay`` does it; where the margin is violated, of the gold alone.

    Scores are kept less the gold's, which changes nothing but rounding. The gold goes on whatever it holds; others that
    have ended stay as they are.
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
        gold, everybody = memory.gold[:, t], torch.arange(len(scores), device=scores.device)
        over = t >= memory.lengths  # the gold has ended
        token_scores = self.constraints.token_scores(t, scores)
        token_scores[everybody, 0, gold] = -torch.inf  # the gold itself is nobody's rival
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
        own = of_tokens(scores[:, 0], everybody, gold, self.constraints.kind).masked_fill(over, 0.0)
        leads = leads - own.unsqueeze(1)
        finished = finished.gather(1, parents) | self.constraints.is_end(tokens)
        costs = torch.maximum(costs.gather(1, parents), self.cost(memory.prepared[:, t], tokens))

        place = torch.where(t + 1 >= memory.lengths, 1, k)  # whom the gold must beat
        rival, weight = (leaf.gather(1, place.unsqueeze(1) - 1).squeeze(1) for leaf in (leads, costs))
        violated = (rival > -self.margin) & (weight > 0)
        leads = leads.masked_fill(violated.unsqueeze(1), -torch.inf)  # LaSO: the beam begins anew at the gold

        def noted(leaf: Tensor, now: Tensor) -> Tensor:  # [B,T] with the column t
            dtype = torch.promote_types(leaf.dtype, now.dtype)
            return leaf.to(dtype).index_copy(1, everybody.new_tensor([t]), now.unsqueeze(1).to(dtype))

        memory = memory._replace(
            leads=F.pad(leads, (1, 0)),
            finished=F.pad(finished, (1, 0)),
            costs=F.pad(costs, (1, 0)),
            places=noted(memory.places, place * violated),
            weights=noted(memory.weights, weight),
            rivals=noted(memory.rivals, rival),
        )
        record = Nodes(torch.cat([gold.unsqueeze(1), tokens], dim=1), F.pad(parents, (1, 0)))
        move = HardMove(record.tokens, record.parents, before)
        return Selection(memory, move, record, torch.ones_like(violated))


def of_tokens(scores: Tensor, places: Tensor, tokens: Tensor, kind: ScoreType) -> Tensor:
    """What the model's scores [N,V] give M tokens at M of the N places: [M], as they are or as log-probabilities."""
    scores = widened(scores)
    found = scores[places, tokens]
    return found if kind == "global" else found - scores.logsumexp(dim=-1)[places]


class Violations(NamedTuple):
    """The M violations of a batch, and where each hypothesis leaves the gold: before that, their scores are equal."""

    examples: Tensor  # [M]
    tokens: Tensor  # [M,T] the hypothesis ŷ^(K), padding behind its end
    weights: Tensor  # [M] Δ
    first: Tensor  # [M] the first step at which it isn't the gold
    inside: Tensor  # [M,T] bool: the steps from there to the violation
    scored: Tensor  # [M,T] bool: those of them up to the hypothesis's own end


def violations(found: SearchResult, batch: Batch) -> Violations:
    """What a search has found, in the order of the examples and steps."""
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
    """Σ_t Δ(ŷ_1:t) · max(0, m − s(y*_1:t) + s(ŷ_1:t)), where ŷ_1:t is the K-th best hypothesis of a beam search that isn't gold.

    At every step the gold prefix must outscore it by the ``margin`` m, and so stay in a beam of K; from the gold's last
    step on K is 1. The search keeps the gold and the K best others. Where a term of the sum is positive the beam is reset
    to the gold prefix alone (LaSO, Daumé and Marcu 2005); otherwise it goes on. No gradient goes through the search: scores
    are made again for the gold, and for hypotheses that violated the margin from where they leave it.

    ``beam`` is K, the beam at test: a number, or a schedule that is rounded down. The paper counts the gold among its
    hypotheses, and so trains with a beam one larger than at test. It starts with a small one that grows, as by the
    schedule ``Linear(start=1, end=5, over=8)``.

    ``scores`` "global" are the model's scores as they are, "local" log-probabilities. The score s of a prefix is the sum
    over its tokens, as beam search ranks in this library; the paper takes the score of the last token alone. A
    hypothesis that has ended before the gold keeps its score and its place, as in beam search with ``finished = "stay"``.
    The search has as many steps as the gold, and where outputs end ``beyond`` more, in which others grow longer: with
    global scores these may well overtake the gold, so one such step or two are worth their time.

    ``cost`` says what tokens cost, and Δ is the largest cost among a prefix's tokens: with Hamming it is 1 for any prefix
    that isn't gold, the paper's zero-one cost. ``dropout`` says whether it is on in the search's decoder; the encoder's
    output is that of the training pass. With dropout, what violated the margin in the search may satisfy it when it is
    scored again, and then adds nothing.

    Start from a model trained with cross-entropy, or for global scores with ``self_normalized``: from random weights this
    learns little. The total is a sum over examples, divided by the number of gold tokens. The metric ``violations``
    counts them for each example, ``clean`` is the share of examples without any, and ``lead`` the mean over steps of
    s(y*_1:t) − s(ŷ_1:t).

    >>> from unforced.objectives.beam_search_optimization import BeamSearchOptimization
    >>> BeamSearchOptimization(beam=3, scores="local").margin
    1.0
    """

    refines: ClassVar[bool] = True  # from random weights it learns little

    beam: Count | Schedule = 5  # hypotheses beside the gold, rounded down
    margin: NonNegative = 1.0  # by which the gold must outscore the last of them
    scores: ScoreType = "global"  # scores as they are, or log-probabilities
    cost: Cost = field(default_factory=Hamming)  # what tokens cost
    beyond: Natural = 0  # steps behind the gold's end, where outputs end
    dropout: bool = False  # whether it is on while violations are searched

    def check(self) -> None:
        check_ends("beam", self.beam, Width)

    def fitted(self, codec: Any, examples: Any = ()) -> "BeamSearchOptimization":
        return replace(self, cost=fitted_cost(self.cost, codec))

    def schedules(self) -> dict[str, float | Schedule]:
        """What moves with progress, for pictures."""
        return {"beam": self.beam}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "beam_search_optimization", "start", "embed", "advance", "score")
        beam, state = math.floor(at(self.beam, progress, "beam", Width)), model.start(batch)
        found = self.searched(model, batch, state, beam)
        violated = violations(found, batch)
        scores, gold = gold_scores(model, batch, state)  # [N,V] and [N]
        total = self.hinges(model, batch, state, scores, violated)
        with torch.no_grad():
            nll = -of_tokens(scores, torch.arange(len(gold), device=gold.device), gold, "local").sum()
        metrics = token_metrics(scores, gold, nll)
        rivals = found.memory.rivals
        met, where = rivals.isfinite(), batch.mask.any(dim=1)
        clean = where & ~(found.memory.places > 0).any(dim=1)
        examples = where.sum().float()
        metrics["violations"] = (torch.tensor(float(len(violated.first)), device=gold.device), examples)
        metrics["clean"] = (clean.sum().float(), examples)
        metrics["lead"] = (-rivals[met].sum().float(), met.sum().float())
        return Loss(total, metrics["nll"][1], metrics)

    def searched(self, model: StepDecoder, batch: Batch, state: DecoderState, beam: int) -> SearchResult:
        """The beam search beside the gold, over as many steps as that has, and ``beyond``."""
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
        """Σ Δ · max(0, m − s(y*) + s(ŷ)) over the violations; ``scores`` [N,V] are those at the gold's positions.

        What gold and hypothesis share is left out of both. The hypothesis's first own token is scored where the gold's is.
        """
        examples, tokens, weights, first, inside, scored = violated
        number = batch.mask.flatten().cumsum(0).view_as(batch.mask) - 1  # [B,T], of a position among the N
        count, size = len(scores), tokens.shape[1]
        own = first.unsqueeze(1)
        found = of_tokens(
            scores,
            torch.cat([number[batch.mask], number[examples, first]]),
            torch.cat([batch.gold[batch.mask], tokens.gather(1, own).squeeze(1) if size else first]),
            self.scores,
        )
        if not len(first):
            return found[:0].sum()  # zero, with a gradient of zero for every parameter
        gold = found.new_zeros(batch.mask.shape).masked_scatter(batch.mask, found[:count])
        gold = F.pad(gold, (0, max(0, size - gold.shape[1])))
        rest = scored.scatter(1, own, False)  # what the hypothesis is fed its own tokens for
        leads = found[count:] - torch.where(inside, gold[examples, :size], 0.0).sum(dim=1)
        leads = leads + self.behind(model, batch, state, examples, tokens, rest).to(leads.dtype)
        return (weights.to(leads.dtype) * (self.margin + leads).clamp(min=0.0)).sum()

    def behind(
        self, model: StepDecoder, batch: Batch, state: DecoderState, examples: Tensor, tokens: Tensor, wanted: Tensor
    ) -> Tensor:
        """The sum [M] of the scores of hypotheses' ``tokens`` [M,T] where they are ``wanted`` [M,T]."""
        some = wanted.any(dim=1).nonzero().squeeze(1)
        if not some.numel():
            return torch.zeros(len(tokens), device=tokens.device)
        size = int(wanted.any(dim=0).nonzero().max()) + 1
        examples, tokens_, wanted = examples[some], tokens[some, :size], wanted[some, :size]
        scores = model.score(output_features(model, batch, state, tokens_, wanted, examples))
        everything = torch.arange(len(scores), device=scores.device)
        found = of_tokens(scores, everything, tokens_[wanted], self.scores)
        return found.new_zeros(len(tokens)).index_add(0, some[wanted.nonzero()[:, 0]], found)
