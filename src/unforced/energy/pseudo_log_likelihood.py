"""Pseudo-log-likelihoods of sequences: Σ_t log p(y_t | y\\t) by the softmax of a masked model (Salazar et al. 2020).

A token is masked alone, or together with other tokens of its word.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.energy.energies import KINDS, Kind, token_terms, variables
from unforced.energy.masked_copies import Measure, measure_positions, token_batches
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.masks import widened
from unforced.options import check_value
from unforced.protocols import require
from unforced.types import Batch, Symbols

Over = Literal["all", "allowed"]
TOKENS = 4096  # tokens of masked copies in a micro-batch


class WordMasks(NamedTuple):
    """Which tokens are masked together because they belong to one word."""

    numbers: Tensor  # [B,T] long, the number of each token's word; −1 for none
    left_to_right: bool = True  # mask a token with all later tokens of its word, else with all of them

    def several(self, free: Tensor) -> Tensor:
        """Return which of the variables ``free`` [B,T] are not masked alone: [B,T] bool."""
        inside = free & (self.numbers >= 0)
        word, rows = torch.where(inside, self.numbers, 0), len(self.numbers)
        columns = torch.arange(word.shape[1], device=word.device).expand_as(word)

        def extreme(start: int, how: str) -> Tensor:
            """Return the first or last column of each token's word: [B,T]."""
            found = word.new_full((rows, int(word.max()) + 1), start)
            return found.scatter_reduce(1, word, torch.where(inside, columns, start), how).gather(1, word)

        first = columns if self.left_to_right else extreme(word.shape[1], "amin")
        return inside & (first < extreme(-1, "amax"))

    def masks(self, free: Tensor, row: Tensor, positions: Tensor, size: int) -> Tensor:
        """Return what is masked while token ``positions[n,0]`` of ``row[n]`` is scored: [n,size] bool.

        >>> free = torch.tensor([[True, True, True]])
        >>> rows, positions = torch.tensor([0, 0, 0]), torch.tensor([[0], [1], [2]])
        >>> WordMasks(torch.tensor([[0, 0, 1]])).masks(free, rows, positions, 3).int()
        tensor([[1, 1, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
        """
        word, columns = self.numbers[row].gather(1, positions), torch.arange(size, device=row.device)
        same = (self.numbers[row, :size] == word) & (word >= 0) & free[row, :size]
        if self.left_to_right:
            same = same & (columns >= positions)
        return same | (columns == positions)


class TokenScores(NamedTuple):
    """Scores of the target tokens, [B,T] each; 0 where there is no variable."""

    raw: Tensor  # scores; E_raw = −Σ
    local: Tensor  # log-softmax over the allowed tokens; E_local = −Σ
    log_probs: Tensor  # log-softmax with the chosen masking; the pseudo-log-likelihood is Σ

    def energy(self, kind: Kind) -> Tensor:
        """Return the energy of each sequence: [B]."""
        return -(self.raw if kind == "raw" else self.local).double().sum(dim=1)

    @property
    def pseudo_log_likelihood(self) -> Tensor:
        """The pseudo-log-likelihood of each sequence: [B]."""
        return self.log_probs.double().sum(dim=1)


def token_scores(
    model: Any, batch: Batch, words: WordMasks | None = None, over: Over = "all", tokens: int = TOKENS
) -> TokenScores:
    """Compute both energies and the pseudo-log-likelihood of the targets, token by token.

    Energies always mask single tokens. The pseudo-log-likelihood masks the ``words`` if there are any, because tokens
    of a word predict each other. Its probabilities are over all tokens or the ``allowed`` ones. A micro-batch has at
    most ``tokens`` tokens, or one copy.
    """
    where, log_prob = variables(batch), _log_prob(over, batch.symbols)
    if not bool(where.any()):
        raise InputError("there is no token to score: all tokens of the batch are special tokens")

    def measure(scores: Tensor, gold: Tensor) -> Tensor:
        raw, local = (token_terms(scores, gold, kind, batch.symbols) for kind in KINDS)
        return torch.stack([raw, local, local if over == "allowed" else log_prob(scores, gold)], dim=1)

    raw, local, log_probs = _measure(model, batch, where, None, measure, tokens).unbind(dim=2)
    if words is not None:
        several = words.several(where)
        log_probs = torch.where(several, _measure(model, batch, several, words, log_prob, tokens), log_probs)
    return TokenScores(raw, local, log_probs)


def pseudo_log_likelihood(
    model: Any, batch: Batch, words: WordMasks | None = None, over: Over = "all", tokens: int = TOKENS
) -> Tensor:
    """Return ``token_scores(…).log_probs`` [B,T] in one pass, without the energies."""
    return _measure(model, batch, variables(batch), words, _log_prob(over, batch.symbols), tokens)


def _measure(model: Any, batch: Batch, where: Tensor, words: WordMasks | None, measure: Measure, tokens: int) -> Tensor:
    """Apply ``measure`` to the scores of the target tokens in the mask ``where`` [B,T]."""
    require(model, "scoring", "scores")
    example, batching = torch.arange(len(batch), device=where.device), partial(token_batches, tokens=tokens)
    masks = None if words is None else partial(words.masks, variables(batch))
    with evaluation_mode(model):
        return measure_positions(model, batch, example, batch.gold, where, measure, batching, masks)[0]


def _log_prob(over: Over, symbols: Symbols) -> Measure:
    """Return a function from scores [n,V] and tokens [n] to log-probabilities [n]."""
    check_value("over", Over, over)
    if over == "allowed":
        return partial(token_terms, kind="local", symbols=symbols)

    def log_softmax_at(scores: Tensor, gold: Tensor) -> Tensor:
        scores = widened(scores)
        return scores.gather(1, gold.unsqueeze(1)).squeeze(1) - scores.logsumexp(dim=1)

    return log_softmax_at
