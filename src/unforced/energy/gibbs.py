"""Gibbs sampling from a masked model's conditionals, which need not belong to any joint distribution."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unforced.energy import energies, masked_copies
from unforced.energy.energies import Kind, Terms
from unforced.energy.samplers import Proposals, Turn, Walk
from unforced.types import Batch, ChainInfo, ChainState, Kernel


@dataclass(frozen=True, kw_only=True)
class Gibbs(Proposals):
    """Degenerate Gibbs sampling (Wang and Cho 2019; Goyal 2021, section 6.6): accept every proposal.

    It samples from neither E_raw nor E_local, and the result depends on the order of visits. Use it as a baseline.
    """

    energy: Kind | None = "local"  # energy to report at the end of each sweep; none: do not compute any

    def kernel(self, model: Any, batch: Batch) -> Kernel:
        """Return the kernel for a model and the examples of a batch, whose targets set the lengths."""
        return GibbsWalk(self, model, batch).kernel()


class GibbsWalk(Walk):
    """Chains of Gibbs sampling."""

    options: Gibbs

    def measure(self, tokens: Tensor) -> Terms:
        """Return the terms without features, which would be those of an outdated sequence after a turn."""
        terms = torch.full(tokens.shape, torch.nan, device=tokens.device)
        if self.options.energy is not None:
            terms = energies.terms(self.model, self.batch, tokens, self.options.energy, self.options.rows)
        return Terms(terms, masked_copies.no_features(tokens))

    def move(self, state: ChainState, turn: Turn) -> tuple[ChainState, ChainInfo]:
        return self.accept_all(state, turn)

    def finish_sweep(self, state: ChainState) -> ChainState:
        return self.with_terms(state)
