"""From free conditionals of a masked model to the nearest joint distribution (Goyal 2021, section 6.2.2)."""

from dataclasses import dataclass, field
from typing import Any

import torch

from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.partition import ROWS, true_conditionals
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.masked import Frozen, free_conditionals, frozen, prepared, with_lengths
from unforced.objectives.pseudo_likelihood import asked, gold_nll
from unforced.options import Count, NonNegative, Options
from unforced.protocols import MaskedModel, require
from unforced.types import Batch, Loss, Progress


@dataclass(frozen=True)
class KLProjection(Options):
    """Σ_t KL(p_mlm(y_t | y*\\t) ‖ p(y_t | y*\\t; θ)) + λ · pseudo-likelihood, over the tokens of the training sequences.

    p is the true conditional of the energy model that is trained (see ``pseudo_likelihood``), p_mlm the softmax of the
    scores at a hidden position of ``teacher``: a masked model of the same kind that was trained before and stays as it is,
    named by its run folder (in Python, any masked model). Begin with the same weights by ``training.warm_start``. λ is
    ``pseudo_likelihood``; the thesis has 0 and 1.

    Without a teacher p_mlm belongs to the trained model itself, which then is pulled towards agreeing with itself; since a
    model that knows nothing agrees with itself too, λ must be positive. Gradients flow through both sides.

    The total is divided by the number of tokens. The metrics ``kl`` and ``pseudo_nll`` are means over tokens.

    >>> KLProjection().pseudo_likelihood
    1.0
    """

    teacher: Frozen | None = None  # the run folder of a masked model; None: the trained model itself
    pseudo_likelihood: NonNegative = 1.0  # λ
    energy: Kind = "raw"
    positions: Count | None = None  # conditionals of each example at an update; None: all
    rows: Count = ROWS  # masked copies in memory at a time
    length_weight: NonNegative = 0.1  # of the length's loss, for models that guess lengths
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # teachers read so far

    def check(self) -> None:
        if self.teacher is None and not self.pseudo_likelihood:
            raise InputError(
                "kl_projection needs a teacher or a positive pseudo_likelihood: else nothing ties the model to the data"
            )

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        plain, batch = batch, prepared(model, batch, "kl_projection")
        where, factors = asked(batch, self.positions, rng)
        log_probs, ids = true_conditionals(model, batch, where, self.energy, self.rows)
        if self.teacher is None:
            free = free_conditionals(model, batch, where, self.rows)
        else:
            teacher = frozen(self.teacher, model, self.known)
            require(teacher, "kl_projection", "scores")
            with evaluation_mode(teacher):
                free = free_conditionals(teacher, plain, where, self.rows)
        free = free[:, ids].to(log_probs)
        kl = (free.exp() * (free - log_probs)).sum(dim=1)  # [N]
        nll = gold_nll(log_probs, ids, batch, where)
        factors = factors.to(nll)[where.nonzero()[:, 0]]
        kl_sum, nll_sum = (kl * factors).sum(), (nll * factors).sum()
        total = kl_sum + self.pseudo_likelihood * nll_sum if self.pseudo_likelihood else kl_sum
        shares = energies.variables(batch).sum(dim=1)
        count = shares.sum().float()
        metrics = {"kl": (kl_sum.detach().float(), count), "pseudo_nll": (nll_sum.detach().float(), count)}
        return with_lengths(model, batch, Loss(total, count, metrics), shares, self.length_weight)
