"""Metropolis-Hastings with a masked model's conditionals as proposals (Goyal 2021, section 6.4)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unforced.energy import energies, masked_copies
from unforced.energy.energies import Kind, Terms
from unforced.energy.samplers import Proposals, Proposed, Turn, Walk, energy_of
from unforced.errors import InputError
from unforced.options import Natural, NonNegative, Positive
from unforced.types import Batch, ChainInfo, ChainState, Kernel

LOWEST = 0.05  # default of the temperature at which annealing ends


@dataclass(frozen=True, kw_only=True)
class MetropolisHastings(Proposals):
    """Sample from p(y) ∝ exp(−E(y) / T): propose by the model's conditionals, accept with probability

        min(1, exp((E(y) − E(y')) / T) · q(y; y') / q(y'; y))

    Algorithm 4 of Goyal (2021) prints E where exp(−E) belongs. T is ``target`` minus ``anneal`` per finished sweep, but
    at least ``lowest``.

    A proposal that changes nothing needs no energy. The term of a single masked position is known from its proposal.
    The features of all terms are kept (R·T·H numbers), so that a proposal for one position needs no forward pass.

    >>> MetropolisHastings(target=1.0, anneal=0.25, lowest=0.1).target_at(3)
    0.25
    """

    energy: Kind = "local"  # E_raw or E_local
    target: Positive = 1.0  # temperature of the sampled distribution
    anneal: NonNegative = 0.0  # decrease of this temperature after each sweep
    lowest: Positive | None = None  # its minimum; none: 0.05, or target if that is smaller
    forced: Natural = 0  # first sweeps in which every proposal is accepted

    def check(self) -> None:
        if self.lowest is not None and self.lowest > self.target:
            raise InputError(f"lowest must be at most target, {self.target:g}, got {self.lowest}")

    def target_at(self, sweep: int) -> float:
        """Return the temperature of the sampled distribution in sweep 0, 1, …"""
        lowest = min(LOWEST, self.target) if self.lowest is None else self.lowest
        return max(lowest, self.target - self.anneal * sweep)

    def kernel(self, model: Any, batch: Batch) -> Kernel:
        """Return the kernel for a model and the examples of a batch, whose targets set the lengths."""
        return MetropolisWalk(self, model, batch).kernel()


class MetropolisWalk(Walk):
    """Chains of Metropolis-Hastings."""

    options: MetropolisHastings

    def measure(self, tokens: Tensor) -> Terms:
        found = self.terms(masked_copies.example_of_row(self.batch, tokens), tokens, None)
        if not bool(found.values.isfinite().all()):
            raise InputError("the model returned NaN or infinite scores for the tokens of a chain")
        return found

    def terms(self, example: Tensor, tokens: Tensor, where: Tensor | None) -> Terms:
        """Return terms and features of rows [N,T], computed where the mask is true."""
        kind, rows = self.options.energy, self.options.rows
        return energies.terms_and_features(
            self.model, self.batch, example, tokens, kind, rows, where, keep_features=True
        )

    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        if int(state.sweep) < self.options.forced:
            return self.accept_all(state, turn)
        proposed = self.propose(state, turn)
        log_ratio, new = self.weigh(state, turn, proposed)
        if bool(log_ratio.isnan().any()):
            raise InputError("the model returned NaN or infinite scores")
        accepted = turn.chances.log() < log_ratio
        novel = accepted & proposed.changed
        state = self.update(state, turn.rows[novel], proposed.tokens[novel], Terms(*(leaf[novel] for leaf in new)))
        return state, self.info(state, turn, accepted, novel, log_ratio)

    def drawn_terms(self, scores: Tensor, drawn: Tensor) -> Tensor:
        if drawn.shape[1] > 1:
            return super().drawn_terms(scores, drawn)
        return energies.token_terms(scores, drawn, self.options.energy, self.batch.symbols)

    def finish_sweep(self, state: ChainState) -> ChainState:
        return self.with_terms(state) if int(state.sweep) <= self.options.forced else state

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        """Return the log of the acceptance ratio [A], and terms and features of the proposed sequences."""
        old = Terms(state.terms[turn.rows], state.features[turn.rows])
        log_ratio = torch.where(proposed.changed, proposed.back, 0.0)
        todo = (proposed.changed & (proposed.back > -torch.inf)).nonzero().squeeze(1)
        if not len(todo):
            return log_ratio, old
        turn, proposed = Turn(*(leaf[todo] for leaf in turn)), Proposed(*(leaf[todo] for leaf in proposed))
        example = masked_copies.example_of_row(self.batch, state.tokens)[turn.rows]
        where = self.free[example]
        if turn.positions.shape[1] == 1:
            where = where.scatter(1, turn.positions, False)
        terms, features = self.terms(example, proposed.tokens, where)
        if turn.positions.shape[1] == 1:
            terms = terms.to(proposed.drawn_terms.dtype).scatter(1, turn.positions, proposed.drawn_terms)
        if features.shape[2]:
            features = torch.where(where.unsqueeze(2), features, old.features[todo])
        else:
            features = old.features[todo]
        gain = (terms.double() - old.values[todo].double()).sum(dim=1)
        target = self.options.target_at(int(state.sweep))
        new = Terms(
            old.values.index_copy(0, todo, terms.to(old.values.dtype)), old.features.index_copy(0, todo, features)
        )
        return log_ratio.index_copy(0, todo, gain / target + proposed.back), new

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, terms: Terms) -> ChainState:
        """Return the state with other sequences in some rows."""
        return state._replace(
            tokens=state.tokens.index_copy(0, rows, tokens),
            terms=state.terms.index_copy(0, rows, terms.values),
            features=state.features.index_copy(0, rows, terms.features),
            energy=state.energy.index_copy(0, rows, energy_of(terms.values)),
        )
