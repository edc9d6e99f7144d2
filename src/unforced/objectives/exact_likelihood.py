"""Maximum likelihood of an energy model, with log Z by enumeration (Goyal 2021, section 6.2.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.partition import log_partition_with_gradient
from unforced.objectives.masked import EnergyObjective
from unforced.options import Count
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss


@dataclass(frozen=True)
class ExactLikelihood(EnergyObjective):
    """Minimise E(y*) + log Z, which is −log p(y*) among all sequences of the same length; for small spaces only.

    All sequences are scored at every update. The metric ``sequence_nll`` is a mean over sequences, comparable with the
    entropy of the data.
    """

    most: Count = 100_000  # sequences that may be enumerated for one example

    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        log_z = log_partition_with_gradient(model, batch, self.energy, self.rows, self.most)
        nll = energies.energy(model, batch, batch.gold, self.energy, self.rows) + log_z  # [B]
        total = nll.sum()
        shares = energies.variables(batch).sum(dim=1)
        sequences = torch.tensor(float(len(batch)), device=nll.device)
        metrics = {
            "sequence_nll": (total.detach().float(), sequences),
            "log_z": (log_z.detach().sum().float(), sequences),
        }
        return Loss(total, shares.sum().float(), metrics), shares
