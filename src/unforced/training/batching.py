"""Token-bucketed batches whose order is a pure function of (seed, epoch).

A position in training is an epoch and an offset into ``epoch_batches`` of it, so that a resumed run sees what an
uninterrupted one would have seen, whatever the number of processes and micro-batches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.types import Encoded

POOL = 64  # batches' worth of shuffled examples that are sorted by length together


def token_lengths(encoded: Sequence[Encoded]) -> np.ndarray:
    """[N,2] lengths of source and target. Sources that are no token sequences (images, classes) count nothing.

    >>> token_lengths([Encoded([4, 5, 6], [7, 2]), Encoded(None, [2])])
    array([[3, 2],
           [0, 1]])
    """
    pairs = [(source_length(example.source), len(example.target)) for example in encoded]
    return np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)


def source_length(source: Any) -> int:
    """Number of tokens of an encoded source; 0 for images, classes and None."""
    return len(source) if isinstance(source, list | tuple) or np.ndim(source) == 1 else 0


def epoch_batches(
    lengths: np.ndarray, *, batch_tokens: int, max_rows: int | None, seed: int, epoch: int
) -> list[list[int]]:
    """The global batches of an epoch: every example exactly once, similar lengths together, in random order.

    Examples are shuffled, cut into pools, sorted by length within each (ties stay shuffled) and cut again where
    rows · (longest source + longest target) would exceed ``batch_tokens``; then the batches are shuffled.

    >>> lengths = np.array([[2, 2], [5, 5], [2, 1], [5, 4]])
    >>> sorted(map(sorted, epoch_batches(lengths, batch_tokens=20, max_rows=None, seed=1, epoch=0)))
    [[0, 2], [1, 3]]
    """
    check_lengths(lengths, batch_tokens)
    rng = np.random.default_rng((seed, epoch))
    order = rng.permutation(len(lengths))
    batches: list[list[int]] = []
    for pool in _pools(order, lengths, batch_tokens, max_rows):
        by_length = pool[np.lexsort((lengths[pool, 0], lengths[pool, 1]))]
        batches += _cut(by_length, lengths, batch_tokens, max_rows)
    return [batches[i] for i in rng.permutation(len(batches))]


def check_lengths(lengths: np.ndarray, batch_tokens: int) -> None:
    """Every example must fit into a batch of its own."""
    longest = int(lengths.sum(axis=1).argmax()) if len(lengths) else 0
    if len(lengths) and lengths[longest].sum() > batch_tokens:
        raise InputError(
            f"training example {longest} has {lengths[longest].sum()} source and target tokens, more than a batch"
            f" may hold: raise batch_tokens ({batch_tokens}) or leave such examples out"
        )


def _pools(order: np.ndarray, lengths: np.ndarray, batch_tokens: int, max_rows: int | None) -> list[np.ndarray]:
    """Cut the shuffled examples into pools of about ``POOL`` batches each."""
    tokens = np.cumsum(lengths[order].sum(axis=1))
    batches = tokens[-1] / batch_tokens if len(order) else 0
    if max_rows is not None:
        batches = max(batches, len(order) / max_rows)
    return np.array_split(order, max(1, round(batches / POOL)))


def _cut(rows: np.ndarray, lengths: np.ndarray, batch_tokens: int, max_rows: int | None) -> list[list[int]]:
    """Greedily fill batches with rows in the given order."""
    sizes = lengths[rows]  # [N,2]
    batches, first = [], 0
    while first < len(rows):
        most = batch_tokens // max(1, sizes[first].sum())  # a batch is at least as wide as its first row
        window = sizes[first : first + min(most, max_rows or most)]
        widths = np.maximum.accumulate(window).sum(axis=1)  # of the batch if it ended at this row
        fits = np.arange(1, len(window) + 1) * widths <= batch_tokens  # once false, false for good
        last = first + int(fits.sum())
        batches.append(rows[first:last].tolist())
        first = last
    return batches


def planned_updates(
    lengths: np.ndarray, *, batch_tokens: int, max_rows: int | None, seed: int, epochs: float | None, steps: int | None
) -> int:
    """How many updates ``epochs`` (the last one may be a fraction) and ``steps`` allow: the smaller number.

    >>> lengths = np.full((10, 2), 5)
    >>> planned_updates(lengths, batch_tokens=20, max_rows=None, seed=1, epochs=2.5, steps=None)
    12
    """
    total, epoch = 0, 0
    while (steps is None or total < steps) and (epochs is None or epoch < epochs):
        share = 1.0 if epochs is None else min(1.0, epochs - epoch)
        batches = epoch_batches(lengths, batch_tokens=batch_tokens, max_rows=max_rows, seed=seed, epoch=epoch)
        total += max(1, round(share * len(batches)))
        epoch += 1
    return total if steps is None else min(total, steps)


def micro_batches(rows: Sequence[int], lengths: np.ndarray, *, parts: int) -> list[list[int]]:
    """Split a global batch into ``parts`` lists of rows, dealt by length so that all are alike; some may be empty.

    >>> micro_batches([0, 1, 2], np.array([[1, 1], [9, 9], [5, 5]]), parts=2)
    [[1, 0], [2]]
    """
    if parts == 1:
        return [list(rows)]
    size = lengths[rows].sum(axis=1)
    dealt = [rows[i] for i in np.argsort(-size, kind="stable")]
    return [dealt[part::parts] for part in range(parts)]
