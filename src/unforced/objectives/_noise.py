"""Distributions over sequences of a given length that can be drawn from and whose log-probabilities are known: noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from unforced import rows, streams
from unforced.energy import energies
from unforced.errors import InputError
from unforced.models.protocol import StepDecoder
from unforced.objectives._masked import permitted
from unforced.types import Batch, Symbols

COINS, TOKENS = 0, 1  # the random streams of a sequence


class Draws(NamedTuple):
    """k sequences for each example, with their log-probabilities."""

    tokens: Tensor  # [B·k,T]
    log_probs: Tensor  # [B·k]


class Noise(Protocol):
    def draw(self, batch: Batch, keys: Tensor, k: int) -> Draws:
        """k sequences for each example, with the variables of its gold, from streams that start at keys [B]."""
        ...

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        """log q of tokens [B,T], given the number of variables: [B]."""
        ...


class Counts(NamedTuple):
    """q(w | v) = (1 − b) n(v, w) / n(v) + b q(w), and q(w) alone behind a token v that was never followed by any.

    q(w) = (n(w) + s) / (n + s A) over the A tokens that are allowed. Without pairs, q(w) everywhere.
    """

    unigrams: Tensor  # [V] float64, q(w); zero for tokens that aren't allowed
    pairs: Tensor  # [M] sorted v·V + w
    cumulated: Tensor  # [M+1] float64: Σ n(v, w) over the pairs before each
    backoff: float  # b
    bos: int

    @classmethod
    def of(
        cls,
        sequences: Iterable[Sequence[int]],
        size: int,
        symbols: Symbols,
        order: int,
        smoothing: float,
        backoff: float,
    ) -> Counts:
        """Counted in training data; order 0 counts nothing, 1 tokens and 2 pairs of tokens as well.

        >>> found = Counts.of([[3, 4, 2], [3, 3, 2]], 5, Symbols(0, 1, 2, (0, 1)), 2, smoothing=0.0, backoff=0.5)
        >>> found.unigrams
        tensor([0.0000, 0.0000, 0.0000, 0.7500, 0.2500], dtype=torch.float64)
        """
        kept = energies.allowed(symbols, size)
        special = set(energies.special(symbols))
        single: Counter[int] = Counter()
        double: Counter[tuple[int, int]] = Counter()
        if order:
            for sequence in sequences:
                words = [int(id) for id in sequence if int(id) not in special]
                single.update(words)
                if order > 1:
                    double.update(zip([symbols.bos, *words[:-1]], words))
        counts = torch.zeros(size, dtype=torch.float64)
        for id, n in single.items():
            counts[id] = n
        weights = (counts + (smoothing if order else 1.0)) * kept
        if not float(weights.sum()) > 0:
            raise InputError("noise is counted in training examples, and there are no tokens in them")
        found = sorted((v * size + w, n) for (v, w), n in double.items())
        numbers = torch.tensor([0] + [n for _, n in found], dtype=torch.float64)
        pairs = torch.tensor([pair for pair, _ in found], dtype=torch.long)
        return cls(weights / weights.sum(), pairs, numbers.cumsum(0), backoff, symbols.bos)

    def on(self, device: torch.device) -> Counts:
        moved = (self.unigrams.to(device), self.pairs.to(device), self.cumulated.to(device))
        return self._replace(unigrams=moved[0], pairs=moved[1], cumulated=moved[2])

    def _followed(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Σ n before the pairs of each token v [R], and n(v): [R] each."""
        size = len(self.unigrams)
        first, end = (torch.searchsorted(self.pairs, (last + more) * size) for more in (0, 1))
        return self.cumulated[first], self.cumulated[end] - self.cumulated[first]

    def _probability(self, last: Tensor, tokens: Tensor) -> Tensor:
        """q(tokens | last), [R]."""
        single = self.unigrams[tokens]
        if not len(self.pairs):
            return single
        pair = last * len(self.unigrams) + tokens
        place = torch.searchsorted(self.pairs, pair).clamp(max=len(self.pairs) - 1)
        count = torch.where(self.pairs[place] == pair, self.cumulated[place + 1] - self.cumulated[place], 0.0)
        _, followed = self._followed(last)
        mixed = (1 - self.backoff) * count / followed.clamp(min=1) + self.backoff * single
        return torch.where(followed > 0, mixed, single)

    def draw(self, batch: Batch, keys: Tensor, k: int) -> Draws:
        keys = streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
        coins, numbers = streams.branch(keys, COINS), streams.branch(keys, TOKENS)
        tokens = batch.gold.repeat_interleave(k, dim=0)
        where = energies.variables(batch).repeat_interleave(k, dim=0)
        last = torch.full_like(tokens[:, 0], self.bos)
        log_probs = self.unigrams.new_zeros(len(tokens))
        singles = self.unigrams.unsqueeze(0)
        for t in range(tokens.shape[1]):
            u = streams.uniform(numbers, t)
            token = streams.draw(singles.expand(len(u), -1), u)
            if len(self.pairs):
                before, followed = self._followed(last)
                place = torch.searchsorted(self.cumulated, before + u * followed, right=True) - 1
                paired = self.pairs[place.clamp(max=len(self.pairs) - 1)] % len(self.unigrams)
                backed = (streams.uniform(coins, t) < self.backoff) | (followed == 0)
                token = torch.where(backed, token, paired)
            here = where[:, t]
            log_probs = log_probs + torch.where(here, self._probability(last, token).log(), 0.0)
            tokens[:, t] = torch.where(here, token, tokens[:, t])
            last = torch.where(here, token, last)
        return Draws(tokens, log_probs)

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        where = energies.variables(batch)
        last = torch.full_like(tokens[:, 0], self.bos)
        total = self.unigrams.new_zeros(len(tokens))
        for t in range(tokens.shape[1]):
            here = where[:, t]
            token = torch.where(here, tokens[:, t], 0)
            total = total + torch.where(here, self._probability(last, token).log(), 0.0)
            last = torch.where(here, token, last)
        return total


