"""Base of the objectives of masked models, and functions that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.energy import energies, masked_copies
from unforced.energy.partition import ROWS
from unforced.errors import InputError
from unforced.ops import random_streams
from unforced.ops.masks import FLOOR, widened
from unforced.options import Count, NonNegative, Options
from unforced.protocols import MaskedModel, SupportsFeatures, SupportsLengths, require
from unforced.types import Batch, Loss, Progress

FrozenModel = str | Callable[..., Any]  # a run folder, or a model in Python


@dataclass(frozen=True, kw_only=True)
class MaskedObjective(Options, ABC):
    """Base: encode the sources, compute the loss, and add −log p(length) if the model predicts lengths."""

    length_weight: NonNegative = 0.1  # weight of −log p(length), for models that predict lengths

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, type(self).__name__, "scores")
        encoded = masked_copies.encode_sources(model, batch)
        loss, shares = self.sequence_loss(model, encoded, batch, rng)
        return add_length_loss(model, encoded, loss, shares, self.length_weight)

    @abstractmethod
    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        """Return the loss, and each example's share [B] of its count.

        The sources of ``batch`` are encoded by ``model``; other models read ``unencoded``.
        """


@dataclass(frozen=True, kw_only=True)
class EnergyObjective(MaskedObjective, ABC):
    """Base of objectives of a model's energy; the loss is divided by the number of tokens."""

    energy: energies.Kind = "raw"  # which energy; see `unforced.energy.energies`
    rows: Count = ROWS  # masked copies in memory at a time


def add_length_loss(model: MaskedModel, batch: Batch, loss: Loss, shares: Tensor, weight: float) -> Loss:
    """Add ``weight`` · −log p(length), averaged with the weights ``shares`` [B], if the model predicts lengths."""
    scores = model.length_scores(batch) if weight and isinstance(model, SupportsLengths) else None
    if scores is None:
        return loss
    scores = widened(scores)  # of lengths 1, 2, …
    lengths = energies.variables(batch).sum(dim=1)
    if len(lengths) and int(lengths.max()) > scores.shape[1]:
        raise InputError(
            f"a target has {int(lengths.max())} tokens, but the model predicts up to {scores.shape[1]}: raise longest"
        )
    target = lengths.clamp(min=1) - 1
    nll = F.cross_entropy(scores, target, reduction="none")
    count = torch.tensor(float(len(batch)), device=nll.device)
    correct = (scores.detach().argmax(dim=1) == target).sum().float()
    metrics = {"length_nll": (nll.detach().sum().float(), count), "length_accuracy": (correct, count)}
    total = loss.total + weight * (nll * shares.to(nll)).sum()
    return loss._replace(total=total, metrics={**loss.metrics, **metrics})


def allowed_scores(scores: Tensor, batch: Batch) -> Tensor:
    """Return scores [...,V] in float32 or wider, with a floor for tokens that cannot occur."""
    allowed = energies.allowed(batch.symbols, scores.shape[-1], scores.device)
    return widened(scores).masked_fill(~allowed, FLOOR)


def masked_scores(model: MaskedModel, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
    """Return the scores [N,V] at the N masked positions of tokens [B,T]; only these are projected if possible."""
    if isinstance(model, SupportsFeatures):
        return model.score(model.features(batch, tokens, masked)[masked])
    return model.scores(batch, tokens, masked)[masked]


def draw_positions(keys: Tensor, candidates: Tensor, numbers: Tensor) -> Tensor:
    """Draw ``numbers`` [B] of the candidates [B,T] of each row without replacement; return a mask [B,T].

    >>> candidates = torch.tensor([[True, True, False], [True, False, False]])
    >>> drawn = draw_positions(torch.tensor([1, 2]), candidates, torch.tensor([1, 1]))
    >>> drawn.sum(dim=1), drawn[:, 2]
    (tensor([1, 1]), tensor([False, False]))
    """
    t = torch.arange(candidates.shape[1], device=keys.device)
    draws = random_streams.uniform(keys.unsqueeze(1), t).masked_fill(~candidates, 2.0)
    ranks = draws.argsort(dim=1, stable=True).argsort(dim=1)
    return candidates & (ranks < numbers.unsqueeze(1))


def draw_conditionals(batch: Batch, positions: int | None, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the positions [B,T] whose conditionals are computed, and the factors [B] of each example's sum.

    With ``positions``, that many of an example's n tokens are drawn, with the factor n / positions.
    """
    candidates = energies.variables(batch)
    n = candidates.sum(dim=1)
    if positions is None:
        return candidates, torch.ones_like(n)
    drawn = n.clamp(max=positions)
    return draw_positions(random_streams.keys(batch, rng), candidates, drawn), n / drawn.clamp(min=1)


def target_nll(log_probs: Tensor, ids: Tensor, batch: Batch, where: Tensor) -> Tensor:
    """Return −log p [N] of the targets at the positions ``where``, from conditionals [N,A] over ``ids``."""
    target = torch.searchsorted(ids, batch.gold[where])
    return -log_probs.gather(1, target.unsqueeze(1)).squeeze(1)


def loaded(source: FrozenModel, method: str) -> Any:
    """Return a model given in Python or loaded before; raise `InputError` if it is still a run folder."""
    if isinstance(source, str):
        raise InputError(f"{method}: the model of {source} is not loaded; call with_models(load) first")
    return source
