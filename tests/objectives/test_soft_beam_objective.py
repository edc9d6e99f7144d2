"""The objective soft_beam against closed forms, enumeration and its limits."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from objective_cases import ENDED, FIXED, batch_of, codec, fit, gradient, loss_of, toy
from torch import Tensor, nn

from unforced.decoding import search, soft_beam
from unforced.decoding.beam import Beam
from unforced.decoding.soft_beam import Continuations, SoftBeamSearch, all_candidates, best_candidates, mixtures
from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.transformer import Causal, Transformer
from unforced.objectives.costs import Table, WeightedHamming
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import Always, Exponential
from unforced.objectives.self_normalized import SelfNormalized
from unforced.objectives.soft_beam import SoftBeam
from unforced.types import Batch, Sizes, Symbols

SPECS = {
    "lstm": LSTM(hidden=12, embedding=8, dropout=0.0),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=2, feedforward=16, dropout=0.0),
}
KINDS = pytest.mark.parametrize("kind", ["lstm", pytest.param("transformer", marks=pytest.mark.slow)])
SYMBOLS = pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])


def build(kind: str, vocabulary: int = 9, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return SPECS[kind].build(Sizes(target=vocabulary, source=9))


def reversing(count: int, seed: int, symbols: Symbols = ENDED, vocabulary: int = 9, noise: float = 0.0) -> Batch:
    """Return examples whose target is the source backwards, with a share of ``noise`` replaced by other tokens."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 7, (count,), generator=rng)
    source = torch.randint(3, min(vocabulary, 9), (count, 6), generator=rng)
    seen = torch.arange(6) < lengths.unsqueeze(1)
    source = source * seen
    back = torch.zeros_like(source)
    for row, n in enumerate(lengths.tolist()):
        back[row, :n] = source[row, :n].flip(0)
    other = torch.randint(3, min(vocabulary, 9), back.shape, generator=rng)
    back = torch.where((torch.rand(back.shape, generator=rng) < noise) & seen, other, back)
    if symbols.eos is None:
        return Batch.of_gold(back, seen, symbols, source=source, source_mask=seen, length=lengths)
    gold = torch.cat([back, torch.zeros(count, 1, dtype=torch.long)], dim=1)
    gold[torch.arange(count), lengths] = 2
    return Batch.of_gold(gold, gold > 0, symbols, source=source, source_mask=seen)


@pytest.fixture(scope="module", params=["lstm", pytest.param("transformer", marks=pytest.mark.slow)])
def trained(request) -> nn.Module:
    """A model that reverses most short sequences, in float32."""
    model = build(request.param)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(40 if request.param == "lstm" else 120):
        optimizer.zero_grad()
        loss_of(CrossEntropy(), model, reversing(64, number, noise=0.2)).mean.backward()
        optimizer.step()
    return model


# Direct loss


@KINDS
@SYMBOLS
def test_direct_loss_tends_to_the_cost_of_beam_search(kind, symbols):
    model, batch = build(kind).double(), reversing(6, 3, symbols)
    found = loss_of(SoftBeam(beam=3, alpha=1e13, keep=None), model, batch)
    steps = batch.mask.sum(dim=1)
    expected = 0
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        limit = {} if symbols.eos is None else {"max_length": int(steps[row])}
        tokens = Beam(3, length_penalty=0.0, finished="stay", **limit)(model, one).tokens[0, 0]
        tokens = torch.nn.functional.pad(tokens, (0, int(steps[row]) - len(tokens)))
        expected += int((tokens != one.gold[0, : steps[row]]).sum())
    assert found.total.item() == pytest.approx(expected, abs=1e-6)
    assert float(found.count) == float(batch.mask.sum())


@KINDS
def test_tables_of_costs_and_weights_of_one_equal_hamming(kind):
    model, batch = build(kind).double(), reversing(4, 1)
    plain = loss_of(SoftBeam(alpha=2.0, beyond=1), model, batch).total
    table = Table(lambda batch: 1 - nn.functional.one_hot(batch.gold, 9).double())
    torch.testing.assert_close(loss_of(SoftBeam(alpha=2.0, cost=table, beyond=1), model, batch).total, plain)

    for weight, compare in ((1.0, torch.equal), (2.0, torch.lt)):
        objective = fit(SoftBeam(alpha=2.0, cost=WeightedHamming("e", weight), beyond=1), codec(names="abcdefghi"))
        assert compare(plain, loss_of(objective, model, batch).total)


