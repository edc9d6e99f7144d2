"""The objectives of masked models: each against plain loops over positions and sequences."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from masked_toy import ENDED, ended, slow_conditional, slow_energy, slow_log_z, strings, toy
from objective_cases import assert_same, gradient, loss_of
from scipy.stats import chisquare
from torch import Tensor

from unforced.energy import energies, masked_copies, partition
from unforced.energy.factored import shares_contexts
from unforced.energy.partition import log_partition, true_conditionals
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.models.masked import ConditionalMasked, Masked
from unforced.models.transformer import Causal
from unforced.objectives.exact_likelihood import ExactLikelihood
from unforced.objectives.kl_projection import KLProjection, free_conditionals
from unforced.objectives.masked_lm import MaskedLM
from unforced.objectives.noise_contrastive import (
    ModelNoise,
    NgramNoise,
    NoiseContrastive,
    binary_losses,
    ranking_losses,
)
from unforced.objectives.pseudo_likelihood import PseudoLikelihood
from unforced.ops import random_streams
from unforced.types import Batch, Encoded, Sizes

BATCH = ended([3, 4, 5], [5, 3], [4])
KINDS = pytest.mark.parametrize("kind", ["raw", "local"])


def positions(batch: Batch) -> list[tuple[int, int]]:
    return [(b, t) for b, t in energies.variables(batch).nonzero().tolist()]


# Every objective against loops

DATA = [[3, 4, 5, 2], [3, 3, 2], [4, 5, 2], [3, 4, 4, 2]]
CODEC = SimpleNamespace(symbols=ENDED, sizes=Sizes(target=6))
EXAMPLES = [Encoded(None, target) for target in DATA]


def ngram_noise(order: int) -> NgramNoise:
    return NgramNoise.of(DATA, 6, ENDED, order, smoothing=0.5, backoff=0.2)


def model_noise() -> dict[str, Any]:
    torch.manual_seed(0)
    shape: Any = {"width": 8, "heads": 2, "layers": 1, "feedforward": 8, "dropout": 0.0}
    return {
        "masked": ModelNoise(Masked(**shape).build(Sizes(target=6)).double().eval()),
        "causal": ModelNoise(Causal(**shape).build(Sizes(target=6)).double().eval()),
    }


NOISES: dict[str, Any] = {
    "uniform": ngram_noise(0),
    "unigram": ngram_noise(1),
    "bigram": ngram_noise(2),
    **model_noise(),
}


def slow_pseudo_likelihood(model: Any, kind: str) -> Tensor:
    return -sum(  # type: ignore[return-value]
        slow_conditional(model, BATCH, b, t, kind)[BATCH.gold[b, t] - 3] for b, t in positions(BATCH)
    )


def slow_exact_likelihood(model: Any, kind: str) -> Tensor:
    return sum(  # type: ignore[return-value]
        slow_energy(model, BATCH, b, BATCH.gold[b].tolist(), kind) + slow_log_z(model, BATCH, b, kind) for b in range(3)
    )


TEACHER = toy(6, seed=5)


def slow_kl_projection(model: Any, kind: str) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    where = energies.variables(BATCH)
    for b, t in positions(BATCH):
        hidden = torch.zeros_like(where)
        hidden[b, t] = True
        free = torch.log_softmax(TEACHER.scores(BATCH, BATCH.gold, hidden)[b, t, 3:], dim=0).detach()
        true = slow_conditional(model, BATCH, b, t, kind)
        total = total + (free.exp() * (free - true)).sum()
    return total


def slow_noise_contrastive(form: str) -> Callable[[Any, str], Tensor]:
    """Return the loss with three sequences of bigram noise and log Z = 0.7."""

    def total(model: Any, kind: str) -> Tensor:
        noise, k = NOISES["bigram"], 3
        draws = noise.draw(BATCH, random_streams.keys(BATCH, torch.Generator().manual_seed(0)), k)

        def ratio(b: int, tokens: Tensor) -> Tensor:
            log_q = noise.log_prob(BATCH.select(torch.tensor([b])), tokens.unsqueeze(0))[0]
            return -slow_energy(model, BATCH, b, tokens.tolist(), kind) - 0.7 - log_q - math.log(k)

        found = torch.zeros((), dtype=torch.float64)
        for b in range(3):
            gold = ratio(b, BATCH.gold[b])
            others = torch.stack([ratio(b, draws.tokens[b * k + j]) for j in range(k)])
            if form == "binary":
                found = found - F.logsigmoid(gold) - F.logsigmoid(-others).sum()
            else:
                found = found + torch.logsumexp(torch.cat([gold[None], others]), 0) - gold
        return found

    return total


NCE: dict[str, Any] = {"noise": "bigram", "samples": 3, "log_z": 0.7, "smoothing": 0.5, "backoff": 0.2}
LOOPS: dict[str, tuple[Callable[..., Any], Callable[[Any, str], Tensor]]] = {
    "pseudo_likelihood": (PseudoLikelihood, slow_pseudo_likelihood),
    "exact_likelihood": (ExactLikelihood, slow_exact_likelihood),
    "kl_projection": (
        lambda **fields: KLProjection(teacher=TEACHER, pseudo_likelihood=0.0, **fields),
        slow_kl_projection,
    ),
    "kl_projection with pseudo-likelihood": (
        lambda **fields: KLProjection(teacher=TEACHER, pseudo_likelihood=0.5, **fields),
        lambda model, kind: slow_kl_projection(model, kind) + 0.5 * slow_pseudo_likelihood(model, kind),
    ),
    "binary": (
        lambda **fields: NoiseContrastive(**NCE, form="binary", **fields).fitted(CODEC, EXAMPLES),
        slow_noise_contrastive("binary"),
    ),
    "ranking": (
        lambda **fields: NoiseContrastive(**NCE, form="ranking", **fields).fitted(CODEC, EXAMPLES),
        slow_noise_contrastive("ranking"),
    ),
}


@pytest.mark.parametrize(
    "rows", [20, pytest.param(1, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.slow)]
)
@KINDS
@pytest.mark.parametrize("name", LOOPS)
def test_loss_and_gradient_equal_those_of_loops(name: str, kind: Any, rows: int) -> None:
    make, slow = LOOPS[name]
    model = toy(6)
    loss, expected = loss_of(make(energy=kind, rows=rows), model, BATCH), slow(model, kind)
    assert loss.count == 6
    assert_same(model, loss.total, expected)
    assert all(p.grad is None for p in TEACHER.parameters())


# Masked language modelling


def draws(objective: MaskedLM, batch: Batch, times: int) -> Tensor:
    """Return which positions are masked in ``times`` copies of the batch with different ids: [times,B,T]."""
    many = batch.select(torch.arange(len(batch)).repeat(times))
    many = replace(many, ids=torch.arange(len(many)))
    found = objective.draw_masked(many, random_streams.keys(many, torch.Generator().manual_seed(0)))
    return found.view(times, len(batch), -1)


def assert_share(found: float, expected: float, n: int, deviations: float = 5.0) -> None:
    """Assert that a share of n draws agrees with its probability."""
    assert abs(found - expected) < deviations * math.sqrt(max(expected * (1 - expected), 1e-9) / n)


def test_one_masked_position_has_the_mean_loss_of_all() -> None:
    """The loss of 'one' is that of the drawn position, and 'each' sums over all positions."""
    model, batch = toy(6), ended([3, 4, 5], [5, 3])
    example, position = energies.variables(batch).nonzero(as_tuple=True)
    scores = masked_copies.scores_at(model, batch, batch.gold, example, position.unsqueeze(1))[:, 0, 3:]
    nll = -torch.log_softmax(scores, dim=1).gather(1, batch.gold[example, position].unsqueeze(1) - 3).squeeze(1)
    torch.testing.assert_close(loss_of(MaskedLM(hidden="each"), model, batch).total, nll.sum())
    for seed in range(10):
        masked = MaskedLM(hidden="one").draw_masked(
            batch, random_streams.keys(batch, torch.Generator().manual_seed(seed))
        )
        loss = loss_of(MaskedLM(hidden="one"), model, batch, seed)
        torch.testing.assert_close(loss.total, nll[masked[example, position]].sum())
        assert loss.count == 2


def test_positions_are_drawn_uniformly() -> None:
    batch, times = ended([3, 4, 5], [5, 3]), 4000
    found = draws(MaskedLM(hidden="one"), batch, times).float().mean(dim=0)
    for b, n in ((0, 3), (1, 2)):
        for t in range(n):
            assert_share(float(found[b, t]), 1 / n, times)
    assert found[0, 3] == found[1, 2] == found[1, 3] == 0  # the end symbol and padding


def test_numbers_of_masked_tokens_are_uniform() -> None:
    batch, times = ended([3, 4, 5, 3]), 4000
    found = draws(MaskedLM(), batch, times).sum(dim=2).flatten()
    for number in range(1, 5):
        assert_share(float((found == number).float().mean()), 1 / 4, times)


@pytest.mark.parametrize(("rate", "expected"), [(0.01, 1), (0.5, 5), (0.34, 3), (1.0, 10)])
def test_a_fixed_share_is_rounded(rate: float, expected: int) -> None:
    batch = ended([3, 4, 5, 3, 4, 5, 3, 4, 5, 3], [4])
    found = draws(MaskedLM(hidden="fixed", rate=rate), batch, 20).sum(dim=2)
    assert (found[:, 0] == expected).all()
    assert (found[:, 1] == 1).all()


def test_the_loss_sums_over_masked_tokens() -> None:
    model, batch = toy(7, seed=2), ended([3, 4, 5, 6], [5, 3])
    objective = MaskedLM()
    masked = objective.draw_masked(batch, random_streams.keys(batch, torch.Generator().manual_seed(5)))
    loss = loss_of(objective, model, batch, 5)
    scores = model.scores(batch, batch.gold, masked)
    total = 0.0
    for b, t in masked.nonzero().tolist():
        log_probs = torch.log_softmax(scores[b, t, 3:], dim=0)  # special tokens are not allowed
        total -= float(log_probs[batch.gold[b, t] - 3].detach())
    assert float(loss.total.detach()) == pytest.approx(total)
    assert loss.count == masked.sum()
    share, of = loss.metrics["hidden"]
    assert (float(share), float(of)) == (float(masked.sum()), 6.0)


def conditional(longest: int = 6) -> tuple[Any, Batch]:
    torch.manual_seed(0)
    spec = ConditionalMasked(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, longest=longest)
    batch = ended([3, 4, 5], [5, 3])
    source = torch.tensor([[1, 2], [3, 4]])
    sourced = Batch.of_gold(batch.gold, batch.mask, batch.symbols, source=source, ids=batch.ids)
    return spec.build(Sizes(target=6, source=5)).double().eval(), sourced


def test_length_weight_adds_the_loss_of_the_length() -> None:
    model, batch = conditional()
    without = loss_of(MaskedLM(length_weight=0.0), model, batch)
    found = loss_of(MaskedLM(length_weight=0.7), model, batch)
    log_probs = torch.log_softmax(model.length_scores(batch), dim=1)
    nll = torch.stack([-log_probs[0, 2], -log_probs[1, 1]])
    masked = MaskedLM().draw_masked(batch, random_streams.keys(batch, torch.Generator().manual_seed(0)))
    expected = without.total + 0.7 * (nll * masked.sum(dim=1)).sum()
    torch.testing.assert_close(found.total, expected)
    assert found.count == without.count
    assert float(found.metrics["length_nll"][0]) == pytest.approx(float(nll.sum().detach()), rel=1e-5)
    assert "length_nll" not in without.metrics


def test_targets_longer_than_the_model_supports_raise() -> None:
    model, batch = conditional(longest=2)
    with pytest.raises(InputError, match="a target has 3 tokens, but the model predicts up to 2"):
        loss_of(MaskedLM(), model, batch)


# Pseudo-likelihood and KL projection


def test_sampled_positions_are_unbiased() -> None:
    """The mean over all choices equals the full sum."""
    model = toy(6, seed=1)
    for b in range(3):
        one = BATCH.select(torch.tensor([b]))
        n = int(energies.variables(one).sum())
        found = {
            round(float(loss_of(PseudoLikelihood(positions=1), model, one, s).total.detach()), 9) for s in range(40)
        }
        assert len(found) == n
        whole = float(loss_of(PseudoLikelihood(), model, one).total.detach())
        assert sum(found) / n == pytest.approx(whole)
        assert float(loss_of(PseudoLikelihood(positions=5), model, one).total.detach()) == pytest.approx(whole)


@pytest.mark.parametrize("worth", [0, 8])
@KINDS
def test_shortcuts_of_field_models_change_nothing(kind: Any, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients equal those of masked copies."""
    monkeypatch.setattr(partition, "WORTH", worth)
    torch.manual_seed(0)
    model = Field(hidden=5, embedding=4).build(Sizes(target=6)).double()
    model.bias.data.normal_()

    class Slow:
        def scores(self, *inputs: Any) -> Tensor:
            return model.scores(*inputs)

    objective = PseudoLikelihood(energy=kind)
    fast, slow = (loss_of(objective, each, BATCH).total for each in (model, Slow()))
    torch.testing.assert_close(fast, slow)
    used = [p for name, p in model.named_parameters() if name != "mask"]  # nothing is hidden in one pass
    for a, b in zip(torch.autograd.grad(fast, used), torch.autograd.grad(slow, used)):
        torch.testing.assert_close(a, b)


