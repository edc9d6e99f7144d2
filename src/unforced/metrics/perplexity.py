"""Perplexity, for tasks whose outputs have nothing to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unforced.errors import InputError


@dataclass
class Perplexity:
    """exp(Σ −log p(example) / Σ tokens), the end symbol counted as a token.

    Unlike other metrics it judges the model and not its outputs: ``outputs`` are pairs (−log p, tokens), which a
    teacher-forced pass gives, and the answers only have to be as many.

    >>> metric = Perplexity()
    >>> rows = metric.statistics([(2.0, 1), (1.0, 2)], [["a"], ["b c"]])
    >>> round(float(metric.score(rows.sum(axis=0))), 4)
    2.7183
    """

    name: str = "perplexity"
    higher_is_better: bool = field(default=False, init=False)

    def statistics(
        self, outputs: Sequence[tuple[float, int]], answers: Sequence[Sequence[Any]]
    ) -> np.ndarray:
        if len(outputs) != len(answers):
            raise InputError(f"There are {len(outputs)} likelihoods but {len(answers)} examples.")
        return np.asarray(outputs, dtype=np.float64).reshape(len(outputs), 2)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return np.exp(sums[..., 0] / np.maximum(sums[..., 1], 1))

    def signature(self) -> str:
        return "exp of the negative log-likelihood per token, teacher-forced, end symbol included"
