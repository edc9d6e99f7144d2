"""Minimum risk training (Shen et al. 2016): the expected cost of whole outputs, over samples of the model's own."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from unforced.decoding.greedy import OneToken, singles
from unforced.decoding.sampling import Sample
from unforced.decoding.search import Constraints, limits, search
from unforced.decoding.teacher_forcing import score_outputs
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.schedules import at, check_ends
from unforced.objectives.smoothing.outputs import END, as_lists, first_equal, together
from unforced.objectives.smoothing.rewards import bleu_cost
from unforced.ops.masks import length_mask, masked_log_softmax, scatter_mask
from unforced.options import Count, NonNegative, Options, Positive
from unforced.protocols import Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress, Symbols

Kind = Literal["hamming", "edit", "bleu"]


@dataclass(frozen=True)
class MinimumRisk(Options):
    """Σ_{y ∈ S} Q(y) Δ(y, y*), the expected cost of an example's output among its candidates S, where

        Q(y) = p(y | x)^α / Σ_{y' ∈ S} p(y' | x)^α

    S is a set: the ``samples`` outputs drawn from the model, each once however often it was drawn, and the gold y* unless
    ``gold`` is off (Algorithm 1 of the paper). They are drawn without gradient, token by token, at a ``temperature``; the
    gradient goes through Q, and so to the encoder too. ``alpha`` is a number or a schedule; as it tends to 0 all candidates
    weigh the same, and with α = 1 and all outputs in S the loss is the model's true expected cost. p is the model's own,
    with nothing renormalised for tokens that can't be emitted.

    ``cost`` is Δ, of two outputs without their end symbols:

    - ``hamming``: the number of positions at which they differ, among them those that only the longer one has;
    - ``edit``: the number of insertions, deletions and substitutions between them;
    - ``bleu``: 1 − BLEU-4 of the token ids, smoothed for single sentences as sacreBLEU does, so between 0 and 1;
    - or, in Python, a function of the user's own: ``cost(output, gold)`` of two lists of token ids.

    Samples end with EOS or at ``max_length`` (the decoders' limit if None); one that is cut there has no EOS, and p is that
    of its tokens. Where lengths are fixed, samples have the gold's. ``dropout`` says whether it is on while they are drawn;
    the encoder's output is that of the training pass in any case, since sources are encoded once.

    ``mix`` adds so much of the gold's cross-entropy, as a mean over each example's tokens. The total is a sum over examples
    and is divided by their number. Metrics are the expected cost (``cost``), the mean cost of all samples, repeated ones
    too (``sampled_cost``), the number of ``candidates``, and the gold's ``nll`` where the gold is scored anyway.

    Start from a model trained with cross-entropy: samples of an untrained one are all equally bad.

    >>> from unforced.objectives.minimum_risk import MinimumRisk
    >>> MinimumRisk(samples=50, cost="bleu").alpha
    0.005
    """

    refines: ClassVar[bool] = True  # from random weights it learns little

    samples: Count = 20  # outputs drawn for each example
    alpha: Positive | Schedule = 0.005  # sharpness of Q
    gold: bool = True  # whether the gold is a candidate
    cost: Kind | Callable[[list[int], list[int]], float] = "hamming"  # what an output costs, given the gold
    temperature: Positive = 1.0  # of the draw
    max_length: Count | None = None  # of samples, EOS included
    mix: NonNegative = 0.0  # weight of the cross-entropy that is added
    dropout: bool = False  # whether it is on while samples are drawn

    def check(self) -> None:
        check_ends("alpha", self.alpha, Positive)
        if hasattr(self.cost, "prepare"):
            raise InputError(f"minimum_risk judges whole outputs, and {type(self.cost).__name__} single tokens")
        if not self.gold and self.samples < 2:
            raise InputError("samples must be at least 2 without the gold: a lone candidate has nothing to lose to")

    def sampler(self) -> Sample:
        return Sample(temperature=self.temperature, samples=self.samples, max_length=self.max_length)

    def schedules(self) -> dict[str, float | Schedule]:
        """What moves with progress, for pictures."""
        return {"alpha": self.alpha}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "minimum_risk", "start", "embed", "advance", "score")
        alpha, state = at(self.alpha, progress, "alpha", Positive), model.start(batch)
        outputs = self.outputs(model, batch, state, rng)  # [B,N,T], N = 1 + samples: the gold first
        first = first_equal(outputs)  # [B,N]
        members = first if self.gold else first[:, 1:]
        candidates = torch.zeros_like(first, dtype=torch.bool).scatter(1, members, True)  # S: [B,N]
        scored = candidates.clone()
        scored[:, 0] |= self.mix > 0
        examples, lengths = scored.nonzero()[:, 0], (outputs[scored] != END).sum(dim=1)  # [R]
        log_probs = scatter_mask(
            score_outputs(model, batch, outputs[scored], lengths, examples, state), scored
        )  # [B,N]
        costs = self.costs(outputs, scored, batch.symbols).to(log_probs.dtype)  # [B,N]
        weights = masked_log_softmax(alpha * log_probs, candidates).exp()  # Q
        risk = (weights * costs).sum(dim=1)  # [B]

        count = torch.tensor(float(len(batch)), device=first.device)
        drawn = costs.gather(1, first[:, 1:])
        metrics = {
            "cost": (risk.detach().sum().float(), count),
            "sampled_cost": (drawn.sum().float(), count * self.samples),
            "candidates": (candidates.sum().float(), count),
        }
        total = risk.sum()
        if self.gold or self.mix > 0:
            nll, tokens = -log_probs[:, 0], batch.mask.sum(dim=1)  # [B]
            metrics["nll"] = (nll.detach().sum().float(), tokens.sum().float())
            if self.mix > 0:
                total = total + self.mix * (nll / tokens.clamp(min=1)).sum()
        return Loss(total, count, metrics)

    def outputs(self, model: StepDecoder, batch: Batch, state: DecoderState, rng: torch.Generator) -> Tensor:
        """The gold and then the samples of each example: [B,1 + samples,T], ``END`` behind their ends."""
        sampler, steps = self.sampler(), limits(batch, max_length=self.max_length)
        selector = OneToken(Constraints.of(batch), sampler.pick, sampler.keys(batch, rng))
        with evaluation_mode(model, dropout=self.dropout):
            found = search(model, batch, selector, steps, copies=self.samples, state=state)
        samples = singles(found, batch)
        there = length_mask(samples.lengths, samples.tokens.shape[2])
        gold = batch.gold.masked_fill(~batch.mask, END).unsqueeze(1)  # [B,1,T]
        drawn = samples.tokens.masked_fill(~there, END)
        return together(gold, drawn)

    def costs(self, outputs: Tensor, where: Tensor, symbols: Symbols) -> Tensor:
        """What the outputs [B,N,T] cost, the first of each example being the gold; [B,N], right where ``where`` says."""
        if symbols.eos is not None:
            outputs = outputs.masked_fill(outputs == symbols.eos, END)
        if self.cost == "hamming":
            return (outputs != outputs[:, :1]).sum(dim=2)
        judges = [self.judge(gold) for gold in as_lists(outputs[:, 0])]
        found = [
            float(judges[example](output))
            for example, output in zip(where.nonzero()[:, 0].tolist(), as_lists(outputs[where]))
        ]
        for value in found:
            if not math.isfinite(value):
                raise InputError(f"cost must give finite numbers, but gave {value}")
        return scatter_mask(torch.tensor(found, dtype=torch.float64, device=where.device), where)

    def judge(self, gold: list[int]) -> Callable[[list[int]], float]:
        """The cost of an output, given the gold."""
        if callable(self.cost):
            own = self.cost
            return lambda output: own(output, gold)
        return partial(Levenshtein.distance, gold) if self.cost == "edit" else bleu_cost(gold)
