"""Distributions over sequences of a given length that can be drawn from and whose log-probabilities are known: noise."""

import copy
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.partition import ROWS, allowed_ids, energies_in_parts
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.masked import Frozen, frozen, permitted, prepared, with_lengths
from unforced.ops import random_streams, state_rows
from unforced.options import Count, NonNegative, Options, Positive, PositiveFraction
from unforced.protocols import MaskedModel, StepDecoder, require
from unforced.types import Batch, Encoded, Loss, Progress, Symbols

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
    ) -> "Counts":
        """Counted in training data; order 0 counts nothing, 1 tokens and 2 pairs of tokens as well.

        >>> found = Counts.of([[3, 4, 2], [3, 3, 2]], 5, Symbols(0, 1, 2, (0, 1)), 2, smoothing=0.0, backoff=0.5)
        >>> found.unigrams
        tensor([0.0000, 0.0000, 0.0000, 0.7500, 0.2500], dtype=torch.float64)
        """
        kept = energies.allowed(symbols, size)
        special = set(energies.special_ids(symbols))
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

    def on(self, device: torch.device) -> "Counts":
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
        keys = random_streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
        coins, numbers = random_streams.branch(keys, COINS), random_streams.branch(keys, TOKENS)
        tokens = batch.gold.repeat_interleave(k, dim=0)
        where = energies.variables(batch).repeat_interleave(k, dim=0)
        last = torch.full_like(tokens[:, 0], self.bos)
        log_probs = self.unigrams.new_zeros(len(tokens))
        singles = self.unigrams.unsqueeze(0)
        for t in range(tokens.shape[1]):
            u = random_streams.uniform(numbers, t)
            token = random_streams.draw(singles.expand(len(u), -1), u)
            if len(self.pairs):
                before, followed = self._followed(last)
                place = torch.searchsorted(self.cumulated, before + u * followed, right=True) - 1
                paired = self.pairs[place.clamp(max=len(self.pairs) - 1)] % len(self.unigrams)
                backed = (random_streams.uniform(coins, t) < self.backoff) | (followed == 0)
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
        keys = random_streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
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
                drawn = random_streams.draw(log_probs.exp(), random_streams.uniform(keys, t))
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
            self.state = state_rows.repeat(model.start(batch), k)
        else:
            self.all = model.scores(batch, batch.gold, energies.variables(batch))  # [B,T,V]

    def scores(self, t: int, tokens: Tensor) -> Tensor:
        """Of position t, behind the tokens before it."""
        if self.state is None:
            return self.all[:, t].repeat_interleave(self.k, dim=0)
        last = tokens[:, t - 1] if t else torch.full_like(tokens[:, 0], self.bos)
        features, self.state = self.model.advance(self.state, self.model.embed(last.unsqueeze(1)))
        return self.model.score(features[:, -1])


# Noise-contrastive estimation of an energy model over whole sequences (Gutmann & Hyvärinen 2010; Goyal 2021, chapter
# 7).

From = Literal["uniform", "unigram", "bigram"]
ORDERS = {"uniform": 0, "unigram": 1, "bigram": 2}


def binary_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """−log σ(G(y)) − Σ_j log σ(−G(ỹ_j)) of log-ratios G: gold [B] and noise [B,k] -> [B].

    G = −E − log Z − log q − log k is the log of how much likelier a sequence is to be data than noise.
    """
    return F.softplus(-gold) + F.softplus(noise).sum(dim=1)


def ranking_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """−log of the share that exp G of the gold has among gold and noise: [B] and [B,k] -> [B]."""
    return torch.logsumexp(torch.cat([gold.unsqueeze(1), noise], dim=1), dim=1) - gold


