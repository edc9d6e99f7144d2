"""Samplers as pairs of functions: ``init`` makes a state of tokens, ``step`` a new state of a state.

    kernel = MetropolisHastings(energy="local").kernel(model, batch)
    state = kernel.init(tokens)                        # [R,T], R = B·K: K chains of each example
    state, info = kernel.step(rng, state)              # one block of each chain
    state, report = sweep(kernel, rng, state)          # steps until every chain has visited each of its positions

A state is tensors only; with the generator's state it is all that a chain needs to go on, bit by bit. Chains of sequences of
different lengths go through a sweep together: one that is through waits, at no cost, until all are. The random numbers of a
chain are functions of one seed for each sweep, of its example and of its number, so they don't hang on other chains.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.energies import ROWS, Found
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import random_streams
from unforced.ops.masks import widened
from unforced.options import Count, Options, Positive, PositiveFraction
from unforced.protocols import require
from unforced.types import Batch, ChainInfo, ChainState, Kernel


class SweepInfo(NamedTuple):
    """What a sweep did, chain by chain: [R] each."""

    proposed: Tensor  # long, proposals made
    accepted: Tensor  # long, of which accepted
    novel: Tensor  # long, of which to another sequence
    energy: Tensor  # float64, afterwards


def sweep(kernel: Kernel, rng: torch.Generator, state: ChainState) -> tuple[ChainState, SweepInfo]:
    """Go on until the sweep is done: every chain visits each of its positions once."""
    counts = torch.zeros(3, len(state.tokens), dtype=torch.long, device=state.tokens.device)
    end = int(state.sweep) + 1
    while int(state.sweep) < end:
        state, info = kernel.step(rng, state)
        counts = counts + torch.stack([info.active, info.accepted, info.novel]).long()
    proposed, accepted, novel = counts
    return state, SweepInfo(proposed, accepted, novel, state.energy)


class Turn(NamedTuple):
    """Whose turn it is, at which positions, and the random numbers for it; A chains and P positions at most."""

    rows: Tensor  # [A] long
    positions: Tensor  # [A,P] long; the first one again where the block has fewer
    valid: Tensor  # [A,P] bool
    choices: Tensor  # [A,P] float64 in [0,1): which token
    chances: Tensor  # [A] float64 in [0,1): whether to accept


class Proposed(NamedTuple):
    """New sequences for the chains of a turn."""

    tokens: Tensor  # [A,T]
    drawn: Tensor  # [A,P] the new tokens of the block
    own: Tensor  # [A,P] what these add to −E by the scores that they are drawn from, which are right for a block of one
    back: Tensor  # [A] float64, log q(y; y') − log q(y'; y)
    changed: Tensor  # [A] bool


class Walk(ABC):
    """Chains of one model and one batch: the turns of a sweep are taken here, what a turn does is the sampler's part."""

    def __init__(self, moves: "Proposals", model: Any, batch: Batch) -> None:
        require(model, type(moves).__name__, "scores")
        self.moves, self.model = moves, model
        with evaluation_mode(model):
            self.batch = energies.prepare(model, batch)
        self.free = energies.variables(batch)  # [B,T]

    @abstractmethod
    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Propose and decide: the state with new tokens, its counters as they were."""

    @abstractmethod
    def measure(self, tokens: Tensor) -> Found:
        """The terms [R,T] of sequences, and their features."""

    def kernel(self) -> Kernel:
        return Kernel(self.init, self.step)

    def init(self, tokens: Tensor) -> ChainState:
        """Chains that start from tokens [R,T]; what isn't a variable is as in the batch."""
        k = energies.copies(self.batch, tokens)
        free, gold = (leaf.repeat_interleave(k, dim=0) for leaf in (self.free, self.batch.gold))
        tokens = torch.where(free, tokens, gold)
        special = torch.tensor(energies.special(self.batch.symbols), dtype=torch.long, device=tokens.device)
        if bool((torch.isin(tokens, special) & free).any()):
            raise InputError("chains can't start from special tokens: give every variable a token of its own")
        with evaluation_mode(self.model):
            terms, features = self.measure(tokens)
        rows = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        order = torch.arange(tokens.shape[1], device=tokens.device).repeat(len(tokens), 1)
        return ChainState(tokens, terms, features, energy_of(terms), rows.new_zeros(()), rows, order, rows)

    def step(self, rng: torch.Generator, state: ChainState) -> tuple[ChainState, ChainInfo]:
        """One block of every chain that isn't through with its sweep."""
        if not bool(state.place.any()):
            state = self.begin(rng, state)
        return self.take(state, self.turn(state))

    def begin(self, rng: torch.Generator, state: ChainState) -> ChainState:
        """A new sweep: a seed from the generator, and from it the order of visits."""
        k = energies.copies(self.batch, state.tokens)
        chain = torch.arange(k, device=state.tokens.device)
        keys = random_streams.branch(random_streams.keys(self.batch, rng).unsqueeze(1), chain).flatten()
        order = self.moves.visits(self.free_of(state), random_streams.branch(keys, 0))
        return state._replace(keys=keys, order=order)

    def turn(self, state: ChainState) -> Turn:
        """The next block of each chain that has any positions left."""
        counts = self.free_of(state).sum(dim=1)
        rows = (state.place < counts).nonzero().squeeze(1)
        place, keys = state.place[rows], state.keys[rows]
        size = min(self.moves.block_size(int(state.sweep)), state.order.shape[1])
        slots = place.unsqueeze(1) + torch.arange(size, device=rows.device)
        valid = slots < counts[rows].unsqueeze(1)
        positions = state.order[rows].gather(1, slots.clamp(max=state.order.shape[1] - 1))
        positions = torch.where(valid, positions, positions[:, :1])
        choices = random_streams.uniform(random_streams.branch(keys, 1).unsqueeze(1), positions)
        return Turn(rows, positions, valid, choices, random_streams.uniform(random_streams.branch(keys, 2), place))

    def take(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Take a turn: a function of the state and of the turn's random numbers alone."""
        with evaluation_mode(self.model):
            if len(turn.rows):
                state, info = self.move(state, turn)
            else:
                info = self.info(state, turn, turn.rows > 0, turn.rows > 0, turn.chances)
            place = state.place.index_add(0, turn.rows, turn.valid.sum(dim=1))
            if bool((place < self.free_of(state).sum(dim=1)).any()):
                return state._replace(place=place), info
            state = self.end(state._replace(place=torch.zeros_like(place), sweep=state.sweep + 1))
        return state, info._replace(energy=state.energy)

    def end(self, state: ChainState) -> ChainState:
        """What is to be done when a sweep is over."""
        return state

    def accept_all(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        """Take what is proposed, whatever it is; terms are NaN from here on, until all are measured."""
        proposed = self.propose(state, turn)
        unknown = torch.full_like(state.terms, torch.nan)
        state = state._replace(
            tokens=state.tokens.index_copy(0, turn.rows, proposed.tokens),
            terms=unknown,
            features=energies.no_features(state.tokens),
            energy=energy_of(unknown),
        )
        everyone = torch.ones_like(proposed.changed)
        return state, self.info(state, turn, everyone, proposed.changed, torch.zeros_like(turn.chances))

    def measured(self, state: ChainState) -> ChainState:
        """The state with the terms of its tokens."""
        terms, features = self.measure(state.tokens)
        return state._replace(terms=terms, features=features, energy=energy_of(terms))

    def propose(self, state: ChainState, turn: Turn) -> Proposed:
        """Mask the block, and draw each of its tokens from the model's conditional."""
        old, parts = state.tokens[turn.rows], []
        for numbers, scores in self.conditionals(state, turn):
            if not bool((scores < torch.inf).all()):
                raise InputError("the model gave NaN or infinite scores")
            _, positions, valid, choices, _ = (leaf[numbers] for leaf in turn)
            log_q = self.log_q(scores)  # [n,P,V]
            drawn = random_streams.draw(log_q.exp().flatten(0, 1), choices.flatten()).view_as(positions)
            drawn = torch.where(valid, drawn, drawn[:, :1])
            back = self.back(log_q, old[numbers].gather(1, positions), drawn, valid)
            parts.append((numbers, drawn, self.own(scores, drawn), back))
        numbers, drawn, own, back = (torch.cat(leaves) for leaves in zip(*parts))
        drawn, own, back = (leaf[numbers.argsort()] for leaf in (drawn, own, back))
        new = old.scatter(1, turn.positions, drawn)
        return Proposed(new, drawn, own, back, (new != old).any(dim=1))

    def conditionals(self, state: ChainState, turn: Turn) -> Iterator[tuple[Tensor, Tensor]]:
        """The scores of all tokens at the masked blocks, in micro-batches: numbers [n] of chains of the turn, and [n,P,V].

        A single position needs no pass where the features behind the present state's terms are known: they were made with
        that position masked.
        """
        rows, size = self.moves.rows, turn.positions.shape[1]
        if size == 1 and state.features.shape[2]:
            for numbers in torch.arange(len(turn.rows), device=turn.rows.device).split(rows):
                here = turn.rows[numbers].unsqueeze(1), turn.positions[numbers]
                yield numbers, self.model.score(state.features[here])
            return
        example = energies.examples(self.batch, state.tokens)
        for numbers, scores, _ in energies.block_parts(
            self.model, self.batch, example, state.tokens, turn.rows, turn.positions, turn.valid, rows
        ):
            yield numbers, scores

    def own(self, scores: Tensor, drawn: Tensor) -> Tensor:
        """What drawn tokens [n,P] add to −E by scores [n,P,V], for samplers that ask: [n,P]."""
        return torch.zeros(drawn.shape, dtype=widened(scores).dtype, device=scores.device)

    def log_q(self, scores: Tensor) -> Tensor:
        """The log-probabilities that tokens are drawn with: [...,V]."""
        return self.moves.log_probs(scores, energies.allowed(self.batch.symbols, scores.shape[-1], scores.device))

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        """log q(y; y') − log q(y'; y), where y and y' have the tokens ``old`` and ``drawn`` [A,P] in the block: [A].

        Both directions mask the same block and see the same rest, so the conditionals are the same. It is −inf where an
        old token lies outside the nucleus: the move can't be taken back.
        """
        difference = log_q.gather(2, old.unsqueeze(2)) - log_q.gather(2, drawn.unsqueeze(2))
        return difference.squeeze(2).double().masked_fill(~valid, 0.0).sum(dim=1)

    def info(self, state: ChainState, turn: Turn, accepted: Tensor, novel: Tensor, log_ratio: Tensor) -> ChainInfo:
        """What was found for the chains of a turn, [A] each, as it is for all chains."""
        nobody = torch.zeros(len(state.tokens), dtype=torch.bool, device=turn.rows.device)
        positions = torch.zeros_like(state.tokens, dtype=torch.bool)
        positions[turn.rows] = positions[turn.rows].scatter(1, turn.positions, True)
        return ChainInfo(
            active=nobody.index_fill(0, turn.rows, True),
            accepted=nobody.index_copy(0, turn.rows, accepted),
            novel=nobody.index_copy(0, turn.rows, novel),
            energy=state.energy,
            log_ratio=state.energy.new_zeros(len(nobody)).index_copy(0, turn.rows, log_ratio),
            positions=positions,
        )

    def free_of(self, state: ChainState) -> Tensor:
        """The variables of each chain: [R,T] bool."""
        return self.free.repeat_interleave(energies.copies(self.batch, state.tokens), dim=0)


def energy_of(terms: Tensor) -> Tensor:
    """E = −Σ_t terms, summed in double precision: [R,T] -> [R]."""
    return -terms.double().sum(dim=1)


# What a sampler proposes: which positions, in which order, and which tokens for them (Goyal 2021, section 6.4.1).

Order = Literal["random", "left_to_right"]


@dataclass(frozen=True, kw_only=True)
class Proposals(Options):
    """Mask a block of positions I and draw new tokens from q(y'; y) = Π_{i∈I} p(y'_i | y\\I), one block after another.

    p is the model's softmax at ``temperature``, among the tokens that are allowed; with ``nucleus`` b only among the fewest
    most probable ones that have at least b of it together. A sweep visits every variable once: in order, or in a random
    order of its own. The last block of a sweep takes what is left.

    >>> moves = Proposals(block=5, shrink=4)
    >>> [moves.block_size(sweep) for sweep in range(6)]
    [5, 4, 3, 2, 1, 1]
    """

    block: Count = 1  # positions that are masked together
    shrink: Count | None = None  # sweeps in which the block size falls to one, linearly; never if none
    temperature: Positive = 1.0  # of the proposals
    nucleus: PositiveFraction | None = None  # draw only from the tokens that have so much probability together
    order: Order = "random"  # in which a sweep visits positions
    rows: Count = ROWS  # masked copies that the model is given at once

    def block_size(self, sweep: int) -> int:
        """How many positions are masked together in sweep 0, 1, …"""
        if self.shrink is None:
            return self.block
        passed = min(sweep, self.shrink)
        return self.block - ((self.block - 1) * passed + self.shrink // 2) // self.shrink

    def visits(self, free: Tensor, keys: Tensor) -> Tensor:
        """[R,T] bool variables, [R] keys -> [R,T] positions in the order of the visits, those of variables first."""
        if self.order == "left_to_right":
            rank = torch.arange(free.shape[1], device=free.device).double().expand(free.shape)
        else:
            columns = torch.arange(free.shape[1], device=free.device)
            rank = random_streams.uniform(keys.unsqueeze(1), columns)
        return rank.masked_fill(~free, torch.inf).argsort(dim=1, stable=True)

    def log_probs(self, scores: Tensor, kept: Tensor) -> Tensor:
        """The log-probabilities of proposals: scores [...,V] and the tokens that are allowed [V] -> [...,V], else −inf."""
        scores = widened(scores).masked_fill(~kept, -torch.inf)
        temperature = max(self.temperature, torch.finfo(scores.dtype).tiny)
        scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature  # at most 0: can't overflow
        log_probs = scaled.log_softmax(dim=-1)
        if self.nucleus is None or self.nucleus == 1:
            return log_probs
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        weights = ordered.exp()
        outside = weights.cumsum(dim=-1) - weights >= self.nucleus  # what the more probable ones have is enough
        outside = torch.zeros_like(outside).scatter(-1, order, outside)
        return log_probs.masked_fill(outside, -torch.inf).log_softmax(dim=-1)
