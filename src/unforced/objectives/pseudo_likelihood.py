"""Pseudo-likelihood of an energy model with its true conditionals (Besag 1975; Goyal 2021, section 6.2.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.partition import true_conditionals
from unforced.objectives.masked import EnergyObjective, draw_conditionals, target_nll
from unforced.options import Count
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss


@dataclass(frozen=True)
class PseudoLikelihood(EnergyObjective):
    """Minimise −Σ_t log p(y*_t | y*\\t), with the conditionals that belong to the energy E:

        p(y_t | y\\t) = exp(−E(y)) / Σ_w exp(−E(y with w at t))

    They differ from the model's softmax at t, because w at t changes the scores at other positions too. Each position
    needs the energies of V sequences, so V · T masked copies, or V passes if the model scores all positions at once,
    as ``field``. Copies are made ``rows`` at a time and recomputed in the backward pass, so memory is bounded.
    """

    positions: Count | None = None  # positions drawn per example and update, unbiased; all if none

    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        where, factors = draw_conditionals(batch, self.positions, rng)
        log_probs, ids = true_conditionals(model, batch, where, self.energy, self.rows)
        nll = target_nll(log_probs, ids, batch, where)
        total = (nll * factors.to(nll)[where.nonzero()[:, 0]]).sum()
        shares = energies.variables(batch).sum(dim=1)
        count = shares.sum().float()
        return Loss(total, count, {"pseudo_nll": (total.detach().float(), count)}), shares
