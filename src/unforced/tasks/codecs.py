"""Encoded examples -> one padded ``Batch``."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.types import Batch, Encoded, Symbols


def collate(
    encoded: Sequence[Encoded],
    ids: Sequence[int],
    symbols: Symbols,
    *,
    fixed_length: bool = False,
    length: int | None = None,
    source_pad: int = 0,
) -> Batch:
    """Pad the examples to a batch; which kind of source they have is seen from the first one.

    Empty targets (decoding) give gold whose mask is false; gold always has at least one column. Sources without
    a single token are refused, so that no model ever meets one.

    ``fixed_length`` fills ``Batch.length``: with the source's number of tokens, or else with the target's length.
    ``length`` does so with a number all outputs share (pixels), for batches that may have no targets.
    Where some example has references, one that has none is its own.

    >>> from unforced.types import Encoded, Symbols
    >>> batch = collate([Encoded([4, 5], [6, 2]), Encoded([4], [2])], [0, 1], Symbols(0, 1, 2))
    >>> batch.source
    tensor([[4, 5],
            [4, 0]])
    >>> batch.prefix
    tensor([[1, 6],
            [1, 2]])
    """
    if not encoded:
        raise InputError("A batch needs at least one example.")
    if len(encoded) != len(ids):
        raise InputError(f"There are {len(encoded)} examples but {len(ids)} ids.")
    gold, mask, target_lengths = _pad([example.target for example in encoded], symbols.pad)
    source, source_mask, source_lengths = _sources([example.source for example in encoded], ids, source_pad)
    lengths = None
    if length is not None:
        lengths = torch.full((len(encoded),), length)
    elif fixed_length:
        lengths = target_lengths if source_lengths is None else source_lengths
    if lengths is not None:
        _check_lengths(target_lengths, lengths, ids)
    references = None
    if any(len(example.references) for example in encoded):
        answers = [example.references if len(example.references) else example.target for example in encoded]
        references, _, _ = _pad(answers, symbols.pad)
    return Batch.of_gold(
        gold,
        mask,
        symbols,
        source=source,
        source_mask=source_mask,
        length=lengths,
        ids=torch.as_tensor(ids, dtype=torch.long),
        references=references,
    )


def _pad(sequences: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ragged ids -> [B,T] ids, [B,T] mask, [B] lengths, with T at least one."""
    lengths = np.fromiter((len(sequence) for sequence in sequences), dtype=np.int64, count=len(sequences))
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    return torch.from_numpy(padded), torch.from_numpy(mask), torch.from_numpy(lengths)


def _sources(
    sources: Sequence[Any], ids: Sequence[int], pad: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Sources of one kind -> tensor, mask and lengths (the latter two for tokens alone)."""
    first = sources[0]
    if any((source is None) != (first is None) for source in sources):
        raise InputError("Some examples of a batch have a source and others have none.")
    if first is None:
        return None, None, None
    if isinstance(first, Integral):
        return torch.from_numpy(np.asarray(sources, dtype=np.int64)), None, None
    if np.ndim(first) == 3:
        shapes = {np.shape(source) for source in sources}
        if len(shapes) > 1:
            raise InputError(f"The images of a batch have different shapes: {sorted(shapes)}.")
        return torch.from_numpy(np.stack(sources).astype(np.float32, copy=False)), None, None
    if np.ndim(first) != 1:
        raise InputError(f"A source has {np.ndim(first)} dimensions: tokens have one, images three.")
    padded, mask, lengths = _pad(sources, pad)
    if not bool(lengths.all()):
        raise InputError(f"The source of example {ids[int(lengths.argmin())]} is empty.")
    return padded, mask, lengths


def _check_lengths(found: Tensor, wanted: Tensor, ids: Sequence[int]) -> None:
    """Where an output's length is fixed, a target is either absent or just as long."""
    wrong = ((found != wanted) & (found > 0)) | (wanted < 1)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise InputError(f"Example {ids[row]} has {int(found[row])} target tokens where {int(wanted[row])} are wanted.")
