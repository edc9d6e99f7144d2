"""Beam search: finished hypotheses leave the beam for a pool, or stay in it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unforced.decoding.search import (
    Constraints,
    HardMove,
    Nodes,
    ScoreType,
    Selection,
    check_lengths,
    hypotheses,
    limits,
    search,
)
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.topk import top, top_continuations
from unforced.options import Count, Natural, Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Hypotheses

EarlyStopping = Literal["heuristic", "full", "never"]


class PoolMemory(NamedTuple):
    """The beam and the pool of each example, K places each, −inf if empty; all [B,K] except ``limits``."""

    log_probs: Tensor  # of the running hypotheses, best first
    nodes: Tensor  # their nodes in the record of the last step
    pool_scores: Tensor  # of finished hypotheses, best first
    pool_log_probs: Tensor
    pool_ends: Tensor  # their last step
    pool_nodes: Tensor  # their node in the record of that step
    limits: Tensor  # [B]


@dataclass(frozen=True)
class Pool:
    """Finished hypotheses leave the beam: the beam search of Hugging Face's ``generate``.

    Of the best 2K continuations, those that end (by EOS or at the last step) enter the pool if they are among the
    best K, with the score log p / length^λ. The best K that do not end continue.
    """

    constraints: Constraints
    width: int
    length_penalty: float
    early_stopping: EarlyStopping

    def begin(self, limits: Tensor) -> PoolMemory:
        log_probs = _first_alone(limits, self.width)
        none = torch.full_like(log_probs, -torch.inf)
        pool = torch.where(limits.unsqueeze(1) == 0, log_probs, none)  # no steps: the empty output
        nodes = torch.zeros_like(log_probs, dtype=torch.long)
        return PoolMemory(log_probs, nodes, pool, pool, nodes - 1, nodes, limits)

    def select(self, t: int, scores: Tensor, memory: PoolMemory, last: Tensor | None) -> Selection:
        k, fixed = self.width, self.constraints.eos is None
        token_scores = self.constraints.token_scores(t, scores)
        so_far = memory.log_probs[:, : scores.shape[1]]
        values, parents, tokens = top_continuations(token_scores, so_far, k if fixed else 2 * k)
        record = Nodes(tokens, memory.nodes.gather(1, parents))
        ended = self.constraints.is_end(tokens)
        if last is not None:
            ended = ended | last.unsqueeze(1)
        if ended.any():
            memory = self.add_to_pool(t, values[:, :k].masked_fill(~ended[:, :k], -torch.inf), memory)
            nodes = ended.byte().argsort(dim=1, stable=True)[:, :k]  # the best K that continue
            log_probs = values.gather(1, nodes).masked_fill(ended.gather(1, nodes), -torch.inf)
            tokens, parents = tokens.gather(1, nodes), parents.gather(1, nodes)
        else:
            nodes = torch.arange(k, device=values.device).expand(len(values), k)
            log_probs, tokens, parents = values[:, :k], tokens[:, :k], parents[:, :k]
        memory = memory._replace(log_probs=log_probs, nodes=nodes)
        move = HardMove(tokens, parents, scores.shape[1])
        return Selection(memory, move, record, self.can_improve(t + 1, memory))

    def add_to_pool(self, t: int, log_probs: Tensor, memory: PoolMemory) -> PoolMemory:
        """Keep the best K of the pool and this step's first K nodes; ``log_probs`` [B,K] is −inf for those that
        continue.
        """
        scores = torch.cat([memory.pool_scores, log_probs / (t + 1) ** self.length_penalty], dim=1)
        scores, kept = top(scores, self.width)
        nodes = torch.arange(self.width, device=kept.device).expand_as(kept)
        ends = torch.full_like(nodes, t)
        return memory._replace(
            pool_scores=scores,
            pool_log_probs=torch.cat([memory.pool_log_probs, log_probs], dim=1).gather(1, kept),
            pool_ends=torch.cat([memory.pool_ends, ends], dim=1).gather(1, kept),
            pool_nodes=torch.cat([memory.pool_nodes, nodes], dim=1).gather(1, kept),
        )

    def can_improve(self, length: int, memory: PoolMemory) -> Tensor:
        """Return [B] whether a running hypothesis of ``length`` tokens may still enter the pool."""
        best, worst = memory.log_probs[:, 0], memory.pool_scores[:, -1]
        if self.early_stopping == "full":
            return (worst == -torch.inf) & (best > -torch.inf)
        if self.early_stopping == "never":
            if self.constraints.kind == "global":
                return best > -torch.inf
            if self.length_penalty > 0:
                return best / memory.limits**self.length_penalty > worst
        scale: float = length**self.length_penalty
        return best / scale > worst


class StayMemory(NamedTuple):
    """The beam of each example, −inf where a place is empty; all [B,K]."""

    log_probs: Tensor
    finished: Tensor  # bool
    ends: Tensor  # the last step before padding
    nodes: Tensor  # the node in the record of that step


@dataclass(frozen=True)
class Stay:
    """Finished hypotheses stay in the beam, extended by padding at score 0: the hard limit of the relaxed beam search.

    The beam is ranked by log p. An example ends when its whole beam has finished.
    """

    constraints: Constraints
    width: int

    def begin(self, limits: Tensor) -> StayMemory:
        log_probs = _first_alone(limits, self.width)
        nodes = torch.zeros_like(log_probs, dtype=torch.long)
        return StayMemory(log_probs, nodes > 0, nodes - 1, nodes)

    def select(self, t: int, scores: Tensor, memory: StayMemory, last: Tensor | None) -> Selection:
        k, before = self.width, scores.shape[1]
        so_far, finished, ends, nodes = (leaf[:, :before] for leaf in memory)
        token_scores = self.constraints.token_scores(t, scores)
        longer = top_continuations(token_scores, so_far.masked_fill(finished, -torch.inf), k)
        slots = torch.arange(k, device=ends.device).expand(ends.shape[0], k)
        pad = torch.full_like(ends, self.constraints.pad)
        staying = (so_far.masked_fill(~finished, -torch.inf), slots[:, :before], pad)
        log_probs, chosen = top(torch.cat([longer[0], staying[0]], dim=1), k)
        parents, tokens = (torch.cat(pair, dim=1).gather(1, chosen) for pair in zip(longer[1:], staying[1:]))

        stayed = finished.gather(1, parents)
        ends = ends.gather(1, parents) + ~stayed
        nodes = torch.where(stayed, nodes.gather(1, parents), slots)
        finished = stayed | self.constraints.is_end(tokens) | (log_probs == -torch.inf)
        return Selection(
            StayMemory(log_probs, finished, ends, nodes),
            HardMove(tokens, parents, before),
            Nodes(tokens, parents),
            ~finished.all(dim=1),
        )


def _first_alone(limits: Tensor, width: int) -> Tensor:
    """Return [B,K] with 0 for the first hypothesis and −inf for the others, which do not exist yet."""
    log_probs = torch.full((limits.shape[0], width), -torch.inf, device=limits.device)
    log_probs[:, 0] = 0
    return log_probs


@dataclass(frozen=True)
class Beam(Options):
    """Beam search for argmax_y log p(y | x) / |y|^λ, where |y| is the number of tokens, end symbol included.

    Finished hypotheses leave the beam for a pool of K (``finished="pool"``), as in Hugging Face's ``generate``.
    ``early_stopping`` decides when the search ends once the pool is full, with the same results as there:

    - "heuristic" (False in ``generate``): when the best running hypothesis would not enter the pool if it ended now;
    - "full" (True): at once;
    - "never": when no running hypothesis can enter the pool any more. Global scores have no bound, so the search then
      runs to the limit.

    With ``finished="stay"`` they keep their place in the beam until better hypotheses replace them, and λ matters only
    in the final ranking. Ties go to the better parent, then to the lower token id. If fewer than ``nbest`` outputs
    exist, the rest are empty with score −inf.
    """

    beam: Count = 5  # K
    length_penalty: float = 1.0  # λ
    nbest: Count = 1  # number of outputs per example, at most K
    min_length: Natural = 0  # smallest number of tokens before the end symbol
    # largest number of tokens, end symbol included; by default it depends on the source
    max_length: Count | None = None
    finished: Literal["pool", "stay"] = "pool"  # whether finished hypotheses leave the beam for a pool, or stay in it
    early_stopping: EarlyStopping = "heuristic"  # with finished = "pool"
    scores: ScoreType = "local"  # sum log-probabilities ("local") or the model's unnormalised scores ("global")

    def check(self) -> None:
        check_lengths(self.min_length, self.max_length)
        if self.nbest > self.beam:
            raise InputError(f"nbest must be at most beam, {self.beam}, got {self.nbest}")

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        constraints = Constraints.of(batch, self.min_length, self.scores)
        steps = limits(batch, self.min_length, self.max_length)
        with evaluation_mode(model):
            if self.finished == "pool":
                pool = Pool(constraints, self.beam, self.length_penalty, self.early_stopping)
                found = search(model, batch, pool, steps)
                scores, log_probs, ends, nodes = found.memory[2:6]
            else:
                found = search(model, batch, Stay(constraints, self.beam), steps)
                log_probs, _, ends, nodes = found.memory
                scores = log_probs / (ends + 1).clamp(min=1) ** self.length_penalty
                order = scores.argsort(dim=1, descending=True, stable=True)
                scores, log_probs, ends, nodes = (x.gather(1, order) for x in (scores, log_probs, ends, nodes))
            best = (leaf[:, : self.nbest] for leaf in (ends, nodes, log_probs, scores))
            return hypotheses(found, batch, *best)
