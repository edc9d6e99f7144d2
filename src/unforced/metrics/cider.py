"""CIDEr-D (Vedantam, Zitnick & Parikh 2015): consensus of n-grams weighted by how telling they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from unforced.metrics.counts import same_number

ORDERS = 4
Caption = str | Sequence[str]  # tokens with white space between them, or a sequence of tokens
Counts = list[Counter[tuple[str, ...]]]  # one counter for each order
Vector = dict[tuple[str, ...], float]


def _counts(caption: Caption) -> Counts:
    """How often each n-gram occurs, for n = 1..4."""
    words = tuple(caption.split() if isinstance(caption, str) else caption)
    return [Counter(words[i : i + n] for i in range(len(words) - n + 1)) for n in range(1, ORDERS + 1)]


class Cider:
    """100 · mean over images of CIDEr-D, with the document frequencies of the corpus being scored.

    For n = 1..4 let g(c) be the vector of tf · idf of caption c's n-grams, idf(w) = log(images / images with w in a
    reference, at least 1). Then, averaged over n and over the references r of an image,

        CIDEr-D(c, r) = 10 · exp(−(|c| − |r|)² / 2σ²) · Σ_w min(g(c)_w, g(r)_w) g(r)_w / (‖g(c)‖ ‖g(r)‖),  σ = 6.

    Tokens are what stands between white space; nothing is stemmed. The scale is the one papers print, where 100 is what coco-caption
    calls 1.0. Statistics are [score, 1] for each image; they depend on the other images through idf.

    >>> metric = Cider()
    >>> captions = ["a red heart", "a blue square"]
    >>> rows = metric.statistics(captions, [[caption] for caption in captions])
    >>> float(metric.score(rows.sum(axis=0)))  # perfect, but there are no 4-grams
    750.0
    """

    name = "cider"
    higher_is_better = True
    sigma = 6.0

    def statistics(self, outputs: Sequence[Caption], answers: Sequence[Sequence[Caption]]) -> np.ndarray:
        same_number(outputs, answers)
        references = [[_counts(reference) for reference in group] for group in answers]
        frequency: Counter[tuple[str, ...]] = Counter()
        for group in references:
            frequency.update({gram for counts in group for order in counts for gram in order})
        rows = np.ones((len(outputs), 2))
        for i, (output, group) in enumerate(zip(outputs, references)):
            counts = _counts(output)
            scores = [self._similarity(counts, other, frequency, len(outputs)) for other in group]
            rows[i, 0] = np.mean(scores)
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)

    def signature(self) -> str:
        return "CIDEr-D × 100, n = 1..4, σ = 6, document frequencies of the references scored, tokens as they are"

    def _similarity(
        self, made: Counts, true: Counts, frequency: Counter[tuple[str, ...]], images: int
    ) -> float:
        """CIDEr-D of one caption and one reference, between 0 and 10."""
        total = 0.0
        for counts, other in zip(made, true):
            g, h = _weigh(counts, frequency, images), _weigh(other, frequency, images)
            norm = np.sqrt(sum(x * x for x in g.values()) * sum(x * x for x in h.values()))
            shared = sum(min(x, h[gram]) * h[gram] for gram, x in g.items() if gram in h)
            total += shared / norm if norm else 0.0
        difference = made[0].total() - true[0].total()
        return 10 * total / ORDERS * float(np.exp(-(difference**2) / (2 * self.sigma**2)))


def _weigh(counts: Counter[tuple[str, ...]], frequency: Counter[tuple[str, ...]], images: int) -> Vector:
    """tf · idf of each n-gram; one that no reference has counts as if one image had it."""
    return {gram: n * np.log(images / max(1, frequency[gram])) for gram, n in counts.items()}
