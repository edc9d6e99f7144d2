"""Metropolis-Hastings by Algorithm 4 of Goyal (2021): sentence by sentence, one forward pass per masked position.

Unlike the algorithm, it keeps the energy of the present state between steps. It uses the random numbers of the
library's kernel, so both must return the same sequences.
"""

from typing import Any

import torch
from torch import Tensor

from unforced.energy.energies import allowed, variables
from unforced.energy.metropolis_hastings import MetropolisHastings, MetropolisWalk
from unforced.ops import random_streams
from unforced.types import Batch, ChainState


@torch.no_grad()
def plain_sweep(
    sampler: MetropolisHastings, model: Any, batch: Batch, state: ChainState, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Make one sweep of single positions; return tokens [B,T] and energies [B], one chain per example."""
    start = MetropolisWalk(sampler, model, batch).start_sweep(rng, state)  # the order of positions, and random keys
    free = variables(batch)
    found, energies = state.tokens.clone(), state.energy.clone()
    for b in range(len(batch)):
        one = batch.select(torch.tensor([b]))
        tokens, energy = found[b : b + 1].clone(), float(energies[b])
        positions = start.order[b, : int(free[b].sum())].tolist()
        choices = random_streams.uniform(random_streams.branch(start.keys[b], 1), torch.arange(tokens.shape[1]))
        chances = random_streams.uniform(random_streams.branch(start.keys[b], 2), torch.arange(len(positions)))
        for place, t in enumerate(positions):
            scores = _at(model, one, tokens, t)
            kept = allowed(batch.symbols, scores.shape[-1])
            log_q = scores.masked_fill(~kept, -torch.inf).log_softmax(-1)
            old, new = int(tokens[0, t]), int(random_streams.draw(log_q.exp()[None], choices[t : t + 1]))
            proposal = tokens.clone()
            proposal[0, t] = new
            proposed = _energy(model, one, proposal, positions, sampler.energy, kept)
            log_ratio = energy - proposed + float(log_q[old].double() - log_q[new].double())
            if float(chances[place].log()) < log_ratio:
                tokens, energy = proposal, proposed
        found[b], energies[b] = tokens[0], energy
    return found, energies


def _at(model: Any, one: Batch, tokens: Tensor, t: int) -> Tensor:
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[0, t] = True
    scores: Tensor = model.scores(one, tokens, masked)[0, t]
    return scores


def _energy(model: Any, one: Batch, tokens: Tensor, positions: list[int], kind: str, kept: Tensor) -> float:
    total = 0.0
    for t in positions:
        scores = _at(model, one, tokens, t)
        term = scores[tokens[0, t]]
        if kind == "local":
            term = term - scores.masked_fill(~kept, -torch.inf).logsumexp(-1)
        total -= float(term.double())
    return total
