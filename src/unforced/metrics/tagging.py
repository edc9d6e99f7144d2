"""Metrics of tagging: token accuracy and entity F1."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unforced.errors import InputError
from unforced.metrics.text import RatioMetric, check_answers


@dataclass
class TokenAccuracy(RatioMetric):
    """Percentage of correct tokens over the corpus; the nearest of several answers counts.

    Outputs and answers have equal lengths. Statistics: [correct tokens, tokens].

    >>> metric = TokenAccuracy()
    >>> rows = metric.statistics([["DET", "NOUN"], ["VERB"]], [[["DET", "VERB"]], [["VERB"]]])
    >>> rows
    array([[1., 2.],
           [1., 1.]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    66.67
    """

    name: str = "accuracy"
    higher_is_better: bool = field(default=True, init=False)

    def statistics(self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.zeros((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            _check_lengths(i, output, acceptable)
            rows[i] = max(sum(o == a for o, a in zip(output, answer)) for answer in acceptable), len(output)
        return rows

    def signature(self) -> str:
        return "token accuracy in per cent, over the corpus"


class EntityF1:
    """Micro-averaged F1 = 100 · 2tp / (2tp + fp + fn) over entities that match in class, start and end.

    Tags are IOB2 in strict mode, as in seqeval: an ``I-x`` after neither ``B-x`` nor ``I-x`` belongs to no entity.
    Statistics: [tp, fp, fn] of each sentence.

    >>> metric = EntityF1()
    >>> rows = metric.statistics([["B-PER", "O", "B-LOC"]], [[["B-PER", "I-PER", "B-LOC"]]])
    >>> rows
    array([[1., 1., 1.]])
    >>> float(metric.score(rows.sum(axis=0)))
    50.0
    """

    name = "f1"
    score_range = (0.0, 100.0)
    higher_is_better = True

    def statistics(self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.zeros((len(outputs), 3))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            if len(acceptable) > 1:
                raise InputError(f"example {i} has {len(acceptable)} answers; F1 needs exactly one")
            _check_lengths(i, output, acceptable)
            predicted, true = find_entities(output), find_entities(acceptable[0])
            rows[i] = len(predicted & true), len(predicted - true), len(true - predicted)
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        doubled = 2 * sums[..., 0]
        return np.asarray(100 * doubled / np.maximum(doubled + sums[..., 1] + sums[..., 2], 1))

    def signature(self) -> str:
        return "micro-averaged entity F1 in per cent, strict mode, scheme IOB2"


def find_entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the entities of a sentence as (class, start, end), ``end`` exclusive.

    >>> sorted(find_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 4, 5), ('PER', 0, 2)]
    """
    entities = set()
    start, kind = 0, ""  # of the entity that is open; none if kind is empty
    for i, tag in enumerate([*tags, "O"]):
        if not is_iob(tag):
            raise InputError(f"the tag {tag!r} is not IOB2 (O, B-x or I-x)")
        if kind and tag != f"I-{kind}":
            entities.add((kind, start, i))
            kind = ""
        if tag[0] == "B":
            start, kind = i, tag[2:]
    return entities


def first_fault(tags: Sequence[str]) -> int | None:
    """Return the position of the first tag that violates IOB2, or None.

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
    """Return whether a single tag has the form ``O``, ``B-x`` or ``I-x``."""
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def _check_lengths(i: int, output: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
    for answer in answers:
        if len(answer) != len(output):
            raise InputError(f"output {i} has {len(output)} tags, but its answer has {len(answer)}")