class OfModel(NamedTuple):
    """What a model that stays as it is would write in so many tokens; the end symbol is left out at every step.

    A ``StepDecoder`` writes from left to right. A ``MaskedModel`` sees everything hidden and fills all positions at once,
    each by itself.
    """

    model: Any

    def draw(self, batch: Batch, keys: Tensor, k: int) -> Draws:
        keys = streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
        return self._run(batch, k, keys, None)

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        return self._run(batch, 1, None, tokens).log_probs

    @torch.no_grad()
    def _run(self, batch: Batch, k: int, keys: Tensor | None, given: Tensor | None) -> Draws:
        """Draw by keys [B·k], or take the tokens that are given."""
        tokens = batch.gold.repeat_interleave(k, dim=0) if given is None else given.clone()
        where = energies.variables(batch).repeat_interleave(k, dim=0)
        total = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
        steps = _Steps(self.model, batch, k)
        for t in range(tokens.shape[1]):
            log_probs = torch.log_softmax(permitted(steps.scores(t, tokens), batch).double(), dim=1)
            here = where[:, t]
            if keys is not None:
                drawn = streams.draw(log_probs.exp(), streams.uniform(keys, t))
                tokens[:, t] = torch.where(here, drawn, tokens[:, t])
            chosen = log_probs.gather(1, tokens[:, t : t + 1]).squeeze(1)
            total = total + torch.where(here, chosen, 0.0)
        return Draws(tokens, total)


class _Steps:
    """The scores [R,V] of one position after another."""

    def __init__(self, model: Any, batch: Batch, k: int) -> None:
        self.model, self.k = model, k
        self.bos = batch.symbols.bos
        self.state: Any = None
        if isinstance(model, StepDecoder):
            self.state = rows.repeat(model.start(batch), k)
        else:
            self.all = model.scores(batch, batch.gold, energies.variables(batch))  # [B,T,V]

    def scores(self, t: int, tokens: Tensor) -> Tensor:
        """Of position t, behind the tokens before it."""
        if self.state is None:
            return self.all[:, t].repeat_interleave(self.k, dim=0)
        last = tokens[:, t - 1] if t else torch.full_like(tokens[:, 0], self.bos)
        features, self.state = self.model.advance(self.state, self.model.embed(last.unsqueeze(1)))
        return self.model.score(features[:, -1])
