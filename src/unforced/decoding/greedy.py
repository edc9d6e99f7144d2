"""Greedy search: the likeliest token at every step.

The selector of one hypothesis an example is shared with sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unforced.decoding.search import (
    Constraints,
    Found,
    HardMove,
    Record,
    Selection,
    check_lengths,
    hypotheses,
    limits,
    search,
)
from unforced.models.modes import evaluation_mode
from unforced.ops.topk import top_continuations
from unforced.options import Count, Natural, Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Hypotheses, Tree


class Single(NamedTuple):
    """What a search with one hypothesis accumulates."""

    log_probs: Tensor  # [B]
    ends: Tensor  # [B] long, its last step
    own: Tree  # what the picker knows of each example


@dataclass(frozen=True)
class OneToken:
    """A selector of width one: ``pick(t, token_scores, own)`` gives each example's next token, [B,V] -> [B]."""

    constraints: Constraints
    pick: Callable[[int, Tensor, Tree], Tensor]
    own: Tree = None
    width: int = 1

    def begin(self, limits: Tensor) -> Single:
        zeros = torch.zeros(limits.shape, device=limits.device)
        return Single(zeros, torch.full_like(limits, -1), self.own)

    def select(self, t: int, scores: Tensor, memory: Single, last: Tensor | None) -> Selection:
        token_scores = self.constraints.token_scores(t, scores.squeeze(1))
        tokens = self.pick(t, token_scores, memory.own).unsqueeze(1)  # [B,1]
        log_probs = memory.log_probs + token_scores.gather(1, tokens).squeeze(1)
        memory = Single(log_probs, memory.ends + 1, memory.own)
        running = ~self.constraints.is_end(tokens).squeeze(1)
        return Selection(memory, HardMove(tokens, None, 1), Record(tokens, None), running)


def argmax(t: int, token_scores: Tensor, own: Tree) -> Tensor:
    """The best token of each row [B,V], the lower id where two tie."""
    nothing = token_scores.new_zeros(token_scores.shape[0], 1)
    return top_continuations(token_scores.unsqueeze(1), nothing, 1)[2].squeeze(1)


@dataclass(frozen=True)
class Greedy(Options):
    """Take the most probable token at each step: ŷ_t = argmax_w log p(w | ŷ_<t, x).

    ``min_length`` and ``max_length`` are those of ``unforced.decoding.search``.

    >>> from unforced.decoding.greedy import Greedy
    >>> Greedy(max_length=20)
    Greedy(min_length=0, max_length=20)
    """

    min_length: Natural = 0
    max_length: Count | None = None

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        with evaluation_mode(model):
            selector = OneToken(Constraints.of(batch, self.min_length), argmax)
            found = search(model, batch, selector, limits(batch, self.min_length, self.max_length))
            return singles(found, batch)


def singles(found: Found, batch: Batch) -> Hypotheses:
    """The outputs of searches with one hypothesis each."""
    log_probs, ends, _ = found.memory
    log_probs, ends = log_probs.unsqueeze(1), ends.unsqueeze(1)
    return hypotheses(found, batch, ends, torch.zeros_like(ends), log_probs, log_probs)
