"""Noise-contrastive estimation: noise that is what it says, the loss by loops, and its optimum in closed form."""

import math
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from masked_toy import ENDED, ended, slow_energy, strings, toy
from scipy.stats import chisquare
from torch import Tensor

from unforced.energy import energies
from unforced.energy.partition import log_partition
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.models.masked import Masked
from unforced.models.transformer import Causal
from unforced.objectives.noise_contrastive import (
    ModelNoise,
    NgramNoise,
    NoiseContrastive,
    binary_losses,
    ranking_losses,
)
from unforced.ops import random_streams
from unforced.types import Batch, Encoded, Loss, Progress, Sizes

BATCH = ended([3, 4, 5], [5, 3], [4])
DATA = [[3, 4, 5, 2], [3, 3, 2], [4, 5, 2], [3, 4, 4, 2]]
CODEC = SimpleNamespace(symbols=ENDED, sizes=Sizes(target=6))
EXAMPLES = [Encoded(None, target) for target in DATA]


def counted(order: int) -> NgramNoise:
    return NgramNoise.of(DATA, 6, ENDED, order, smoothing=0.5, backoff=0.2)


def of_models() -> dict[str, Any]:
    torch.manual_seed(0)
    shape: Any = {"width": 8, "heads": 2, "layers": 1, "feedforward": 8, "dropout": 0.0}
    return {
        "masked": ModelNoise(Masked(**shape).build(Sizes(target=6)).double().eval()),
        "causal": ModelNoise(Causal(**shape).build(Sizes(target=6)).double().eval()),
    }


NOISES: dict[str, Any] = {"uniform": counted(0), "unigram": counted(1), "bigram": counted(2), **of_models()}


def slow_bigram(last: int, token: int) -> float:
    words = [[id for id in target if id > 2] for target in DATA]
    flat = [id for row in words for id in row]
    single = (flat.count(token) + 0.5) / (len(flat) + 1.5)
    pairs = [pair for row in words for pair in zip([1, *row], row)]
    followed = sum(pair[0] == last for pair in pairs)
    return single if not followed else 0.8 * pairs.count((last, token)) / followed + 0.2 * single


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NOISES)
def test_noise_sums_to_one_and_draws_what_it_says(name: str) -> None:
    noise = NOISES[name]
    rows = [list(row) for row in product((3, 4, 5), repeat=3)]
    every = ended(*rows)
    probabilities = noise.log_prob(every, every.gold).exp()
    assert float(probabilities.sum()) == pytest.approx(1)
    one, times = ended([3, 3, 3]), 20_000
    draws = noise.draw(one, random_streams.keys(one, torch.Generator().manual_seed(1)), times)
    assert draws.tokens.shape == (times, 4)
    assert (draws.tokens[:, 3] == 2).all()
    numbers = ((draws.tokens[:, :3] - 3) * torch.tensor([9, 3, 1])).sum(dim=1)
    torch.testing.assert_close(draws.log_probs, probabilities.log()[numbers])
    seen = torch.bincount(numbers, minlength=27).double()
    assert chisquare(seen.numpy(), (probabilities / probabilities.sum() * times).numpy()).pvalue > 1e-4
    wrong = torch.full((27,), times / 27, dtype=torch.float64).numpy()
    if name != "uniform":
        assert chisquare(seen.numpy(), wrong).pvalue < 1e-6


def test_bigrams_are_the_counts() -> None:
    noise = NOISES["bigram"]
    for row in ([3, 4, 5], [5, 5, 5], [4, 3, 3]):
        expected = math.prod(slow_bigram(a, b) for a, b in zip([1, *row], row))
        assert float(noise.log_prob(ended(row), ended(row).gold).exp()) == pytest.approx(expected)


@pytest.mark.parametrize("name", NOISES)
def test_noise_belongs_to_the_examples(name: str) -> None:
    """Whatever the order, the company and the padding."""
    noise, keys = NOISES[name], random_streams.keys(BATCH, torch.Generator().manual_seed(1))
    whole = noise.draw(BATCH, keys, 2)
    for b in range(3):
        one = energies.trim(BATCH.select(torch.tensor([b])), int(BATCH.mask[b].sum()))
        alone = noise.draw(one, keys[b : b + 1], 2)
        n = one.gold.shape[1]
        assert torch.equal(alone.tokens, whole.tokens[2 * b : 2 * b + 2, :n])
        torch.testing.assert_close(alone.log_probs, whole.log_probs[2 * b : 2 * b + 2])
        assert (whole.tokens[2 * b : 2 * b + 2, n:] == 0).all()


