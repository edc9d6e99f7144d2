"""KL projection: from free conditionals of a masked model to a joint distribution (Goyal 2021, section 6.2.2)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unforced.energy import energies, masked_copies
from unforced.energy.partition import true_conditionals
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.masked import (
    EnergyObjective,
    FrozenModel,
    allowed_scores,
    draw_conditionals,
    loaded,
    target_nll,
)
from unforced.options import Count, NonNegative
from unforced.protocols import MaskedModel, require
from unforced.types import Batch, Loss


@dataclass(frozen=True)
class KLProjection(EnergyObjective):
    """Minimise Σ_t KL(p_mlm(y_t | y*\\t) ‖ p(y_t | y*\\t; θ)) + λ · pseudo-likelihood over the training sequences.

    p is the true conditional of the trained energy model (see `PseudoLikelihood`). p_mlm is the softmax of the
    teacher at a masked position. Start from the same weights with ``training.warm_start``.

    Without a teacher, p_mlm belongs to the trained model itself, and gradients flow through both sides. A model without
    knowledge agrees with itself, so λ must then be positive. The metrics ``kl`` and ``pseudo_nll`` are means over
    tokens.
    """

    teacher: FrozenModel | None = None  # run folder of a masked model that is not trained; the trained model if none
    pseudo_likelihood: NonNegative = 1.0  # λ; the thesis uses 0 and 1
    positions: Count | None = None  # positions drawn per example and update, unbiased; all if none

    def check(self) -> None:
        if self.teacher is None and not self.pseudo_likelihood:
            raise InputError("kl_projection needs a teacher or a positive pseudo_likelihood")

    def with_models(self, load: Callable[[str], nn.Module]) -> "KLProjection":
        return replace(self, teacher=load(self.teacher)) if isinstance(self.teacher, str) else self

    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        where, factors = draw_conditionals(batch, self.positions, rng)
        log_probs, ids = true_conditionals(model, batch, where, self.energy, self.rows)
        if self.teacher is None:
            free = free_conditionals(model, batch, where, self.rows)
        else:
            teacher = loaded(self.teacher, "kl_projection")
            require(teacher, "kl_projection", "scores")
            with evaluation_mode(teacher):
                free = free_conditionals(teacher, unencoded, where, self.rows)
        free = free[:, ids].to(log_probs)
        kl = (free.exp() * (free - log_probs)).sum(dim=1)  # [N]
        nll = target_nll(log_probs, ids, batch, where)
        factors = factors.to(nll)[where.nonzero()[:, 0]]
        kl_sum, nll_sum = (kl * factors).sum(), (nll * factors).sum()
        total = kl_sum + self.pseudo_likelihood * nll_sum if self.pseudo_likelihood else kl_sum
        shares = energies.variables(batch).sum(dim=1)
        count = shares.sum().float()
        metrics = {"kl": (kl_sum.detach().float(), count), "pseudo_nll": (nll_sum.detach().float(), count)}
        return Loss(total, count, metrics), shares


def free_conditionals(model: MaskedModel, batch: Batch, where: Tensor, rows: int) -> Tensor:
    """Return log p_mlm(y_i = w | y\\i) [N,V]: each of the N positions ``where`` is masked alone."""
    example, position = where.nonzero(as_tuple=True)
    scores = masked_copies.scores_at(model, batch, batch.gold, example, position.unsqueeze(1), rows=rows).squeeze(1)
    return torch.log_softmax(allowed_scores(scores, batch), dim=1)
