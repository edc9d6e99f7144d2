"""Random numbers that belong to examples."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from unforced.ops.random_streams import (
    branch,
    draw,
    generator,
    keys,
    mix64,
    random_state,
    restore_random_state,
    seed_everything,
    uniform,
    uniform_rows,
)
from unforced.types import Batch, Symbols


def keys_of(ids, seed: int = 1) -> torch.Tensor:
    gold = torch.full((len(ids), 1), 3)
    batch = Batch.of_gold(gold, gold > 0, Symbols(0, 1, 2), ids=torch.tensor(list(ids)))
    return keys(batch, torch.Generator().manual_seed(seed))


def test_splitmix64_gives_the_published_numbers():
    """The first outputs for the seed 1234567, as the reference implementation prints them."""
    gamma = 0x9E3779B97F4A7C15 - (1 << 64)
    states = 1234567 + torch.arange(1, 6) * gamma
    assert [x % (1 << 64) for x in mix64(states).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_uniform_numbers_are_uniform_along_a_stream_and_across_examples():
    keys = branch(keys_of(range(100)).unsqueeze(1), torch.arange(10)).flatten()
    numbers = torch.stack([uniform(keys, t) for t in range(20)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert kstest(numbers.flatten().numpy(), "uniform").pvalue > 0.01
    assert kstest(numbers[0].numpy(), "uniform").pvalue > 0.01
    assert abs(float(torch.corrcoef(numbers[:2])[0, 1])) < 0.1
    assert len(set(keys.tolist())) == 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_index_of_weight_zero_is_never_drawn(dtype):
    torch.manual_seed(0)
    weights = torch.rand(500, 97, dtype=dtype) * (torch.rand(500, 97) < 0.1)
    weights[:, 50] += 1e-3
    for u in (0.0, 1e-12, 0.5, 1 - 2.0**-53, 1.0):
        drawn = draw(weights, torch.full((500,), u, dtype=torch.float64))
        assert (weights.gather(1, drawn.unsqueeze(1)) > 0).all()
    tiny = torch.zeros(3, 4, dtype=dtype)
    tiny[:, 2] = torch.finfo(dtype).tiny
    assert draw(tiny, torch.tensor([0.0, 0.5, 1.0])).tolist() == [2, 2, 2]


def test_random_numbers_depend_on_the_example_only():
    whole, part = keys_of([3, 1, 4, 15]), keys_of([15, 1])
    assert part.tolist() == [whole[3].item(), whole[1].item()]
    t = torch.arange(7)
    assert torch.equal(uniform(whole.unsqueeze(1), t)[:, 5], uniform(whole, 5))
    assert torch.equal(uniform(whole.unsqueeze(1), t[:3]), uniform(whole.unsqueeze(1), t)[:, :3])
    assert keys_of([3], seed=2) != whole[0]


def test_rows_of_numbers_are_uniform_independent_and_strictly_inside():
    numbers = uniform_rows(keys_of(range(400)), 1000)
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert numbers.dtype == torch.float32
    assert kstest(numbers.flatten().double().numpy(), "uniform").pvalue > 0.01
    cells = (numbers[:, :-1] * 10).long() * 10 + (numbers[:, 1:] * 10).long()  # neighbours in a row
    assert chisquare(cells.flatten().bincount(minlength=100)).pvalue > 0.001
    cells = (numbers[:-1] * 10).long() * 10 + (numbers[1:] * 10).long()  # neighbours in a column
    assert chisquare(cells.flatten().bincount(minlength=100)).pvalue > 0.001
    assert torch.equal(uniform_rows(keys_of(range(400)), 10), numbers[:, :10])


@pytest.mark.parametrize("width", [1, 63, 64, 65, 128, 300])
def test_a_draw_is_the_inverse_of_the_cumulated_weights(width):
    torch.manual_seed(width)
    weights = torch.rand(1, width, dtype=torch.float64).expand(2000, width)
    uniforms = torch.rand(2000, dtype=torch.float64)
    inverse = np.searchsorted(np.cumsum(weights[0].numpy()) / weights[0].sum().item(), uniforms.numpy())
    assert (draw(weights, uniforms).numpy() == inverse).all()


def test_global_generators_are_restored():
    cpu = torch.device("cpu")
    seed_everything(3, rank=1)
    state = random_state(cpu)
    first = torch.rand(3)
    restore_random_state(cpu, state)
    assert torch.equal(torch.rand(3), first)
    seed_everything(3, rank=0)
    assert not torch.equal(torch.rand(3), first)
    assert torch.equal(*(torch.rand(3, generator=generator("cpu", 5, 6)) for _ in range(2)))
