"""Planted bugs: the exact check of samplers fails for samplers with a bug."""

from collections.abc import Callable
from dataclasses import replace
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


def proposal_ratio(change: Callable[..., Tensor]) -> type[MetropolisWalk]:
    """Return chains whose ``back`` calls ``change`` with the right ``back`` and its arguments."""

    class Changed(MetropolisWalk):
        def back(self, log_q: Tensor, old: Tensor, drawn: Tensor, valid: Tensor) -> Tensor:
            return change(self, super().back, log_q, old, drawn, valid)

    return Changed


NO_RATIO = proposal_ratio(lambda walk, back, log_q, *_: torch.zeros(len(log_q), dtype=torch.float64))
MEAN_OVER_BLOCK = proposal_ratio(lambda walk, back, *args: back(*args) / args[3].sum(dim=1))
BEYOND_THE_END = proposal_ratio(lambda walk, back, *args: back(*args[:3], torch.ones_like(args[3])))
ONE_WAY_NUCLEUS = proposal_ratio(lambda walk, back, *args: back(*args).clamp(min=-1.0))
NO_TEMPERATURE = proposal_ratio(lambda walk, back, log_q, *rest: back(log_q * walk.options.temperature, *rest))


class StaleEnergy(MetropolisWalk):
    """Keep the terms of the old sequence when a new one is accepted."""

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, found: Terms) -> ChainState:
        return super().update(state, rows, tokens, found)._replace(terms=state.terms, energy=state.energy)


class StaleFeatures(MetropolisWalk):
    """Draw proposals from the features of the old sequence."""

    def update(self, state: ChainState, rows: Tensor, tokens: Tensor, found: Terms) -> ChainState:
        return super().update(state, rows, tokens, found)._replace(features=state.features)


class WrongSign(MetropolisWalk):
    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        log_ratio, found = super().weigh(state, turn, proposed)
        return 2 * proposed.back - log_ratio, found


class MaskLeftIn(MetropolisWalk):
    """Compute the energy of the new sequence with the mask still in it."""

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        masked = proposed.tokens.scatter(1, turn.positions, self.model.size)  # the table's code of a mask
        return super().weigh(state, turn, proposed._replace(tokens=masked))


class SpecialTokens(MetropolisWalk):
    """Allow the start symbol and padding like any other token."""

    def __init__(self, moves: MetropolisHastings, model: Any, batch: Batch) -> None:
        super().__init__(moves, model, batch)
        self.batch = replace(batch, symbols=batch.symbols._replace(banned=()))


class OwnTermForgotten(MetropolisWalk):
    """Keep the old token's term at the masked position."""

    def weigh(self, state: ChainState, turn: Turn, proposed: Proposed) -> tuple[Tensor, Terms]:
        old = state.terms[turn.rows].gather(1, turn.positions)
        return super().weigh(state, turn, proposed._replace(drawn_terms=old))


BUGS: list[tuple[type[MetropolisWalk], dict[str, Any]]] = [
    (NO_RATIO, {"energy": "raw", "temperature": 0.6}),
    (MEAN_OVER_BLOCK, {"energy": "raw", "block": 2}),
    (BEYOND_THE_END, {"energy": "raw", "block": 2}),
    (ONE_WAY_NUCLEUS, {"energy": "raw", "nucleus": 0.7}),
    (NO_TEMPERATURE, {"energy": "raw", "temperature": 1.5}),
    (StaleEnergy, {"energy": "local"}),
    (StaleFeatures, {"energy": "raw"}),
    (WrongSign, {"energy": "local", "block": 2}),
    (MaskLeftIn, {"energy": "local"}),
    (SpecialTokens, {"energy": "raw"}),
    (OwnTermForgotten, {"energy": "raw", "temperature": 1.5}),
]


def worst(walk: type[MetropolisWalk], sampler: MetropolisHastings) -> float:
    batch = letters(2, [2, 3])
    chains = walk(sampler, WithFeaturesAt(4), batch)
    return violations(chains, batch, 4, sampler.energy, target=sampler.target).worst


@pytest.mark.parametrize(
    ("bug", "fields"), [BUGS[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in BUGS[1:])]
)
def test_a_planted_bug_is_caught(bug: type[MetropolisWalk], fields: dict[str, Any]) -> None:
    sampler = MetropolisHastings(**fields)
    assert worst(MetropolisWalk, sampler) < 1e-12
    assert worst(bug, sampler) > 1e-4
