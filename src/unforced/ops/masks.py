"""Masks and sums that are safe where a row has nothing in it, or its numbers little precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

FLOOR = -1e9  # stands for log 0 where a true −inf would turn gradients into NaN


def widened(values: Tensor) -> Tensor:
    """In single precision at least: in half precision a sum over a vocabulary loses what it counts."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """A context without autocast on ``device``; free of cost where there is none.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def length_mask(lengths: Tensor, size: int | None = None) -> Tensor:
    """[B] lengths -> [B,T] bool, true for the first ``lengths`` positions.

    >>> length_mask(torch.tensor([2, 0, 3]))
    tensor([[ True,  True, False],
            [False, False, False],
            [ True,  True,  True]])
    """
    size = int(lengths.max()) if size is None else size
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of ``values`` where ``mask`` holds; masked entries may be NaN or infinite, also in the gradient."""
    return torch.where(mask, values, values.new_zeros(())).sum()


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Log-softmax over the last dimension among the entries where ``mask`` holds; the others get ``FLOOR``.

    A row with no entry at all is all ``FLOOR`` and has a zero gradient.
    """
    floored = scores.masked_fill(~mask, FLOOR)
    return torch.log_softmax(floored, dim=-1).masked_fill(~mask, FLOOR)


def scatter_mask(values: Tensor, mask: Tensor) -> Tensor:
    """Place values [N] at the N true positions of a mask, in order, and zeros elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
