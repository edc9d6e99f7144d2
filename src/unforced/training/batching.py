"""Batches of a limited number of tokens, whose order depends on the seed and the epoch only.

A position in training is an epoch and an offset into its batches. A resumed run therefore sees the same batches,
whatever the number of processes and micro-batches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.protocols import Split
from unforced.training.options import Training
from unforced.types import Encoded

Lengths = np.ndarray[Any, np.dtype[np.int64]]  # [N,2] source and target tokens of each example

POOL = 64  # batches of shuffled examples that are sorted by length together


def token_lengths(encoded: Sequence[Encoded]) -> Lengths:
    """Return the lengths of sources and targets; images and classes have length 0.

    >>> token_lengths([Encoded([4, 5, 6], [7, 2]), Encoded(None, [2])])
    array([[3, 2],
           [0, 1]])
    """
    pairs = [(source_length(example.source), len(example.target)) for example in encoded]
    return np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)


def source_length(source: Any) -> int:
    """Return the number of tokens of an encoded source; 0 for images, classes and None."""
    return len(source) if isinstance(source, list | tuple) or np.ndim(source) == 1 else 0


def epoch_batches(lengths: Lengths, options: Training, seed: int, epoch: int) -> list[list[int]]:
    """Return the global batches of an epoch: each example once, similar lengths together, in random order.

    Examples are shuffled, split into pools, and sorted by length within each pool. A batch ends where
    rows · (longest source + longest target) would exceed ``batch_tokens``. The batches are then shuffled.

    >>> lengths = np.array([[2, 2], [5, 5], [2, 1], [5, 4]])
    >>> sorted(map(sorted, epoch_batches(lengths, Training(batch_tokens=20), seed=1, epoch=0)))
    [[0, 2], [1, 3]]
    """
    check_batch_tokens(lengths, options.batch_tokens)
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(lengths))
    batches: list[list[int]] = []
    for pool in _pools(order, lengths, options):
        by_length = pool[np.lexsort((lengths[pool, 0], lengths[pool, 1]))]
        batches += _cut(by_length, lengths, options)
    return [batches[i] for i in rng.permutation(len(batches))]


def check_batch_tokens(lengths: Lengths, batch_tokens: int, split: Split = "train") -> None:
    """Raise `InputError` if an example does not fit into a batch; the limit is the same for all splits."""
    sizes = lengths.sum(axis=1)
    if sizes.max(initial=0) > batch_tokens:
        raise InputError(
            f"{split} example {sizes.argmax()} has {sizes.max()} source and target tokens, which is more than a batch "
            f"may hold: raise training.batch_tokens ({batch_tokens}) or remove such examples"
        )


def _pools(order: Lengths, lengths: Lengths, options: Training) -> list[Lengths]:
    """Split the shuffled examples into pools of about ``POOL`` batches each."""
    batches = lengths.sum() / options.batch_tokens
    if options.max_rows is not None:
        batches = max(batches, len(order) / options.max_rows)
    return np.array_split(order, max(1, round(batches / POOL)))


def _cut(rows: Lengths, lengths: Lengths, options: Training) -> list[list[int]]:
    """Fill batches greedily with rows in the given order."""
    sizes = lengths[rows]  # [N,2]
    batches, first = [], 0
    while first < len(rows):
        most = options.batch_tokens // max(1, sizes[first].sum())  # a batch is at least as wide as its first row
        window = sizes[first : first + min(most, options.max_rows or most)]
        widths = np.maximum.accumulate(window).sum(axis=1)  # of a batch that ends at this row
        fits = np.arange(1, len(window) + 1) * widths <= options.batch_tokens  # true, then false to the end
        last = first + int(fits.sum())
        batches.append(rows[first:last].tolist())
        first = last
    return batches


def planned_updates(lengths: Lengths, options: Training, seed: int) -> int:
    """Return the number of updates after which ``epochs`` (maybe a fraction) or ``steps`` end training.

    >>> planned_updates(np.full((10, 2), 5), Training(batch_tokens=20, epochs=2.5), seed=1)
    12
    """
    total, epoch, steps, epochs = 0, 0, options.steps, options.epochs
    while (steps is None or total < steps) and (epochs is None or epoch < epochs):
        share = 1.0 if epochs is None else min(1.0, epochs - epoch)
        total += max(1, round(share * len(epoch_batches(lengths, options, seed, epoch))))
        epoch += 1
    return total if steps is None else min(total, steps)


def micro_batches(rows: Sequence[int], lengths: Lengths, *, parts: int) -> list[list[int]]:
    """Split a global batch into ``parts`` lists of similar size, dealt out by length; some may be empty.

    >>> micro_batches([0, 1, 2], np.array([[1, 1], [9, 9], [5, 5]]), parts=2)
    [[1, 0], [2]]
    """
    if parts == 1:
        return [list(rows)]
    size = lengths[rows].sum(axis=1)
    dealt = [rows[i] for i in np.argsort(-size, kind="stable")]
    return [dealt[part::parts] for part in range(parts)]
