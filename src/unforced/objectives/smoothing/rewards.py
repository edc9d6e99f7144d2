"""Distances between whole outputs and a target: Hamming, edit, 1 − BLEU, 1 − CIDEr-D / 10."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from unforced.metrics.text import CiderVector, document_frequencies, ngram_counts
from unforced.objectives.smoothing.outputs import as_lists

Reward = Literal["hamming", "bleu", "cider", "edit"]
Distance = Callable[[list[int]], float]  # of an output from a fixed target


class Documents(NamedTuple):
    """Document frequencies of n-grams for CIDEr; n-grams of a single document are left out."""

    number: int
    frequency: Mapping[tuple[Any, ...], int]

    @classmethod
    def of(cls, targets: Iterable[Sequence[int]], end: int | None, excluded: Collection[int] = ()) -> "Documents":
        """Count in targets, each of which is a document, without their end symbols and the excluded ids.

        >>> documents = Documents.of([[3, 4, 2], [3, 5, 2], [3, 4, 3, 4, 2]], end=2)
        >>> documents.number, sorted(documents.frequency.items())
        (3, [((3,), 3), ((3, 4), 2), ((4,), 2)])
        """
        groups = [[ngram_counts(words(target, end, excluded))] for target in targets]
        frequency = document_frequencies(groups)
        return cls(len(groups), {gram: count for gram, count in frequency.items() if count > 1})


def distances(
    reward: Reward,
    outputs: Tensor,
    gold: Tensor,
    end: int | None,
    documents: Documents | None = None,
    excluded: Collection[int] = (),
) -> Tensor:
    """Return d(y, y*) [B,L], in float64, of outputs [B,L,W] from targets [B,T].

    The end symbol and the excluded ids are left out of both.
    """
    targets = [words(row, end, excluded) for row in as_lists(gold)]
    rows = [words(row, end, excluded) for row in as_lists(outputs.flatten(0, 1))]
    result, count = [], outputs.shape[1]
    for example, target in enumerate(targets):
        distance, known = distance_from(target, reward, documents), dict[tuple[int, ...], float]()
        for row in rows[example * count : (example + 1) * count]:  # many are equal
            key = tuple(row)
            if key not in known:
                known[key] = float(distance(row))
            result.append(known[key])
    return torch.tensor(result, dtype=torch.float64, device=outputs.device).view(outputs.shape[:2])


def distance_from(target: list[int], reward: Reward, documents: Documents | None) -> Distance:
    if reward == "hamming":
        return lambda output: sum(a != b for a, b in zip(target, output)) + abs(len(target) - len(output))
    if reward == "edit":
        return partial(Levenshtein.distance, target)
    if reward == "bleu":
        return bleu_cost(target)
    assert documents is not None
    return cider_cost(target, documents)


def words(target: Sequence[int], end: int | None, excluded: Collection[int]) -> list[int]:
    """Return the ids of a target without its end symbol and the excluded ids."""
    stripped = target[:-1] if len(target) and target[-1] == end else target
    return [id for id in stripped if id not in excluded]


def bleu_cost(gold: list[int]) -> Distance:
    """Return 1 − BLEU-4 from this target, with sacreBLEU's smoothing of single sentences.

    Orders of which the output has no n-gram do not count. The k-th order without a match counts as ½ᵏ matches.

    >>> cost = bleu_cost([5, 6, 7, 8])
    >>> cost([5, 6, 7, 8]), cost([9]), round(cost([5, 6, 7]), 3)
    (0.0, 1.0, 0.283)
    """
    wanted = ngram_counts(gold)

    def cost(output: list[int]) -> float:
        if output == gold:
            return 0.0
        logs, missed = [], 0
        for order, (ours, theirs) in enumerate(zip(ngram_counts(output)[: len(output)], wanted), start=1):
            matches = sum(min(n, theirs[gram]) for gram, n in ours.items() if gram in theirs)
            if not matches:
                missed += 1
            logs.append(math.log((matches or 0.5**missed) / (len(output) - order + 1)))
        if not logs or missed == len(logs):
            return 1.0
        brevity = min(0.0, 1 - len(gold) / len(output))
        return 1 - math.exp(brevity + sum(logs) / len(logs))

    return cost


def cider_cost(gold: list[int], documents: Documents) -> Distance:
    """Return 1 − CIDEr-D / 10 from this target.

    >>> cost = cider_cost([3, 4, 5, 6], Documents(9, {(3,): 3}))
    >>> round(cost([3, 4, 5, 6]), 9), cost([7, 8]), round(cost([3, 4, 5, 7]), 2)
    (0.0, 1.0, 0.54)
    """
    reference = CiderVector(ngram_counts(gold), documents.frequency, documents.number)

    def cost(output: list[int]) -> float:
        vector = CiderVector(ngram_counts(output), documents.frequency, documents.number)
        return max(0.0, 1 - vector.similarity(reference))  # rounding errors

    return cost