def test_dropout_excludes_shared_contexts() -> None:
    model = Field(hidden=5, embedding=4, dropout=0.5).build(Sizes(target=6)).double()
    assert not shares_contexts(model, BATCH)
    first, second = (loss_of(PseudoLikelihood(), model, BATCH).total for _ in range(2))
    assert not torch.equal(first, second)
    model.eval()
    assert shares_contexts(model, BATCH)


def test_kl_projection_without_a_teacher() -> None:
    """Gradients flow through both sides."""
    model = toy(6, seed=2)
    where = energies.variables(BATCH)
    free = free_conditionals(model, BATCH, where, 100)[:, 3:]
    true, ids = true_conditionals(model, BATCH, where, "raw", 100)
    assert ids.tolist() == [3, 4, 5]
    kl = (free.exp() * (free - true)).sum()
    nll = loss_of(PseudoLikelihood(), model, BATCH).total
    loss = loss_of(KLProjection(pseudo_likelihood=0.5), model, BATCH)
    torch.testing.assert_close(loss.total, kl + 0.5 * nll)
    torch.testing.assert_close(gradient(loss.total, model), gradient(kl + 0.5 * nll, model))
    with pytest.raises(InputError, match="needs a teacher or a positive pseudo_likelihood"):
        KLProjection(pseudo_likelihood=0.0)


