"""Maximum likelihood on gold prefixes: the baseline every method is compared with."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.ops.masks import widened
from unforced.options import Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss, Progress


def negative_log_likelihood(scores: Tensor, gold: Tensor) -> Loss:
    """−Σ log softmax(scores)[gold], in float32 at least, with the metrics of ``token_metrics``."""
    total = F.cross_entropy(widened(scores), gold, reduction="sum")
    metrics = token_metrics(scores, gold, total)
    return Loss(total, metrics["nll"][1], metrics)


def token_metrics(scores: Tensor, gold: Tensor, nll: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What every teacher-forced objective reports: the gold's negative log-likelihood and token accuracy.

    A token counts as hit if no other scores higher, ties included: ``amax`` costs a fraction of ``argmax``.
    """
    scores = scores.detach()
    count = torch.tensor(float(gold.numel()), device=gold.device)
    hits = (scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1) >= scores.amax(dim=-1)).sum().float()
    return {"nll": (nll.detach().float(), count), "accuracy": (hits, count)}


@dataclass(frozen=True)
class CrossEntropy(Options):
    """−Σ_t log p(y*_t | y*_<t, x), summed over the tokens that count.

    >>> from unforced.objectives.cross_entropy import CrossEntropy
    >>> CrossEntropy()
    CrossEntropy()
    """

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        return negative_log_likelihood(*gold_scores(model, batch))
