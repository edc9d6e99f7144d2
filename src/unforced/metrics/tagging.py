"""Token accuracy for outputs whose length is given, such as tags."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version

import numpy as np

from unforced.errors import InputError
from unforced.metrics.text import same_number


class TokenAccuracy:
    """100 · (tokens right) / (tokens), over the whole corpus; of several answers the nearest counts.

    Statistics are [hits, tokens] for each output.

    >>> metric = TokenAccuracy()
    >>> rows = metric.statistics([["DET", "NOUN"], ["VERB"]], [[["DET", "VERB"]], [["VERB"]]])
    >>> rows
    array([[1., 2.],
           [1., 1.]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    66.67
    """

    name = "accuracy"
    higher_is_better = True

    def statistics(self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.zeros((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            for answer in acceptable:
                if len(output) != len(answer):
                    raise InputError(f"Output {i} has {len(output)} tokens but its answer has {len(answer)}.")
            hits = max(sum(o == a for o, a in zip(output, answer)) for answer in acceptable)
            rows[i] = hits, len(output)
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def signature(self) -> str:
        return "token accuracy in per cent, over the corpus"


# Strict entity F1 for IOB2 tags, as seqeval defines it.


def first_fault(tags: Sequence[str]) -> int | None:
    """The position of the first tag that can't stand there in IOB2, or None.

    A tag is ``O``, ``B-x`` or ``I-x``, and ``I-x`` stands behind ``B-x`` or ``I-x`` only.

    >>> first_fault(["B-PER", "I-PER", "O"]) is None
    True
    >>> first_fault(["O", "I-PER"]), first_fault(["B-PER", "I-LOC"]), first_fault(["O", "NOUN"])
    (1, 1, 1)
    """
    before = "O"
    for i, tag in enumerate(tags):
        if not is_iob(tag) or (tag[0] == "I" and before[1:] != tag[1:]):
            return i
        before = tag
    return None


def is_iob(tag: str) -> bool:
    """Whether a tag by itself looks like one of IOB: ``O``, ``B-x`` or ``I-x``."""
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def entities(sentences: Iterable[Sequence[str]]) -> list[set[tuple[str, int, int]]]:
    """The (class, start, end) of each sentence's entities, ``end`` behind the last word.

    Strict: an ``I-x`` that nothing opened belongs to no entity.

    >>> entities([["B-PER", "I-PER", "O", "I-LOC"]])
    [{('PER', 0, 2)}]
    """
    from seqeval.scheme import IOB2, Entities

    rows = [list(tags) for tags in sentences]
    for i, tags in enumerate(rows):
        for tag in tags:
            if not is_iob(tag):
                raise InputError(f"Sentence {i} has the tag {tag!r}, which is not one of IOB2 (O, B-x, I-x).")
    return [{entity.to_tuple()[1:] for entity in found} for found in Entities(rows, IOB2).entities]


class EntityF1:
    """Micro-averaged F1 = 100 · 2tp / (2tp + fp + fn) over entities that match in class, start and end.

    Statistics are [tp, fp, fn] for each sentence.

    >>> metric = EntityF1()
    >>> rows = metric.statistics([["B-PER", "O", "B-LOC"]], [[["B-PER", "I-PER", "B-LOC"]]])
    >>> rows
    array([[1., 1., 1.]])
    >>> float(metric.score(rows.sum(axis=0)))
    50.0
    """

    name = "f1"
    higher_is_better = True

    def statistics(self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        same_number(outputs, answers)
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            if len(acceptable) > 1:
                raise InputError(f"Example {i} has {len(acceptable)} answers; F1 compares with a single one.")
            if len(output) != len(acceptable[0]):
                raise InputError(f"Output {i} has {len(output)} tags but its answer has {len(acceptable[0])}.")
        pairs = zip(entities(outputs), entities(acceptable[0] for acceptable in answers))
        rows = [(len(found & true), len(found - true), len(true - found)) for found, true in pairs]
        return np.array(rows, dtype=np.float64).reshape(len(rows), 3)

    def score(self, sums: np.ndarray) -> np.ndarray:
        doubled = 2 * sums[..., 0]
        return 100 * doubled / np.maximum(doubled + sums[..., 1] + sums[..., 2], 1)

    def signature(self) -> str:
        return f"micro-averaged entity F1 in per cent, seqeval {version('seqeval')}, strict mode, scheme IOB2"
