"""Decode by a masked model as it is sampled: outputs are where Markov chains have got to after some sweeps."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unforced.decoding.sampling import best_first
from unforced.energy import energies
from unforced.energy.mask_predict import guessed_lengths, random_start, warm_start
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.energy.samplers import sweep
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.options import Count, Options
from unforced.protocols import Sampler, require
from unforced.types import Batch, Hypotheses

Start = Literal["greedy", "random"]
Output = Literal["last", "lowest"]


@dataclass(frozen=True)
class Chain(Options):
    """Run ``chains`` chains of ``kernel`` for each example over ``sweeps`` sweeps; the call needs ``rng``.

    Outputs have the length that the model holds likeliest (the batch's where they have no end symbol). They start as the
    model's best guess of all tokens at once ("greedy") or as random tokens. The output of a chain is its ``last`` state, or
    that with the ``lowest`` energy of all it was in at the end of a sweep. ``log_probs`` and ``scores`` are −E, without log Z.

    >>> Chain(sweeps=5).kernel.energy
    'local'
    """

    kernel: Sampler = field(default_factory=MetropolisHastings)
    sweeps: Count = 20
    chains: Count = 1
    start: Start = "greedy"
    output: Output = "last"

    def check(self) -> None:
        if getattr(self.kernel, "energy", "") is None and (self.output == "lowest" or self.chains > 1):
            raise InputError(
                "a kernel without energy can't tell which state or chain is best: give it one, or one chain and its last state"
            )

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        require(model, "chain", "scores")
        if rng is None:
            raise InputError("sampling needs a random generator: pass rng=torch.Generator().manual_seed(…)")
        with evaluation_mode(model):
            batch = energies.prepare(model, batch)
            lengths = guessed_lengths(model, batch, "chain").squeeze(1)
            room = energies.canvas(batch, lengths)
            kernel = self.kernel.kernel(model, room)
            state = kernel.init(self.starting(model, room, rng))
            tokens, energy = state.tokens, state.energy
            for _ in range(self.sweeps):
                state, _ = sweep(kernel, rng, state)
                better = state.energy < energy if self.output == "lowest" else torch.ones_like(energy) > 0
                tokens = torch.where(better.unsqueeze(1), state.tokens, tokens)
                energy = torch.where(better, state.energy, energy)
        tokens, scores = tokens.view(len(batch), self.chains, -1), -energy.view(len(batch), self.chains)
        sizes = room.mask.sum(dim=1, keepdim=True).expand(-1, self.chains)
        return best_first(Hypotheses(tokens, sizes, scores, scores))

    def starting(self, model: Any, room: Batch, rng: torch.Generator) -> Tensor:
        """The tokens that chains start from: [B·chains,T]."""
        if self.start == "greedy":
            return warm_start(model, room, self.chains)
        one = room.select(torch.zeros(1, dtype=torch.long, device=room.gold.device))
        size = model.scores(one, one.gold, energies.variables(one)).shape[-1]
        return random_start(room, size, rng, self.chains)
