"""Training through the relaxed beam search: losses and gradients against closed forms, and against one another."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from unforced.decoding import search
from unforced.decoding.beam import Beam
from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.objectives.costs import Hamming, Table, WeightedHamming
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import Always, Exponential
from unforced.objectives.self_normalized import SelfNormalized
from unforced.objectives.soft_beam import SoftBeam
from unforced.types import Batch, Loss, Progress, Sizes, Symbols

ENDED = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
FIXED = Symbols(pad=0, bos=1, eos=None, banned=(0, 1))
SPECS = {
    "lstm": LSTM(hidden=12, embedding=8, dropout=0.0),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=2, feedforward=16, dropout=0.0),
}
BOTH = pytest.mark.parametrize("kind", SPECS)


def build(kind: str, vocabulary: int = 9, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return SPECS[kind].build(Sizes(target=vocabulary, source=9))


def reversing(count: int, seed: int, symbols: Symbols = ENDED, vocabulary: int = 9, noise: float = 0.0) -> Batch:
    """Examples whose output is the source backwards, 3 to 6 tokens long, with some tokens replaced by others."""
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


def loss_of(objective, model, batch: Batch, seed: int = 1) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))


def gradient(loss: Loss, model: nn.Module) -> torch.Tensor:
    found = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(found, model.parameters())])


@pytest.fixture(scope="module", params=list(SPECS))
def trained(request) -> nn.Module:
    """A model that reverses short sequences, but not always, in float32."""
    model = build(request.param)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(40 if request.param == "lstm" else 120):
        optimizer.zero_grad()
        loss_of(CrossEntropy(), model, reversing(64, number, noise=0.2)).mean.backward()
        optimizer.step()
    return model


@BOTH
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
def test_direct_loss_is_the_cost_of_what_beam_search_finds(kind, symbols):
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


@BOTH
@pytest.mark.parametrize("fields", [{}, {"loss": "hinge", "scores": "global"}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_is_nan_from_tiny_to_huge_alpha(kind, fields, dtype):
    for vocabulary, beam in ((9, 3), (5, 8)):  # the second has fewer continuations than places
        model, batch = build(kind, vocabulary).to(dtype), reversing(4, 1, vocabulary=vocabulary)
        for power in range(-3, 7):
            loss = loss_of(SoftBeam(beam=beam, alpha=10.0**power, **fields), model, batch)
            assert loss.total.isfinite()
            assert gradient(loss, model).isfinite().all()


@BOTH
@pytest.mark.parametrize("alpha", [0.5, 5.0, 500.0])
@pytest.mark.parametrize("dearest", [1.0, 4.0])
def test_direct_loss_lies_between_nothing_and_the_largest_cost(kind, alpha, dearest):
    """Of each example, by Hamming costs, and by costs of which the largest is known at every step."""
    model, batch = build(kind), reversing(5, 2)
    wrong = 1 - nn.functional.one_hot(batch.gold, 9).float()
    for row in range(len(batch)):
        one = batch.select(torch.tensor([row]))
        table = Table(lambda _, row=row: wrong[row : row + 1] * torch.linspace(0.5, dearest, 9))
        loss = loss_of(SoftBeam(alpha=alpha, beyond=2, cost=Hamming() if dearest == 1 else table), model, one)
        assert 0 <= float(loss.total) <= dearest * float(one.mask.sum()) + 2


def test_one_example_can_cost_all_or_nothing():
    model = Toy().build(Sizes(target=7)).double()
    gold = torch.tensor([[3, 4, 5]])
    batch = Batch.of_gold(gold, gold > 0, FIXED, length=torch.tensor([3]))
    for right, cost in ((True, 0.0), (False, 3.0)):
        with torch.no_grad():
            model.table.zero_()
            for before, after in ((1, 3), (3, 4), (4, 5)) if right else ((1, 6), (6, 6)):
                model.table[before, after] = 50.0
        found = loss_of(SoftBeam(alpha=50.0), model, batch).total
        assert float(found) == pytest.approx(cost, abs=1e-6)


def test_hinge_is_zero_where_the_gold_beats_everything_and_its_cost():
    batch = Batch.of_gold(
        torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool), FIXED, length=torch.tensor([3])
    )
    model = Toy().build(Sizes(target=7)).double()
    with torch.no_grad():
        model.table.zero_()
        for before, after in ((1, 3), (3, 4), (4, 5)):
            model.table[before, after] = 10.0
    sharp = SoftBeam(loss="hinge", scores="global", alpha=50.0, beam=3)
    assert float(loss_of(sharp, model, batch).total) == 0.0
    with torch.no_grad():
        model.table[4, 5] = 0.25  # 3 4 6 costs 1 and so outscores it by 0.75
    assert float(loss_of(sharp, model, batch).total) == pytest.approx(0.75, abs=1e-6)


@BOTH
def test_a_shift_of_all_scores_of_a_step_changes_global_search_alone(kind):
    class Shifted(nn.Module):
        """Adds a number that depends on the features to all scores of a step."""

        def __init__(self, model):
            super().__init__()
            self.model = model

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.model, name)

        def score(self, features):
            return self.model.score(features) + 3 * features[..., :1]

    plain, batch = build(kind).double(), reversing(6, 5)
    shifted = Shifted(plain)
    for scores, same in (("local", True), ("global", False)):
        objective = SoftBeam(alpha=3.0, scores=scores)
        losses = [loss_of(objective, model, batch).total for model in (plain, shifted)]
        assert torch.allclose(*losses, rtol=1e-9) is same
        decoder = Beam(3, length_penalty=0.0, finished="stay", scores=scores, max_length=6)
        outputs = [decoder(model, batch).ids(ENDED) for model in (plain, shifted)]
        assert (outputs[0] == outputs[1]) is same


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_one_hypothesis_goes_the_way_of_scheduled_sampling_that_never_feeds_gold(kind, seed):
    class Watched(nn.Module):
        """Notes what a model makes of each history."""

        def __init__(self, model):
            super().__init__()
            self.model, self.features = model, []

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.model, name)

        def advance(self, state, inputs):
            features, state = self.model.advance(state, inputs)
            self.features.append(features[:, 0])
            return features, state

    model, batch = build(kind, seed=seed).double(), reversing(1, 4 + seed, FIXED)
    ways = []
    for objective in (
        SoftBeam(beam=1, alpha=1e9, keep=None),
        ScheduledSampling(feed="soft_argmax", mixing=Always(), alpha=1e9),
    ):
        watched = Watched(model)
        loss_of(objective, watched, batch)
        ways.append(torch.cat(watched.features))
    torch.testing.assert_close(ways[0], ways[1], rtol=1e-9, atol=1e-9)


@BOTH
@pytest.mark.parametrize("fields", [{}, {"loss": "hinge", "scores": "global"}, {"clip": 0.05, "mix": 0.5}])
@pytest.mark.parametrize("ending", [0, 1, search.ENDING])
def test_making_steps_again_changes_nothing(kind, fields, ending, monkeypatch):
    monkeypatch.setattr(search, "ENDING", ending)
    torch.manual_seed(0)
    spec = copy.copy(SPECS[kind])
    object.__setattr__(spec, "dropout", 0.3)
    model, batch = spec.build(Sizes(target=9, source=9)).double(), reversing(5, 2)
    found = []
    for checkpoint in (False, True):
        torch.manual_seed(5)
        loss = loss_of(SoftBeam(alpha=2.0, checkpoint=checkpoint, beyond=4, **fields), model, batch)
        found.append((float(loss.total), gradient(loss, model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


def test_the_last_steps_are_not_made_again():
    model, gold = build("lstm"), torch.tensor([[*[3] * 35, 2]])
    batch = Batch.of_gold(gold, gold > 0, ENDED, source=gold, source_mask=gold > 0)
    taken, advance = [], model.advance
    model.advance = lambda *given: taken.append(1) or advance(*given)
    loss_of(SoftBeam(alpha=2.0, checkpoint=True), model, batch).total.backward()
    assert len(taken) == 36 + 1 + 2 * 6  # the first one by itself, then segments of √36; the last 23 are kept


def test_how_many_hypotheses_are_left_is_told(trained):
    """All of them where α is large; where next to nothing tells scores apart, all are one mixture."""
    batch, found = reversing(32, 3), []
    for alpha in (1e-9, 1e6):
        total, count = loss_of(SoftBeam(beam=3, alpha=alpha), trained, batch).metrics["distinct"]
        found.append(float(total / count))
    assert found[0] == 1
    assert 2.9 < found[1] <= 3


def test_an_example_without_gold_costs_nothing():
    model, batch = build("lstm"), reversing(2, 4)
    emptied = replace(batch, mask=batch.mask & torch.tensor([[True], [False]]))
    alone = batch.select(torch.tensor([0]))
    for fields in ({"beyond": 2}, {"beyond": 1, "loss": "hinge"}):
        losses = [loss_of(SoftBeam(alpha=2.0, **fields), model, each).total for each in (emptied, alone)]
        torch.testing.assert_close(*losses)


def test_single_precision_gives_the_gradient_of_double(trained):
    exact = copy.deepcopy(trained).double()
    objective = SoftBeam(alpha=100.0)
    cosines = []
    for number in range(8):
        batch = reversing(32, 1000 + number, noise=0.2)
        single, double = (gradient(loss_of(objective, model, batch), model).double() for model in (trained, exact))
        assert double.norm() > 1
        cosines.append(float(torch.cosine_similarity(single, double, dim=0)))
    assert min(cosines) > 0.99


def test_training_for_the_search_lowers_its_cost(trained):
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


@BOTH
def test_a_table_of_costs_and_a_weight_of_one_are_hamming(kind):
    model, batch = build(kind).double(), reversing(4, 1)
    plain = loss_of(SoftBeam(alpha=2.0, beyond=1), model, batch).total
    table = Table(lambda batch: 1 - nn.functional.one_hot(batch.gold, 9).double())
    torch.testing.assert_close(loss_of(SoftBeam(alpha=2.0, cost=table, beyond=1), model, batch).total, plain)

    class Codec:
        def token_names(self):
            return tuple("abcdefghi")

    for weight, compare in ((1.0, torch.equal), (2.0, torch.lt)):
        objective = SoftBeam(alpha=2.0, cost=WeightedHamming("e", weight), beyond=1).fitted(Codec())
        assert compare(plain, loss_of(objective, model, batch).total)


@BOTH
def test_everything_gets_a_gradient(kind):
    model, batch = build(kind), reversing(6, 2)
    loss_of(SoftBeam(alpha=1.0), model, batch).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_alpha_follows_its_schedule():
    model, batch = build("lstm").double(), reversing(4, 1)
    rising = SoftBeam(alpha=Exponential(start=1.0, rate=2.0, cap=100.0))
    assert set(rising.schedules()) == {"alpha"}
    moved = rising(model, batch, progress=Progress(epoch=3.0), rng=torch.Generator())
    assert float(moved.total) == float(loss_of(SoftBeam(alpha=8.0), model, batch).total)


def test_strength_needs_mix():
    with pytest.raises(InputError, match="strength needs mix above 0"):
        SoftBeam(strength=0.1)


def test_a_model_without_mixtures_is_named():
    class NoMixing(nn.Module):
        def start(self, batch): ...
        def embed(self, ids): ...
        def advance(self, state, inputs): ...
        def score(self, features): ...

    with pytest.raises(InputError, match="soft_beam needs a model with embed_mix, but NoMixing does not define it"):
        loss_of(SoftBeam(), NoMixing(), reversing(1, 0))


# ---- a bound on the gradients of single examples ----


@BOTH
@pytest.mark.parametrize("loss", ["direct", "hinge"])
def test_a_bound_that_nothing_reaches_changes_nothing(kind, loss):
    model, batch = build(kind).double(), reversing(5, 3)
    plain = gradient(loss_of(SoftBeam(alpha=3.0, loss=loss), model, batch), model)
    bounded = gradient(loss_of(SoftBeam(alpha=3.0, loss=loss, clip=1e9), model, batch), model)
    torch.testing.assert_close(bounded, plain, rtol=1e-12, atol=1e-14)


def test_gradients_are_bounded_example_by_example(trained):
    model, batch = copy.deepcopy(trained).double(), reversing(24, 7, noise=0.2)
    singles = [batch.select(torch.tensor([row])) for row in range(len(batch))]

    def each(clip: float | None) -> torch.Tensor:
        objective = SoftBeam(alpha=8.0, clip=clip, keep=None)
        return torch.stack([gradient(loss_of(objective, model, one), model) for one in singles])

    plain, bounded = each(None), each(1e-4)
    before, after = plain.norm(dim=1), bounded.norm(dim=1)
    assert after.max() < 0.5 * before.max()
    together = loss_of(SoftBeam(alpha=8.0, clip=1e-4, keep=None), model, batch)
    torch.testing.assert_close(gradient(together, model), bounded.sum(dim=0), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_bound_goes_with_the_scale_of_the_loss(trained, checkpoint, monkeypatch):
    monkeypatch.setattr(search, "ENDING", 0)
    model, batch = copy.deepcopy(trained).double(), reversing(8, 7, noise=0.2)
    objective = SoftBeam(alpha=8.0, clip=0.05, checkpoint=checkpoint)
    plain = loss_of(SoftBeam(alpha=8.0, clip=0.05), model, batch)
    found = loss_of(objective, model, batch)
    scaled = found._replace(total=found.total / 1000)
    torch.testing.assert_close(gradient(scaled, model) * 1000, gradient(plain, model), rtol=1e-9, atol=1e-12)


@BOTH
@pytest.mark.parametrize("loss", ["direct", "hinge"])
@pytest.mark.parametrize("strength", [0.0, 0.2])
def test_cross_entropy_can_be_added(kind, loss, strength):
    model, batch = build(kind).double(), reversing(5, 3)
    added = SelfNormalized(strength) if strength else CrossEntropy()
    plain, gold = loss_of(SoftBeam(loss=loss), model, batch), loss_of(added, model, batch)
    both = loss_of(SoftBeam(loss=loss, mix=0.3, strength=strength), model, batch)
    torch.testing.assert_close(both.total, plain.total + 0.3 * gold.total, rtol=1e-10, atol=0)
    assert both.count == plain.count == gold.count
    assert gold.metrics.items() <= both.metrics.items()
    torch.testing.assert_close(
        gradient(both, model), gradient(plain, model) + 0.3 * gradient(gold, model), rtol=1e-8, atol=1e-12
    )