# Hinge loss


def outputs(steps: int, size: int, done: bool = False) -> Iterator[list[int]]:
    """Yield the outputs of a search after so many steps; padding follows the end symbol."""
    if not steps:
        yield []
        return
    for token in [0] if done else range(2, size):
        for rest in outputs(steps - 1, size, done or token == 2):
            yield [token, *rest]


def augmented(model: Any, output: list[int], gold: list[int]) -> float:
    """Return the global score of an output plus one for each token that differs from the target."""
    total, last = 0.0, 1
    for token, right in zip(output, gold):
        if token != 0:
            total += float(model.table.detach()[last, token])
        total += token != right
        last = token
    return total


@pytest.mark.parametrize(
    ("seed", "keep"), [(0, None), (1, 3), *[pytest.param(seed, 3, marks=pytest.mark.slow) for seed in (2, 3)]]
)
def test_hinge_equals_enumeration(seed: int, keep: int | None) -> None:
    model, gold = toy(5, 1, seed), [3, 4, 3, 2]
    every = list(outputs(len(gold), 5))
    best = max(augmented(model, output, gold) for output in every)
    wanted = max(0.0, best - augmented(model, gold, gold))
    objective = SoftBeam(beam=len(every), alpha=1e9, loss="hinge", scores="global", keep=keep)
    found = loss_of(objective, model, batch_of([gold])).total.item()
    assert found == pytest.approx(wanted, abs=1e-5)


# Limits and invariances


@KINDS
@pytest.mark.parametrize("fields", [{}, {"loss": "hinge", "scores": "global"}])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_losses_are_finite_for_all_alpha(kind, fields, dtype):
    for vocabulary, beam in ((9, 3), (5, 8)):  # the second has fewer continuations than places
        model, batch = build(kind, vocabulary).to(dtype), reversing(4, 1, vocabulary=vocabulary)
        for power in (-3, 0, 3, 6):
            loss = loss_of(SoftBeam(beam=beam, alpha=10.0**power, **fields), model, batch)
            assert loss.total.isfinite()
            assert gradient(loss.total, model).isfinite().all()


@KINDS
def test_adding_a_number_to_the_scores_of_a_step_changes_only_global_search(kind):
    plain, batch = build(kind).double(), reversing(6, 5)
    shifted, score = build(kind).double(), plain.score
    shifted.score = lambda features: score(features) + 3 * features[..., :1]  # depends on the features
    for scores, same in (("local", True), ("global", False)):
        objective = SoftBeam(alpha=3.0, scores=scores)
        losses = [loss_of(objective, model, batch).total for model in (plain, shifted)]
        assert torch.allclose(*losses, rtol=1e-9) is same
        decoder = Beam(3, length_penalty=0.0, finished="stay", scores=scores, max_length=6)
        outputs = [decoder(model, batch).ids(ENDED) for model in (plain, shifted)]
        assert (outputs[0] == outputs[1]) is same


@KINDS
@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)]])
def test_one_hypothesis_equals_scheduled_sampling_without_targets(kind, seed):
    model, batch = build(kind, seed=seed).double(), reversing(1, 4 + seed, FIXED)
    ways, advance = [], model.advance
    model.advance = lambda *given: ways[-1].append((found := advance(*given))[0][:, 0]) or found
    for objective in (
        SoftBeam(beam=1, alpha=1e9, keep=None),
        ScheduledSampling(feed="soft_argmax", mixing=Always(), alpha=1e9),
    ):
        ways.append([])
        loss_of(objective, model, batch)
    torch.testing.assert_close(*map(torch.cat, ways), rtol=1e-9, atol=1e-9)


