"""Several outputs of an example side by side, of different lengths."""

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.types import Batch, Encoded, Example

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


def within(longest: int | None, outputs: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B,N,T], with the gold [B,T] in place of all of an example where each has more than ``longest`` tokens, and more
    than the gold; and which of them [B,N] had.

    >>> two = torch.tensor([[[3, 3, 2], [3, 2, -1]], [[3, 3, 2], [4, 4, 2]]])
    >>> within(2, two, torch.tensor([[3, 2], [4, 2]]))
    (tensor([[[ 3,  3,  2],
             [ 3,  2, -1]],
            [[ 4,  2, -1],
             [ 4,  2, -1]]]), tensor([[ True, False],
            [ True,  True]]))
    """
    lengths = (outputs != END).sum(dim=2)
    if longest is None:
        return outputs, torch.zeros_like(lengths, dtype=torch.bool)
    long = lengths > (gold != END).sum(dim=1, keepdim=True).clamp(min=longest)
    lost = long.all(dim=1)
    width = max(outputs.shape[2], gold.shape[1])
    outputs, gold = (F.pad(some, (0, width - some.shape[-1]), value=END) for some in (outputs, gold))
    return torch.where(lost[:, None, None], gold.unsqueeze(1), outputs), long


def prefixes(batch: Batch, examples: Tensor, outputs: Tensor) -> Tensor:
    """What is fed for outputs [R,T] of the batch's ``examples`` [R]: the example's own first input, then the output's tokens.

    Where nothing is scored, in front or behind, stands what the example has there itself.
    """
    longer = max(0, outputs.shape[1] - batch.prefix.shape[1])
    own = F.pad(batch.prefix[examples], (0, longer), value=batch.symbols.pad)[:, : outputs.shape[1]]
    tokens = torch.where(outputs != END, outputs, own.roll(-1, dims=1))
    return torch.cat([own[:, :1], tokens[:, :-1]], dim=1)


def as_lists(outputs: Tensor) -> list[list[int]]:
    """[R,T] with ``END`` behind their ends, and wherever else nothing is scored -> lists of tokens.

    >>> as_lists(torch.tensor([[3, 2, -1], [-1, 4, 2]]))
    [[3, 2], [4, 2]]
    """
    return [[id for id in row if id != END] for row in outputs.tolist()]
