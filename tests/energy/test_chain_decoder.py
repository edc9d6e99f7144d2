"""The decoder ``chain``: its outputs, their distribution and invalid options."""

from typing import Any

import pytest
import torch
from energy_cases import TableModel, ended
from torch import Tensor

from unforced.decoding import Decoder
from unforced.energy import Chain, Gibbs, MetropolisHastings, canvas, energy, sweep, warm_start
from unforced.errors import InputError
from unforced.types import Batch


def rng(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Guessing(TableModel):
    """A table that predicts length 3."""

    def length_scores(self, batch: Batch) -> Tensor:
        return torch.tensor([[0.0, 1.0, 2.0]] * len(batch))


@pytest.mark.parametrize("kernel", [MetropolisHastings(energy="raw", block=2), Gibbs(temperature=0.5)], ids=repr)
def test_outputs_are_the_last_states(kernel: Any) -> None:
    model, batch = Guessing(7), ended([[3, 4], [5]], [[1, 2, 3], [4]])
    decoder: Decoder = Chain(kernel=kernel, sweeps=4)
    found = decoder(model, batch, rng=rng())
    room = canvas(batch, torch.tensor([3, 3]))
    own, numbers = kernel.kernel(model, room), rng()
    state = own.init(warm_start(model, room))
    for _ in range(4):
        state, _ = sweep(own, numbers, state)
    assert torch.equal(found.tokens[:, 0], state.tokens)
    torch.testing.assert_close(found.scores[:, 0], -state.energy)
    assert found.lengths.tolist() == [[4], [4]]
    assert found.tokens[:, 0, 3].tolist() == [2, 2]


def test_lowest_energy_outputs() -> None:
    model, batch = Guessing(7), ended([[3, 4], [5]], [[1, 2, 3], [4]])
    lowest = Chain(sweeps=6, output="lowest", chains=3)(model, batch, rng=rng())
    for sweeps in range(1, 7):
        last = Chain(sweeps=sweeps, chains=3)(model, batch, rng=rng())
        assert bool((lowest.scores.max(dim=1).values >= last.scores.max(dim=1).values).all())
    assert bool((lowest.scores.diff(dim=1) <= 0).all())  # the best chain first
    room = canvas(batch, torch.tensor([3, 3]))
    again = -energy(model, room, lowest.tokens[:, 0])
    torch.testing.assert_close(again, lowest.scores[:, 0])


def test_invalid_input() -> None:
    batch = ended([[3, 4]], [[1]])
    with pytest.raises(InputError, match="random generator"):
        Chain()(Guessing(7), batch)
    with pytest.raises(InputError, match="needs a model with length_scores"):
        Chain()(TableModel(7), batch, rng=rng())
    for wrong in ({"output": "lowest"}, {"chains": 2}):
        with pytest.raises(InputError, match="cannot rank states or chains"):
            Chain(kernel=Gibbs(energy=None), **wrong)  # type: ignore[arg-type]
