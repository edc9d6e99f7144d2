"""What a model makes of gold outputs: teacher-forced negative log-likelihoods and normalisers, example by example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from unforced.metrics.protocol import LikelihoodRow
from unforced.tasks.protocol import FittedTask
from unforced.types import Batch, Example


class Likelihood(NamedTuple):
    """−log p(gold | source) of one example, how many tokens it has (the end symbol included), Σ log Z and Σ (log Z)²."""

    number: int
    nll: float
    tokens: int
    log_z: float
    log_z_squared: float

    @property
    def row(self) -> LikelihoodRow:
        """What metrics are given."""
        return self.nll, self.tokens, self.log_z, self.log_z_squared


def batch_sums(model: Any, batch: Batch) -> torch.Tensor:
    """−Σ_t log p(y*_t | y*_<t, x), Σ_t log Z_t and Σ_t (log Z_t)² of each example: [B,3], in double precision.

    log Z_t is the logarithm of the sum over the whole vocabulary of exp(score).
    """
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    scores = model.score(features[batch.mask])  # [N,V] at the positions that count
    gold = batch.gold[batch.mask]
    nll = F.cross_entropy(scores.float(), gold, reduction="none").double()
    log_z = nll + scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1)  # −log p = log Z − score of the gold
    rows = batch.mask.nonzero()[:, 0]
    terms = torch.stack([nll, log_z, log_z.square()], dim=1)  # [N,3]
    return nll.new_zeros(len(batch), 3).index_add(0, rows, terms)


@torch.no_grad()
def gold_likelihoods(
    model: nn.Module,
    fitted: FittedTask,
    examples: Sequence[Example],
    *,
    batch_rows: int = 128,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Likelihood]:
    """The likelihoods of the examples' targets; ``share = (r, n)`` does every n-th batch only."""
    encoded = [fitted.codec.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda number: -len(encoded[number].target))
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for first in range(share[0] * batch_rows, len(order), share[1] * batch_rows):
            numbers = order[first : first + batch_rows]
            batch = fitted.codec.collate([encoded[number] for number in numbers], numbers).to(device)
            lengths = batch.mask.sum(dim=1).tolist()
            for number, tokens, (nll, *log_z) in zip(numbers, lengths, batch_sums(model, batch).tolist()):
                yield Likelihood(number, nll, tokens, *log_z)
    finally:
        model.train(training)
