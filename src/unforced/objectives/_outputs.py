"""Several outputs of an example side by side, of different lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.types import Encoded, Example

END = -1  # stands behind the end of an output


def target_ids(examples: Iterable[Encoded]) -> Iterator[Sequence[int]]:
    """The targets of training examples; raises ``InputError`` for those that are not encoded yet.

    >>> list(target_ids([Encoded([3], [4, 2])]))
    [[4, 2]]
    """
    for example in examples:
        if isinstance(example, Example):
            raise InputError(
                "objectives are fitted to encoded examples: [codec.encode(example) for example in examples]"
            )
        yield example.target


def together(*outputs: Tensor) -> Tensor:
    """Outputs [B,N,T] with ``END`` behind their ends, of any widths -> all of them, [B,ΣN,T].

    >>> together(torch.tensor([[[3, 2]]]), torch.tensor([[[2]]]))
    tensor([[[ 3,  2],
             [ 2, -1]]])
    """
    width = max(some.shape[2] for some in outputs)
    return torch.cat([F.pad(some, (0, width - some.shape[2]), value=END) for some in outputs], dim=1)


def first_equal(outputs: Tensor) -> Tensor:
    """The number of the first output that is the same as each, among those of its example: [B,N,T] -> [B,N].

    >>> first_equal(torch.tensor([[[3, 2], [4, 2], [3, 2], [4, 2]]]))
    tensor([[0, 1, 0, 1]])
    """
    rows, number, size = outputs.shape
    same = torch.ones(rows, number, number, dtype=torch.bool, device=outputs.device)
    for t in range(size):  # a table of all pairs at all positions would be large
        same &= outputs[:, :, None, t] == outputs[:, None, :, t]
    return same.int().argmax(dim=2)


def as_lists(outputs: Tensor) -> list[list[int]]:
    """[R,T] with ``END`` behind their ends, and wherever else nothing is scored -> lists of tokens.

    >>> as_lists(torch.tensor([[3, 2, -1], [-1, 4, 2]]))
    [[3, 2], [4, 2]]
    """
    return [[id for id in row if id != END] for row in outputs.tolist()]
