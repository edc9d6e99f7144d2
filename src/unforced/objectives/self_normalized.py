"""Self-normalised cross-entropy: keep log Z near 0, so that raw scores are close to log-probabilities."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.objectives.cross_entropy import token_metrics
from unforced.ops.masks import widened
from unforced.options import NonNegative, Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss, Progress


@dataclass(frozen=True)
class SelfNormalized(Options):
    """Minimise Σ_t [−log p(y*_t | y*_<t, x) + λ (log Z_t)²], with log Z_t = log Σ_w exp(score_w).

    This is section 5.3.1 of Goyal (2021), after Devlin et al. (2014). Use it to train a model that is to be continued
    with global scores. The metrics ``log_z`` and ``log_z_squared`` are means over tokens; the trainer also logs
    ``log_z_variance``.
    """

    strength: NonNegative = 0.1  # λ: larger values keep log Z nearer to 0 and cost likelihood; 0 is cross-entropy

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        return normalized_likelihood(*gold_scores(model, batch), self.strength)


def normalized_likelihood(scores: Tensor, gold: Tensor, strength: float) -> Loss:
    """Return −Σ log softmax(scores)[gold] + λ Σ (log Z)² of scores [N,V] and targets [N], in float32 or wider."""
    scores = widened(scores)
    log_probs = F.log_softmax(scores, dim=-1)
    nll = F.nll_loss(log_probs, gold, reduction="none")  # [N]
    log_z = nll + scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # −log p = log Z − score of the target
    if strength:
        likelihood = nll.sum()
        total = likelihood + strength * log_z.square().sum()
    else:  # the order of summation of cross-entropy, for equal bits
        total = likelihood = F.nll_loss(log_probs, gold, reduction="sum")
    metrics = token_metrics(scores, gold, likelihood)
    count, log_z = metrics["nll"][1], log_z.detach()
    metrics["log_z"] = (log_z.sum().float(), count)
    metrics["log_z_squared"] = (log_z.square().sum().float(), count)
    return Loss(total, count, metrics)