def test_a_teacher_is_loaded_by_the_trainer() -> None:
    model, teacher = toy(6), toy(6, seed=5)
    objective = KLProjection(teacher="runs/teacher")
    with pytest.raises(InputError, match="is not loaded; call with_models"):
        loss_of(objective, model, BATCH)
    folders = []
    ready = objective.with_models(lambda folder: folders.append(folder) or teacher)  # type: ignore[func-returns-value]
    assert folders == ["runs/teacher"]
    found = loss_of(ready, model, BATCH).total
    assert torch.equal(found, loss_of(KLProjection(teacher=teacher), model, BATCH).total)
    assert found.requires_grad


# Conditionals without a joint distribution (Goyal 2021, section 6.2.1)


def thesis() -> tuple[Any, Batch]:
    """Return a model with p(y1 | y2) = [[.99, .01], [.01, .99]] and p(y2 | y1) = 1/2."""
    batch = strings(2, letters=2)
    model = toy(4)
    model.table.data.zero_()
    model.table.data[4:6, :2] = torch.tensor([[0.99, 0.01], [0.01, 0.99]]).double().log()  # the token after
    return model, batch


def test_free_conditionals_of_the_thesis() -> None:
    model, batch = thesis()
    free = free_conditionals(model, batch, energies.variables(batch), 100)[:, :2]
    free = free.detach().exp().view(2, 2, 2, 2)
    # [y1, y2, position, w]
    torch.testing.assert_close(free[0, 0, 0], torch.tensor([0.99, 0.01]).double())
    torch.testing.assert_close(free[0, 1, 0], torch.tensor([0.01, 0.99]).double())
    torch.testing.assert_close(free[0, 0, 1], torch.tensor([0.5, 0.5]).double())
    # a joint p would give the same odds ratio p(a,a) p(b,b) / (p(a,b) p(b,a)) from both conditionals
    odds = [
        free[0, 0, 0, 0] * free[1, 1, 0, 1] / (free[0, 0, 0, 1] * free[1, 1, 0, 0]),
        free[0, 0, 1, 0] * free[1, 1, 1, 1] / (free[0, 0, 1, 1] * free[1, 1, 1, 0]),
    ]
    assert float(odds[0]) == pytest.approx(99**2)
    assert float(odds[1]) == pytest.approx(1)


