"""Noise-contrastive estimation of an energy model (Gutmann and Hyvärinen 2010; Goyal 2021, chapter 7)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.energy import energies
from unforced.energy.partition import allowed_ids, energies_in_parts
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.masked import EnergyObjective, FrozenModel, allowed_scores, loaded
from unforced.ops import random_streams, state_rows
from unforced.options import Count, Positive, PositiveFraction
from unforced.protocols import Codec, MaskedModel, StepDecoder, require
from unforced.types import Batch, Encoded, Loss, Symbols

COINS, TOKENS = 0, 1  # the random streams of a sequence


class NoiseSamples(NamedTuple):
    """k noise sequences per example, with their log-probabilities."""

    tokens: Tensor  # [B·k,T]
    log_probs: Tensor  # [B·k]


class Noise(Protocol):
    """A distribution over sequences of a given length, with known log-probabilities."""

    def draw(self, batch: Batch, keys: Tensor, k: int) -> NoiseSamples:
        """Draw k sequences per example, of the target's length, from the random streams ``keys`` [B]."""
        ...

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Return log q [B] of tokens [B,T], given their number."""
        ...


class NgramNoise(NamedTuple):
    """Bigrams q(w | v) = (1 − b) n(v, w) / n(v) + b q(w), with unigrams q(w) = (n(w) + s) / (n + s A) over A tokens.

    After a token v without successors in the data, and without pairs, it is q(w).
    """

    unigrams: Tensor  # [V] float64, q(w); zero for tokens that are not allowed
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
    ) -> "NgramNoise":
        """Count tokens (order 1) and pairs of tokens (order 2) in training sequences; order 0 is uniform.

        >>> found = NgramNoise.of([[3, 4, 2], [3, 3, 2]], 5, Symbols(0, 1, 2, (0, 1)), 2, smoothing=0.0, backoff=0.5)
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
            raise InputError("noise needs training examples with tokens to count")
        found = sorted((v * size + w, n) for (v, w), n in double.items())
        numbers = torch.tensor([0] + [n for _, n in found], dtype=torch.float64)
        pairs = torch.tensor([pair for pair, _ in found], dtype=torch.long)
        return cls(weights / weights.sum(), pairs, numbers.cumsum(0), backoff, symbols.bos)

    def to(self, device: torch.device) -> "NgramNoise":
        moved = (self.unigrams.to(device), self.pairs.to(device), self.cumulated.to(device))
        return self._replace(unigrams=moved[0], pairs=moved[1], cumulated=moved[2])

    def _followed(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of counts before the pairs of each token v [R], and n(v) [R]."""
        size = len(self.unigrams)
        first, end = (torch.searchsorted(self.pairs, (last + more) * size) for more in (0, 1))
        return self.cumulated[first], self.cumulated[end] - self.cumulated[first]

    def _probability(self, last: Tensor, tokens: Tensor) -> Tensor:
        """Return q(tokens | last) [R]."""
        single = self.unigrams[tokens]
        if not len(self.pairs):
            return single
        pair = last * len(self.unigrams) + tokens
        place = torch.searchsorted(self.pairs, pair).clamp(max=len(self.pairs) - 1)
        count = torch.where(self.pairs[place] == pair, self.cumulated[place + 1] - self.cumulated[place], 0.0)
        _, followed = self._followed(last)
        mixed = (1 - self.backoff) * count / followed.clamp(min=1) + self.backoff * single
        return torch.where(followed > 0, mixed, single)

    def draw(self, batch: Batch, keys: Tensor, k: int) -> NoiseSamples:
        keys = random_streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
        coins, numbers = random_streams.branch(keys, COINS), random_streams.branch(keys, TOKENS)
        tokens = batch.gold.repeat_interleave(k, dim=0)
        where = energies.variables(batch).repeat_interleave(k, dim=0)
        last = torch.full_like(tokens[:, 0], self.bos)
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
            tokens[:, t] = torch.where(where[:, t], token, tokens[:, t])
            last = torch.where(where[:, t], token, last)
        return NoiseSamples(tokens, self.log_prob(batch, tokens))

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        where = energies.variables(batch).repeat_interleave(len(tokens) // len(batch), dim=0)
        last = torch.full_like(tokens[:, 0], self.bos)
        total = self.unigrams.new_zeros(len(tokens))
        for t in range(tokens.shape[1]):
            here = where[:, t]
            token = torch.where(here, tokens[:, t], 0)
            total = total + torch.where(here, self._probability(last, token).log(), 0.0)
            last = torch.where(here, token, last)
        return total


class ModelNoise(NamedTuple):
    """Samples of a frozen model with the end symbol excluded.

    A `StepDecoder` generates from left to right. A `MaskedModel` fills all positions independently, with all tokens
    masked.
    """

    model: Any

    def draw(self, batch: Batch, keys: Tensor, k: int) -> NoiseSamples:
        keys = random_streams.branch(keys.unsqueeze(1), torch.arange(k, device=keys.device)).flatten()
        return self._run(batch, k, keys, None)

    def log_prob(self, batch: Batch, tokens: Tensor) -> Tensor:
        return self._run(batch, 1, None, tokens).log_probs

    @torch.no_grad()
    def _run(self, batch: Batch, k: int, keys: Tensor | None, given: Tensor | None) -> NoiseSamples:
        """Draw tokens with keys [B·k], or score the given tokens."""
        tokens = batch.gold.repeat_interleave(k, dim=0) if given is None else given.clone()
        total = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
        where, stepwise = energies.variables(batch), isinstance(self.model, StepDecoder)
        if stepwise:
            state = state_rows.repeat(self.model.start(batch), k)
            last = torch.full_like(tokens[:, 0], batch.symbols.bos)
        else:
            all_scores = self.model.scores(batch, batch.gold, where)  # [B,T,V]
        for t in range(tokens.shape[1]):
            if stepwise:
                features, state = self.model.advance(state, self.model.embed(last.unsqueeze(1)))
                scores = self.model.score(features[:, -1])
            else:
                scores = all_scores[:, t].repeat_interleave(k, dim=0)
            log_probs = torch.log_softmax(allowed_scores(scores, batch).double(), dim=1)
            here = where[:, t].repeat_interleave(k)
            if keys is not None:
                drawn = random_streams.draw(log_probs.exp(), random_streams.uniform(keys, t))
                tokens[:, t] = torch.where(here, drawn, tokens[:, t])
            last = tokens[:, t]
            total = total + torch.where(here, log_probs.gather(1, last.unsqueeze(1)).squeeze(1), 0.0)
        return NoiseSamples(tokens, total)


ORDERS = {"uniform": 0, "unigram": 1, "bigram": 2}


def binary_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """Return −log σ(G(y)) − Σ_j log σ(−G(ỹ_j)) [B] of the log-ratios G of targets [B] and of noise [B,k]."""
    return F.softplus(-gold) + F.softplus(noise).sum(dim=1)


def ranking_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """Return −log of the share [B] of exp G(y) among target and noise, from log-ratios [B] and [B,k]."""
    return torch.logsumexp(torch.cat([gold.unsqueeze(1), noise], dim=1), dim=1) - gold


@dataclass(frozen=True)
class NoiseContrastive(EnergyObjective):
    """Classify each training sequence against ``samples`` noise sequences of the same length, drawn from q.

    With G(y) = −E(y) − log Z − log q(y) − log k:

    - ``binary``: −log σ(G(y*)) − Σ_j log σ(−G(ỹ_j)); its optimum is the data distribution, log Z included;
    - ``ranking``: −log of exp G(y*) over the sum of exp G of all k + 1; needs no log Z (Ma and Collins 2018).

    The metric ``accuracy`` is the share of sequences that G classifies correctly, ``nce`` the loss per sequence.
    """

    noise: Literal["uniform", "unigram", "bigram"] = "bigram"  # q, as counted in the training targets
    samples: Count = 10  # k, noise sequences per example
    form: Literal["binary", "ranking"] = "binary"  # the loss
    log_z: float | None = 0.0  # fixed value of log Z; learned by the model, by length, if none
    smoothing: Positive = 1.0  # added to the count of each token
    backoff: PositiveFraction = 0.1  # share of unigrams in bigrams
    model: FrozenModel | None = None  # run folder of a masked model that draws the noise instead
    counts: NgramNoise | None = field(default=None, repr=False, compare=False)  # set by `fitted`

    def with_models(self, load: Callable[[str], nn.Module]) -> "NoiseContrastive":
        return replace(self, model=load(self.model)) if isinstance(self.model, str) else self

    def fitted(self, codec: Codec, examples: Sequence[Encoded] = ()) -> "NoiseContrastive":
        """Count the tokens and pairs of tokens of the training targets."""
        if self.model is not None or self.noise == "uniform":
            return self
        targets = (example.target for example in examples)
        return replace(self, counts=self._counted(targets, codec.sizes.target, codec.symbols))

    def _counted(self, targets: Any, size: int, symbols: Any) -> NgramNoise:
        return NgramNoise.of(targets, size, symbols, ORDERS[self.noise], self.smoothing, self.backoff)

    def sequence_loss(
        self, model: MaskedModel, batch: Batch, unencoded: Batch, rng: torch.Generator
    ) -> tuple[Loss, Tensor]:
        draws, gold_q = self.draw_noise(model, unencoded, random_streams.keys(batch, rng))
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
        metrics = {"nce": (total.detach().float(), sequences), "accuracy": self.classify(gold.detach(), noise.detach())}
        return Loss(total, shares.sum().float(), metrics), shares

    def draw_noise(self, model: Any, batch: Batch, keys: Tensor) -> tuple[NoiseSamples, Tensor]:
        """Return noise sequences of each example, and log q [B] of the targets."""
        found: Noise
        if self.model is not None:
            writer = loaded(self.model, "noise_contrastive")
            with evaluation_mode(writer):
                found = ModelNoise(writer)
                return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)
        counts = self.counts
        if counts is None:
            if self.noise != "uniform":
                raise InputError(
                    f"noise_contrastive is not fitted to {self.noise} counts: call unforced.fitted(objective, "
                    "codec, examples) first"
                )
            counts = self._counted((), int(allowed_ids(model, batch)[-1]) + 1, batch.symbols)
        found = counts.to(batch.gold.device)
        return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)

    def normalizer(self, model: Any, batch: Batch) -> Tensor:
        """Return log Z [B], fixed or predicted by the model."""
        if self.log_z is not None:
            return torch.full((len(batch),), self.log_z, device=batch.gold.device)
        require(model, "noise_contrastive without a fixed log_z", "log_z")
        found: Tensor = model.log_z(batch)
        return found

    def classify(self, gold: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of sequences that are classified correctly, and the number of all."""
        if self.form == "ranking":
            hits = (gold > noise.amax(dim=1)).sum()
            return hits.float(), torch.tensor(float(len(gold)), device=gold.device)
        hits = (gold > 0).sum() + (noise < 0).sum()
        return hits.float(), torch.tensor(float(gold.numel() + noise.numel()), device=gold.device)
