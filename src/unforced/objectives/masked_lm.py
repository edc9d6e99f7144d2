"""Masked language modelling (Devlin et al. 2019; Ghazvininejad et al. 2019)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.energy import energies
from unforced.objectives.cross_entropy import token_metrics
from unforced.objectives.masked import MaskedObjective, allowed_scores, draw_positions, masked_scores
from unforced.ops import random_streams
from unforced.options import PositiveFraction
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss

NUMBERS, PLACES = 0, 1  # the random streams of an example


@dataclass(frozen=True)
class MaskedLM(MaskedObjective):
    """Minimise −Σ log p_mlm(y*_t | visible tokens) over the masked tokens t.

    ``hidden`` says how many of an example's n tokens are masked; which ones is random. The end symbol is never masked.

    - ``uniform``: a random number from 1 to n, as conditional masked models are trained;
    - ``fixed``: ``rate`` · n, rounded, at least one;
    - ``one``: a single token;
    - ``each``: every token, each in a copy of its own. This is the degenerate pseudo-likelihood (Goyal 2021, section
      6.2.1), the expectation of ``one``. It costs n copies, or one pass if the model scores all positions at once, as
      ``field``.
    """

    hidden: Literal["uniform", "fixed", "one", "each"] = "uniform"  # how many tokens are masked
    rate: PositiveFraction = 0.15  # share of masked tokens, with fixed

    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        if self.hidden == "each":
            shares = energies.variables(batch).sum(dim=1)
            total, count = energies.energy(model, batch, batch.gold, "local").sum(), shares.sum().float()
            return Loss(total, count, {"nll": (total.detach().float(), count)}), shares
        masked = self.draw_masked(batch, random_streams.keys(batch, rng))
        scores = allowed_scores(masked_scores(model, batch, batch.gold, masked), batch)  # [N,V]
        targets = batch.gold[masked]
        total = F.cross_entropy(scores, targets, reduction="sum")
        metrics = token_metrics(scores, targets, total)
        count = metrics["nll"][1]
        metrics["hidden"] = (count, energies.variables(batch).sum().float())
        return Loss(total, count, metrics), masked.sum(dim=1)

    def draw_masked(self, batch: Batch, keys: Tensor) -> Tensor:
        """Return the mask [B,T] of the hidden tokens."""
        candidates = energies.variables(batch)
        n = candidates.sum(dim=1)
        if self.hidden == "uniform":
            numbers = 1 + (random_streams.uniform(random_streams.branch(keys, NUMBERS), 0) * n).long()
        elif self.hidden == "fixed":
            numbers = (n * self.rate).round().long().clamp(min=1)
        else:
            numbers = torch.ones_like(n)
        return draw_positions(random_streams.branch(keys, PLACES), candidates, numbers)
