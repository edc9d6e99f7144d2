"""Training through a continuous relaxation of beam search (Goyal et al. 2018), with local or global scores."""

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
from unforced.models.modes import no_dropout
from unforced.objectives.costs import Hamming, fitted_cost
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.schedules import Exponential, at, check_ends
from unforced.objectives.self_normalized import normalized_likelihood
from unforced.ops.masks import FLOOR, widened
from unforced.options import Count, Fraction, Natural, NonNegative, Options, Positive
from unforced.protocols import Cost, Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

SHARPENING = Exponential(start=1.0, rate=8.0, unit="fraction")
HAMMING = Hamming()
SAME = 1e-6  # hypotheses with closer scores count as copies


@dataclass(frozen=True)
class SoftBeam(Options):
    """Minimise the expected cost of beam search, or its margin over the target, through a continuous relaxation.

    The relaxed search (`unforced.decoding.soft_beam`) runs as many steps as the target has. Its K hypotheses end with
    scores s_i and accumulated costs D_i. With w = softmax(α s), the loss of an example is

    - ``direct``: Σ_i w_i D_i (CRB Algorithm 3), which tends to the cost of the best hypothesis as α grows;
    - ``hinge``: max(0, Σ_i w_i s_i − s(y*)), with costs added to the scores during the search (CRB section 2.5).

    The total is divided by the number of target tokens. Start from a model trained with cross-entropy or
    ``self_normalized``. docs/search.md discusses the settings; these metrics help to choose them:

    - ``cost``: Σ_i w_i D_i; with ``hinge``, of a search for expensive outputs;
    - ``kept``: continuations weighed per step, and ``bound``: the largest weight of those left out;
    - ``distinct``: hypotheses of an example that differ at the end; with a small α they collapse.
    """

    stepwise: ClassVar[bool] = True
    beam: Count = 3  # K, the number of hypotheses
    alpha: Positive | Schedule = SHARPENING  # inverse temperature; rises from 1 to 8
    loss: Literal["direct", "hinge"] = "direct"  # expected cost, or margin over the target
    scores: Literal["local", "global"] = "local"  # log-probabilities, or raw scores
    cost: Cost = HAMMING  # cost of each token
    keep: Count | None = 64  # continuations weighed per step, more if tolerance demands it; all if none
    tolerance: Fraction = 1e-4  # largest weight of the continuations left out
    beyond: Natural = 0  # search steps after the end of the target
    checkpoint: bool = False  # recompute steps in the backward pass: memory of √T steps
    dropout: bool = False  # dropout in the decoder, which would differ between hypotheses; the encoder always has it
    mix: NonNegative = 0.0  # weight of an added cross-entropy; examples that the search solves give no gradient
    strength: NonNegative = 0.0  # weight of (log Z)² in it, as in self_normalized; keeps global scores from drifting
    clip: Positive | None = None  # longest gradient of an example's loss with respect to the log-weights of a step

    def check(self) -> None:
        check_ends("alpha", self.alpha, Positive)
        if self.strength and not self.mix:
            raise InputError("strength needs mix above 0: it is part of the added cross-entropy")

    def fitted(self, codec: Any, examples: Any = ()) -> "SoftBeam":
        return replace(self, cost=fitted_cost(self.cost, codec))

    def schedules(self) -> dict[str, float | Schedule]:
        return {"alpha": self.alpha}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "soft_beam", "start", "embed", "embed_mix", "advance", "score")
        check_end(batch.symbols)
        alpha, state = at(self.alpha, progress, "alpha", Positive), model.start(batch)
        clip = None if self.clip is None else ExampleClip(self.clip)
        lengths, beyond = batch.mask.sum(dim=1), 0 if batch.symbols.eos is None else self.beyond
        steps = torch.where(lengths > 0, lengths + beyond, 0)  # [B]
        with nullcontext() if self.dropout else no_dropout(model):
            end = self.run_search(model, batch, state, steps, alpha, clip)
            gold = self.score_target(model, batch, state) if self.loss == "hinge" else None
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
            "distinct": (count_distinct(end).sum().float(), (lengths > 0).sum().float()),
        }
        total = losses.sum()
        if not int(steps.sum()):  # an empty batch still gives every parameter a gradient of zero
            total = total + gold_scores(model, batch, state)[0].sum()
        if self.mix > 0:
            scored = gold_scores(model, batch, state)
            added = normalized_likelihood(*scored, self.strength) if self.strength else negative_log_likelihood(*scored)
            total, metrics = total + self.mix * added.total, metrics | added.metrics
        return Loss(total, tokens, metrics)

    def run_search(
        self,
        model: StepDecoder,
        batch: Batch,
        state: DecoderState,
        steps: Tensor,
        alpha: float,
        clip: "ExampleClip | None" = None,
    ) -> SoftMemory:
        """Run the relaxed search for ``steps`` [B] of each example."""
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
        result = search(model, batch, selector, steps, state=state, segment=root if self.checkpoint else None)
        memory: SoftMemory = result.memory
        return memory

    def score_target(self, model: StepDecoder, batch: Batch, state: DecoderState) -> Tensor:
        """Return the scores s(y*) [B] of the targets."""
        scores, gold = gold_scores(model, batch, state)
        scores = widened(scores)
        tokens = scores.gather(1, gold.unsqueeze(1)).squeeze(1)
        if self.scores == "local":
            tokens = tokens - scores.logsumexp(dim=1)
        examples = batch.mask.nonzero()[:, 0]
        return tokens.new_zeros(len(batch)).index_add(0, examples, tokens)


