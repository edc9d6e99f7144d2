"""What a model makes of gold outputs: teacher-forced negative log-likelihoods, example by example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from unforced.tasks.protocol import FittedTask
from unforced.types import Batch, Example


class Likelihood(NamedTuple):
    """−log p(gold | source) of one example and how many tokens it has, the end symbol included."""

    number: int
    nll: float
    tokens: int


def batch_nll(model: Any, batch: Batch) -> torch.Tensor:
    """−Σ_t log p(y*_t | y*_<t, x) of each example: [B], in double precision."""
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    scores = model.score(features[batch.mask])  # [N,V] at the positions that count
    nll = F.cross_entropy(scores.float(), batch.gold[batch.mask], reduction="none").double()
    rows = batch.mask.nonzero()[:, 0]
    return nll.new_zeros(len(batch)).index_add(0, rows, nll)


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
            yield from map(Likelihood, numbers, batch_nll(model, batch).tolist(), lengths)
    finally:
        model.train(training)
