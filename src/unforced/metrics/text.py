"""The check every metric makes first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from rapidfuzz.distance import Levenshtein

from unforced.errors import InputError


def same_number(outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> None:
    """Refuse unequal numbers of outputs and answers, and outputs without any acceptable answer.

    >>> same_number(["a"], [["a", "b"]])
    >>> same_number(["a"], [])
    Traceback (most recent call last):
    unforced.errors.InputError: There are 1 outputs but answers for 0 examples.
    """
    if len(outputs) != len(answers):
        raise InputError(f"There are {len(outputs)} outputs but answers for {len(answers)} examples.")
    for i, acceptable in enumerate(answers):
        if not len(acceptable):
            raise InputError(f"Example {i} has no acceptable answer.")


# BLEU as sacreBLEU counts it.

BLEU_ORDER = 4


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
        rows = np.zeros((len(outputs), 2 + 2 * BLEU_ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            sentence = self._sacrebleu.sentence_score(output, list(acceptable))
            rows[i] = [sentence.sys_len, sentence.ref_len, *sentence.counts, *sentence.totals]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.up_to(BLEU_ORDER, sums)

    def doubts(self, answers: Sequence[Sequence[str]]) -> str | None:
        """What a user should know who means to judge by this, given what answers there are.

        >>> Bleu().doubts([["a b"], ["c"], ["a b c d e"]])
        'bleu counts stretches of four words, and 67 % of the answers are shorter than that'
        """
        short = sum(max((len(text.split()) for text in each), default=0) < BLEU_ORDER for each in answers)
        if 2 * short <= len(answers):
            return None
        return f"bleu counts stretches of four words, and {100 * short / len(answers):.0f} % of the answers are shorter than that"

    def up_to(self, order: int, sums: np.ndarray) -> np.ndarray:
        """BLEU of n-grams of up to so many words."""
        length, wanted = sums[..., 0], sums[..., 1]
        hits, totals = sums[..., 2 : 2 + order], sums[..., 2 + BLEU_ORDER : 2 + BLEU_ORDER + order]
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
        hits, totals = sums[..., 1 + self.order], sums[..., 1 + BLEU_ORDER + self.order]
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


# chrF as sacreBLEU counts it.

CHRF_ORDER = 6
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
        rows = np.zeros((len(outputs), 3 * CHRF_ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            rows[i] = self._sacrebleu._extract_corpus_statistics([output], [[a] for a in acceptable])[0]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        found, wanted, common = np.moveaxis(sums.reshape(*sums.shape[:-1], CHRF_ORDER, 3), -1, 0)
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
        return f"nrefs:{count}|case:mixed|eff:yes|nc:{CHRF_ORDER}|nw:0|space:no|version:{__version__}"


# ROUGE as Google's rouge-score counts it.


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


# CIDEr-D (Vedantam, Zitnick & Parikh 2015): consensus of n-grams weighted by how telling they are.

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

    def _similarity(self, made: Counts, true: Counts, frequency: Counter[tuple[str, ...]], images: int) -> float:
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


# Error rates by edit distance, and the share of outputs that are wrong as a whole.

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
