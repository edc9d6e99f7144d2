"""Planted bugs: the check that samplers pass is failed by samplers with a mistake in them."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from energy_cases import WithFeaturesAt, letters
from exact_kernels import violations
from torch import Tensor

from unforced.energy import MetropolisHastings
from unforced.energy.energies import Terms
from unforced.energy.metropolis_hastings import MetropolisWalk
from unforced.energy.samplers import Proposed, Turn
from unforced.types import Batch, ChainState


class NoProposalRatio(MetropolisWalk):
    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return torch.zeros(len(log_q), dtype=torch.float64)


class InvertedProposalRatio(MetropolisWalk):
    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return -super().back(log_q, old, drawn, valid)


class StaleEnergy(MetropolisWalk):
    """The terms of the old sequence are kept when a new one is accepted."""

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, found: Terms) -> ChainState:
        return super().update(state, rows, tokens, found)._replace(terms=state.terms, energy=state.energy)


class StaleFeatures(MetropolisWalk):
    """Proposals are drawn from what the model made of the old sequence."""

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, found: Terms) -> ChainState:
        return super().update(state, rows, tokens, found)._replace(features=state.features)


class EagerEnergy(MetropolisWalk):
    """The terms of the new sequence are kept even where it is rejected."""

    def move(self, state: ChainState, turn: Turn) -> Any:
        proposed = self.propose(state, turn)
        _, found = self.weigh(state, turn._replace(chances=torch.zeros_like(turn.chances)), proposed)
        after, info = super().move(state, turn)
        return after._replace(terms=after.terms.index_copy(0, turn.rows, found.values)), info


class WrongSign(MetropolisWalk):
    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        log_ratio, found = super().weigh(state, turn, proposed)
        return 2 * proposed.back - log_ratio, found


class MaskLeftIn(MetropolisWalk):
    """The energy of the new sequence is that of one which still has the mask in it."""

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        masked = proposed.tokens.scatter(1, turn.positions, self.model.size)  # the table's code of a mask
        return super().weigh(state, turn, proposed._replace(tokens=masked))


class SpecialTokens(MetropolisWalk):
    """The start symbol and padding are tokens like any other."""

    def __init__(self, moves: MetropolisHastings, model: Any, batch: Batch) -> None:
        super().__init__(moves, model, batch)
        self.batch = replace(batch, symbols=batch.symbols._replace(banned=()))


class SpecialTokensProposed(MetropolisWalk):
    """They are proposed, and rejected, but what is left of q is taken to be all of it where a move is taken back."""

    def log_q(self, scores: Tensor) -> Tensor:
        return self.options.log_probs(scores, torch.ones(scores.shape[-1], dtype=torch.bool))

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        among = log_q[..., : self.model.size - 2].log_softmax(dim=2)
        there = among.gather(2, old.unsqueeze(2)) - log_q.gather(2, drawn.unsqueeze(2))
        return there.squeeze(2).masked_fill(~valid, 0.0).sum(dim=1)


class MeanOverBlock(MetropolisWalk):
    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return super().back(log_q, old, drawn, valid) / valid.sum(dim=1)


class FirstOfBlock(MetropolisWalk):
    """Only the first position's probability counts."""

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return super().back(log_q[:, :1], old[:, :1], drawn[:, :1], valid[:, :1])


class BeyondTheEnd(MetropolisWalk):
    """The last block of a sweep is smaller, but places it hasn't count in q."""

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return super().back(log_q, old, drawn, torch.ones_like(valid))


class OneWayNucleus(MetropolisWalk):
    """A move that can't be taken back is made all the same."""

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return super().back(log_q, old, drawn, valid).clamp(min=-1.0)


class OwnTermForgotten(MetropolisWalk):
    """The masked position's own term stays that of the old token."""

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        old = state.terms[turn.rows].gather(1, turn.positions)
        return super().weigh(state, turn, proposed._replace(drawn_terms=old))


class NoTemperature(MetropolisWalk):
    """Tokens are drawn at one temperature and weighed at another."""

    def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
        return super().back(log_q * self.options.temperature, old, drawn, valid)


BUGS: list[tuple[type[MetropolisWalk], dict[str, Any]]] = [
    (NoProposalRatio, {"energy": "raw", "temperature": 0.6}),
    (NoProposalRatio, {"energy": "raw", "block": 2}),
    (NoProposalRatio, {"energy": "local", "temperature": 2.0}),
    (InvertedProposalRatio, {"energy": "raw", "temperature": 1.5}),
    (StaleEnergy, {"energy": "raw"}),
    (StaleEnergy, {"energy": "local"}),
    (StaleFeatures, {"energy": "raw"}),
    (StaleFeatures, {"energy": "local"}),
    (EagerEnergy, {"energy": "raw"}),
    (EagerEnergy, {"energy": "local"}),
    (WrongSign, {"energy": "raw", "temperature": 1.5}),
    (WrongSign, {"energy": "local", "block": 2}),
    (MaskLeftIn, {"energy": "raw"}),
    (MaskLeftIn, {"energy": "local"}),
    (SpecialTokens, {"energy": "raw"}),
    (SpecialTokens, {"energy": "local"}),
    (SpecialTokensProposed, {"energy": "raw", "temperature": 1.5}),
    (MeanOverBlock, {"energy": "raw", "block": 2}),
    (FirstOfBlock, {"energy": "local", "block": 2}),
    (BeyondTheEnd, {"energy": "raw", "block": 2}),
    (OneWayNucleus, {"energy": "raw", "nucleus": 0.7}),
    (OwnTermForgotten, {"energy": "raw", "temperature": 1.5}),
    (NoTemperature, {"energy": "raw", "temperature": 1.5}),
]


def worst(walk: type[MetropolisWalk], moves: MetropolisHastings) -> float:
    batch = letters(2, [2, 3])
    chains = walk(moves, WithFeaturesAt(4), batch)
    return violations(chains, batch, 4, moves.energy, target=moves.target).worst


@cache
def sound(moves: MetropolisHastings) -> float:
    return worst(MetropolisWalk, moves)


@pytest.mark.parametrize(
    ("bug", "fields"),
    [BUGS[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in BUGS[1:])],
    ids=[f"{bug.__name__}-{fields}" for bug, fields in BUGS],
)
def test_a_planted_bug_is_caught(bug: type[MetropolisWalk], fields: dict[str, Any]) -> None:
    moves = MetropolisHastings(**fields)
    assert sound(moves) < 1e-12
    assert worst(bug, moves) > 1e-4
