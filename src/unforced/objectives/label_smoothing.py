"""Uniform label smoothing (Szegedy et al. 2016) over the tokens a model may emit."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from unforced.decoding.teacher_forcing import gold_scores
from unforced.objectives.cross_entropy import token_metrics
from unforced.objectives.smoothing.targets import emittable, massless, shared
from unforced.objectives.smoothing.word_vectors import unused
from unforced.ops.masks import widened
from unforced.options import Fraction, Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Encoded, Loss, Progress


@dataclass(frozen=True)
class LabelSmoothing(Options):
    """(1 − ε) · cross-entropy + ε · mean over emittable w of −log p(w | y*_<t, x).

    ``smoothing`` is ε. The uniform part leaves out ``symbols.banned``, the start symbol and padding, and ids that a codec has no
    name for: nothing is smoothed onto a token that can't be emitted. ε = 0 is cross-entropy.

    >>> LabelSmoothing(smoothing=0.1)
    LabelSmoothing(smoothing=0.1)
    """

    smoothing: Fraction = 0.1
    # what ``fitted`` adds: ids that no output has, and how many tokens there are
    never: frozenset[int] = field(default=frozenset(), init=False, repr=False, compare=False)
    size: int | None = field(default=None, init=False, repr=False, compare=False)

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "LabelSmoothing":
        """The objective, knowing which ids of the vocabulary no output has."""
        fitted = copy.copy(self)
        object.__setattr__(fitted, "never", unused(codec))
        object.__setattr__(fitted, "size", codec.sizes.target)
        return fitted

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        scores, gold = gold_scores(model, batch)
        scores = widened(scores)
        nll = F.cross_entropy(scores, gold, reduction="sum")
        metrics = token_metrics(scores, gold, nll)
        if not self.smoothing:
            return Loss(nll, metrics["nll"][1], metrics)
        # mean_w −log p(w) = log Z − mean_w scores_w, so the [N,V] log-probabilities are never formed
        without = self.never | massless(batch.symbols)
        share = emittable(scores.shape[1], without, scores.device, self.size).to(scores.dtype)
        gold_score = scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)
        mean_score = shared(scores, share / share.sum())
        uniform = nll + (gold_score - mean_score).sum()  # Σ log Z = nll + Σ gold_score
        total = (1 - self.smoothing) * nll + self.smoothing * uniform
        return Loss(total, metrics["nll"][1], metrics)
