"""Token accuracy for outputs whose length is given, such as tags."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unforced.errors import InputError
from unforced.metrics.counts import same_number


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

    def statistics(
        self, outputs: Sequence[Sequence[str]], answers: Sequence[Sequence[Sequence[str]]]
    ) -> np.ndarray:
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
