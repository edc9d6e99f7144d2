"""Masked language modelling: hide some tokens and score them given the others (Devlin et al. 2019; Ghazvininejad et al. 2019)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.energy import energies
from unforced.objectives.cross_entropy import token_metrics
from unforced.objectives.masked import drawn_positions, permitted, prepared, scores_where, with_lengths
from unforced.ops import random_streams
from unforced.options import NonNegative, Options, PositiveFraction
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss, Progress

Hidden = Literal["uniform", "fixed", "one", "each"]
NUMBERS, PLACES = 0, 1  # the random streams of an example


@dataclass(frozen=True)
class MaskedLM(Options):
    """−Σ log p_mlm(y*_t | what is not hidden) over the tokens t that are hidden, among the tokens that can stand there.

    How many of an example's n tokens are hidden is ``hidden``: "uniform" draws 1 … n (as conditional masked models are
    trained), "fixed" takes ``rate`` · n, rounded but at least one, and "one" a single token. Which ones, every choice is as
    likely as any other. "each" hides every token by itself in a copy of its own: the degenerate pseudo-likelihood (Goyal 2021,
    section 6.2.1), which "one" has on average. Its n copies cost one pass where the model scores all positions at once, as
    ``field`` does. The end symbol is never hidden.

    Where the model guesses the target's length, ``length_weight`` times −log p(length) of each example is added. The total is
    divided by the number of hidden tokens.

    >>> MaskedLM(hidden="fixed", rate=0.3)
    MaskedLM(hidden='fixed', rate=0.3, length_weight=0.1)
    """

    hidden: Hidden = "uniform"
    rate: PositiveFraction = 0.15  # share of tokens hidden, if fixed
    length_weight: NonNegative = 0.1  # of the length's loss, for models that guess lengths

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        batch = prepared(model, batch, "masked_lm")
        if self.hidden == "each":
            return self.each(model, batch)
        masked = self.draw(batch, random_streams.keys(batch, rng))
        scores = permitted(scores_where(model, batch, batch.gold, masked), batch)  # [N,V]
        gold = batch.gold[masked]
        total = F.cross_entropy(scores, gold, reduction="sum")
        metrics = token_metrics(scores, gold, total)
        count = metrics["nll"][1]
        metrics["hidden"] = (count, energies.variables(batch).sum().float())
        loss = Loss(total, count, metrics)
        return with_lengths(model, batch, loss, masked.sum(dim=1), self.length_weight)

    def each(self, model: MaskedModel, batch: Batch) -> Loss:
        """Every token hidden by itself."""
        shares = energies.variables(batch).sum(dim=1)
        total, count = energies.energy(model, batch, batch.gold, "local").sum(), shares.sum().float()
        metrics = {"nll": (total.detach().float(), count)}
        return with_lengths(model, batch, Loss(total, count, metrics), shares, self.length_weight)

    def draw(self, batch: Batch, keys: Tensor) -> Tensor:
        """Which tokens are hidden: [B,T] bool."""
        candidates = energies.variables(batch)
        n = candidates.sum(dim=1)
        if self.hidden == "uniform":
            numbers = 1 + (random_streams.uniform(random_streams.branch(keys, NUMBERS), 0) * n).long()
        elif self.hidden == "fixed":
            numbers = (n * self.rate).round().long().clamp(min=1)
        else:
            numbers = torch.ones_like(n)
        return drawn_positions(random_streams.branch(keys, PLACES), candidates, numbers)
