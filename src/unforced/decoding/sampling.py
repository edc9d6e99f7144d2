"""Ancestral sampling, with temperature, top-k and nucleus, from random numbers that belong to the examples.

**Random numbers.** A call draws one seed from its generator. The uniform number of example e, sample n, step t is then
a function of (seed, e, n, t) alone, where e is ``batch.ids`` (the row's number in the batch if there are none): the
splitmix64 generator of Steele, Lea and Flood (2014), started at a hash of (seed, e, n). So with a generator in the same
state an example's samples are the same in any batch, at any place in it and on any device, and no generator has to be
made for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unforced.decoding.constraints import Constraints, check_lengths, limits
from unforced.decoding.greedy import OneToken, singles
from unforced.decoding.search import evaluating, search
from unforced.decoding.top import top
from unforced.errors import InputError
from unforced.models.protocol import StepDecoder
from unforced.types import Batch, Hypotheses


def _signed(number: int) -> int:
    """The int64 with the same last 64 bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


GAMMA = 0x9E3779B97F4A7C15
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def mix64(x: Tensor) -> Tensor:
    """The output function of splitmix64, on int64 tensors (products wrap around)."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros: ``>>`` alone would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(keys: Tensor, t: int) -> Tensor:
    """Number t of the streams that start at ``keys`` (int64): float64 in [0, 1), of the same shape.

    >>> uniform(torch.tensor([1, 2]), 0)
    tensor([0.5666, 0.5912], dtype=torch.float64)
    """
    return _shift(mix64(keys + _signed((t + 1) * GAMMA)), 11).double() * 2.0**-53


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The index that each uniform number [R] falls on in weights [R,N] that need not sum to one: inverse CDF.

    It is the first index whose cumulated weight exceeds u · total, so an index of weight zero is never drawn,
    whatever the rounding.

    >>> draw(torch.tensor([[0.0, 2.0, 0.0, 2.0]]).expand(4, 4), torch.tensor([0.0, 0.49, 0.51, 1.0]))
    tensor([1, 1, 3, 3])
    """
    cumulated = weights.cumsum(dim=1)
    total = cumulated[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms.unsqueeze(1).to(total.dtype) * total, below)
    drawn = torch.searchsorted(cumulated, target, right=True).clamp_(max=weights.shape[1] - 1)
    wrong = weights.gather(1, drawn) <= 0  # a parallel cumulative sum need not be monotone in its last bits
    if wrong.any():
        drawn = torch.where(wrong, weights.argmax(dim=1, keepdim=True), drawn)
    return drawn.squeeze(1)


@dataclass(frozen=True)
class Sample:
    """Draw each token from the model: ŷ_t ~ softmax(log p(· | ŷ_<t, x) / temperature), over the tokens allowed.

    ``top_k`` draws among the k most probable tokens only, ``nucleus`` among the fewest most probable tokens that
    together have at least that probability (of what top_k left, after the temperature). ``samples`` outputs are
    drawn for each example, independently, and returned with the most probable first; ``log_probs`` is what the model
    says of them, with no temperature and nothing cut. ``min_length`` and ``max_length`` are those of
    ``unforced.decoding.constraints``. The call needs ``rng``; this module's head says how it is used.

    >>> from unforced.decoding.sampling import Sample
    >>> Sample(temperature=0.7, nucleus=0.9).samples
    1
    """

    temperature: float = 1.0
    top_k: int | None = None
    nucleus: float | None = None
    samples: int = 1
    min_length: int = 0
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_lengths(self.min_length, self.max_length)
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be positive, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k must be at least 1, not {self.top_k}")
        if self.nucleus is not None and not 0 < self.nucleus <= 1:
            raise InputError(f"nucleus must lie in (0, 1], not {self.nucleus}")
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, not {self.samples}")

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        if rng is None:
            raise InputError("sampling needs a random generator: pass rng=torch.Generator().manual_seed(…)")
        with evaluating(model):
            selector = OneToken(Constraints.of(batch, self.min_length), self.pick, self.keys(batch, rng))
            steps = limits(batch, self.min_length, self.max_length)
            return best_first(singles(search(model, batch, selector, steps, copies=self.samples), batch))

    def keys(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Where the random streams start: [B·samples] int64, a hash of the call's seed, the example and the sample."""
        seed = torch.randint(2**62, (1,), generator=rng, device=rng.device).to(batch.gold.device)
        ids = torch.arange(len(batch), device=seed.device) if batch.ids is None else batch.ids
        numbers = torch.arange(self.samples, device=seed.device)
        return mix64(mix64(mix64(seed) + ids).unsqueeze(1) + numbers).flatten()

    def pick(self, t: int, token_scores: Tensor, keys: Tensor) -> Tensor:
        """[B,V] log-probabilities, [B] keys -> [B] tokens."""
        scores, order = token_scores, None
        if self.top_k is not None and self.top_k < scores.shape[1]:
            scores, order = top(scores, self.top_k)
        elif self.nucleus is not None:
            scores, order = scores.sort(dim=1, descending=True, stable=True)
        weights = torch.softmax(scores / self.temperature, dim=1)
        if self.nucleus is not None:
            before = weights.cumsum(dim=1) - weights  # what the more probable tokens have together
            weights = weights.masked_fill(before >= self.nucleus, 0)
        drawn = draw(weights, uniform(keys, t))
        return drawn if order is None else order.gather(1, drawn.unsqueeze(1)).squeeze(1)


def best_first(drawn: Hypotheses) -> Hypotheses:
    """The same outputs in order of their scores."""
    order = drawn.scores.argsort(dim=1, descending=True, stable=True)
    tokens = drawn.tokens.gather(1, order.unsqueeze(2).expand_as(drawn.tokens))
    return Hypotheses(tokens, *(leaf.gather(1, order) for leaf in drawn[1:]))
