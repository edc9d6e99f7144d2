"""Training for beam search through its continuous relaxation (Goyal et al. 2018), with local or global scores."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from unforced.decoding.search import Constraints, search
from unforced.decoding.soft_beam import SoftMemory, SoftTop, check_end
from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import no_dropout, stepping
from unforced.objectives.costs import Hamming, fitted_cost
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.schedules import Exponential, at, check_ends
from unforced.objectives.self_normalized import normalized_likelihood
from unforced.ops.masks import FLOOR, widened
from unforced.ops.relaxations import checked_alpha
from unforced.options import Count, Fraction, Natural, NonNegative, Options, Positive
from unforced.protocols import Cost, Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

SHARPENING = Exponential(start=1.0, rate=1.5, cap=100.0)
HAMMING = Hamming()
SAME = 1e-6  # hypotheses whose scores are no further apart are copies of one


@dataclass(frozen=True)
class SoftBeam(Options):
    """The cost of what beam search finds, or the margin by which the gold loses to it, made differentiable.

    ``unforced.decoding.soft_beam`` runs the relaxed search over as many steps as the gold has (and ``beyond`` more where
    outputs end); its K hypotheses end with scores s_i and accumulated costs D_i. With w = softmax(α s):

    - ``loss = "direct"`` is Σ_i w_i D_i, the cost of the best hypothesis as α grows (CRB Algorithm 3);
    - ``loss = "hinge"`` is max(0, Σ_i w_i s_i − s(y*)), where costs are added to the scores in the search (CRB section 2.5).

    ``scores`` "local" are log-probabilities, "global" the model's scores as they are. ``alpha`` is a number or a schedule.
    ``cost`` says what each token costs. ``keep`` is how many continuations of all hypotheses of an example are weighed
    at a step, at first: more are taken until what is left out has at most ``tolerance`` of the weight in any hypothesis
    (the metric ``bound`` is the mean over examples of the largest such bound, ``kept`` how many were weighed); ``"none"`` always
    weighs all. The smaller α is, the sooner neighbouring hypotheses become equal, and then they stay so: the metric ``distinct``
    says how many of the K an example still has at its end. The metric ``cost`` is Σ_i w_i D_i of what was searched: with "hinge", of a search for costly outputs.
    ``checkpoint`` keeps only every √T-th step for the backward pass, and the last 4 √T, and makes the others again. ``dropout`` says whether it is on in
    the decoder; the encoder has it as it trains. It would fall differently on every hypothesis, step and the gold, so that the
    search ranks by chance, and a margin would mostly measure that.

    ``clip`` bounds how much the mixtures of a step, or w, can move an example's loss: where the gradient with respect to their log-weights is longer,
    it is made as short, on its way back. Every step multiplies what comes back by about α times a difference of scores, so without a bound
    a few examples out of many have gradients hundreds of times as long as the others', and these are what an update then follows.

    ``mix`` adds so much of the gold's cross-entropy, as ``cross_entropy`` has it: what the search gets right teaches nothing, so on
    data that a model knows well there is little to learn from without. Cross-entropy doesn't mind where the scores of a step lie, and global
    scores drift when it is added; ``strength`` adds (log Z)² to it, as in ``self_normalized``, which holds them.

    Start from a model trained with cross-entropy or ``self_normalized``: from random weights this learns little. The total
    is a sum over examples, divided by the number of gold tokens.

    >>> from unforced.objectives.soft_beam import SoftBeam
    >>> SoftBeam(beam=3, loss="hinge", scores="global").keep
    64
    """

    stepwise: ClassVar[bool] = True  # the model is stepped through as it trains
    refines: ClassVar[bool] = True  # from random weights it learns little

    beam: Count = 3  # hypotheses
    alpha: Positive | Schedule = SHARPENING  # inverse temperature
    loss: Literal["direct", "hinge"] = "direct"  # what is minimised
    scores: Literal["local", "global"] = "local"  # log-probabilities, or scores as they are
    cost: Cost = HAMMING  # what tokens cost
    keep: Count | None = 64  # continuations weighed at a step, at first
    tolerance: Fraction = 1e-4  # of the weight that those left out may have
    beyond: Natural = 0  # steps behind the gold's end, where outputs end
    checkpoint: bool = False  # whether steps are made again in the backward pass, to save memory
    dropout: bool = False  # whether it is on in the decoder
    mix: NonNegative = 0.0  # weight of the cross-entropy that is added
    strength: NonNegative = 0.0  # of (log Z)² in it, as self_normalized has it
    clip: Positive | None = None  # longest gradient of an example's loss at a step's mixtures

    def check(self) -> None:
        check_ends("alpha", self.alpha, Positive)
        if self.strength and not self.mix:
            raise InputError("strength belongs to the cross-entropy that mix adds, and mix is 0")

    def fitted(self, codec: Any, examples: Any = ()) -> "SoftBeam":
        return replace(self, cost=fitted_cost(self.cost, codec))

    def schedules(self) -> dict[str, float | Schedule]:
        """What moves with progress, for pictures."""
        return {"alpha": self.alpha}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "soft_beam", "start", "embed", "embed_mix", "advance", "score")
        check_end(batch.symbols)
        alpha, state = checked_alpha(at(self.alpha, progress)), model.start(batch)
        clip = None if self.clip is None else ExampleClip(self.clip)
        lengths, beyond = batch.mask.sum(dim=1), 0 if batch.symbols.eos is None else self.beyond
        steps = torch.where(lengths > 0, lengths + beyond, 0)  # [B]
        with nullcontext() if self.dropout else no_dropout(model):
            end = self.searched(model, batch, state, steps, alpha, clip)
            gold = self.gold_score(model, batch, state) if self.loss == "hinge" else None
        log_weights = (end.scores.masked_fill(~end.filled, FLOOR) * alpha).log_softmax(dim=1)  # [B,K]
        if clip is not None:
            log_weights = clip.bound(log_weights)
        weights = log_weights.exp()
        costs = (weights * end.costs).sum(dim=1)
        losses = costs
        if gold is not None:
            best = (weights * end.scores).sum(dim=1) + end.offset
            losses = (best - gold).clamp(min=0.0)
        if clip is not None:
            clip.measure(losses)
        tokens, examples = batch.mask.sum().float(), torch.tensor(float(len(batch)), device=steps.device)
        metrics = {
            "cost": (costs.detach().sum().float(), tokens),
            "bound": (end.bound.sum().float(), examples),
            "kept": (end.kept.sum().float(), steps.sum().float()),
            "distinct": (distinct(end).sum().float(), (lengths > 0).sum().float()),
        }
        total = losses.sum()
        if not int(steps.sum()):  # zero, with a gradient of zero for every parameter
            total = total + gold_scores(model, batch, state)[0].sum()
        if self.mix > 0:
            fed = gold_scores(model, batch, state)
            gold_fed = normalized_likelihood(*fed, self.strength) if self.strength else negative_log_likelihood(*fed)
            total, metrics = total + self.mix * gold_fed.total, metrics | gold_fed.metrics
        return Loss(total, tokens, metrics)

    def searched(
        self,
        model: StepDecoder,
        batch: Batch,
        state: DecoderState,
        steps: Tensor,
        alpha: float,
        clip: "ExampleClip | None" = None,
    ) -> SoftMemory:
        """The relaxed search over ``steps`` [B] of each example."""
        longest = int(steps.max()) if steps.numel() else 0
        selector = SoftTop(
            Constraints.of(batch, kind=self.scores),
            self.beam,
            alpha,
            self.keep,
            self.tolerance,
            self.cost,
            self.cost.prepare(batch, longest),
            margin=self.loss == "hinge",
            watch=None if clip is None else clip.bound,
        )
        root = math.isqrt(max(longest - 1, 0)) + 1  # √T, rounded up
        with stepping(model):
            return search(model, batch, selector, steps, state=state, stretch=root if self.checkpoint else None).memory

    def gold_score(self, model: StepDecoder, batch: Batch, state: DecoderState) -> Tensor:
        """s(y*) [B], by feeding the gold."""
        scores, gold = gold_scores(model, batch, state)
        scores = widened(scores)
        found = scores.gather(1, gold.unsqueeze(1)).squeeze(1)
        if self.scores == "local":
            found = found - scores.logsumexp(dim=1)
        examples = batch.mask.nonzero()[:, 0]
        return found.new_zeros(len(batch)).index_add(0, examples, found)


@torch.no_grad()
def distinct(end: SoftMemory) -> Tensor:
    """How many hypotheses of each example differ at the end of a search, by their scores: [B]."""
    scores = end.scores.masked_fill(~end.filled, -torch.inf).sort(dim=1, descending=True).values
    apart = (scores[:, 1:] > -torch.inf) & (scores[:, :-1] - scores[:, 1:] > SAME)
    return (end.kept > 0) * (1 + apart.sum(dim=1))


class ExampleClip:
    """Shortens gradients at mixtures on their way back, example by example, to ``most`` times what comes in at an example's loss.

    >>> scores, values = torch.zeros(2, 1, 2, requires_grad=True), torch.tensor([[1.0, 9.0], [1.0, 1.4]])
    >>> mixtures, clip = scores.log_softmax(dim=2), ExampleClip(1.0)
    >>> mixtures = clip.bound(mixtures)
    >>> losses = (mixtures.exp().squeeze(1) * values).sum(dim=1)
    >>> clip.measure(losses)
    >>> (losses.sum() / 100).backward()
    >>> scores.grad.squeeze(1) * 100
    tensor([[-0.7071,  0.7071],
            [-0.1000,  0.1000]])
    """

    def __init__(self, most: float) -> None:
        self.most, self.unit = most, torch.ones(())

    def measure(self, losses: Tensor) -> None:
        """Losses [B]: their gradients, known first, are what others are compared with."""
        if losses.requires_grad:
            losses.register_hook(self._remember)

    def bound(self, log_weights: Tensor) -> Tensor:
        """Log-weights [B,...,M] of mixtures, of the examples in any number and order: the same, with bounded gradients.

        What counts is how weights move against one another: that all of a mixture cost the same moves none.
        """
        return _Bounded.apply(log_weights, self)

    def _remember(self, gradient: Tensor) -> None:
        self.unit = gradient.abs().max()

    def shortened(self, gradient: Tensor) -> Tensor:
        norms = gradient.flatten(1).norm(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
        factors = (self.most * self.unit.to(norms) / norms).clamp(max=1.0)
        return gradient * factors.view(-1, *[1] * (gradient.dim() - 1))


class _Bounded(torch.autograd.Function):
    """Log-weights as they are; nothing is kept for their gradient but what making steps again brings back."""

    @staticmethod
    def forward(ctx: Any, log_weights: Tensor, clip: ExampleClip) -> Tensor:
        ctx.clip = clip
        ctx.save_for_backward(log_weights)
        return log_weights.view_as(log_weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (log_weights,) = ctx.saved_tensors
        against = gradient - log_weights.exp() * gradient.sum(dim=-1, keepdim=True)
        return ctx.clip.shortened(against), None