# Exact likelihood


# Noise-contrastive estimation


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_normalised_and_sampled_exactly(name: str) -> None:
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


@pytest.mark.parametrize("name", NOISES)
def test_noise_depends_only_on_the_example(name: str) -> None:
    """The order of examples, their number and padding change nothing."""
    noise, keys = NOISES[name], random_streams.keys(BATCH, torch.Generator().manual_seed(1))
    whole = noise.draw(BATCH, keys, 2)
    for b in range(3):
        one = masked_copies.trim(BATCH.select(torch.tensor([b])), int(BATCH.mask[b].sum()))
        alone = noise.draw(one, keys[b : b + 1], 2)
        n = one.gold.shape[1]
        assert torch.equal(alone.tokens, whole.tokens[2 * b : 2 * b + 2, :n])
        torch.testing.assert_close(alone.log_probs, whole.log_probs[2 * b : 2 * b + 2])
        assert (whole.tokens[2 * b : 2 * b + 2, n:] == 0).all()


def expected_binary_loss(model: Any, batch: Batch, data: Tensor, noise: Tensor, log_z: Tensor, k: int) -> Tensor:
    """Return the expected binary loss over all strings: data p(y), and k draws of noise q(y)."""
    ratios = -energies.energy(model, batch, batch.gold, "raw") - log_z - noise.log() - math.log(k)
    nothing = torch.zeros(len(ratios), 0, dtype=torch.float64)
    as_data = binary_losses(ratios, nothing)
    as_noise = F.softplus(ratios)
    return (data * as_data).sum() + k * (noise * as_noise).sum()