@torch.no_grad()
def count_distinct(end: SoftMemory) -> Tensor:
    """Return how many hypotheses of each example [B] have different scores at the end of a search."""
    scores = end.scores.masked_fill(~end.filled, -torch.inf).sort(dim=1, descending=True).values
    apart = (scores[:, 1:] > -torch.inf) & (scores[:, :-1] - scores[:, 1:] > SAME)
    return (end.kept > 0) * (1 + apart.sum(dim=1))


class ExampleClip:
    """Clip, per example, the gradients that flow back through mixture weights.

    A gradient is shortened to at most ``most`` times the gradient of the example's loss. Each step of the search
    multiplies gradients by about α times a score difference, so a few examples would dominate an update.

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
        """Take the gradients of the losses [B] as the unit of comparison."""
        if losses.requires_grad:
            losses.register_hook(self._remember)

    def bound(self, log_weights: Tensor) -> Tensor:
        """Return the log-weights [B,...,M] of mixtures unchanged, with clipped gradients.

        A constant added to the gradient of all weights of a mixture has no effect and does not count.
        """
        bounded: Tensor = _Bounded.apply(log_weights, self)  # type: ignore[no-untyped-call]
        return bounded

    def _remember(self, gradient: Tensor) -> None:
        self.unit = gradient.abs().max()

    def shorten(self, gradient: Tensor) -> Tensor:
        norms = gradient.flatten(1).norm(dim=1).clamp(min=torch.finfo(gradient.dtype).tiny)
        factors = (self.most * self.unit.to(norms) / norms).clamp(max=1.0)
        shortened: Tensor = gradient * factors.view(-1, *[1] * (gradient.dim() - 1))
        return shortened


class _Bounded(torch.autograd.Function):
    """The identity on log-weights, with a clipped gradient; works under activation checkpointing."""

    @staticmethod
    def forward(ctx: Any, log_weights: Tensor, clip: ExampleClip) -> Tensor:
        ctx.clip = clip
        ctx.save_for_backward(log_weights)
        return log_weights.view_as(log_weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (log_weights,) = ctx.saved_tensors
        against = gradient - log_weights.exp() * gradient.sum(dim=-1, keepdim=True)
        return ctx.clip.shorten(against), None
