"""Error rates by edit distance, and the share of outputs that are wrong as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rapidfuzz.distance import Levenshtein

from unforced.metrics.counts import same_number

Unit = Literal["word", "character"]


@dataclass
class ErrorRate:
    """100 · Σ (insertions + deletions + substitutions) / Σ (length of the answer), over the whole corpus.

    Strings are compared by ``unit``: white-space separated words or characters; other sequences element by element.
    Of several answers the one with the fewest errors counts, the first of them where several are equally near.
    Statistics are [errors, length of that answer] for each output.

    >>> metric = ErrorRate("phoneme_error")
    >>> rows = metric.statistics(["K AE T S", "AH"], [["K AA T", "K AE T"], ["EY"]])
    >>> rows
    array([[1., 3.],
           [1., 1.]])
    >>> float(metric.score(rows.sum(axis=0)))
    50.0
    """

    name: str = "error_rate"
    unit: Unit = "word"
    higher_is_better: bool = field(default=False, init=False)

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.zeros((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            found = self._tokens(output)
            wanted = [self._tokens(answer) for answer in acceptable]
            distances = [Levenshtein.distance(found, answer) for answer in wanted]
            nearest = int(np.argmin(distances))
            rows[i] = distances[nearest], len(wanted[nearest])
        return rows

    def _tokens(self, output: Any) -> list[Any]:
        if isinstance(output, str):
            return output.split() if self.unit == "word" else list(output)
        return list(output)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def signature(self) -> str:
        return f"edit distance by {self.unit}, per cent of the nearest answer's length, over the corpus"


@dataclass
class ExactError:
    """100 · (outputs that equal none of their answers) / (outputs). Statistics are [wrong, 1] for each output.

    >>> metric = ExactError("word_error")
    >>> float(metric.score(metric.statistics(["a b", "c"], [["a b"], ["d", "e"]]).sum(axis=0)))
    50.0
    """

    name: str = "exact_error"
    higher_is_better: bool = field(default=False, init=False)

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.ones((len(outputs), 2))
        rows[:, 0] = [output not in acceptable for output, acceptable in zip(outputs, answers)]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def signature(self) -> str:
        return "per cent of outputs that equal none of their answers"
