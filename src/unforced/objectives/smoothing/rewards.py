"""How far a whole output is from the gold."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from unforced.objectives.smoothing.outputs import as_lists

Reward = Literal["hamming", "bleu", "cider", "edit"]
ORDER = 4  # of n-grams
SIGMA = 6.0  # of CIDEr-D's penalty on lengths


class Documents(NamedTuple):
    """In how many of ``number`` training targets an n-gram occurs, those that occur in one alone left out."""

    number: int
    frequency: Mapping[tuple[int, ...], int]

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int]], end: int | None, without: Collection[int] = ()) -> "Documents":
        """Counted in sequences of ids, each a document, without the end symbols at their ends and the ids ``without``.

        >>> Documents.of([[3, 4, 2], [3, 5, 2], [3, 4, 3, 4, 2]], end=2)
        Documents(number=3, frequency={(3,): 3, (4,): 2, (3, 4): 2})
        """
        lists = [_words(list(ids), end, without) for ids in sequences]
        row = np.asarray(list(itertools.chain.from_iterable(lists)), dtype=np.int64)  # all of them, one behind another
        owners = np.repeat(np.arange(len(lists)), [len(ids) for ids in lists])
        frequency: dict[tuple[int, ...], int] = {}
        starts, shorter = np.arange(len(row)), np.zeros(len(row), dtype=np.int64)
        for order in range(1, ORDER + 1):
            whole = owners[np.minimum(starts + order - 1, len(row) - 1)] == owners[starts]
            whole &= starts + order <= len(row)
            starts, shorter = starts[whole], shorter[whole]
            if not len(starts):
                break
            # an n-gram is the number of its first n − 1 tokens among all such, and its last token
            _, first, shorter = np.unique(
                shorter * (row.max() + 1) + row[starts + order - 1], return_index=True, return_inverse=True
            )
            found_in = np.unique(shorter * len(lists) + owners[starts]) // len(lists)  # each owner once
            counts = np.bincount(found_in, minlength=len(first))
            several = counts > 1
            grams = row[starts[first[several], None] + np.arange(order)]
            frequency |= zip(map(tuple, grams.tolist()), counts[several].tolist())
        return cls(len(lists), frequency)


def bleu_cost(gold: list[int]) -> Callable[[list[int]], float]:
    """1 − BLEU of outputs against this gold, as sacreBLEU's ``sentence_bleu`` has it: orders of which the output has no
    n-gram don't count, and the k-th order without a hit counts as ½ᵏ hits. An output that is the gold costs nothing.

    >>> cost = bleu_cost([5, 6, 7, 8])
    >>> cost([5, 6, 7, 8]), cost([9]), round(cost([5, 6, 7]), 3)
    (0.0, 1.0, 0.283)
    """
    wanted = [ngrams(gold, order) for order in range(1, ORDER + 1)]

    def cost(output: list[int]) -> float:
        if output == gold:
            return 0.0
        logs, missed = [], 0
        for order, want in enumerate(wanted[: len(output)], start=1):
            hits = sum(min(n, want[gram]) for gram, n in ngrams(output, order).items() if gram in want)
            if not hits:
                missed += 1
            logs.append(math.log((hits or 0.5**missed) / (len(output) - order + 1)))
        if not logs or missed == len(logs):
            return 1.0
        brevity = min(0.0, 1 - len(gold) / len(output))
        return 1 - math.exp(brevity + sum(logs) / len(logs))

    return cost


def ngrams(tokens: list[int], order: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order))))


def cider_cost(gold: list[int], documents: Documents) -> Callable[[list[int]], float]:
    """1 − CIDEr-D / 10 of outputs against this gold alone (``unforced.metrics.text``), with these documents' frequencies.

    Zero for the gold itself if it has n-grams of all four orders that tell something.

    >>> cost = cider_cost([3, 4, 5, 6], Documents(9, {(3,): 3}))
    >>> round(cost([3, 4, 5, 6]), 9), cost([7, 8]), round(cost([3, 4, 5, 7]), 2)
    (0.0, 1.0, 0.54)
    """
    total = math.log(max(1, documents.number))

    def weigh(counts: Counter[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
        return {gram: n * (total - math.log(documents.frequency.get(gram, 1))) for gram, n in counts.items()}

    def length(vector: dict[tuple[int, ...], float]) -> float:
        return math.sqrt(sum(x * x for x in vector.values()))

    wanted = [weigh(ngrams(gold, order)) for order in range(1, ORDER + 1)]
    lengths = [length(vector) for vector in wanted]

    def cost(output: list[int]) -> float:
        found = 0.0
        for order, (want, norm) in enumerate(zip(wanted, lengths), start=1):
            made = weigh(ngrams(output, order))
            if norm and (own := length(made)):
                shared = sum(min(x, want[gram]) * want[gram] for gram, x in made.items() if gram in want)
                found += shared / (own * norm)
        likeness = found / ORDER * math.exp(-((len(output) - len(gold)) ** 2) / (2 * SIGMA**2))
        return max(0.0, 1 - likeness)  # one and a rounding error is one

    return cost


def distances(
    kind: Reward,
    outputs: Tensor,
    gold: Tensor,
    end: int | None,
    documents: Documents | None = None,
    without: Collection[int] = (),
) -> Tensor:
    """d(y, y*) [B,L] in float64 of outputs [B,L,W] and gold [B,T], with ``END`` behind them. The end symbol at their ends is left
    out, and so are the ids ``without``, which are no words:

    - ``hamming``: at how many positions they differ, those that only the longer one has among them;
    - ``edit``: how many insertions, deletions and substitutions it takes;
    - ``bleu``: 1 − BLEU-4 of the ids, smoothed for single sentences as sacreBLEU does;
    - ``cider``: 1 − CIDEr-D / 10.
    """
    judges: dict[str, Callable[[list[int]], Callable[[list[int]], float]]] = {
        "hamming": lambda gold: partial(_hamming, gold),
        "edit": lambda gold: partial(Levenshtein.distance, gold),
        "bleu": bleu_cost,
        "cider": lambda gold: cider_cost(gold, documents),  # type: ignore[arg-type]
    }
    made, right_ones = ([_words(row, end, without) for row in as_lists(some)] for some in (outputs.flatten(0, 1), gold))
    found, count = [], outputs.shape[1]
    for example, right in enumerate(right_ones):
        cost, seen = judges[kind](right), dict[tuple[int, ...], float]()
        for output in made[example * count : (example + 1) * count]:  # many are drawn more than once
            key = tuple(output)
            if key not in seen:
                seen[key] = float(cost(output))
            found.append(seen[key])
    return torch.tensor(found, dtype=torch.float64, device=outputs.device).view(outputs.shape[:2])


def _words(tokens: list[int], end: int | None, without: Collection[int]) -> list[int]:
    tokens = tokens[:-1] if tokens and tokens[-1] == end else tokens
    return [id for id in tokens if id not in without]


def _hamming(gold: list[int], output: list[int]) -> int:
    return sum(a != b for a, b in zip(gold, output)) + abs(len(gold) - len(output))