@pytest.mark.parametrize("k", [1, 5])
def test_the_optimum_is_the_distribution_of_the_data(k: int) -> None:
    """If exp(−E) / Z is the distribution of the data, all gradients vanish, that of log Z included."""
    model, batch = toy(5, seed=2, scale=0.7), strings(3)
    log_z = log_partition(model, batch)[:1].squeeze().requires_grad_()
    data = torch.exp(-energies.energy(model, batch, batch.gold, "raw") - log_z).detach()
    assert float(data.sum()) == pytest.approx(1)
    noise = torch.rand(27, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    noise = noise / noise.sum()
    loss = expected_binary_loss(model, batch, data, noise, log_z, k)
    for slope in torch.autograd.grad(loss, [model.table, log_z]):
        assert slope.abs().max() < 1e-12
    other = expected_binary_loss(model, batch, torch.full_like(data, 1 / 27), noise, log_z, k)
    assert torch.autograd.grad(other, model.table)[0].abs().max() > 1e-3
    moved = log_z.detach() + 0.3
    assert float(expected_binary_loss(model, batch, data, noise, moved, k).detach()) > float(loss.detach()) + 1e-3
    worse = toy(5, seed=9, scale=0.7)
    assert float(expected_binary_loss(worse, batch, data, noise, log_z, k).detach()) > float(loss.detach())


def test_ranking_against_all_sequences_equals_exact_likelihood() -> None:
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


def test_noise_from_a_model() -> None:
    model, writer = toy(6), NOISES["causal"].model
    loss = loss_of(NoiseContrastive(model=writer, samples=4), model, BATCH)
    assert loss.total.isfinite()
    loss.total.backward()
    assert all(p.grad is None for p in writer.parameters())
    assert model.table.grad is not None


def test_missing_counts_raise() -> None:
    with pytest.raises(InputError, match="not fitted to bigram counts"):
        loss_of(NoiseContrastive(), toy(6), BATCH)
    with pytest.raises(InputError, match="needs training examples with tokens"):
        NgramNoise.of([], 6, ENDED, 1, smoothing=0.0, backoff=0.1)
    with pytest.raises(InputError, match="27 sequences are too many"):
        loss_of(ExactLikelihood(most=20), toy(6), BATCH)
