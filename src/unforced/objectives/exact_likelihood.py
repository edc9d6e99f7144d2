"""Maximum likelihood of an energy model, with log Z by enumeration: for small spaces (Goyal 2021, section 6.2.2)."""

from dataclasses import dataclass

import torch

from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.partition import ROWS, log_partition_with_gradient
from unforced.objectives.masked import prepared, with_lengths
from unforced.options import Count, NonNegative, Options
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss, Progress


@dataclass(frozen=True)
class ExactLikelihood(Options):
    """E(y*) + log Z: −log p(y*) given its length, among all sequences of that length (and for the source, if there is one).

    All of them are scored at every update, ``rows`` masked copies at a time and again in the backward pass; more than ``most``
    sequences are refused. The total is divided by the number of tokens; the metric ``sequence_nll`` is a mean over
    sequences, to be compared with the entropy of the data. Where the model guesses lengths, see ``masked_lm``.

    >>> ExactLikelihood().energy
    'raw'
    """

    energy: Kind = "raw"
    rows: Count = ROWS  # masked copies in memory at a time
    most: Count = 100_000  # sequences that are enumerated for an example
    length_weight: NonNegative = 0.1  # of the length's loss, for models that guess lengths

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        batch = prepared(model, batch, "exact_likelihood")
        log_z = log_partition_with_gradient(model, batch, self.energy, self.rows, self.most)
        energy = energies.energy(model, batch, batch.gold, self.energy, self.rows)
        nll = energy + log_z  # [B]
        total = nll.sum()
        shares = energies.variables(batch).sum(dim=1)
        sequences = torch.tensor(float(len(batch)), device=nll.device)
        metrics = {
            "sequence_nll": (total.detach().float(), sequences),
            "log_z": (log_z.detach().sum().float(), sequences),
        }
        return with_lengths(model, batch, Loss(total, shares.sum().float(), metrics), shares, self.length_weight)
