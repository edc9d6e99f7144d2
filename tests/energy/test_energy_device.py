"""Energies, sums and chains make their tensors where the model is, whatever the default device."""

from typing import Any

import pytest
import torch
from energy_cases import letters, model_and_batch
from torch import Tensor

from unforced.energy import (
    Chain,
    Gibbs,
    MaskPredict,
    MetropolisHastings,
    canvas,
    energy,
    random_start,
    sweep,
    warm_start,
)
from unforced.energy.energies import variables
from unforced.energy.partition import log_partition, log_partition_with_gradient, true_conditionals
from unforced.energy.pseudo_log_likelihood import WordMasks, token_scores
from unforced.models.field import Field
from unforced.types import Batch, Sizes

ROWS = [[4, 3, 5], [5], [3, 4], [5, 5]]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def run_chains(model: Any, batch: Batch, sampler: Any) -> Tensor:
    kernel, random = sampler.kernel(model, batch), rng()
    state = kernel.init(random_start(batch, 6, random, chains=2))
    for _ in range(2):
        state, _ = sweep(kernel, random, state)
    return state.tokens


COMPUTED = {
    "energy": lambda model, batch, _: energy(model, batch, batch.gold, "raw"),
    "token scores": lambda model, batch, words: token_scores(model, batch, words).log_probs,
    "log Z": lambda model, batch, _: log_partition(model, batch),
    "gradient": lambda model, batch, _: log_partition_with_gradient(model, batch),
    "conditionals": lambda model, batch, _: true_conditionals(model, batch, variables(batch))[0],
    "metropolis": lambda model, batch, _: run_chains(model, batch, MetropolisHastings(block=2, nucleus=0.9)),
    "gibbs": lambda model, batch, _: run_chains(model, batch, Gibbs()),
    "greedy": lambda model, batch, _: warm_start(model, batch, 2),
    "canvas": lambda model, batch, _: canvas(batch, batch.mask.sum(dim=1)).gold,
}  # fmt: skip


@pytest.mark.parametrize("name", ["field", "masked", "conditional"])
@pytest.mark.parametrize("what", COMPUTED)
def test_all_tensors_are_made_on_the_models_device(what: str, name: str) -> None:
    """A tensor that is made without a device would be on the meta device, and could not meet the model's."""
    model, batch = model_and_batch(name, ROWS)
    words = WordMasks(torch.zeros_like(batch.gold))
    expected = COMPUTED[what](model.eval(), batch, words)
    with torch.device("meta"):
        found = COMPUTED[what](model, batch, words)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("decoder", [MaskPredict(3), Chain(sweeps=2, start="random"), Chain(chains=2, output="lowest")])
def test_decoders(decoder: Any) -> None:
    torch.manual_seed(1)
    model, batch = Field(hidden=5, embedding=4).build(Sizes(target=5)).eval(), letters(3, [2, 3])
    expected = decoder(model, batch, rng=rng())
    with torch.device("meta"):
        assert torch.equal(decoder(model, batch, rng=rng()).tokens, expected.tokens)
