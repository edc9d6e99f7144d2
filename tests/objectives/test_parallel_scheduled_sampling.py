"""Parallel scheduled sampling: theorem 2.1 by enumeration, and the invariants of its passes."""

from itertools import product
from typing import Any

import pytest
import torch
from objective_cases import batch_of, loss_of, network, sourced, toy
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor

from unforced.errors import InputError
from unforced.objectives.model_tokens import PICKS, draw_replaced
from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.ops import random_streams
from unforced.types import Batch, Progress, Symbols

FREE = Symbols(pad=0, bos=0, eos=None)  # three tokens, each of which may be emitted
N = 20_000


def three_tokens(rows: int = N) -> Batch:
    """Three tokens that are fed and a fourth that is only predicted."""
    gold = torch.tensor([[2, 0, 1, 2]] * rows)
    return Batch.of_gold(gold, torch.ones_like(gold, dtype=torch.bool), FREE, ids=torch.arange(rows))


def mixed(objective: ParallelScheduledSampling, model: Any, batch: Batch, seed: int = 0) -> Tensor:
    keys = random_streams.keys(batch, torch.Generator().manual_seed(seed))
    prefix, _ = objective.mix_prefix(model, batch, model.start(batch), keys, objective.p)
    return prefix


def counts(prefix: Tensor) -> Tensor:
    """How often each of the 27 outputs of three tokens was fed."""
    tokens = prefix[:, 1:4]
    return (tokens[:, 0] * 9 + tokens[:, 1] * 3 + tokens[:, 2]).bincount(minlength=27)


def probabilities(model: Any) -> Tensor:
    """p(z_1 z_2 z_3) of all 27, from the model's own scores."""
    out = []
    batch = three_tokens(1)
    for z in product(range(3), repeat=3):
        features, _ = model.advance(model.start(batch), model.embed(torch.tensor([[0, *z[:2]]])))
        log_p = model.score(features).log_softmax(-1)[0]
        out.append(sum(log_p[t, token] for t, token in enumerate(z)).exp())  # type: ignore[union-attr]
    return torch.stack(out).detach()


@pytest.mark.parametrize("passes", [3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_enough_passes_draw_from_the_model(passes: int, seed: int) -> None:
    model = toy(3, seed=seed)
    found = counts(mixed(ParallelScheduledSampling(passes=passes, p=1.0), model, three_tokens()))
    expected = probabilities(model) * N
    assert expected.sum().item() == pytest.approx(N)
    assert chisquare(found, expected).pvalue > 0.001


@pytest.mark.parametrize("passes", [1, 2])
def test_fewer_passes_do_not(passes: int) -> None:
    model = toy(3)
    found = counts(mixed(ParallelScheduledSampling(passes=passes, p=1.0), model, three_tokens()))
    assert chisquare(found, probabilities(model) * N).pvalue < 1e-6


def test_enough_passes_equal_sequential_scheduled_sampling_in_distribution() -> None:
    model, batch = toy(3, seed=2), three_tokens()
    parallel = counts(mixed(ParallelScheduledSampling(passes=3, p=0.6), model, batch))
    keys = random_streams.keys(batch, torch.Generator().manual_seed(9))
    sequential = counts(
        ScheduledSampling(feed="sample").roll_out(
            model, batch, model.start(batch), draw_replaced(keys, batch, 0.4), random_streams.branch(keys, PICKS)
        )
    )
    seen = (parallel + sequential) > 10
    assert chi2_contingency(torch.stack([parallel[seen], sequential[seen]])).pvalue > 0.001
    fewer = counts(mixed(ParallelScheduledSampling(passes=1, p=0.6), model, batch))
    assert chi2_contingency(torch.stack([fewer[seen], sequential[seen]])).pvalue < 1e-4


def test_one_pass_predicts_each_token_from_the_target() -> None:
    """The prediction at t, given the target before t, is the input at t + 1."""
    model = toy(8, order=1)
    with torch.no_grad():
        model.table.copy_(torch.eye(8, dtype=torch.float64).roll(1, dims=1) * 50)  # w + 1 follows w
    batch = batch_of([[3, 5, 3, 5, 2]])
    prefix = mixed(ParallelScheduledSampling(p=1.0), model, batch)
    assert prefix.tolist() == [[1, 2, 4, 6, 4]]
    again = mixed(ParallelScheduledSampling(p=1.0, passes=2), model, batch)
    assert again.tolist() == [[1, 2, 3, 5, 7]]  # the second pass reads the first one's tokens and keeps its first


def test_start_padding_and_banned_tokens_stay() -> None:
    model = toy(8, order=1)
    with torch.no_grad():
        model.table[:, [0, 1]] += 30
    batch = batch_of([[3, 4, 5, 6, 2], [5, 2]])
    for seed in range(20):
        prefix = mixed(ParallelScheduledSampling(p=1.0, passes=3), model, batch, seed)
        assert prefix[:, 0].tolist() == [1, 1]
        assert prefix[1, 2:].tolist() == batch.prefix[1, 2:].tolist()
        assert (prefix[0, 1:] > 1).all()
    assert batch.prefix.tolist() == [[1, 3, 4, 5, 6], [1, 5, 2, 0, 0]]


def test_sources_are_encoded_once() -> None:
    model, batch = network("transformer"), sourced()
    starts, scored, gradients = [], [], []
    start, score = model.start, model.score
    model.start = lambda b: starts.append(1) or start(b)  # type: ignore[method-assign]

    def counting(features: Tensor) -> Tensor:
        scored.append(features.shape[0])
        gradients.append(torch.is_grad_enabled())
        return score(features)

    model.score = counting  # type: ignore[method-assign]
    loss = loss_of(ParallelScheduledSampling(p=1.0, passes=2), model, batch)
    assert len(starts) == 1
    assert gradients == [False] * (len(gradients) - 1) + [True]
    assert scored[-1] == batch.tokens
    assert all(n < batch.tokens - len(batch) + 1 for n in scored[:-1])
    assert 0 < loss.metrics["fed"][0] == loss.metrics["fed"][1] == batch.tokens - 3


def test_low_temperatures_give_the_argmax() -> None:
    model, batch = toy(3, seed=4), three_tokens(500)
    best = mixed(ParallelScheduledSampling(p=1.0, pick="argmax"), model, batch)
    cold = mixed(ParallelScheduledSampling(p=1.0, temperature=1e-3), model, batch)
    warm = mixed(ParallelScheduledSampling(p=1.0), model, batch)
    assert torch.equal(cold, best)
    assert not torch.equal(warm, best)


def test_the_probability_rises_through_the_warmup() -> None:
    objective = ParallelScheduledSampling(p=0.5, warmup=0.5, unit="fraction", schedule="linear")
    assert objective.probability(Progress(step=25, total=100)) == pytest.approx(0.25)
    loss = loss_of(objective, toy(3), three_tokens(3000), step=25, total=100)
    assert loss.metrics["fed"][0] / loss.metrics["fed"][1] == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("fields", "word"), [({"warmup": 0.5}, "fraction"), ({"warmup": 10, "unit": "fraction"}, "warmup")]
)
def test_units_of_the_warmup_are_checked(fields: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        ParallelScheduledSampling(**fields)
