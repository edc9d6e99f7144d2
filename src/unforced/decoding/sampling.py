"""Ancestral sampling, with temperature, top-k and nucleus, from random numbers that belong to the examples.

The uniform number of example e, sample n, step t is a function of the call's seed and of (e, n, t) alone
(``unforced.ops.random_streams``): with a generator in the same state an example's samples are the same in any batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from unforced.decoding.greedy import OneToken, singles
from unforced.decoding.search import Constraints, check_lengths, limits, search
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import random_streams
from unforced.ops.topk import top
from unforced.options import Count, Natural, Options, Positive, PositiveFraction
from unforced.protocols import StepDecoder
from unforced.types import Batch, Hypotheses


@dataclass(frozen=True)
class Sample(Options):
    """Draw each token from the model: ŷ_t ~ softmax(log p(· | ŷ_<t, x) / temperature), over the tokens allowed.

    ``top_k`` draws among the k most probable tokens only, ``nucleus`` among the fewest most probable tokens that
    together have at least that probability (of what top_k left, after the temperature). ``samples`` outputs are
    drawn for each example, independently, and returned with the most probable first; ``log_probs`` is what the model
    says of them, with no temperature and nothing cut. ``min_length`` and ``max_length`` are those of
    ``unforced.decoding.search``. The call needs ``rng``.

    >>> from unforced.decoding.sampling import Sample
    >>> Sample(temperature=0.7, nucleus=0.9).samples
    1
    """

    temperature: Positive = 1.0
    top_k: Count | None = None
    nucleus: PositiveFraction | None = None
    samples: Count = 1
    min_length: Natural = 0
    max_length: Count | None = None

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        if rng is None:
            raise InputError("sampling needs a random generator: pass rng=torch.Generator().manual_seed(…)")
        with evaluation_mode(model):
            selector = OneToken(Constraints.of(batch, self.min_length), self.pick, self.keys(batch, rng))
            steps = limits(batch, self.min_length, self.max_length)
            return best_first(singles(search(model, batch, selector, steps, copies=self.samples), batch))

    def keys(self, batch: Batch, rng: torch.Generator) -> Tensor:
        """Where the random streams start: [B·samples] int64."""
        numbers = torch.arange(self.samples, device=batch.gold.device)
        return random_streams.branch(random_streams.keys(batch, rng).unsqueeze(1), numbers).flatten()

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
        drawn = random_streams.draw(weights, random_streams.uniform(keys, t))
        return drawn if order is None else order.gather(1, drawn.unsqueeze(1)).squeeze(1)


def best_first(drawn: Hypotheses) -> Hypotheses:
    """The same outputs in order of their scores."""
    order = drawn.scores.argsort(dim=1, descending=True, stable=True)
    tokens = drawn.tokens.gather(1, order.unsqueeze(2).expand_as(drawn.tokens))
    return Hypotheses(tokens, *(leaf.gather(1, order) for leaf in drawn[1:]))
