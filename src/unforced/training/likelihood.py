"""What a model makes of gold outputs: negative log-likelihoods and normalisers, example by example.

Those of a decoder are teacher-forced. A masked model is an energy, and its exact likelihood is a sum over all sequences of the
same length: for small spaces only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.energy import energies
from unforced.energy.conditionals import true_conditionals
from unforced.energy.partition import Partition
from unforced.errors import InputError
from unforced.masking import widened
from unforced.metrics.protocol import LikelihoodRow
from unforced.models.protocol import MaskedModel, StepDecoder
from unforced.tasks.protocol import FittedTask
from unforced.types import Batch, Example


class Likelihood(NamedTuple):
    """−log p(gold | source) of one example, how many tokens it has, Σ log Z and Σ (log Z)².

    The end symbol is a token of a decoder, and none of a masked model, whose log Z is one number for the sequence.
    """

    number: int
    nll: float
    tokens: int
    log_z: float
    log_z_squared: float

    @property
    def row(self) -> LikelihoodRow:
        """What metrics are given."""
        return self.nll, self.tokens, self.log_z, self.log_z_squared


Sums = Callable[[Batch], Tensor]  # [B,4]: −log p, tokens, Σ log Z and Σ (log Z)² of each example


def sums_of(model: Any, of: str = "exact") -> Sums:
    """How the gold is judged: by what ``unforced.metrics.protocol.LikelihoodMetric`` calls ``of``."""
    masked = isinstance(model, MaskedModel) and not isinstance(model, StepDecoder)
    if of == "exact":
        return _Exact(model) if masked else _Forced(model)
    if not masked:
        raise InputError(
            f"the likelihood of hidden tokens is asked of {type(model).__name__}, which hides none"
        )
    return _Conditional(model, of)


@dataclass(frozen=True)
class _Forced:
    """−Σ_t log p(y*_t | y*_<t, x), Σ_t log Z_t and Σ_t (log Z_t)², in double precision.

    log Z_t is the logarithm of the sum over the whole vocabulary of exp(score).
    """

    model: Any

    def __call__(self, batch: Batch) -> Tensor:
        model = self.model
        features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
        scores = model.score(features[batch.mask])  # [N,V] at the positions that count
        gold = batch.gold[batch.mask]
        nll = F.cross_entropy(scores.float(), gold, reduction="none").double()
        log_z = nll + scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # −log p = log Z − score of the gold
        rows = batch.mask.nonzero()[:, 0]
        terms = torch.stack([nll, torch.ones_like(nll), log_z, log_z.square()], dim=1)  # [N,4]
        return nll.new_zeros(len(batch), 4).index_add(0, rows, terms)


class _Exact:
    """E_raw(y*) + log Z, and −log p(T) where the model guesses how many tokens T there are (else T is given)."""

    def __init__(self, model: Any) -> None:
        self.model, self.partition = model, Partition(model)

    def __call__(self, batch: Batch) -> Tensor:
        tokens = energies.variables(batch).sum(dim=1)
        nll, log_z = self.partition.nll(batch), self.partition(batch)
        if callable(getattr(self.model, "length_scores", None)):
            guesses = torch.log_softmax(widened(self.model.length_scores(batch)).double(), dim=1)
            unheard = guesses.new_full((len(batch), 1), -torch.inf)  # lengths that it can't guess
            guesses = torch.cat([unheard, guesses, unheard], dim=1)
            nll = nll - guesses.gather(1, tokens.clamp(max=guesses.shape[1] - 1).unsqueeze(1)).squeeze(1)
        return torch.stack([nll, tokens.double(), log_z, log_z.square()], dim=1)


@dataclass(frozen=True)
class _Conditional:
    """−Σ_t log p(y*_t | y*\\t), by the softmax at a hidden token ("masked") or by the raw energy ("pseudo")."""

    model: Any
    of: str

    def __call__(self, batch: Batch) -> Tensor:
        where = energies.variables(batch)
        if self.of == "masked":
            nll = energies.energy(self.model, batch, batch.gold, "local").double()
        else:
            log_probs, ids = true_conditionals(self.model, batch, where)
            gold = torch.searchsorted(ids, batch.gold[where])
            each = -log_probs.gather(1, gold.unsqueeze(1)).squeeze(1).double()
            nll = each.new_zeros(len(batch)).index_add(0, where.nonzero()[:, 0], each)
        nothing = torch.zeros_like(nll)
        return torch.stack([nll, where.sum(dim=1).double(), nothing, nothing], dim=1)


@torch.no_grad()
def gold_likelihoods(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    *,
    batch_rows: int = 128,
    share: tuple[int, int] = (0, 1),
    of: str = "exact",
) -> Iterator[Likelihood]:
    """The likelihoods of the examples' targets; ``share = (r, n)`` does every n-th batch only. For ``of`` see ``sums_of``."""
    encoded = [fitted.codec.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda number: -len(encoded[number].target))
    device = next(model.parameters()).device
    training, sums = model.training, sums_of(model, of)
    model.eval()
    try:
        for first in range(share[0] * batch_rows, len(order), share[1] * batch_rows):
            numbers = order[first : first + batch_rows]
            batch = fitted.codec.collate([encoded[number] for number in numbers], numbers).to(device)
            for number, (nll, tokens, *log_z) in zip(numbers, sums(batch).tolist()):
                yield Likelihood(number, nll, int(tokens), *log_z)
    finally:
        model.train(training)
