"""Numbers for examples that have none: a hash of what is in them.

A data set of the user's own gives batches without the examples' numbers. What an objective draws for an example
(``unforced.streams``) must still be the same in any micro-batch, process and padding, so the example's content stands in.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unforced.streams import GAMMA, mix64
from unforced.types import Batch


def numbered(batch: Batch) -> Batch:
    """The batch with ``ids`` that are a function of each example's own tokens; padding changes nothing."""
    total = content(batch.gold, batch.mask) + mix64(batch.prefix[:, 0])
    if batch.source is not None:
        source = batch.source
        if source.is_floating_point():
            source = source.float().flatten(1).contiguous().view(torch.int32).long()
        source = source.reshape(len(source), -1)
        there = batch.source_mask
        if there is None or there.shape != source.shape:
            there = torch.ones_like(source, dtype=torch.bool)
        total = mix64(total) + content(source, there)
    return replace(batch, ids=mix64(total))


def content(tokens: Tensor, there: Tensor) -> Tensor:
    """A hash [B] of the tokens [B,T] that are ``there``, in their order, wherever between padding they stand.

    >>> left, right = torch.tensor([[0, 5, 6]]), torch.tensor([[5, 6, 0]])
    >>> bool(content(left, left > 0) == content(right, right > 0))
    True
    >>> bool(content(left, left > 0) == content(left.flip(1), left.flip(1) > 0))
    False
    """
    places = there.long().cumsum(dim=1)
    return (mix64(mix64(tokens) + places * GAMMA) * there).sum(dim=1)
