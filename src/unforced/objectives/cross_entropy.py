"""Cross-entropy with teacher forcing: the baseline of every comparison."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.ops.masks import widened
from unforced.options import Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss, Progress


@dataclass(frozen=True)
class CrossEntropy(Options):
    """Minimise −Σ_t log p(y*_t | y*_<t, x)."""

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        return negative_log_likelihood(*gold_scores(model, batch))


def negative_log_likelihood(scores: Tensor, gold: Tensor) -> Loss:
    """Return −Σ log softmax(scores)[gold] of scores [N,V] and targets [N], in float32 or wider."""
    total = F.cross_entropy(widened(scores), gold, reduction="sum")
    metrics = token_metrics(scores, gold, total)
    return Loss(total, metrics["nll"][1], metrics)


def token_metrics(scores: Tensor, gold: Tensor, nll: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the metrics of all teacher-forced objectives: negative log-likelihood and token accuracy.

    A token is correct if no other token has a higher score. Ties count as correct, because ``amax`` is much cheaper
    than ``argmax``.
    """
    scores = scores.detach()
    count = torch.tensor(float(gold.numel()), device=gold.device)
    correct = (scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1) >= scores.amax(dim=-1)).sum().float()
    return {"nll": (nll.detach().float(), count), "accuracy": (correct, count)}
