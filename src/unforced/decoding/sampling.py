"""Ancestral sampling with temperature, top-k and nucleus.

The random number of example e, sample n and step t depends only on the seed and on (e, n, t): see
`unforced.ops.random_streams`. The samples of an example do not depend on its batch.
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
    """Draw each token from the model: ŷ_t ~ softmax(log p(· | ŷ_<t, x) / temperature).

    Samples of an example are independent and returned with the most probable first. ``log_probs`` of the result are the
    model's own, without temperature and truncation. The call needs ``rng``.
    """

    temperature: Positive = 1.0  # divides the log-probabilities
    top_k: Count | None = None  # draw among the k most probable tokens only
    nucleus: PositiveFraction | None = None  # draw among the fewest tokens with at least this probability, after top_k
    samples: Count = 1  # number of outputs per example
    min_length: Natural = 0  # smallest number of tokens before the end symbol
    # largest number of tokens, end symbol included; by default it depends on the source
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
        """Return the keys of the random streams: [B·samples] int64."""
        numbers = torch.arange(self.samples, device=batch.gold.device)
        return random_streams.branch(random_streams.keys(batch, rng).unsqueeze(1), numbers).flatten()

    def pick(self, t: int, token_scores: Tensor, keys: Tensor) -> Tensor:
        """Draw tokens [B] from log-probabilities [B,V] with random keys [B]."""
        scores, order = token_scores, None
        if self.top_k is not None and self.top_k < scores.shape[1]:
            scores, order = top(scores, self.top_k)
        elif self.nucleus is not None:
            scores, order = scores.sort(dim=1, descending=True, stable=True)
        weights = torch.softmax(scores / self.temperature, dim=1)
        if self.nucleus is not None:
            before = weights.cumsum(dim=1) - weights  # mass of the more probable tokens
            weights = weights.masked_fill(before >= self.nucleus, 0)
        drawn = random_streams.draw(weights, random_streams.uniform(keys, t))
        return drawn if order is None else order.gather(1, drawn.unsqueeze(1)).squeeze(1)


def best_first(drawn: Hypotheses) -> Hypotheses:
    """Sort the outputs of each example by their scores."""
    order = drawn.scores.argsort(dim=1, descending=True, stable=True)
    tokens = drawn.tokens.gather(1, order.unsqueeze(2).expand_as(drawn.tokens))
    return Hypotheses(tokens, *(leaf.gather(1, order) for leaf in drawn[1:]))
