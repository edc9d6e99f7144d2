"""Markov chains over sequences: the state of chains, one step, one sweep, and what all samplers share.

    kernel = MetropolisHastings(energy="local").kernel(model, batch)
    state = kernel.init(tokens)                        # [R,T], R = B·K: K chains of each example
    state, info = kernel.step(rng, state)              # one block of each chain
    state, report = sweep(kernel, rng, state)          # steps until each chain has visited all its positions

A state has tensors only. A state and the generator's state continue a chain bit by bit. Chains of different lengths
share a sweep: a chain that has finished its sweep waits, at no cost. The random numbers of a chain depend on the seed
of the sweep, the example and the number of the chain, not on other chains.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.energy import energies, masked_copies
from unforced.energy.energies import Terms
from unforced.energy.masked_copies import COPIES
from unforced.errors import InputError
from unforced.models.masked import rows_per_example
from unforced.models.modes import evaluation_mode
from unforced.ops import random_streams
from unforced.ops.masks import widened
from unforced.options import Count, Options, Positive, PositiveFraction
from unforced.protocols import require
from unforced.types import Batch, ChainInfo, ChainState, Kernel

# ---- sweeps ----


class SweepInfo(NamedTuple):
    """Counts of proposals of R chains in one sweep: [R] each."""

    proposed: Tensor  # long, proposals
    accepted: Tensor  # long, accepted proposals
    novel: Tensor  # long, accepted proposals of a different sequence
    energy: Tensor  # float64, after the sweep


def sweep(kernel: Kernel, rng: torch.Generator, state: ChainState) -> tuple[ChainState, SweepInfo]:
    """Step until every chain has visited each of its variables once."""
    counts = torch.zeros(3, len(state.tokens), dtype=torch.long, device=state.tokens.device)
    end = int(state.sweep) + 1
    while int(state.sweep) < end:
        state, info = kernel.step(rng, state)
        counts = counts + torch.stack([info.active, info.accepted, info.novel]).long()
    proposed, accepted, novel = counts
    return state, SweepInfo(proposed, accepted, novel, state.energy)


# ---- proposals: which positions, in which order, and which tokens (Goyal 2021, section 6.4.1) ----

Order = Literal["random", "left_to_right"]


@dataclass(frozen=True, kw_only=True)
class Proposals(Options):
    """Mask a block of positions I and draw new tokens from q(y'; y) = Π_{i∈I} p(y'_i | y\\I), block after block.

    p is the model's softmax over the allowed tokens. A sweep visits every variable once. Its last block takes the rest.

    >>> proposals = Proposals(block=5, shrink=4)
    >>> [proposals.block_size(sweep) for sweep in range(6)]
    [5, 4, 3, 2, 1, 1]
    """

    block: Count = 1  # positions that are masked together
    shrink: Count | None = None  # sweeps in which the block shrinks linearly to one position; none: it does not shrink
    temperature: Positive = 1.0  # of the proposals
    nucleus: PositiveFraction | None = None  # draw from the most probable tokens with this total probability; none: all
    order: Order = "random"  # in which a sweep visits positions
    rows: Count = COPIES  # masked copies in a micro-batch

    def block_size(self, sweep: int) -> int:
        """Return the number of positions that are masked together in sweep 0, 1, …"""
        if self.shrink is None:
            return self.block
        passed = min(sweep, self.shrink)
        return self.block - ((self.block - 1) * passed + self.shrink // 2) // self.shrink

    def visits(self, free: Tensor, keys: Tensor) -> Tensor:
        """Return positions [R,T] in the order of visits, those of the variables ``free`` [R,T] first; keys are [R]."""
        if self.order == "left_to_right":
            rank = torch.arange(free.shape[1], device=free.device).double().expand(free.shape)
        else:
            columns = torch.arange(free.shape[1], device=free.device)
            rank = random_streams.uniform(keys.unsqueeze(1), columns)
        return rank.masked_fill(~free, torch.inf).argsort(dim=1, stable=True)

    def log_probs(self, scores: Tensor, allowed: Tensor) -> Tensor:
        """Return the log-probabilities [...,V] of proposals, −inf for excluded tokens; ``allowed`` is a mask [V]."""
        scores = widened(scores).masked_fill(~allowed, -torch.inf)
        temperature = max(self.temperature, torch.finfo(scores.dtype).tiny)
        scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature  # at most 0: no overflow
        log_probs = scaled.log_softmax(dim=-1)
        if self.nucleus is None or self.nucleus == 1:
            return log_probs
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        weights = ordered.exp()
        outside = weights.cumsum(dim=-1) - weights >= self.nucleus  # the more probable tokens suffice
        outside = torch.zeros_like(outside).scatter(-1, order, outside)
        return log_probs.masked_fill(outside, -torch.inf).log_softmax(dim=-1)


# ---- walks: the turns of a sweep are taken here, a sampler decides on each proposal ----


class Turn(NamedTuple):
    """The next block of A chains with at most P positions, and the random numbers for it."""

    rows: Tensor  # [A] long
    positions: Tensor  # [A,P] long; repeats the first position where the block has fewer
    valid: Tensor  # [A,P] bool
    choices: Tensor  # [A,P] float64 in [0,1), to draw tokens
    chances: Tensor  # [A] float64 in [0,1), to accept


class Proposed(NamedTuple):
    """New sequences for the chains of a turn."""

    tokens: Tensor  # [A,T]
    drawn: Tensor  # [A,P], the new tokens of the block
    drawn_terms: Tensor  # [A,P], the terms of the new tokens, valid for blocks of one position
    back: Tensor  # [A] float64, log q(y; y') − log q(y'; y)
    changed: Tensor  # [A] bool


class Walk(ABC):
    """Chains of one model and one batch."""

    def __init__(self, options: Proposals, model: Any, batch: Batch) -> None:
        require(model, type(options).__name__, "scores")
        self.options, self.model = options, model
        with evaluation_mode(model):
            self.batch = masked_copies.encode_sources(model, batch)
        self.free = energies.variables(batch)  # [B,T]

    @abstractmethod
    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Propose and decide: return the state with new tokens and unchanged counters."""

    @abstractmethod
    def measure(self, tokens: Tensor) -> Terms:
        """Return the terms [R,T] and features of sequences."""

    def kernel(self) -> Kernel:
        return Kernel(self.init, self.step)

    def init(self, tokens: Tensor) -> ChainState:
        """Start chains from tokens [R,T]; positions that are no variables are those of the batch."""
        k = rows_per_example(self.batch, tokens)
        free, gold = (leaf.repeat_interleave(k, dim=0) for leaf in (self.free, self.batch.gold))
        tokens = torch.where(free, tokens, gold)
        special = torch.tensor(energies.special_ids(self.batch.symbols), dtype=torch.long, device=tokens.device)
        if bool((torch.isin(tokens, special) & free).any()):
            raise InputError("chains cannot start from special tokens: pass an allowed token for every variable")
        with evaluation_mode(self.model):
            terms, features = self.measure(tokens)
        rows = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        order = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        return ChainState(tokens, terms, features, energy_of(terms), rows.new_zeros(()), rows, order, rows)

    def step(self, rng: torch.Generator, state: ChainState) -> tuple[ChainState, ChainInfo]:
        """Update one block of every chain that has not finished its sweep."""
        if not bool(state.place.any()):
            state = self.start_sweep(rng, state)
        return self.take(state, self.turn(state))

    def start_sweep(self, rng: torch.Generator, state: ChainState) -> ChainState:
        """Draw a seed from the generator, and from it the order of visits."""
        k = rows_per_example(self.batch, state.tokens)
        chain = torch.arange(k, device=state.tokens.device)
        keys = random_streams.branch(random_streams.keys(self.batch, rng).unsqueeze(1), chain).flatten()
        order = self.options.visits(self.free_of(state), random_streams.branch(keys, 0))
        return state._replace(keys=keys, order=order)

    def turn(self, state: ChainState) -> Turn:
        """Return the next block of each chain that has positions left."""
        counts = self.free_of(state).sum(dim=1)
        rows = (state.place < counts).nonzero().squeeze(1)
        place, keys = state.place[rows], state.keys[rows]
        size = min(self.options.block_size(int(state.sweep)), state.order.shape[1])
        slots = place.unsqueeze(1) + torch.arange(size, device=rows.device)
        valid = slots < counts[rows].unsqueeze(1)
        positions = state.order[rows].gather(1, slots.clamp(max=state.order.shape[1] - 1))
        positions = torch.where(valid, positions, positions[:, :1])
        choices = random_streams.uniform(random_streams.branch(keys, 1).unsqueeze(1), positions)
        return Turn(rows, positions, valid, choices, random_streams.uniform(random_streams.branch(keys, 2), place))

    def take(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Take a turn; the result depends on the state and on the random numbers of the turn only."""
        with evaluation_mode(self.model):
            if len(turn.rows):
                state, info = self.move(state, turn)
            else:
                info = self.info(state, turn, turn.rows > 0, turn.rows > 0, turn.chances)
            place = state.place.index_add(0, turn.rows, turn.valid.sum(dim=1))
            if bool((place < self.free_of(state).sum(dim=1)).any()):
                return state._replace(place=place), info
            state = self.finish_sweep(state._replace(place=torch.zeros_like(place), sweep=state.sweep + 1))
        return state, info._replace(energy=state.energy)

    def finish_sweep(self, state: ChainState) -> ChainState:
        """Update the state at the end of a sweep."""
        return state

    def accept_all(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Accept every proposal without computing energies; terms are NaN until `with_terms`."""
        proposed = self.propose(state, turn)
        unknown = torch.full_like(state.terms, torch.nan)
        state = state._replace(
            tokens=state.tokens.index_copy(0, turn.rows, proposed.tokens),
            terms=unknown,
            features=masked_copies.no_features(state.tokens),
            energy=energy_of(unknown),
        )
        accepted = torch.ones_like(proposed.changed)
        return state, self.info(state, turn, accepted, proposed.changed, torch.zeros_like(turn.chances))

    def with_terms(self, state: ChainState) -> ChainState:
        """Compute the terms of the state's tokens."""
        terms, features = self.measure(state.tokens)
        return state._replace(terms=terms, features=features, energy=energy_of(terms))

    def propose(self, state: ChainState, turn: Turn) -> Proposed:
        """Mask the block and draw each of its tokens from the model's conditional."""
        old, parts = state.tokens[turn.rows], []
        for numbers, scores in self.conditionals(state, turn):
            if not bool((scores < torch.inf).all()):
                raise InputError("the model returned NaN or infinite scores")
            _, positions, valid, choices, _ = (leaf[numbers] for leaf in turn)
            log_q = self.log_q(scores)  # [n,P,V]
            drawn = random_streams.draw(log_q.exp().flatten(0, 1), choices.flatten()).view_as(positions)
            drawn = torch.where(valid, drawn, drawn[:, :1])
            back = self.back(log_q, old[numbers].gather(1, positions), drawn, valid)
            parts.append((numbers, drawn, self.drawn_terms(scores, drawn), back))
        numbers, drawn, drawn_terms, back = (torch.cat(leaves) for leaves in zip(*parts))
        drawn, drawn_terms, back = (leaf[numbers.argsort()] for leaf in (drawn, drawn_terms, back))
        new = old.scatter(1, turn.positions, drawn)
        return Proposed(new, drawn, drawn_terms, back, (new != old).any(dim=1))

    def conditionals(self, state: ChainState, turn: Turn) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the scores at the masked blocks in micro-batches: numbers [n] of chains of the turn, and [n,P,V].

        A single position needs no pass if the state has features: they were computed with that position masked.
        """
        rows, size = self.options.rows, turn.positions.shape[1]
        if size == 1 and state.features.shape[2]:
            for numbers in torch.arange(len(turn.rows), device=turn.rows.device).split(rows):
                where = turn.rows[numbers].unsqueeze(1), turn.positions[numbers]
                yield numbers, self.model.score(state.features[where])
            return
        example = masked_copies.example_of_row(self.batch, state.tokens)
        batching = partial(masked_copies.even_batches, rows=rows)
        for numbers, scores, _ in masked_copies.score_copies(
            self.model, self.batch, example, state.tokens, turn.rows, turn.positions, batching
        ):
            yield numbers, scores

    def drawn_terms(self, scores: Tensor, drawn: Tensor) -> Tensor:
        """Return the terms of drawn tokens [n,P] from scores [n,P,V], or zeros if the sampler does not use them."""
        return torch.zeros(drawn.shape, dtype=widened(scores).dtype, device=scores.device)

    def log_q(self, scores: Tensor) -> Tensor:
        """Return the log-probabilities with which tokens are drawn: [...,V]."""
        return self.options.log_probs(scores, energies.allowed(self.batch.symbols, scores.shape[-1], scores.device))

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        """Return log q(y; y') − log q(y'; y) for blocks that change from ``old`` to ``drawn`` [A,P]: [A].

        Both directions mask the same block, so the conditionals are the same. The result is −inf if an old token lies
        outside the nucleus: the move cannot be undone.
        """
        difference = log_q.gather(2, old.unsqueeze(2)) - log_q.gather(2, drawn.unsqueeze(2))
        return difference.squeeze(2).double().masked_fill(~valid, 0.0).sum(dim=1)

    def info(self, state: ChainState, turn: Turn, accepted: Tensor, novel: Tensor, log_ratio: Tensor) -> ChainInfo:
        """Expand results for the chains of a turn, [A] each, to all chains."""
        none = torch.zeros(len(state.tokens), dtype=torch.bool, device=turn.rows.device)
        positions = torch.zeros_like(state.tokens, dtype=torch.bool)
        positions[turn.rows] = positions[turn.rows].scatter(1, turn.positions, True)
        return ChainInfo(
            active=none.index_fill(0, turn.rows, True),
            accepted=none.index_copy(0, turn.rows, accepted),
            novel=none.index_copy(0, turn.rows, novel),
            energy=state.energy,
            log_ratio=state.energy.new_zeros(len(none)).index_copy(0, turn.rows, log_ratio),
            positions=positions,
        )

    def free_of(self, state: ChainState) -> Tensor:
        """Return the variables of each chain: [R,T] bool."""
        return self.free.repeat_interleave(rows_per_example(self.batch, state.tokens), dim=0)


def energy_of(terms: Tensor) -> Tensor:
    """Return E = −Σ_t terms in double precision: [R,T] -> [R]."""
    return -terms.double().sum(dim=1)
