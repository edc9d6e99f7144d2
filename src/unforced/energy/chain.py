"""Decode a masked model by Markov chains: the outputs are states of the chains after some sweeps."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unforced.decoding.sampling import best_first
from unforced.energy import energies, masked_copies
from unforced.energy.mask_predict import output_lengths, random_start, warm_start
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.energy.samplers import sweep
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.options import Count, Options
from unforced.protocols import HasEnergy, Sampler, require
from unforced.types import Batch, Hypotheses

Start = Literal["greedy", "random"]
Output = Literal["last", "lowest"]


@dataclass(frozen=True)
class Chain(Options):
    """Run Markov chains for each example, and return one output per chain. The call needs ``rng``.

    Outputs have the most probable length under the model, or the length in the batch if there is no end symbol.
    ``log_probs`` and ``scores`` are −E, without log Z.
    """

    kernel: Sampler = field(default_factory=MetropolisHastings)  # the sampler
    sweeps: Count = 20  # number of updates of every position
    chains: Count = 1  # of each example
    start: Start = "greedy"  # from the most probable token at every position, or from random tokens
    output: Output = "last"  # the last state of a chain, or the state with the lowest energy after any sweep

    def check(self) -> None:
        if not isinstance(self.kernel, HasEnergy) or self.kernel.energy is not None:
            return
        if self.output == "lowest" or self.chains > 1:
            raise InputError(
                'a kernel without energy cannot rank states or chains: set kernel.energy, or chains=1 and output="last"'
            )

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        require(model, "chain", "scores")
        if rng is None:
            raise InputError("sampling needs a random generator: pass rng=torch.Generator().manual_seed(…)")
        with evaluation_mode(model):
            batch = masked_copies.encode_sources(model, batch)
            lengths = output_lengths(model, batch, "chain").squeeze(1)
            room = energies.canvas(batch, lengths)
            kernel = self.kernel.kernel(model, room)
            state = kernel.init(self.start_tokens(model, room, rng))
            tokens, energy = state.tokens, state.energy
            for _ in range(self.sweeps):
                state, _ = sweep(kernel, rng, state)
                better = state.energy < energy if self.output == "lowest" else torch.ones_like(energy) > 0
                tokens = torch.where(better.unsqueeze(1), state.tokens, tokens)
                energy = torch.where(better, state.energy, energy)
        tokens, scores = tokens.view(len(batch), self.chains, -1), -energy.view(len(batch), self.chains)
        sizes = room.mask.sum(dim=1, keepdim=True).expand(-1, self.chains)
        return best_first(Hypotheses(tokens, sizes, scores, scores))

    def start_tokens(self, model: Any, room: Batch, rng: torch.Generator) -> Tensor:
        """Return the tokens that chains start from: [B·chains,T]."""
        if self.start == "greedy":
            return warm_start(model, room, self.chains)
        return random_start(room, masked_copies.vocabulary_size(model, room), rng, self.chains)
