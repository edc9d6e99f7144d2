"""Scores of masked positions, from copies of sequences in which different positions are masked.

Copies run in micro-batches of similar length. Optional methods of a model (``unforced.protocols``: `SupportsFeatures`,
`SupportsFeaturesAt`, `SupportsConditionals`, `SupportsEncoding`) save work and do not change the results.

Shapes: B examples with K rows each, R = B·K rows with the K rows of an example adjacent, T positions, V tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.models.masked import rows_per_example
from unforced.models.modes import evaluation_mode
from unforced.protocols import SupportsConditionals, SupportsEncoding, SupportsFeatures, SupportsFeaturesAt
from unforced.types import Batch

COPIES = 256  # masked copies in a micro-batch

Batching = Callable[[Tensor], Iterator[tuple[Tensor, int]]]  # sizes [N] -> numbers [n] and largest size of each part
Masks = Callable[[Tensor, Tensor, int], Tensor]  # rows [n], positions [n,P], size -> what is masked [n,size]
Measure = Callable[[Tensor, Tensor], Tensor]  # scores [n,V] and tokens [n] -> [n,...]


def encode_sources(model: Any, batch: Batch) -> Batch:
    """Encode the sources once for many passes if the model supports it, else return the batch unchanged."""
    return model.encoded(batch) if isinstance(model, SupportsEncoding) else batch


def vocabulary_size(model: Any, batch: Batch) -> int:
    """Return the number of tokens that a model scores."""
    one = batch.select(torch.zeros(1, dtype=torch.long, device=batch.gold.device))
    with evaluation_mode(model):
        return int(model.scores(one, one.gold, torch.zeros_like(one.mask)).shape[-1])


def example_of_row(batch: Batch, tokens: Tensor) -> Tensor:
    """Return the number of the example that each row belongs to: [R]."""
    return torch.arange(len(tokens), device=tokens.device) // max(1, rows_per_example(batch, tokens))


# ---- scores ----


class MaskedScores(NamedTuple):
    """Scores of a micro-batch; P is absent where single positions are scored."""

    numbers: Tensor  # [n], which copies or positions
    scores: Tensor  # [n,P,V]
    features: Tensor | None  # [n,P,H], if the model has features


def scores_at(
    model: Any,
    batch: Batch,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    valid: Tensor | None = None,
    rows: int = COPIES,
) -> Tensor:
    """Score blocks of positions that are masked together: ``positions[n]`` of ``tokens[row[n]]``, [N,P] -> [N,P,V].

    A mask ``valid`` [N,P] tells which positions a block has; the first is always valid. Other results are arbitrary.
    """
    if valid is not None:  # masking the first position twice does no harm
        positions = torch.where(valid, positions, positions[:, :1])
    batching = partial(even_batches, rows=rows)
    parts = list(score_copies(model, batch, example_of_row(batch, tokens), tokens, row, positions, batching))
    order = torch.cat([part.numbers for part in parts]).argsort()
    return torch.cat([part.scores for part in parts]).index_select(0, order)


def score_copies(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    batching: Batching,
    masks: Masks | None = None,
) -> Iterator[MaskedScores]:
    """Run one copy of ``tokens[row[n]]`` per block of positions [N,P], and score the block.

    ``example`` [R] tells which example of the batch each row of tokens belongs to. The block itself is masked unless
    ``masks`` is passed.
    """
    batch = encode_sources(model, batch)
    for numbers, size in batching(extents(batch)[example[row]]):
        where, which = positions[numbers], row[numbers]
        if masks is None:
            masked = torch.zeros(len(numbers), size, dtype=torch.bool, device=tokens.device).scatter_(1, where, True)
        else:
            masked = masks(which, where, size)
        part, inputs = trim(batch.select(example[which]), size), tokens[which, :size]
        number = torch.arange(len(numbers), device=tokens.device).unsqueeze(1)
        if isinstance(model, SupportsFeaturesAt):
            features = model.features_at(part, inputs, masked, where)
        elif isinstance(model, SupportsFeatures):
            features = model.features(part, inputs, masked)[number, where]
        else:
            yield MaskedScores(numbers, model.scores(part, inputs, masked)[number, where], None)
            continue
        yield MaskedScores(numbers, model.score(features), features)


def score_positions(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    where: Tensor,
    batching: Batching,
    masks: Masks | None = None,
) -> Iterator[MaskedScores]:
    """Score each of the N positions in the mask ``where`` [R,T] by itself: scores [n,V] in each part.

    The position alone is masked unless ``masks`` is passed.
    """
    row, position = where.nonzero(as_tuple=True)
    if masks is not None or not isinstance(model, SupportsConditionals):
        for part in score_copies(model, batch, example, tokens, row, position.unsqueeze(1), batching, masks):
            features = None if part.features is None else part.features.squeeze(1)
            yield MaskedScores(part.numbers, part.scores.squeeze(1), features)
        return
    batch = encode_sources(model, batch)  # one pass scores all positions of a row
    present, counts = row.unique_consecutive(return_counts=True)
    first = counts.cumsum(0) - counts
    for numbers, size in batching(extents(batch)[example[present]]):
        which, n = present[numbers], counts[numbers]
        scores = model.conditional_scores(trim(batch.select(example[which]), size), tokens[which, :size])
        local = torch.arange(len(which), device=row.device).repeat_interleave(n)
        within = torch.arange(len(local), device=row.device) - (n.cumsum(0) - n)[local]
        found = first[numbers][local] + within
        yield MaskedScores(found, scores[local, position[found]], None)


def measure_positions(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    where: Tensor,
    measure: Measure,
    batching: Batching,
    masks: Masks | None = None,
    *,
    keep_features: bool = False,
) -> tuple[Tensor, Tensor]:
    """Apply ``measure`` to the scores of the tokens in the mask ``where`` [R,T]; see `score_positions`.

    Return the values [R,T,...] and the features [R,T,H], both 0 outside the mask. H is 0 if they are not kept.
    """
    row, position = where.nonzero(as_tuple=True)
    numbers, values, features = [], [], []
    for part in score_positions(model, batch, example, tokens, where, batching, masks):
        numbers.append(part.numbers)
        values.append(measure(part.scores, tokens[row[part.numbers], position[part.numbers]]))
        if keep_features and part.features is not None:
            features.append(part.features)
    if not numbers:
        return torch.zeros(where.shape, device=where.device), no_features(tokens)
    order = torch.cat(numbers)
    places = row[order], position[order]

    def place(parts: list[Tensor]) -> Tensor:
        flat = torch.cat(parts)
        return flat.new_zeros(*where.shape, *flat.shape[1:]).index_put(places, flat)

    return place(values), place(features) if features else no_features(tokens)


def no_features(tokens: Tensor) -> Tensor:
    """Return an empty tensor [R,T,0] for tokens [R,T]."""
    return torch.zeros(*tokens.shape, 0, device=tokens.device)


# ---- micro-batches ----


def even_batches(sizes: Tensor, rows: int) -> Iterator[tuple[Tensor, int]]:
    """Split sequences by size into equal parts of at most ``rows``: yield their numbers and the largest size."""
    if not len(sizes):
        return
    order = sizes.argsort(descending=True, stable=True)
    parts = -(-len(order) // rows)
    for numbers in order.split(-(-len(order) // parts)):
        yield numbers, int(sizes[numbers[0]])


def token_batches(sizes: Tensor, tokens: int) -> Iterator[tuple[Tensor, int]]:
    """Split sequences by size into parts of at most ``tokens`` tokens with padding, or of one sequence.

    >>> [(numbers.tolist(), size) for numbers, size in token_batches(torch.tensor([2, 9, 3, 4]), 8)]
    [([1], 9), ([3, 2], 4), ([0], 2)]
    """
    order = sizes.argsort(descending=True, stable=True)
    done = 0
    while done < len(order):
        size = int(sizes[order[done]])
        count = max(1, tokens // max(1, size))
        yield order[done : done + count], size
        done += count


def extents(batch: Batch) -> Tensor:
    """Return the number of columns that each example needs, up to its last token: [B]."""
    mask = batch.mask
    if batch.source_mask is not None and _source_is_prefix(batch):
        mask = mask | batch.source_mask
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * columns).amax(dim=1).clamp(min=1)


def trim(batch: Batch, size: int) -> Batch:
    """Drop the columns from ``size`` on, which are padding."""
    if size >= batch.gold.shape[1]:
        return batch
    short = replace(batch, prefix=batch.prefix[:, :size], gold=batch.gold[:, :size], mask=batch.mask[:, :size])
    if batch.source is not None and batch.source_mask is not None and _source_is_prefix(batch):
        short = replace(short, source=batch.source[:, :size], source_mask=batch.source_mask[:, :size])
    return short


def _source_is_prefix(batch: Batch) -> bool:
    """Return whether the source is the sequence itself, as for masked models of Hugging Face."""
    source, mask = batch.source, batch.source_mask
    if source is None or mask is None or source.shape != batch.prefix.shape:
        return False
    return torch.equal(source, batch.prefix)
