"""Greedy search: the most probable token at every step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unforced.decoding.search import (
    Constraints,
    HardMove,
    Nodes,
    SearchResult,
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
    """The memory of a search with one hypothesis per example."""

    log_probs: Tensor  # [B]
    ends: Tensor  # [B] long, the last step
    context: Tree  # constant data for `OneToken.pick`


@dataclass(frozen=True)
class OneToken:
    """A selector of width one: ``pick(t, token_scores, context)`` chooses each example's next token, [B,V] -> [B]."""

    constraints: Constraints
    pick: Callable[[int, Tensor, Tree], Tensor]
    context: Tree = None
    width: int = 1

    def begin(self, limits: Tensor) -> Single:
        zeros = torch.zeros(limits.shape, device=limits.device)
        return Single(zeros, torch.full_like(limits, -1), self.context)

    def select(self, t: int, scores: Tensor, memory: Single, last: Tensor | None) -> Selection:
        token_scores = self.constraints.token_scores(t, scores.squeeze(1))
        tokens = self.pick(t, token_scores, memory.context).unsqueeze(1)  # [B,1]
        log_probs = memory.log_probs + token_scores.gather(1, tokens).squeeze(1)
        memory = Single(log_probs, memory.ends + 1, memory.context)
        running = ~self.constraints.is_end(tokens).squeeze(1)
        return Selection(memory, HardMove(tokens, None, 1), Nodes(tokens, None), running)


def argmax(t: int, token_scores: Tensor, context: Tree) -> Tensor:
    """Return the best token of each row [B,V]; ties go to the lower id."""
    nothing = token_scores.new_zeros(token_scores.shape[0], 1)
    return top_continuations(token_scores.unsqueeze(1), nothing, 1)[2].squeeze(1)


@dataclass(frozen=True)
class Greedy(Options):
    """Take the most probable token at each step: ŷ_t = argmax_w log p(w | ŷ_<t, x)."""

    min_length: Natural = 0  # smallest number of tokens before the end symbol
    # largest number of tokens, end symbol included; by default it depends on the source
    max_length: Count | None = None

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        with evaluation_mode(model):
            selector = OneToken(Constraints.of(batch, self.min_length), argmax)
            found = search(model, batch, selector, limits(batch, self.min_length, self.max_length))
            return singles(found, batch)


def singles(found: SearchResult, batch: Batch) -> Hypotheses:
    """Return the outputs of a search with one hypothesis per example."""
    log_probs, ends, _ = found.memory
    log_probs, ends = log_probs.unsqueeze(1), ends.unsqueeze(1)
    return hypotheses(found, batch, ends, torch.zeros_like(ends), log_probs, log_probs)
