"""Pseudo-log-likelihoods and energies of given sentences.

The pseudo-log-likelihood of a sentence is Σ_t log p(y_t | y\\t), each token masked by itself (Salazar et al. 2020). p is the softmax
that the model was trained with: ``over`` says whether among all tokens, as others' models are, or among those that are
allowed, as this library trains its own; then it is −E_local.

On words of several pieces it is too high: pieces give each other away. So there are two other ways to mask, both in Kauf
and Ivanova (2023):

- ``left_to_right`` (their PLL-word-l2r, and what minicons calls ``within_word_l2r``): a token and all later pieces of its word;
- ``whole`` (their PLL-whole-word): all pieces of a word together.

E_raw and E_local always mask single tokens, and E_local normalises among the tokens that are allowed: special ones are not.

Masked copies run in micro-batches of a bounded number of tokens, those of like length together, and where a model offers
``features`` and ``score``, only the masked positions are projected to the vocabulary: so memory grows neither with the number
nor with the length of sentences, up to the length at which one copy fills a micro-batch.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.masks import widened
from unforced.options import check_value
from unforced.protocols import require
from unforced.types import Batch

Masking = Literal["single", "left_to_right", "whole"]
Over = Literal["all", "allowed"]
TOKENS = 4096  # of the masked copies that a model is given at once


class TokenScores(NamedTuple):
    """What the tokens of sentences are given, [B,T]; 0 at what isn't scored."""

    raw: Tensor  # scores; E_raw = −Σ
    local: Tensor  # log-softmax among the tokens that are allowed; E_local = −Σ
    log_probs: Tensor  # log-softmax, masked as asked for; the pseudo-log-likelihood is Σ

    def energy(self, kind: energies.Kind) -> Tensor:
        """[B]."""
        return -getattr(self, kind).double().sum(dim=1)

    @property
    def pseudo_log_likelihood(self) -> Tensor:
        """[B]."""
        return self.log_probs.double().sum(dim=1)


def token_scores(
    model: Any,
    batch: Batch,
    words: Tensor | None = None,
    masking: Masking = "single",
    over: Over = "all",
    tokens: int = TOKENS,
) -> TokenScores:
    """Energies and pseudo-log-likelihood of the batch's gold, token by token.

    ``words`` [B,T] numbers the word that each token belongs to, −1 where it is none's; ``masking`` by words needs it, and says
    how ``log_probs`` are masked. The model is given at most ``tokens`` tokens at once, unless one sentence has more.
    """
    require(model, "scoring", "scores")
    check_value("over", Over, over)
    free = energies.variables(batch)
    together = blocks(free, words, masking)
    with evaluation_mode(model):
        batch = energies.prepare(model, batch)

        def measure(scores: Tensor, gold: Tensor) -> Tensor:
            raw, local = (energies.pick(scores, gold, kind, batch.symbols) for kind in ("raw", "local"))
            return torch.stack([raw, local, local if over == "allowed" else of_all(scores, gold)], dim=1)

        raw, local, log_probs = _collect(model, batch, free, None, measure, 3, tokens).unbind(dim=2)
        if together is not None:
            again = together.several()
            found = _collect(model, batch, again, together, _log_probs(over, batch), 1, tokens)
            log_probs = torch.where(again, found.squeeze(2), log_probs)
    return TokenScores(raw, local, log_probs)


def pseudo_log_likelihood(
    model: Any,
    batch: Batch,
    words: Tensor | None = None,
    masking: Masking = "single",
    over: Over = "all",
    tokens: int = TOKENS,
) -> Tensor:
    """The logarithm of each token's probability [B,T], 0 at what isn't scored; the sum of a row is a sentence's.

    The same as ``token_scores(…).log_probs``, without the energies.
    """
    require(model, "scoring", "scores")
    check_value("over", Over, over)
    free = energies.variables(batch)
    together = blocks(free, words, masking)
    with evaluation_mode(model):
        batch = energies.prepare(model, batch)
        return _collect(model, batch, free, together, _log_probs(over, batch), 1, tokens).squeeze(2)


class Blocks(NamedTuple):
    """The tokens that are masked with each other, because they are pieces of a word."""

    free: Tensor  # [B,T] bool, what is scored
    words: Tensor  # [B,T] long, the word that a token belongs to; −1 where it is none's
    masking: Masking

    def several(self) -> Tensor:
        """[B,T] bool: what isn't masked alone."""
        inside = self.free & (self.words >= 0)
        word, rows = torch.where(inside, self.words, 0), len(self.words)
        columns = torch.arange(word.shape[1], device=word.device).expand_as(word)

        def furthest(start: int, how: str) -> Tensor:
            """[B,T]: the first or last column of the word that each token belongs to."""
            found = word.new_full((rows, int(word.max()) + 1), start)
            return found.scatter_reduce(1, word, torch.where(inside, columns, start), how).gather(1, word)

        first = columns if self.masking == "left_to_right" else furthest(word.shape[1], "amin")
        return inside & (first < furthest(-1, "amax"))

    def masks(self, row: Tensor, position: Tensor, size: int) -> Tensor:
        """What is masked while token position[n] of row[n] is scored, [n] each -> [n,size] bool.

        >>> free = torch.tensor([[True, True, True]])
        >>> three = torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2])
        >>> Blocks(free, torch.tensor([[0, 0, 1]]), "left_to_right").masks(*three, 3).int()
        tensor([[1, 1, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
        """
        word = self.words[row, position].unsqueeze(1)
        columns, here = torch.arange(size, device=row.device), position.unsqueeze(1)
        same = (self.words[row, :size] == word) & (word >= 0) & self.free[row, :size]
        if self.masking == "left_to_right":
            same = same & (columns >= here)
        return same | (columns == here)


