"""Label smoothing (Szegedy et al. 2016), uniform over the tokens that a model may emit."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from unforced.decoding.teacher_forcing import gold_scores
from unforced.objectives.cross_entropy import token_metrics
from unforced.objectives.smoothing.targets import expected_value
from unforced.objectives.smoothing.token_roles import TokenRoles, unused_ids
from unforced.ops.masks import token_mask, widened
from unforced.options import Fraction, Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Encoded, Loss, Progress


@dataclass(frozen=True)
class LabelSmoothing(Options):
    """Minimise Σ_t [−(1 − ε) log p(y*_t | y*_<t, x) − ε mean_w log p(w | y*_<t, x)].

    The mean is over the tokens w that outputs may contain. Banned ids, padding and the start symbol are left out and,
    after `fitted`, ids without a name and ids beyond the vocabulary.
    """

    smoothing: Fraction = 0.1  # ε: weight of the uniform distribution; 0 is cross-entropy
    roles: TokenRoles | None = field(default=None, repr=False, compare=False)  # set by `fitted`

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "LabelSmoothing":
        return replace(self, roles=TokenRoles.of(codec))

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        scores, gold = gold_scores(model, batch)
        scores = widened(scores)
        nll = F.cross_entropy(scores, gold, reduction="sum")
        metrics = token_metrics(scores, gold, nll)
        if not self.smoothing:
            return Loss(nll, metrics["nll"][1], metrics)
        excluded = unused_ids(batch.symbols) if self.roles is None else self.roles.unused
        allowed = token_mask(scores.shape[1], excluded, scores.device)
        if self.roles is not None:
            allowed[self.roles.size :] = False
        share = allowed.to(scores.dtype)
        # mean_w −log p(w) = log Z − mean_w scores_w, so the [N,V] log-probabilities are never computed
        gold_score = scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
        mean_score = expected_value(scores, share / share.sum())
        uniform = nll + (gold_score - mean_score).sum()  # Σ log Z = nll + Σ gold_score
        return Loss((1 - self.smoothing) * nll + self.smoothing * uniform, metrics["nll"][1], metrics)