@pytest.mark.parametrize("form", ["binary", "ranking"])
@pytest.mark.parametrize("kind", ["raw", "local"])
def test_it_is_the_loop(form: Any, kind: Any) -> None:
    model, k = toy(6), 3
    objective = NoiseContrastive(
        noise="bigram", samples=k, form=form, energy=kind, log_z=0.7, smoothing=0.5, backoff=0.2, rows=13
    ).fitted(CODEC, EXAMPLES)
    loss = loss_of(objective, model, BATCH, 4)
    noise = NOISES["bigram"]
    draws = noise.draw(BATCH, random_streams.keys(BATCH, torch.Generator().manual_seed(4)), k)
    expected = torch.zeros((), dtype=torch.float64)

    def ratio(b: int, tokens: Tensor) -> Tensor:
        log_q = noise.log_prob(BATCH.select(torch.tensor([b])), tokens.unsqueeze(0))[0]
        return -slow_energy(model, BATCH, b, tokens.tolist(), kind) - 0.7 - log_q - math.log(k)

    for b in range(3):
        gold = ratio(b, BATCH.gold[b])
        others = torch.stack([ratio(b, draws.tokens[b * k + j]) for j in range(k)])
        if form == "binary":
            expected = expected - F.logsigmoid(gold) - F.logsigmoid(-others).sum()
        else:
            expected = expected + torch.logsumexp(torch.cat([gold[None], others]), 0) - gold
    torch.testing.assert_close(loss.total, expected)
    assert loss.count == 6
    found, wanted = (torch.autograd.grad(total, model.table)[0] for total in (loss.total, expected))
    torch.testing.assert_close(found, wanted)


def population(model: Any, batch: Batch, data: Tensor, noise: Tensor, log_z: Tensor, k: int) -> Tensor:
    """The expected binary loss over all strings y: data p(y), and k draws of noise q(y)."""
    ratios = -energies.energy(model, batch, batch.gold, "raw") - log_z - noise.log() - math.log(k)
    nothing = torch.zeros(len(ratios), 0, dtype=torch.float64)
    as_data = binary_losses(ratios, nothing)
    as_noise = F.softplus(ratios)
    return (data * as_data).sum() + k * (noise * as_noise).sum()


@pytest.mark.parametrize("k", [1, 5])
def test_the_optimum_is_the_data(k: int) -> None:
    """Where exp(−E) / Z is the distribution of the data, the gradient vanishes, log Z's included, whatever the noise."""
    model, batch = toy(5, seed=2, scale=0.7), strings(3)
    log_z = log_partition(model, batch)[:1].squeeze().requires_grad_()
    data = torch.exp(-energies.energy(model, batch, batch.gold, "raw") - log_z).detach()
    assert float(data.sum()) == pytest.approx(1)
    noise = torch.rand(27, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    noise = noise / noise.sum()
    loss = population(model, batch, data, noise, log_z, k)
    for gradient in torch.autograd.grad(loss, [model.table, log_z]):
        assert gradient.abs().max() < 1e-12
    other = population(model, batch, torch.full_like(data, 1 / 27), noise, log_z, k)
    assert torch.autograd.grad(other, model.table)[0].abs().max() > 1e-3
    moved = log_z.detach() + 0.3
    assert float(population(model, batch, data, noise, moved, k).detach()) > float(loss.detach()) + 1e-3
    worse = toy(5, seed=9, scale=0.7)
    assert float(population(worse, batch, data, noise, log_z, k).detach()) > float(loss.detach())


def test_ranking_with_the_whole_space_is_exact_likelihood() -> None:
    """Uniform noise that happens to be all other strings: −log of the gold's share is its exact negative log-likelihood."""
    model, batch = toy(5, seed=2), strings(2)
    scores = -energies.energy(model, batch, batch.gold, "raw") + math.log(9)
    for b in range(9):
        others = torch.cat([scores[:b], scores[b + 1 :]])
        found = ranking_losses(scores[b : b + 1], others.unsqueeze(0))
        expected = -scores[b] + math.log(9) + log_partition(model, batch)[b]
        torch.testing.assert_close(found[0], expected)


def test_log_z_is_fixed_or_learnt() -> None:
    torch.manual_seed(0)
    model = Field(hidden=4, embedding=3, normalizer=3).build(Sizes(target=6)).double()
    assert model.normalizer is not None
    learnt = NoiseContrastive(noise="uniform", log_z=None)
    loss = loss_of(learnt, model, BATCH)
    torch.testing.assert_close(loss.total, loss_of(NoiseContrastive(noise="uniform"), model, BATCH).total)
    (gradient,) = torch.autograd.grad(loss.total, model.normalizer.table)
    assert gradient[0] == 0
    assert (gradient[1:] != 0).all()
    model.normalizer.table.data[1:] = torch.tensor([0.4, 0.4, 0.4])
    torch.testing.assert_close(
        loss_of(learnt, model, BATCH).total, loss_of(NoiseContrastive(noise="uniform", log_z=0.4), model, BATCH).total
    )
    with pytest.raises(InputError, match="a fixed log_z needs a model with log_z"):
        loss_of(learnt, toy(6), BATCH)


def test_noise_of_a_model() -> None:
    model, writer = toy(6), NOISES["causal"].model
    loss = loss_of(NoiseContrastive(model=writer, samples=4), model, BATCH)
    assert loss.total.isfinite()
    loss.total.backward()
    assert all(p.grad is None for p in writer.parameters())
    assert model.table.grad is not None


def test_complaints() -> None:
    with pytest.raises(InputError, match="not fitted to bigram counts"):
        loss_of(NoiseContrastive(), toy(6), BATCH)
    with pytest.raises(InputError, match="needs training examples with tokens"):
        NgramNoise.of([], 6, ENDED, 1, smoothing=0.0, backoff=0.1)