def blocks(free: Tensor, words: Tensor | None, masking: Masking) -> Blocks | None:
    """What is masked together; None: every token alone."""
    check_value("masking", Masking, masking)
    if masking == "single":
        return None
    if words is None:
        raise InputError(f"masking {masking} needs to know the words that tokens belong to")
    return Blocks(free, words, masking)


def of_all(scores: Tensor, gold: Tensor) -> Tensor:
    """The log-probabilities of tokens [n] by scores [n,V] among all tokens: [n]."""
    scores = widened(scores)
    return scores.gather(1, gold.unsqueeze(1)).squeeze(1) - scores.logsumexp(dim=1)


Measure = Callable[[Tensor, Tensor], Tensor]  # scores [n,V] and tokens [n] -> [n,K]


def _log_probs(over: Over, batch: Batch) -> Measure:
    if over == "all":
        return lambda scores, gold: of_all(scores, gold).unsqueeze(1)
    return lambda scores, gold: energies.pick(scores, gold, "local", batch.symbols).unsqueeze(1)


def _collect(
    model: Any, batch: Batch, wanted: Tensor, together: Blocks | None, measure: Measure, width: int, tokens: int
) -> Tensor:
    """What ``measure`` makes of the scores at the positions that are wanted: [B,T,K], 0 elsewhere; K is ``width``."""
    row, position = wanted.nonzero(as_tuple=True)
    whole = together is None and callable(getattr(model, "conditional_scores", None))
    parts = []
    for numbers, scores in (_whole if whole else _single)(model, batch, row, position, together, tokens):
        parts.append((numbers, measure(scores, batch.gold[row[numbers], position[numbers]])))
    if not parts:
        return torch.zeros(*wanted.shape, width, device=row.device)
    order = torch.cat([numbers for numbers, _ in parts])
    values = torch.cat([values for _, values in parts])
    return values.new_zeros(*wanted.shape, width).index_put((row[order], position[order]), values)


Parts = Iterator[tuple[Tensor, Tensor]]  # numbers [n] of some positions, and the scores [n,V] there


def _single(model: Any, batch: Batch, row: Tensor, position: Tensor, together: Blocks | None, tokens: int) -> Parts:
    """A masked copy for each position."""
    for numbers, size in bounded(energies.extents(batch)[row], tokens):
        which, here = row[numbers], position[numbers]
        part = energies.cut(batch.select(which), size)
        if together is None:
            masked = torch.zeros(len(numbers), size, dtype=torch.bool, device=row.device)
            masked.scatter_(1, here.unsqueeze(1), True)
        else:
            masked = together.masks(which, here, size)
        number = torch.arange(len(numbers), device=row.device)
        if callable(getattr(model, "features", None)) and callable(getattr(model, "score", None)):
            scores = model.score(model.features(part, part.gold, masked)[number, here])
        else:
            scores = model.scores(part, part.gold, masked)[number, here]
        yield numbers, scores


def _whole(model: Any, batch: Batch, row: Tensor, position: Tensor, together: Blocks | None, tokens: int) -> Parts:
    """A pass over each sentence, where the model scores all positions in one."""
    rows = row.unique()
    for numbers, size in bounded(energies.extents(batch)[rows], tokens):
        part = energies.cut(batch.select(rows[numbers]), size)
        scores = model.conditional_scores(part, part.gold)
        place = torch.full((len(batch),), -1, dtype=torch.long, device=row.device)
        place[rows[numbers]] = torch.arange(len(numbers), device=row.device)
        asked = (place[row] >= 0).nonzero().squeeze(1)
        yield asked, scores[place[row[asked]], position[asked]]


def bounded(sizes: Tensor, tokens: int) -> Iterator[tuple[Tensor, int]]:
    """Parts of sequences of like size that have at most ``tokens`` tokens with their padding: their numbers, and the largest size.

    >>> [(numbers.tolist(), size) for numbers, size in bounded(torch.tensor([2, 9, 3, 4]), 8)]
    [([1], 9), ([3, 2], 4), ([0], 2)]
    """
    if tokens < 1:
        raise InputError(f"tokens must be at least 1, not {tokens}")
    order = sizes.argsort(descending=True, stable=True)
    done = 0
    while done < len(order):
        size = int(sizes[order[done]])
        count = max(1, tokens // max(1, size))
        yield order[done : done + count], size
        done += count
