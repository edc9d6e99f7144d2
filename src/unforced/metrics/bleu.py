"""BLEU as sacreBLEU counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from unforced.metrics.counts import same_number

ORDER = 4


@dataclass
class Bleu:
    """Corpus BLEU: 100 · min(1, exp(1 − r/c)) · exp(¼ Σₙ log pₙ), n-gram precisions without a hit smoothed ("exp").

    Statistics are sacreBLEU's: [length c, closest answer's length r, hits of 1- to 4-grams, n-grams of order 1 to 4].
    ``references`` is how many answers an example has (None if that varies); the signature states it.

    >>> metric = Bleu()
    >>> rows = metric.statistics(["the cat sat on the mat"], [["the cat sat on a mat"]])
    >>> rows
    array([[6., 6., 5., 3., 2., 1., 6., 5., 4., 3.]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    53.73
    """

    name: str = "bleu"
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"
    lowercase: bool = False
    references: int | None = 1
    higher_is_better: bool = field(default=True, init=False)

    @cached_property
    def _sacrebleu(self) -> Any:
        from sacrebleu.metrics import BLEU

        # effective_order changes the sentence's score, which isn't used here, and none of the counts
        return BLEU(tokenize=self.tokenize, lowercase=self.lowercase, effective_order=True, force=True)

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        same_number(outputs, answers)
        rows = np.zeros((len(outputs), 2 + 2 * ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            sentence = self._sacrebleu.sentence_score(output, list(acceptable))
            rows[i] = [sentence.sys_len, sentence.ref_len, *sentence.counts, *sentence.totals]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.up_to(ORDER, sums)

    def doubts(self, answers: Sequence[Sequence[str]]) -> str | None:
        """What a user should know who means to judge by this, given what answers there are.

        >>> Bleu().doubts([["a b"], ["c"], ["a b c d e"]])
        'bleu counts stretches of four words, and 67 % of the answers are shorter than that'
        """
        short = sum(max((len(text.split()) for text in each), default=0) < ORDER for each in answers)
        if 2 * short <= len(answers):
            return None
        return f"bleu counts stretches of four words, and {100 * short / len(answers):.0f} % of the answers are shorter than that"

    def up_to(self, order: int, sums: np.ndarray) -> np.ndarray:
        """BLEU of n-grams of up to so many words."""
        length, wanted = sums[..., 0], sums[..., 1]
        hits, totals = sums[..., 2 : 2 + order], sums[..., 2 + ORDER : 2 + ORDER + order]
        with np.errstate(divide="ignore", invalid="ignore"):
            misses = np.cumsum(hits == 0, axis=-1)  # the k-th order without a hit counts as ½ᵏ hits
            precisions = np.where(hits == 0, 0.5**misses, hits) / totals
            brevity = np.where(length < wanted, np.exp(1 - wanted / length), 1.0)
            bleu = 100 * brevity * np.exp(np.log(precisions).mean(axis=-1))
        # without a hit, or without a single n-gram of some order in the whole corpus, sacreBLEU gives zero
        return np.where(hits.any(axis=-1) & (totals > 0).all(axis=-1), bleu, 0.0)

    def signature(self) -> str:
        from sacrebleu import __version__

        count = "var" if self.references is None else self.references
        case = "lc" if self.lowercase else "mixed"
        return f"nrefs:{count}|case:{case}|eff:no|tok:{self.tokenize}|smooth:exp|version:{__version__}"


@dataclass
class ShortBleu(Bleu):
    """BLEU of n-grams of up to ``order`` words, such as BLEU-1.

    >>> metric = ShortBleu(order=1)
    >>> metric.name, round(float(metric.score(metric.statistics(["a b c"], [["a b d e"]]).sum(axis=0))), 2)
    ('bleu_1', 47.77)
    """

    order: int = 1

    def __post_init__(self) -> None:
        self.name = f"bleu_{self.order}"

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.up_to(self.order, sums)

    def signature(self) -> str:
        return f"n-grams of up to {self.order}|{super().signature()}"


@dataclass
class NgramPrecision(Bleu):
    """The share of the outputs' n-grams that an answer has, in per cent: one factor of BLEU.

    >>> metric = NgramPrecision(order=2)
    >>> metric.name, float(metric.score(metric.statistics(["a b c"], [["a b d"]]).sum(axis=0)))
    ('precision_2', 50.0)
    """

    order: int = 1

    def __post_init__(self) -> None:
        self.name = f"precision_{self.order}"

    def score(self, sums: np.ndarray) -> np.ndarray:
        hits, totals = sums[..., 1 + self.order], sums[..., 1 + ORDER + self.order]
        return 100 * hits / np.maximum(totals, 1)


@dataclass
class LengthRatio(Bleu):
    """The outputs' length over that of their closest answers, in per cent; 100 is best (tables call higher better).

    >>> metric = LengthRatio()
    >>> float(metric.score(metric.statistics(["a b c"], [["a b d e"]]).sum(axis=0)))
    75.0
    """

    name: str = "length_ratio"

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)
