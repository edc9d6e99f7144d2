"""ROUGE as Google's rouge-score counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from unforced.metrics.counts import same_number


@dataclass
class Rouge:
    """100 · mean F-measure of n-grams (``kind`` "1" or "2") or of the longest common subsequence ("L").

    Text is lower-cased and cut into runs of letters and digits; of several answers the best counts.
    Statistics are [F, 1] for each output.

    >>> metric = Rouge("1", stemmer=False)
    >>> rows = metric.statistics(["the cat sat"], [["a cat sat down"]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    57.14
    """

    kind: Literal["1", "2", "L"] = "L"
    stemmer: bool = True
    name: str = field(init=False)
    higher_is_better: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.name = f"rouge_{self.kind.lower()}"

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer  # slow to import: nltk comes with it

        return RougeScorer([f"rouge{self.kind}"], use_stemmer=self.stemmer)

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.ones((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            best = self._scorer.score_multi(list(acceptable), output)[f"rouge{self.kind}"]
            rows[i, 0] = best.fmeasure
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def signature(self) -> str:
        from importlib.metadata import version

        stemmed = "with" if self.stemmer else "without"
        return f"mean F of ROUGE-{self.kind}, {stemmed} stemming, rouge-score {version('rouge-score')}"
