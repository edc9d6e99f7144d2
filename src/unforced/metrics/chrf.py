"""chrF as sacreBLEU counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from unforced.metrics.counts import same_number

ORDER = 6
BETA = 2


@dataclass
class ChrF:
    """Character n-gram F₂ over the corpus, averaged over the orders 1 to 6 that occur on both sides.

    Statistics are sacreBLEU's: for each order [n-grams of the output, of the best answer, in common].

    >>> metric = ChrF()
    >>> rows = metric.statistics(["the cat sat"], [["the cat sits", "a cat sat"]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    67.23
    """

    name: str = "chrf"
    references: int | None = 1
    higher_is_better: bool = field(default=True, init=False)

    @cached_property
    def _sacrebleu(self) -> Any:
        from sacrebleu.metrics import CHRF

        return CHRF()

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.zeros((len(outputs), 3 * ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            rows[i] = self._sacrebleu._extract_corpus_statistics([output], [[a] for a in acceptable])[0]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        found, wanted, common = np.moveaxis(sums.reshape(*sums.shape[:-1], ORDER, 3), -1, 0)
        counted = (found > 0) & (wanted > 0)
        precision = np.divide(common, found, out=np.zeros_like(found), where=counted).sum(axis=-1)
        recall = np.divide(common, wanted, out=np.zeros_like(found), where=counted).sum(axis=-1)
        orders = np.maximum(counted.sum(axis=-1), 1)
        precision, recall = precision / orders, recall / orders
        below = BETA**2 * precision + recall
        return 100 * (1 + BETA**2) * precision * recall / np.where(below > 0, below, 1.0)

    def signature(self) -> str:
        from sacrebleu import __version__

        count = "var" if self.references is None else self.references
        return f"nrefs:{count}|case:mixed|eff:yes|nc:{ORDER}|nw:0|space:no|version:{__version__}"
