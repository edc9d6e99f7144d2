"""Metrics of text: BLEU, chrF, ROUGE, CIDEr-D, edit-distance error rates, exact match."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from rapidfuzz.distance import Levenshtein

from unforced.errors import InputError

Gram = tuple[Any, ...]


def check_answers(outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> None:
    """Raise `InputError` unless each output has at least one acceptable answer."""
    if len(outputs) != len(answers):
        raise InputError(f"got {len(outputs)} outputs, but answers for {len(answers)} examples")
    for i, acceptable in enumerate(answers):
        if not len(acceptable):
            raise InputError(f"example {i} has no acceptable answer")


class RatioMetric:
    """Base of metrics with statistics [numerator, denominator] and the score 100 · Σ numerator / Σ denominator."""

    score_range = (0.0, 100.0)

    def score(self, sums: np.ndarray) -> np.ndarray:
        return np.asarray(100 * sums[..., 0] / np.maximum(sums[..., 1], 1))


# BLEU, with the counts of sacreBLEU

BLEU_ORDER = 4


@dataclass
class Bleu:
    """Corpus BLEU: 100 · min(1, exp(1 − r/c)) · exp(¼ Σₙ log pₙ), with "exp" smoothing of precisions without a match.

    Statistics: [length c, length r of the closest answer, matching 1- to 4-grams, 1- to 4-grams of the output].

    >>> metric = Bleu()
    >>> rows = metric.statistics(["the cat sat on the mat"], [["the cat sat on a mat"]])
    >>> rows
    array([[6., 6., 5., 3., 2., 1., 6., 5., 4., 3.]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    53.73
    """

    score_range = (0.0, 100.0)
    name: str = "bleu"
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = "13a"
    lowercase: bool = False
    references: int | None = 1  # answers per example, for the signature; None if the number varies
    higher_is_better: bool = field(default=True, init=False)

    @cached_property
    def _sacrebleu(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        # effective_order silences a warning about sentence scores; the counts do not depend on it
        return BLEU(tokenize=self.tokenize, lowercase=self.lowercase, effective_order=True, force=True)

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.zeros((len(outputs), 2 + 2 * BLEU_ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            sentence = self._sacrebleu.sentence_score(output, list(acceptable))
            rows[i] = [sentence.sys_len, sentence.ref_len, *sentence.counts, *sentence.totals]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.score_up_to(BLEU_ORDER, sums)

    def score_up_to(self, order: int, sums: np.ndarray) -> np.ndarray:
        """Return BLEU of n-grams of 1 to ``order`` words."""
        length, closest = sums[..., 0], sums[..., 1]
        matches, totals = sums[..., 2 : 2 + order], sums[..., 2 + BLEU_ORDER : 2 + BLEU_ORDER + order]
        with np.errstate(divide="ignore", invalid="ignore"):
            misses = np.cumsum(matches == 0, axis=-1)  # the k-th order without a match counts as ½ᵏ matches
            precisions = np.where(matches == 0, 0.5**misses, matches) / totals
            brevity = np.where(length < closest, np.exp(1 - closest / length), 1.0)
            bleu = 100 * brevity * np.exp(np.log(precisions).mean(axis=-1))
        # sacreBLEU returns zero without any match, and if the corpus has no n-gram of some order
        return np.where(matches.any(axis=-1) & (totals > 0).all(axis=-1), bleu, 0.0)

    def signature(self) -> str:
        count = "var" if self.references is None else self.references
        case = "lc" if self.lowercase else "mixed"
        return f"nrefs:{count}|case:{case}|eff:no|tok:{self.tokenize}|smooth:exp|version:{version('sacrebleu')}"


@dataclass
class ShortBleu(Bleu):
    """BLEU of n-grams of up to ``order`` words, for example BLEU-1.

    >>> metric = ShortBleu(order=1)
    >>> metric.name, round(float(metric.score(metric.statistics(["a b c"], [["a b d e"]]).sum(axis=0))), 2)
    ('bleu_1', 47.77)
    """

    order: int = 1

    def __post_init__(self) -> None:
        self.name = f"bleu_{self.order}"

    def score(self, sums: np.ndarray) -> np.ndarray:
        return self.score_up_to(self.order, sums)

    def signature(self) -> str:
        return f"n-grams of up to {self.order}|{super().signature()}"


@dataclass
class NgramPrecision(Bleu):
    """One factor of BLEU: the percentage of the output's n-grams that occur in an answer.

    >>> metric = NgramPrecision(order=2)
    >>> metric.name, float(metric.score(metric.statistics(["a b c"], [["a b d"]]).sum(axis=0)))
    ('precision_2', 50.0)
    """

    order: int = 1

    def __post_init__(self) -> None:
        self.name = f"precision_{self.order}"

    def score(self, sums: np.ndarray) -> np.ndarray:
        matches, totals = sums[..., 1 + self.order], sums[..., 1 + BLEU_ORDER + self.order]
        return np.asarray(100 * matches / np.maximum(totals, 1))


@dataclass
class LengthRatio(RatioMetric, Bleu):
    """Length of the outputs as a percentage of the length of their closest answers.

    >>> metric = LengthRatio()
    >>> float(metric.score(metric.statistics(["a b c"], [["a b d e"]]).sum(axis=0)))
    75.0
    """

    score_range = (0.0, math.inf)
    name: str = "length_ratio"


# chrF, with the counts of sacreBLEU

CHRF_ORDER = 6
BETA = 2


@dataclass
class ChrF:
    """Character n-gram F₂ over the corpus: precision and recall are averaged over orders 1 to 6.

    Statistics, for each order: [n-grams of the output, n-grams of the best answer, n-grams in both].

    >>> metric = ChrF()
    >>> rows = metric.statistics(["the cat sat"], [["the cat sits", "a cat sat"]])
    >>> round(float(metric.score(rows.sum(axis=0))), 2)
    67.23
    """

    score_range = (0.0, 100.0)
    name: str = "chrf"
    references: int | None = 1  # answers per example, for the signature; None if the number varies
    higher_is_better: bool = field(default=True, init=False)

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        from sacrebleu.metrics.helpers import extract_all_char_ngrams

        check_answers(outputs, answers)
        rows = np.zeros((len(outputs), 3 * CHRF_ORDER))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            grams = extract_all_char_ngrams(output, CHRF_ORDER)
            counts = []
            for answer in acceptable:
                pairs = zip(grams, extract_all_char_ngrams(answer, CHRF_ORDER))
                counts.append([(a.total() if b else 0, b.total(), (a & b).total()) for a, b in pairs])
            flat = np.array(counts, dtype=float).reshape(len(acceptable), -1)
            rows[i] = flat[int(np.argmax(self.score(flat)))]
        return rows

    def score(self, sums: np.ndarray) -> np.ndarray:
        ours, theirs, common = np.moveaxis(sums.reshape(*sums.shape[:-1], CHRF_ORDER, 3), -1, 0)
        counted = (ours > 0) & (theirs > 0)
        orders = np.maximum(counted.sum(axis=-1), 1)
        precision = np.divide(common, ours, out=np.zeros_like(ours), where=counted).sum(axis=-1) / orders
        recall = np.divide(common, theirs, out=np.zeros_like(ours), where=counted).sum(axis=-1) / orders
        below = BETA**2 * precision + recall
        return np.asarray(100 * (1 + BETA**2) * precision * recall / np.where(below > 0, below, 1.0))

    def signature(self) -> str:
        count = "var" if self.references is None else self.references
        return f"nrefs:{count}|case:mixed|eff:yes|nc:{CHRF_ORDER}|nw:0|space:no|version:{version('sacrebleu')}"


# ROUGE, by Google's rouge-score


@dataclass
class Rouge(RatioMetric):
    """100 · mean F-measure of n-grams (``kind`` "1" or "2") or of the longest common subsequence ("L").

    Text is lower-cased and split into runs of letters and digits. The best of several answers counts.
    Statistics: [F, 1]. The package rouge-score is an extra: pip install 'unforced[rouge]'.

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
        if find_spec("rouge_score") is None:
            raise InputError("ROUGE needs the package rouge-score: pip install 'unforced[rouge]'")
        self.name = f"rouge_{self.kind.lower()}"

    @cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer([f"rouge{self.kind}"], use_stemmer=self.stemmer)

    def statistics(self, outputs: Sequence[str], answers: Sequence[Sequence[str]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.ones((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            rows[i, 0] = self._scorer.score_multi(list(acceptable), output)[f"rouge{self.kind}"].fmeasure
        return rows

    def signature(self) -> str:
        stemmed = "with" if self.stemmer else "without"
        return f"mean F of ROUGE-{self.kind}, {stemmed} stemming, rouge-score {version('rouge-score')}"


# CIDEr-D (Vedantam, Zitnick and Parikh 2015)

CIDER_ORDER = 4
CIDER_SIGMA = 6.0


def ngram_counts(tokens: Sequence[Any]) -> list[Counter[Gram]]:
    """Count the n-grams of a token sequence, for n = 1..4."""
    return [Counter(zip(*(tokens[i:] for i in range(n)))) for n in range(1, CIDER_ORDER + 1)]


def document_frequencies(groups: Iterable[Sequence[list[Counter[Gram]]]]) -> Counter[Gram]:
    """Count in how many images each n-gram occurs; a group holds the n-gram counts of one image's references."""
    frequency: Counter[Gram] = Counter()
    for group in groups:
        frequency.update({gram for counts in group for order in counts for gram in order})
    return frequency


class CiderVector:
    """The tf · idf vectors of a caption's n-grams, for n = 1..4.

    idf(w) = log(images / images with w in a reference). An n-gram that no reference has counts as if one image had it.
    """

    def __init__(self, counts: list[Counter[Gram]], frequency: Mapping[Gram, int], images: int) -> None:
        self.length = counts[0].total()
        total = math.log(max(1, images))
        self.weights = [
            {gram: n * (total - math.log(max(1, frequency.get(gram, 0)))) for gram, n in order.items()}
            for order in counts
        ]
        self.norms = [math.sqrt(sum(x * x for x in order.values())) for order in self.weights]

    def similarity(self, reference: "CiderVector") -> float:
        """Return CIDEr-D / 10 between this caption and a reference, between 0 and 1."""
        total = 0.0
        for ours, norm, theirs, other in zip(self.weights, self.norms, reference.weights, reference.norms):
            if norm and other:
                shared = sum(min(x, theirs[gram]) * theirs[gram] for gram, x in ours.items() if gram in theirs)
                total += shared / (norm * other)
        difference = self.length - reference.length
        return total / CIDER_ORDER * math.exp(-(difference**2) / (2 * CIDER_SIGMA**2))


class Cider(RatioMetric):
    """100 · mean CIDEr-D over images, with the document frequencies of the references that are scored.

    With g(c) the tf · idf vector of a caption's n-grams (`CiderVector`), averaged over n = 1..4 and over references r:

        CIDEr-D(c, r) = 10 · exp(−(|c| − |r|)² / 2σ²) · Σ_w min(g(c)_w, g(r)_w) g(r)_w / (‖g(c)‖ ‖g(r)‖),  σ = 6.

    Captions are token sequences, or strings that are split at white space. Nothing is stemmed. The scale is that of
    papers: 100 is 1.0 in coco-caption. Statistics: [score, 1]; they depend on the other images through idf.

    >>> metric = Cider()
    >>> captions = ["a red heart", "a blue square"]
    >>> rows = metric.statistics(captions, [[caption] for caption in captions])
    >>> round(float(metric.score(rows.sum(axis=0))), 6)  # perfect, but there are no 4-grams
    750.0
    """

    score_range = (0.0, 1000.0)
    name = "cider"
    higher_is_better = True

    def statistics(
        self, outputs: Sequence[str | Sequence[str]], answers: Sequence[Sequence[str | Sequence[str]]]
    ) -> np.ndarray:
        check_answers(outputs, answers)
        references = [[_caption_counts(reference) for reference in group] for group in answers]
        frequency = document_frequencies(references)
        rows = np.ones((len(outputs), 2))
        for i, (output, group) in enumerate(zip(outputs, references)):
            vector = CiderVector(_caption_counts(output), frequency, len(outputs))
            others = [CiderVector(counts, frequency, len(outputs)) for counts in group]
            rows[i, 0] = 10 * np.mean([vector.similarity(other) for other in others])
        return rows

    def signature(self) -> str:
        return "CIDEr-D × 100, n = 1..4, σ = 6, document frequencies of the references scored, tokens unchanged"


def _caption_counts(caption: str | Sequence[str]) -> list[Counter[Gram]]:
    return ngram_counts(caption.split() if isinstance(caption, str) else list(caption))


# Error rates


@dataclass
class ErrorRate(RatioMetric):
    """100 · Σ (insertions + deletions + substitutions) / Σ length of the answer, over the corpus.

    Of several answers the nearest counts; of equally near answers the first. Statistics: [errors, length of that
    answer].

    >>> metric = ErrorRate("phoneme_error")
    >>> rows = metric.statistics(["K AE T S", "AH"], [["K AA T", "K AE T"], ["EY"]])
    >>> rows
    array([[1., 3.],
           [1., 1.]])
    >>> float(metric.score(rows.sum(axis=0)))
    50.0
    """

    score_range = (0.0, math.inf)
    name: str = "error_rate"
    unit: Literal["word", "character"] = "word"  # how strings are split; other sequences are compared by element
    higher_is_better: bool = field(default=False, init=False)

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.zeros((len(outputs), 2))
        for i, (output, acceptable) in enumerate(zip(outputs, answers)):
            tokens = self._tokens(output)
            targets = [self._tokens(answer) for answer in acceptable]
            distances = [Levenshtein.distance(tokens, target) for target in targets]
            nearest = int(np.argmin(distances))
            rows[i] = distances[nearest], len(targets[nearest])
        return rows

    def _tokens(self, output: Any) -> list[Any]:
        return output.split() if isinstance(output, str) and self.unit == "word" else list(output)

    def signature(self) -> str:
        return f"edit distance by {self.unit}, per cent of the nearest answer's length, over the corpus"


@dataclass
class ExactError(RatioMetric):
    """Percentage of outputs that equal none of their answers. Statistics: [wrong, 1].

    >>> metric = ExactError("word_error")
    >>> float(metric.score(metric.statistics(["a b", "c"], [["a b"], ["d", "e"]]).sum(axis=0)))
    50.0
    """

    name: str = "exact_error"
    higher_is_better: bool = field(default=False, init=False)

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        check_answers(outputs, answers)
        rows = np.ones((len(outputs), 2))
        rows[:, 0] = [output not in acceptable for output, acceptable in zip(outputs, answers)]
        return rows

    def signature(self) -> str:
        return "per cent of outputs that equal none of their answers"
