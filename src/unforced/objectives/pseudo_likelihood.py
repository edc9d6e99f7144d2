"""Pseudo-likelihood of an energy model, with its true conditionals (Besag 1975; Goyal 2021, section 6.2.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.partition import ROWS, true_conditionals
from unforced.objectives.masked import drawn_positions, prepared, with_lengths
from unforced.ops import random_streams
from unforced.options import Count, NonNegative, Options
from unforced.protocols import MaskedModel
from unforced.types import Batch, Loss, Progress


def asked(batch: Batch, positions: int | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """The positions at which conditionals are wanted [B,T] bool, and what each example's sum is to be multiplied by [B].

    With ``positions`` that many are drawn of each example's n, and n / positions makes up for the others.
    """
    candidates = energies.variables(batch)
    n = candidates.sum(dim=1)
    if positions is None:
        return candidates, torch.ones_like(n)
    taken = n.clamp(max=positions)
    return drawn_positions(random_streams.keys(batch, rng), candidates, taken), n / taken.clamp(min=1)


def gold_nll(log_probs: Tensor, ids: Tensor, batch: Batch, where: Tensor) -> Tensor:
    """−log p of the gold at the positions ``where``, [N], of conditionals [N,A] over ``ids``."""
    gold = torch.searchsorted(ids, batch.gold[where])
    return -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class PseudoLikelihood(Options):
    """−Σ_t log p(y*_t | y*\\t), with the conditionals that belong to the energy E:

        p(y_t | y\\t) = exp(−E(y)) / Σ_w exp(−E(y with w at t))

    A masked model's own softmax at t is another thing, since w at t changes the other positions' scores too. Each
    position needs the energies of |V| sequences, hence |V| · T masked copies (one pass over each sequence where the model
    scores all positions at once, as ``field`` does). They are made ``rows`` at a time and again in the backward pass, so memory
    is bounded. ``positions`` draws so many positions of each example at every update; the expectation is the same.

    The total is divided by the number of tokens. Where the model guesses lengths, see ``masked_lm``.

    >>> PseudoLikelihood(positions=2).energy
    'raw'
    """

    energy: Kind = "raw"
    positions: Count | None = None  # conditionals of each example at an update; None: all
    rows: Count = ROWS  # masked copies in memory at a time
    length_weight: NonNegative = 0.1  # of the length's loss, for models that guess lengths

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        batch = prepared(model, batch, "pseudo_likelihood")
        where, factors = asked(batch, self.positions, rng)
        log_probs, ids = true_conditionals(model, batch, where, self.energy, self.rows)
        nll = gold_nll(log_probs, ids, batch, where)
        total = (nll * factors.to(nll)[where.nonzero()[:, 0]]).sum()
        shares = energies.variables(batch).sum(dim=1)
        count = shares.sum().float()
        loss = Loss(total, count, {"pseudo_nll": (total.detach().float(), count)})
        return with_lengths(model, batch, loss, shares, self.length_weight)
