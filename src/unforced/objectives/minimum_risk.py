"""Minimum risk training (Shen et al. 2016): the expected cost of whole outputs, over samples of the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

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
from unforced.objectives.smoothing.outputs import END, as_lists, concatenate_outputs, first_equal
from unforced.objectives.smoothing.rewards import bleu_cost
from unforced.ops.masks import length_mask, masked_log_softmax, scatter_mask
from unforced.options import Count, NonNegative, Options, Positive
from unforced.protocols import Cost, Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress, Symbols

Kind = Literal["hamming", "edit", "bleu"]


@dataclass(frozen=True)
class MinimumRisk(Options):
    """Minimise Σ_{y ∈ S} Q(y) Δ(y, y*), the expected cost of an example's output among candidates S, where

        Q(y) = p(y | x)^α / Σ_{y' ∈ S} p(y' | x)^α

    S is the set of the outputs sampled from the model and, with ``gold``, of the target (Algorithm 1 of the paper). The
    gradient flows through Q, not through the sampling. With α = 1 and all outputs in S, the loss is the model's exact
    expected cost; as α tends to 0, all candidates weigh the same. Δ compares outputs without their end symbols: it
    is the number of differing positions (``hamming``), the edit distance, or 1 − smoothed sentence BLEU-4 of token ids.

    The total is divided by the number of examples. Start from a model trained with cross-entropy. Metrics: the expected
    cost (``cost``), the mean cost of all samples (``sampled_cost``), the number of ``candidates``, and ``nll`` of the
    target if it is scored.
    """

    samples: Count = 20  # outputs drawn per example
    alpha: Positive | Schedule = 0.005  # sharpness of Q
    gold: bool = True  # whether the target is a candidate
    cost: Kind | Callable[[list[int], list[int]], float] = "hamming"  # Δ, or a function of two lists of token ids
    temperature: Positive = 1.0  # of the sampling
    max_length: Count | None = None  # of samples, end symbol included; the decoders' limit if none
    mix: NonNegative = 0.0  # weight of an added cross-entropy, as a mean over the tokens of an example
    dropout: bool = False  # whether dropout is on in the decoder during sampling

    def check(self) -> None:
        check_ends("alpha", self.alpha, Positive)
        if isinstance(self.cost, Cost):
            raise InputError(
                f"minimum_risk needs the cost of a whole output, but {type(self.cost).__name__} is a cost of tokens"
            )
        if not self.gold and self.samples < 2:
            raise InputError("samples must be at least 2 without gold, because Q of a single candidate is 1")

    def schedules(self) -> dict[str, float | Schedule]:
        return {"alpha": self.alpha}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "minimum_risk", "start", "embed", "advance", "score")
        alpha, state = at(self.alpha, progress, "alpha", Positive), model.start(batch)
        outputs = self.draw_outputs(model, batch, state, rng)  # [B,N,T], N = 1 + samples: the target first
        first = first_equal(outputs)  # [B,N]
        members = first if self.gold else first[:, 1:]
        candidates = torch.zeros_like(first, dtype=torch.bool).scatter(1, members, True)  # S: [B,N]
        scored = candidates.clone()
        scored[:, 0] |= self.mix > 0
        examples, lengths = scored.nonzero()[:, 0], (outputs[scored] != END).sum(dim=1)  # [R]
        found = score_outputs(model, batch, outputs[scored], lengths, examples, state)  # [R]
        log_probs = scatter_mask(found, scored)  # [B,N]
        costs = self.judge_outputs(outputs, scored, batch.symbols).to(log_probs.dtype)  # [B,N]
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

    def draw_outputs(self, model: StepDecoder, batch: Batch, state: DecoderState, rng: torch.Generator) -> Tensor:
        """Return the target and the samples of each example [B,1 + samples,T], padded with ``END``."""
        sampler = Sample(temperature=self.temperature, samples=self.samples)
        selector = OneToken(Constraints.of(batch), sampler.pick, sampler.keys(batch, rng))
        steps = limits(batch, max_length=self.max_length)
        with evaluation_mode(model, dropout=self.dropout):
            found = search(model, batch, selector, steps, copies=self.samples, state=state)
        samples = singles(found, batch)
        mask = length_mask(samples.lengths, samples.tokens.shape[2])
        gold = batch.gold.masked_fill(~batch.mask, END).unsqueeze(1)  # [B,1,T]
        drawn = samples.tokens.masked_fill(~mask, END)
        return concatenate_outputs(gold, drawn)

    def judge_outputs(self, outputs: Tensor, where: Tensor, symbols: Symbols) -> Tensor:
        """Return the costs [B,N] of outputs [B,N,T] where ``where`` is true.

        The first output of an example is its target.
        """
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
                raise InputError(f"cost must return finite numbers, got {value}")
        return scatter_mask(torch.tensor(found, dtype=torch.float64, device=where.device), where)

    def judge(self, gold: list[int]) -> Callable[[list[int]], float]:
        """Return the function from an output to its cost."""
        if callable(self.cost):
            own = self.cost
            return lambda output: own(output, gold)
        return partial(Levenshtein.distance, gold) if self.cost == "edit" else bleu_cost(gold)
