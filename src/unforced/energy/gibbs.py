"""Gibbs sampling from a masked model's free conditionals, which need not belong to any joint distribution."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unforced.energy import energies
from unforced.energy.energies import Found, Kind
from unforced.energy.samplers import Proposals, Turn, Walk
from unforced.types import Batch, ChainInfo, ChainState, Kernel


@dataclass(frozen=True, kw_only=True)
class Gibbs(Proposals):
    """Degenerate Gibbs sampling (Wang and Cho 2019; Goyal 2021, section 6.6): every proposal is accepted.

    What it samples from is neither E_raw nor E_local, and depends on the order of the visits; it is here to compare with. It needs
    no energy; that of ``energy`` is computed at the end of each sweep, to be looked at, and is NaN before. None: never.
    """

    energy: Kind | None = "local"

    def kernel(self, model: Any, batch: Batch) -> Kernel:
        """The sampler for a model and the examples of a batch, whose lengths are those of its gold."""
        return GibbsWalk(self, model, batch).kernel()


class GibbsWalk(Walk):
    """The turns of Gibbs sampling."""

    moves: Gibbs

    def measure(self, tokens: Tensor) -> Found:
        """The terms alone: after a turn the features would be those of another sequence."""
        terms = torch.full(tokens.shape, torch.nan, device=tokens.device)
        if self.moves.energy is not None:
            terms = energies.terms(self.model, self.batch, tokens, self.moves.energy, self.moves.rows)
        return Found(terms, energies.no_features(tokens))

    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        return self.accept_all(state, turn)

    def end(self, state: ChainState) -> ChainState:
        return self.measured(state)