@KINDS
@pytest.mark.parametrize("fields", [{}, {"loss": "hinge", "scores": "global"}, {"clip": 0.05, "mix": 0.5}])
@pytest.mark.parametrize(
    "ending", [0, *[pytest.param(ending, marks=pytest.mark.slow) for ending in (1, search.ENDING)]]
)
def test_checkpointing_changes_nothing(kind, fields, ending, monkeypatch):
    monkeypatch.setattr(search, "ENDING", ending)
    torch.manual_seed(0)
    model, batch = replace(SPECS[kind], dropout=0.3).build(Sizes(target=9, source=9)).double(), reversing(5, 2)
    found = []
    for checkpoint in (False, True):
        torch.manual_seed(5)
        loss = loss_of(SoftBeam(alpha=2.0, checkpoint=checkpoint, beyond=4, **fields), model, batch)
        found.append((float(loss.total), gradient(loss.total, model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


def test_the_last_steps_are_not_recomputed():
    model, gold = build("lstm"), torch.tensor([[*[3] * 35, 2]])
    batch = Batch.of_gold(gold, gold > 0, ENDED, source=gold, source_mask=gold > 0)
    taken, advance = [], model.advance
    model.advance = lambda *given: taken.append(1) or advance(*given)
    loss_of(SoftBeam(alpha=2.0, checkpoint=True), model, batch).total.backward()
    assert len(taken) == 36 + 1 + 2 * 6  # the first step alone, then segments of √36 steps; the last 23 are kept


def test_the_number_of_distinct_hypotheses_is_logged(trained):
    """All are distinct if α is large; all are one mixture if it is tiny."""
    batch, found = reversing(32, 3), []
    for alpha in (1e-9, 1e6):
        total, count = loss_of(SoftBeam(beam=3, alpha=alpha), trained, batch).metrics["distinct"]
        found.append(float(total / count))
    assert found[0] == 1
    assert 2.9 < found[1] <= 3


def test_training_lowers_the_cost_of_the_search(trained):
    model, batch = copy.deepcopy(trained), reversing(32, 5000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    @torch.no_grad()
    def errors() -> float:
        return float(loss_of(SoftBeam(alpha=1e4), model, batch).total)

    before = errors()
    for _ in range(80):
        optimizer.zero_grad()
        loss_of(SoftBeam(alpha=3.0), model, batch).mean.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert errors() < before


def test_alpha_follows_its_schedule_and_strength_needs_mix():
    model, batch = build("lstm").double(), reversing(4, 1)
    rising = SoftBeam(alpha=Exponential(start=1.0, rate=2.0, cap=100.0))
    assert set(rising.schedules()) == {"alpha"}
    moved, still = loss_of(rising, model, batch, epoch=3.0), loss_of(SoftBeam(alpha=8.0), model, batch)
    assert moved.total == still.total
    with pytest.raises(InputError, match="strength needs mix above 0"):
        SoftBeam(strength=0.1)


@KINDS
@pytest.mark.parametrize("loss", ["direct", "hinge"])
@pytest.mark.parametrize("strength", [0.0, 0.2])
def test_mix_adds_cross_entropy(kind, loss, strength):
    model, batch = build(kind).double(), reversing(5, 3)
    added = SelfNormalized(strength) if strength else CrossEntropy()
    plain, gold = loss_of(SoftBeam(loss=loss), model, batch), loss_of(added, model, batch)
    both = loss_of(SoftBeam(loss=loss, mix=0.3, strength=strength), model, batch)
    torch.testing.assert_close(both.total, plain.total + 0.3 * gold.total, rtol=1e-10, atol=0)
    assert both.count == plain.count == gold.count
    assert gold.metrics.items() <= both.metrics.items()
    torch.testing.assert_close(
        gradient(both.total, model),
        gradient(plain.total, model) + 0.3 * gradient(gold.total, model),
        rtol=1e-8,
        atol=1e-12,
    )


# Bounds on the gradients of examples


@KINDS
@pytest.mark.parametrize("loss", ["direct", "hinge"])
def test_a_high_bound_changes_nothing(kind, loss):
    model, batch = build(kind).double(), reversing(5, 3)
    plain = gradient(loss_of(SoftBeam(alpha=3.0, loss=loss), model, batch).total, model)
    bounded = gradient(loss_of(SoftBeam(alpha=3.0, loss=loss, clip=1e9), model, batch).total, model)
    torch.testing.assert_close(bounded, plain, rtol=1e-12, atol=1e-14)


def test_gradients_are_bounded_per_example(trained):
    model, batch = copy.deepcopy(trained).double(), reversing(8, 7, noise=0.2)
    singles = [batch.select(torch.tensor([row])) for row in range(len(batch))]

    def each(clip: float | None) -> torch.Tensor:
        objective = SoftBeam(alpha=8.0, clip=clip, keep=None)
        return torch.stack([gradient(loss_of(objective, model, one).total, model) for one in singles])

    plain, bounded = each(None), each(1e-4)
    before, after = plain.norm(dim=1), bounded.norm(dim=1)
    assert after.max() < 0.5 * before.max()
    together = loss_of(SoftBeam(alpha=8.0, clip=1e-4, keep=None), model, batch)
    torch.testing.assert_close(gradient(together.total, model), bounded.sum(dim=0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_bound_scales_with_the_loss(trained, checkpoint, monkeypatch):
    monkeypatch.setattr(search, "ENDING", 0)
    model, batch = copy.deepcopy(trained).double(), reversing(8, 7, noise=0.2)
    objective = SoftBeam(alpha=8.0, clip=0.05, checkpoint=checkpoint)
    plain = loss_of(SoftBeam(alpha=8.0, clip=0.05), model, batch)
    found = loss_of(objective, model, batch)
    scaled = found._replace(total=found.total / 1000)
    torch.testing.assert_close(
        gradient(scaled.total, model) * 1000, gradient(plain.total, model), rtol=1e-9, atol=1e-12
    )


# Dropout


def causal() -> Any:
    torch.manual_seed(1)
    return Causal(width=8, heads=2, layers=2, feedforward=8, dropout=0.5).build(Sizes(target=7)).double()


@pytest.mark.parametrize("loss", ["direct", "hinge"])
def test_dropout_in_the_search_is_optional(loss: Any) -> None:
    model, batch = causal(), batch_of([[3, 4, 5, 6, 2], [5, 2]])
    model.train()

    def seeded(seed: int, **fields: Any) -> float:
        torch.manual_seed(seed)
        return loss_of(SoftBeam(loss=loss, alpha=1.0, **fields), model, batch).total.item()

    assert seeded(1) == seeded(2) == pytest.approx(seeded(3, checkpoint=True), rel=1e-12)
    assert seeded(1, dropout=True) != seeded(2, dropout=True)
    assert all(module.training for module in model.modules())
    model.eval()
    assert seeded(1, dropout=True) == seeded(1)


def test_the_encoder_keeps_its_dropout() -> None:
    torch.manual_seed(1)
    model = LSTM(hidden=6, embedding=5, dropout=0.5).build(Sizes(target=7, source=7)).double()
    source = torch.tensor([[3, 4, 5]])
    batch = replace(batch_of([[3, 4, 2]]), source=source, source_mask=source > 0)
    found = set()
    for seed in range(3):
        torch.manual_seed(seed)
        found.add(loss_of(SoftBeam(alpha=1.0), model.train(), batch).total.item())
    assert len(found) == 3


# Large vocabularies, of which only the best continuations are weighed

WIDE, BEAM = 900, 3
ALL = BEAM * WIDE / soft_beam.SHARE  # from this number on all are weighed
LOSSES = [{}, {"loss": "hinge"}, {"scores": "global"}, {"loss": "hinge", "scores": "global"}]


def untrained(kind: str, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = SPECS[kind].build(Sizes(target=WIDE, source=9)).double()
    with torch.no_grad():
        (model.embedding if model.projection is None else model.projection).mul_(scale)
    return model


@pytest.fixture(scope="module")
def trained_wide() -> dict[str, nn.Module]:
    """Models that know which tokens occur."""
    found = {}
    for kind in SPECS:
        model = untrained(kind).float()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for number in range(40):
            optimizer.zero_grad()
            loss_of(CrossEntropy(), model, reversing(64, number, noise=0.2)).mean.backward()
            optimizer.step()
        found[kind] = model.double()
    return found


@pytest.mark.parametrize(
    ("kind", "fields", "symbols", "alpha"),
    [
        ("lstm", LOSSES[0], ENDED, 0.5),
        ("lstm", LOSSES[3], FIXED, 3.0),
        ("transformer", LOSSES[1], ENDED, 3.0),
        *[
            pytest.param(kind, fields, symbols, alpha, marks=pytest.mark.slow)
            for kind in SPECS
            for fields in LOSSES
            for symbols in (ENDED, FIXED)
            for alpha in (0.5, 3.0)
        ],
    ],
)
def test_the_best_continuations_give_the_loss_and_gradient_of_all(trained_wide, kind, fields, symbols, alpha):
    model, batch = trained_wide[kind], reversing(5, 2, symbols)
    full = loss_of(SoftBeam(beam=BEAM, alpha=alpha, keep=None, **fields), model, batch)
    few = loss_of(SoftBeam(beam=BEAM, alpha=alpha, keep=4, tolerance=1e-7, **fields), model, batch)
    assert float(few.total) == pytest.approx(float(full.total), rel=1e-5)
    expected = gradient(full.total, model)
    assert expected.norm() > 0.1
    assert (gradient(few.total, model) - expected).norm() < 1e-4 * expected.norm()
    kept, steps = few.metrics["kept"]
    assert 4 < kept / steps < ALL
    assert few.metrics["bound"][0] / few.metrics["bound"][1] <= 1e-7


@pytest.mark.parametrize(
    ("kind", "fields", "scale"),
    [
        ("lstm", LOSSES[3], 0.05),
        *[pytest.param(k, f, s, marks=pytest.mark.slow) for k in SPECS for f in LOSSES for s in (0.05, 1.0)],
    ],
)
def test_flat_scores_need_more_continuations(kind, fields, scale):
    model, batch = untrained(kind, scale), reversing(5, 2)
    full = loss_of(SoftBeam(beam=BEAM, alpha=3.0, keep=None, **fields), model, batch)
    few = loss_of(SoftBeam(beam=BEAM, alpha=3.0, keep=8, tolerance=1e-7, **fields), model, batch)
    assert float(few.total) == pytest.approx(float(full.total), rel=1e-5)
    torch.testing.assert_close(gradient(few.total, model), gradient(full.total, model), rtol=1e-3, atol=1e-5)
    kept, steps = few.metrics["kept"]
    assert kept / steps > 100


@KINDS
@pytest.mark.parametrize(("beam", "keep", "vocabulary"), [(6, 1, 5), (24, 4, 20)])
def test_beams_with_more_places_than_continuations(kind, beam, keep, vocabulary):
    torch.manual_seed(0)
    model = SPECS[kind].build(Sizes(target=vocabulary, source=9)).double()
    batch = reversing(3, 1, vocabulary=vocabulary)
    losses = [loss_of(SoftBeam(beam=beam, alpha=2.0, keep=k), model, batch).total for k in (keep, None)]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-6)
    found = [SoftBeamSearch(beam, 2.0, keep=k, max_length=6)(model, batch).ids(ENDED) for k in (keep, None)]
    assert found[0] == found[1]


def test_the_bound_holds_if_banned_tokens_score_best() -> None:
    rng = torch.Generator().manual_seed(1)
    k, v, banned = 3, 40, torch.tensor([0, 1])
    seen = 0
    for _ in range(300):
        scores = 2 * torch.randn(1, k, v, generator=rng, dtype=torch.float64)
        scores[:, :, banned] += 6
        offer = Continuations(
            torch.randn(1, k, generator=rng, dtype=torch.float64),
            torch.ones(1, k, dtype=torch.bool),
            scores,
            None,
            banned,
            0,
            8 * torch.randn(1, k, generator=rng, dtype=torch.float64),
            torch.rand(1, k, generator=rng) < 0.7,
        )
        keep, alpha = (int(torch.randint(3, 30, (), generator=rng)), float(5 * torch.rand((), generator=rng)) + 0.1)
        whole, some = (
            mixtures(all_candidates(offer), k, alpha),
            mixtures(best_candidates(offer, scores, keep), k, alpha),
        )
        left = 1 - weight_of(some, whole, v)
        seen += bool(some.bound.isinf().any())
        assert (left <= some.bound.unsqueeze(1) + 1e-9).all()
    assert seen > 10


def weight_of(some: Any, whole: Any, v: int) -> Tensor:
    """Return the mass that the full mixtures give to the candidates of ``some``: [B,K]."""
    places = some.candidates.parents * v + some.candidates.tokens
    weights = whole.log_weights.exp().gather(2, places.unsqueeze(1).expand(-1, whole.peaks.shape[1], -1))
    return (weights * some.candidates.valid.unsqueeze(1)).sum(dim=2)