@dataclass(frozen=True)
class NoiseContrastive(Options):
    """Tell each training sequence from ``samples`` sequences of the same length that are drawn from noise q.

    With G(y) = −E(y) − log Z − log q(y) − log k, "binary" is −log σ(G(y*)) − Σ_j log σ(−G(ỹ_j)), whose optimum is the
    distribution of the data, log Z included. "ranking" is −log of exp G(y*) over the sum of exp G of all k + 1, which needs no
    log Z (Ma & Collins 2018). ``log_z`` is a number that log Z is fixed at (the model then normalises itself), or none for
    a table by length that the model learns (its field ``normalizer``).

    Noise is "uniform" over the tokens that are allowed, or as training data has them: "unigram", each token by itself with
    ``smoothing`` added to its count, or "bigram", each given the one before it, with ``backoff`` of its probability from
    the unigrams. ``model`` names the run folder of a masked model of the same kind, which draws in place of these (in
    Python, any model, also one that writes from left to right).

    The total is divided by the number of tokens, as elsewhere. The metric ``accuracy`` is the share of sequences, gold and
    noise, that G tells apart, ``nce`` the loss of a sequence. Where the model guesses lengths, see ``masked_lm``.

    >>> NoiseContrastive(noise="unigram", samples=5).form
    'binary'
    """

    noise: From = "bigram"
    samples: Count = 10  # k, noise sequences for each gold one
    form: Literal["binary", "ranking"] = "binary"
    log_z: float | None = 0.0  # what log Z is fixed at; None: learnt by the model
    energy: Kind = "raw"
    smoothing: Positive = 1.0  # added to each token's count
    backoff: PositiveFraction = 0.1  # share of unigrams in bigrams
    model: Frozen | None = None  # a run folder whose model draws the noise
    rows: Count = ROWS  # masked copies in memory at a time
    length_weight: NonNegative = 0.1  # of the length's loss, for models that guess lengths
    counts: Counts | None = field(default=None, init=False, repr=False, compare=False)  # what ``fitted`` adds
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # models read so far

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "NoiseContrastive":
        """The objective, knowing how often tokens and pairs of them occur in training targets."""
        if self.model is not None or self.noise == "uniform":
            return self
        targets = (example.target for example in examples)
        fitted = copy.copy(self)
        object.__setattr__(fitted, "counts", self._counted(targets, codec.sizes.target, codec.symbols))
        return fitted

    def _counted(self, targets: Any, size: int, symbols: Any) -> Counts:
        return Counts.of(targets, size, symbols, ORDERS[self.noise], self.smoothing, self.backoff)

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        plain, batch = batch, prepared(model, batch, "noise_contrastive")
        draws, gold_q = self.drawn(model, plain, random_streams.keys(batch, rng))
        b, k = len(batch), self.samples
        tokens = torch.cat([batch.gold, draws.tokens])
        examples = torch.arange(b, device=tokens.device)
        examples = torch.cat([examples, examples.repeat_interleave(k)])
        energy = energies_in_parts(
            model,
            batch,
            len(tokens),
            lambda start, stop: (examples[start:stop], tokens[start:stop]),
            self.energy,
            self.rows,
        )
        log_q = torch.cat([gold_q, draws.log_probs]).to(energy)
        ratios = -energy - self.normalizer(model, batch).to(energy)[examples] - log_q - math.log(k)
        gold, noise = ratios[:b], ratios[b:].view(b, k)
        total = (binary_losses if self.form == "binary" else ranking_losses)(gold, noise).sum()
        shares = energies.variables(batch).sum(dim=1)
        sequences = torch.tensor(float(b), device=energy.device)
        metrics = {
            "nce": (total.detach().float(), sequences),
            "accuracy": self.told_apart(gold.detach(), noise.detach()),
        }
        return with_lengths(model, batch, Loss(total, shares.sum().float(), metrics), shares, self.length_weight)

    def drawn(self, model: Any, batch: Batch, keys: Tensor) -> tuple[Draws, Tensor]:
        """Noise for each example, and log q of the gold [B]."""
        found: Noise
        if self.model is not None:
            writer = frozen(self.model, model, self.known)
            with evaluation_mode(writer):
                found = OfModel(writer)
                return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)
        counts = self.counts
        if counts is None:
            if self.noise != "uniform":
                raise InputError(
                    f'noise_contrastive has counted no noise "{self.noise}" yet: call fitted(codec, examples)'
                )
            counts = self._counted((), int(allowed_ids(model, batch)[-1]) + 1, batch.symbols)
        found = counts.on(batch.gold.device)
        return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)

    def normalizer(self, model: Any, batch: Batch) -> Tensor:
        """log Z of each example, as far as it is known: [B]."""
        if self.log_z is not None:
            return torch.full((len(batch),), self.log_z, device=batch.gold.device)
        require(model, "noise_contrastive without a fixed log_z", "log_z")
        found: Tensor = model.log_z(batch)
        return found

    def told_apart(self, gold: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How many sequences are seen for what they are, and of how many."""
        if self.form == "ranking":
            hits = (gold > noise.amax(dim=1)).sum()
            return hits.float(), torch.tensor(float(len(gold)), device=gold.device)
        hits = (gold > 0).sum() + (noise < 0).sum()
        return hits.float(), torch.tensor(float(gold.numel() + noise.numel()), device=gold.device)
