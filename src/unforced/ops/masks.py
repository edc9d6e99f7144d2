"""Masks, and sums that stay finite in empty rows and in low precision."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

FLOOR = -1e9  # stands for log 0 where −inf would turn gradients into NaN


def widened(values: Tensor) -> Tensor:
    """Convert to float32 unless the values are float64: sums over a vocabulary are inexact in half precision."""
    return values if values.dtype == torch.float64 else values.float()


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast on a device; without autocast this costs nothing.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def length_mask(lengths: Tensor, size: int | None = None) -> Tensor:
    """Return a mask [B,T] that is true at the first ``lengths`` [B] positions; T is ``size`` or the largest length.

    >>> length_mask(torch.tensor([2, 0, 3]))
    tensor([[ True,  True, False],
            [False, False, False],
            [ True,  True,  True]])
    """
    size = int(lengths.max()) if size is None else size
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def token_mask(size: int, excluded: Iterable[int], device: torch.device | str | None = None) -> Tensor:
    """Return a mask [V] of ``size`` ids that is false for the excluded ones.

    >>> token_mask(4, {0, 2, 7})
    tensor([False,  True, False,  True])
    """
    mask = torch.ones(size, dtype=torch.bool, device=device)
    mask[[id for id in excluded if id < size]] = False
    return mask


def scatter_mask(values: Tensor, mask: Tensor) -> Tensor:
    """Place values [N] at the N true positions of a mask, in order, and zeros elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def masked_log_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the log-softmax over the last dimension among the entries where ``mask`` is true, `FLOOR` elsewhere.

    A row without such an entry is `FLOOR` everywhere and has a zero gradient.
    """
    floored = scores.masked_fill(~mask, FLOOR)
    return torch.log_softmax(floored, dim=-1).masked_fill(~mask, FLOOR)


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Return the vectors of x [R,T,E] at positions [R,P]: [R,P,E].

    >>> gather_positions(torch.arange(6.0).view(1, 3, 2), torch.tensor([[2, 0]]))
    tensor([[[4., 5.],
             [0., 1.]]])
    """
    rows = torch.arange(len(x), device=x.device).unsqueeze(1)
    return x.flatten(0, 1).index_select(0, (positions + x.shape[1] * rows).flatten()).view(*positions.shape, -1)


def mirror_positions(lengths: Tensor, size: int) -> Tensor:
    """Return positions [R,size] that read each row from its end; positions after the end stay in place.

    >>> mirror_positions(torch.tensor([2, 3]), 3)
    tensor([[1, 0, 2],
            [2, 1, 0]])
    """
    here, lengths = torch.arange(size, device=lengths.device), lengths.unsqueeze(1)
    return torch.where(here < lengths, lengths - 1 - here, here)
