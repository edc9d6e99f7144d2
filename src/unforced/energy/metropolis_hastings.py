"""Metropolis-Hastings with a masked model's conditionals as proposals (Goyal 2021, section 6.4)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.energies import Found, Kind
from unforced.energy.samplers import Proposals, Proposed, Turn, Walk, energy_of
from unforced.errors import InputError
from unforced.options import Natural, NonNegative, Positive
from unforced.types import Batch, ChainInfo, ChainState, Kernel

LOWEST = 0.05  # temperature at which annealing ends, as a rule


@dataclass(frozen=True, kw_only=True)
class MetropolisHastings(Proposals):
    """Sample from p(y) ∝ exp(−E(y) / T): propose by the model's conditionals, accept with probability

        min(1, exp((E(y) − E(y')) / T) · q(y; y') / q(y'; y))

    (Goyal 2021, section 6.4; its Algorithm 4 prints energies where exp(−E) belongs). T is ``target``, less ``anneal`` for
    each sweep made, but never below ``lowest``. In the first ``forced`` sweeps everything is accepted, and energies are
    computed at the end of a sweep only.

    A proposal that changes nothing costs no energy. Of a new sequence only those terms are computed that aren't known: with
    one position masked, its own term comes with the proposal. A model's features behind the terms are kept, and a proposal
    for one position is drawn from them without a pass: that takes R·T·H numbers. Where the energy is local, terms are at most zero, so a
    proposal whose first terms are bad enough is rejected without the others.

    >>> MetropolisHastings(target=1.0, anneal=0.25, lowest=0.1).target_at(3)
    0.25
    """

    energy: Kind = "local"
    target: Positive = 1.0  # temperature of the distribution that is sampled
    anneal: NonNegative = 0.0  # what is taken from it after each sweep
    lowest: Positive | None = None  # what it never falls below: 0.05 unless given, or the target where that is less
    forced: Natural = 0  # sweeps at the beginning in which every proposal is accepted

    def check(self) -> None:
        if self.lowest is not None and self.lowest > self.target:
            raise InputError(f"lowest must be at most target, {self.target:g}, got {self.lowest}")

    def target_at(self, sweep: int) -> float:
        """The temperature of the target in sweep 0, 1, …"""
        lowest = min(LOWEST, self.target) if self.lowest is None else self.lowest
        return max(lowest, self.target - self.anneal * sweep)

    def kernel(self, model: Any, batch: Batch) -> Kernel:
        """The sampler for a model and the examples of a batch, whose lengths are those of its gold."""
        return MetropolisWalk(self, model, batch).kernel()


class MetropolisWalk(Walk):
    """The turns of Metropolis-Hastings."""

    moves: MetropolisHastings

    def measure(self, tokens: Tensor) -> Found:
        example = energies.examples(self.batch, tokens)
        found = energies.found_of(
            self.model, self.batch, example, tokens, self.moves.energy, self.moves.rows, keep=True
        )
        if not bool(found.terms.isfinite().all()):
            raise InputError("the model gave NaN or infinite scores for the tokens of a chain")
        return found

    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        if int(state.sweep) < self.moves.forced:
            return self.accept_all(state, turn)
        proposed = self.propose(state, turn)
        log_ratio, found = self.weigh(state, turn, proposed)
        if bool(log_ratio.isnan().any()):
            raise InputError("the model gave NaN or infinite scores")
        accepted = turn.chances.log() < log_ratio
        novel = accepted & proposed.changed
        state = self.update(state, turn.rows[novel], proposed.tokens[novel], Found(*(leaf[novel] for leaf in found)))
        return state, self.info(state, turn, accepted, novel, log_ratio)

    def own(self, scores: Tensor, drawn: Tensor) -> Tensor:
        if drawn.shape[1] > 1:
            return super().own(scores, drawn)
        return energies.pick(scores, drawn, self.moves.energy, self.batch.symbols)

    def end(self, state: ChainState) -> ChainState:
        return self.measured(state) if int(state.sweep) <= self.moves.forced else state

    def cancels(self, turn: Turn, target: float) -> bool:
        """Whether the masked position's own terms and the proposal ratio cancel: one position, whose term and whose
        probability have the same scores at the same temperature. (Those of E_raw too: the normaliser is that of both tokens.)"""
        plain = self.moves.temperature == 1 and self.moves.nucleus in (None, 1)
        return plain and target == 1 and turn.positions.shape[1] == 1

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Found]:
        """log of the acceptance ratio [A], and the new terms and features of all who can be accepted.

        A proposal that changes nothing has 0. One that is rejected before all its terms are known has an upper bound.
        """
        old = Found(state.terms[turn.rows], state.features[turn.rows])
        log_ratio = torch.where(proposed.changed, proposed.back, 0.0)
        todo = (proposed.changed & (proposed.back > -torch.inf)).nonzero().squeeze(1)
        if not len(todo):
            return log_ratio, old
        turn = Turn(*(leaf[todo] for leaf in turn))
        proposed = Proposed(*(leaf[todo] for leaf in proposed))
        example = energies.examples(self.batch, state.tokens)[turn.rows]
        target = self.moves.target_at(int(state.sweep))
        terms, wanted, counted, back = self.known(turn, proposed, self.free[example], target)
        before, features = (leaf[todo] for leaf in old)  # features at the block's own position stay as they are

        def ratio(terms: Tensor) -> Tensor:
            difference = terms.double() - before.double()
            return difference.masked_fill(~counted, 0.0).sum(dim=1) / target + back

        alive = torch.arange(len(todo), device=todo.device)
        for part in self.stages(wanted, before):
            new = energies.found_of(
                self.model,
                self.batch,
                example[alive],
                proposed.tokens[alive],
                self.moves.energy,
                self.moves.rows,
                part[alive],
                keep=True,
            )
            terms = terms.index_add(0, alive, new.terms.to(terms.dtype))
            if new.features.shape[2]:
                row, position = part[alive].nonzero(as_tuple=True)
                features[alive[row], position] = new.features[row, position]
            # terms still unknown are 0 in the ratio, which is the most they can be
            alive = alive[(turn.chances.log() < ratio(terms))[alive]]
            if not len(alive):
                break
        found = Found(
            old.terms.index_copy(0, todo, terms.to(old.terms.dtype)), old.features.index_copy(0, todo, features)
        )
        return log_ratio.index_copy(0, todo, ratio(terms)), found

    def known(
        self, turn: Turn, proposed: Proposed, free: Tensor, target: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What needs no further pass: the new terms that are known [A,T], which ones are wanted still and which ones count
        in the ratio [A,T] bool, and what else is added to it [A]."""
        terms = torch.zeros(free.shape, dtype=proposed.own.dtype, device=free.device)
        counted = torch.ones_like(free)
        if turn.positions.shape[1] > 1:
            return terms, free, counted, proposed.back
        here = turn.positions
        terms, wanted = terms.scatter(1, here, proposed.own), free.scatter(1, here, False)
        if self.cancels(turn, target):
            return terms, wanted, counted.scatter(1, here, False), torch.zeros_like(proposed.back)
        return terms, wanted, counted, proposed.back

    def stages(self, wanted: Tensor, old: Tensor) -> list[Tensor]:
        """The positions [A,T] whose terms are wanted, in the parts in which they are computed.

        Those whose old terms [A,T] are lowest come first: what is left then can make up for the least.
        """
        whole = callable(getattr(self.model, "conditional_scores", None))
        if self.moves.energy == "raw" or whole:
            return [wanted]
        rank = old.masked_fill(~wanted, torch.inf).argsort(dim=1, stable=True).argsort(dim=1)
        fifth = rank * 5 // wanted.sum(dim=1, keepdim=True).clamp(min=1)  # 0 to 4 where wanted
        return [wanted & (fifth < 2), *(wanted & (fifth == later) for later in (2, 3, 4))]

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, found: Found) -> ChainState:
        """The state with other sequences in some rows."""
        return state._replace(
            tokens=state.tokens.index_copy(0, rows, tokens),
            terms=state.terms.index_copy(0, rows, found.terms),
            features=state.features.index_copy(0, rows, found.features),
            energy=state.energy.index_copy(0, rows, energy_of(found.terms)),
        )
