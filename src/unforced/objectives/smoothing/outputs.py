"""Several outputs of an example in one tensor, with `END` after the end of each."""

import torch
import torch.nn.functional as F
from torch import Tensor

END = -1


def concatenate_outputs(*outputs: Tensor) -> Tensor:
    """Concatenate outputs [B,N,T] of different widths along the second dimension.

    >>> concatenate_outputs(torch.tensor([[[3, 2]]]), torch.tensor([[[2]]]))
    tensor([[[ 3,  2],
             [ 2, -1]]])
    """
    width = max(some.shape[2] for some in outputs)
    return torch.cat([F.pad(some, (0, width - some.shape[2]), value=END) for some in outputs], dim=1)


def first_equal(outputs: Tensor) -> Tensor:
    """Return the index [B,N] of the first output of an example that equals each output [B,N,T].

    >>> first_equal(torch.tensor([[[3, 2], [4, 2], [3, 2], [4, 2]]]))
    tensor([[0, 1, 0, 1]])
    """
    rows, number, size = outputs.shape
    same = torch.ones(rows, number, number, dtype=torch.bool, device=outputs.device)
    for t in range(size):  # comparing all positions at once would need N² T numbers
        same &= outputs[:, :, None, t] == outputs[:, None, :, t]
    return same.int().argmax(dim=2)


def as_lists(outputs: Tensor) -> list[list[int]]:
    """Convert outputs [R,T] to lists of tokens.

    >>> as_lists(torch.tensor([[3, 2, -1], [4, 4, 2]]))
    [[3, 2], [4, 4, 2]]
    """
    return [[id for id in row if id != END] for row in outputs.tolist()]
