"""Sequence-level smoothing against enumeration, closed forms, and outputs that are scored one by one."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from objective_cases import (
    ENDED,
    EXAMPLES,
    FIXED,
    SPECS,
    TARGETS,
    assert_same,
    batch_of,
    codec,
    fit,
    loss_of,
    metric,
    network,
    sourced,
    toy,
)
from sacrebleu.metrics import BLEU
from torch import Tensor

from unforced.decoding import teacher_forcing
from unforced.errors import InputError
from unforced.metrics.text import Cider
from unforced.models.lstm import LSTM
from unforced.objectives import sequence_smoothing
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.sequence_smoothing import Samples, SequenceSmoothing
from unforced.objectives.smoothing import proposals
from unforced.objectives.smoothing.outputs import END, as_lists, first_equal
from unforced.objectives.smoothing.rewards import Documents, distances
from unforced.objectives.smoothing.targets import smoothed_nll
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.ops import random_streams
from unforced.types import Batch, Sizes, Symbols


def drawn(objective: SequenceSmoothing, batch: Batch, seed: int = 0) -> Samples:
    """The samples that ``loss_of`` learns from."""
    assert objective.samples is not None
    keys = random_streams.keys(batch, torch.Generator().manual_seed(seed))
    return objective.draw_samples(batch, keys, objective.samples)


def table_log_probs(table: Tensor, fed: Sequence[int], scored: Sequence[int]) -> Tensor:
    """log p of each token of ``scored`` after the prefixes of ``fed``, under a second-order table."""
    size, before, last, found = table.shape[1], 1, 1, []
    for inside, token in zip([*fed, 0], scored):
        found.append(table[before * size + last].log_softmax(-1)[token])
        before, last = last, inside
    return torch.stack(found)


# Rewards


def edit(a: Sequence[int], b: Sequence[int]) -> float:
    if not a or not b:
        return float(len(a) + len(b))
    return min(edit(a[:-1], b[:-1]) + (a[-1] != b[-1]), edit(a[:-1], b) + 1, edit(a, b[:-1]) + 1)


def hamming(a: Sequence[int], b: Sequence[int]) -> float:
    return float(sum(x != y for x, y in itertools.zip_longest(a, b)))


def one_minus_bleu(output: Sequence[int], gold: Sequence[int]) -> float:
    if not output or not gold:
        return float(list(output) != list(gold))
    judge = BLEU(effective_order=True, tokenize="none", force=True)
    return 1 - judge.sentence_score(" ".join(map(str, output)), [" ".join(map(str, gold))]).score / 100


def one_minus_cider(output: Sequence[int], gold: Sequence[int]) -> float:
    """By the metric, with the other training targets as perfectly described images."""
    others = [target[:-1] for target in TARGETS]
    if list(gold) in others:
        others.remove(list(gold))
        captions = [" ".join(map(str, ids)) for ids in (gold, *others)]
        outputs = [" ".join(map(str, output)), *captions[1:]]
        return 1 - float(Cider().statistics(outputs, [[caption] for caption in captions])[0, 0]) / 10
    return math.nan


DISTANCES = {"hamming": hamming, "edit": edit, "bleu": one_minus_bleu, "cider": one_minus_cider}


@pytest.mark.parametrize("reward", DISTANCES)
def test_distances_against_other_implementations(reward: Any) -> None:
    rng = random.Random(0)
    golds = [[rng.randint(3, 5) for _ in range(rng.randint(1, 7))] for _ in range(20)]
    golds = [target[:-1] for target in TARGETS] if reward == "cider" else golds
    outputs = [[[rng.randint(3, 5) for _ in range(rng.randint(0, 7))] for _ in range(4)] for _ in golds]
    for gold, own in zip(golds, outputs):
        own += [list(gold), list(own[0])]
    padded = torch.tensor([[[*y, 2, *[END] * (8 - len(y))] for y in own] for own in outputs])
    gold = torch.tensor([[*g, 2, *[END] * (8 - len(g))] for g in golds])
    found = distances(reward, padded, gold, 2, Documents.of(TARGETS, end=2))
    wanted = [[DISTANCES[reward](y, g) for y in own] for g, own in zip(golds, outputs)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_equal_outputs_among_many() -> None:
    outputs = torch.randint(0, 2, (3, 40, 4), generator=torch.Generator().manual_seed(1))
    for found, rows in zip(first_equal(outputs).tolist(), outputs.tolist()):
        assert found == [rows.index(row) for row in rows]


# Expectations


@pytest.mark.parametrize(
    "fields",
    [
        {"reward": "hamming", "tau": 0.7},
        {"reward": "hamming", "tau": 0.7, "proposal_tau": 1.5},
        {"reward": "bleu", "tau": 0.3, "proposal_tau": 1.5, "lazy": True},
        {"reward": "cider", "tau": 0.2, "proposal_tau": 1.5},
        {"reward": "edit", "tau": 0.7, "proposal": "edit"},
        pytest.param({"reward": "bleu", "tau": 0.3, "proposal_tau": 1.5}, marks=pytest.mark.slow),
        pytest.param({"reward": "edit", "tau": 0.7}, marks=pytest.mark.slow),
        pytest.param({"reward": "bleu", "tau": 0.3, "proposal": "edit", "proposal_tau": 1.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_weighted_samples_converge_to_the_enumerated_expectation(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """−Σ_y r(y) log p(y) over all outputs of two tokens, 3 and 4, that the proposal can draw."""
    edits = fields.get("proposal") == "edit"
    monkeypatch.setattr(proposals.EditProposal.__init__, "__defaults__", (1,))  # at most one insertion into a gap
    gold = [3, 4] if edits or fields["reward"] == "cider" else [3, 4, 4]
    model, batch = toy(5), batch_of([[*gold, 2]])
    objective = fit(SequenceSmoothing(samples=3000, **fields), codec(5))
    lengths, d = range(2 * len(gold) + 2) if edits else [len(gold)], DISTANCES[objective.reward]
    outputs = [y for n in lengths for y in itertools.product([3, 4], repeat=n)]
    r = torch.tensor([-d(y, gold) / objective.tau for y in outputs], dtype=torch.float64).softmax(dim=0)
    table = model.table.detach()
    costs = {y: -table_log_probs(table, gold if objective.lazy else y, [*y, 2]).sum().item() for y in outputs}
    expected = sum(p * costs[y] for y, p in zip(outputs, r.tolist()))
    samples = drawn(objective, batch)
    rows, weights = [tuple(y[:-1]) for y in as_lists(samples.outputs[0])], samples.weights[0]
    values = torch.tensor([costs[y] for y in rows], dtype=torch.float64)
    estimate = (weights * values).sum()
    error = (weights * (values - estimate)).square().sum().sqrt()  # of a self-normalised estimate
    assert abs(estimate.item() - expected) < 4 * error.item()
    assert error.item() < 0.04 * expected
    loss = loss_of(objective, model, batch)
    torch.testing.assert_close(loss.total, estimate)
    assert metric(loss, "ess") == pytest.approx(1 / weights.square().sum().item(), rel=1e-5)
    if objective.weighted:
        mean = sum(p * d(y, gold) for y, p in zip(outputs, r.tolist()))
        assert metric(loss, "distance") == pytest.approx(mean, rel=0.1)
    for p, y in sorted(zip(r.tolist(), outputs), reverse=True)[:4]:
        assert weights[[row == y for row in rows]].sum().item() == pytest.approx(p, rel=0.25)


@pytest.mark.parametrize("vocabulary", ["all", "batch", "references"])
def test_lazy_hamming_in_closed_form(vocabulary: Any) -> None:
    """Loss and gradient equal those of enumeration; many lazy samples converge to the loss."""
    golds = [[3, 4, 3], [6, 3], [4]]
    references = torch.tensor([[3, 5, 5], [5, 6, 4], [4, 0, 0]])  # the first lacks token 4 of its target
    pools = {"all": [[3, 4, 5, 6]] * 3, "batch": [[3, 4, 6]] * 3, "references": [[3, 5], [4, 5, 6], [4]]}
    model, batch = toy(7), batch_of([[*gold, 2] for gold in golds], references=references)
    fields: dict[str, Any] = {"tau": 0.8, "mix": 0.3, "vocabulary": vocabulary, "lazy": True}
    loss = loss_of(fit(SequenceSmoothing(samples=None, **fields), codec(7)), model, batch)
    expected = model.table.new_zeros(())
    for gold, pool in zip(golds, pools[vocabulary]):
        outputs = list(itertools.product(*[sorted({*pool, token}) for token in gold]))
        r = torch.tensor([-hamming(y, gold) / 0.8 for y in outputs], dtype=torch.float64).softmax(dim=0)
        for p, y in [*zip(0.3 * r, outputs), (0.7, gold)]:
            expected = expected - p * table_log_probs(model.table, gold, [*y, 2]).sum()
    assert_same(model, loss.total, expected, rtol=1e-5, atol=1e-6)
    sampled = loss_of(fit(SequenceSmoothing(samples=20_000, **fields), codec(7)), model, batch)
    assert sampled.total.item() == pytest.approx(loss.total.item(), rel=5e-3)
    assert metric(sampled, "changed") == pytest.approx(metric(loss, "changed"), rel=0.03)
    assert metric(sampled, "ess") == pytest.approx(20_000)
    plain = loss_of(CrossEntropy(), model, batch)
    for found, key in itertools.product((loss, sampled), ("nll", "accuracy")):
        torch.testing.assert_close(found.metrics[key], plain.metrics[key])


# Losses of networks


def one_by_one(objective: SequenceSmoothing, batch: Batch, score: Any) -> Tensor:
    """α Σ_l ω_l ℓ(y_l) + (1 − α) ℓ(y*) with each output in a batch of its own; ``score(batch)`` is ℓ."""
    samples, total = drawn(objective, batch), torch.zeros((), dtype=torch.float64)
    for i in range(len(batch)):
        outputs = [(1 - objective.mix, batch.gold[i][batch.mask[i]].tolist())]
        outputs += [(objective.mix * w, y) for w, y in zip(samples.weights[i], as_lists(samples.outputs[i]))]
        own = batch.select(torch.tensor([i]))
        for weight, output in outputs:
            alone = batch_of([output], batch.symbols, source=own.source, source_mask=own.source_mask)
            total = total + weight * score(alone)
    return total


NETWORKS = [pytest.param(name, marks=[] if name in ("fed", "transformer") else pytest.mark.slow) for name in SPECS]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("symbols", "fields"),
    [
        (ENDED, {}),
        (FIXED, {"samples": 6, "mix": 0.4}),
        (ENDED, {"samples": 5, "reward": "bleu", "tau": 0.3, "proposal_tau": 1.0}),
        (ENDED, {"samples": 5, "reward": "edit", "proposal": "edit", "mix": 0.5}),
    ],
    ids=str,
)
def test_loss_and_gradients_are_those_of_outputs_one_by_one(name: str, symbols: Symbols, fields: Any) -> None:
    model, batch = network(name), sourced(symbols)
    objective = fit(SequenceSmoothing(**{"tau": 0.9, **fields}), codec(symbols=symbols))
    loss, plain = (loss_of(o, model, batch) for o in (objective, CrossEntropy()))
    assert_same(
        model, loss.total, one_by_one(objective, batch, lambda alone: loss_of(CrossEntropy(), model, alone).total)
    )
    assert loss.count == batch.mask.sum()
    if objective.mix < 1:
        torch.testing.assert_close(loss.metrics["nll"], plain.metrics["nll"])
        torch.testing.assert_close(loss.metrics["accuracy"], plain.metrics["accuracy"])
        mixed = objective.mix * metric(loss, "sampled") + (1 - objective.mix) * metric(loss, "nll")
        assert mixed == pytest.approx(loss.mean.item())
    else:
        assert "nll" not in loss.metrics
        assert metric(loss, "sampled") == pytest.approx(loss.mean.item())


@pytest.mark.parametrize("lazy", [False, True])
def test_equation_14(lazy: bool) -> None:
    """Every output and the target are scored against smoothed targets, after own prefixes or those of the target."""
    model, batch = network("transformer"), sourced()
    token = TokenSmoothing(tau=0.6, mix=0.7, nearest=2)
    sequence = SequenceSmoothing(tau=0.9, mix=0.4, samples=5, lazy=lazy, reward="bleu", proposal_tau=0.9)
    both = fit(TokenSequenceSmoothing(token, sequence))
    token, sequence = both.token, both.sequence
    loss = loss_of(both, model, batch)
    if lazy:
        samples = drawn(sequence, batch)
        features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
        scores, rows = model.score(features[batch.mask]), batch.mask.nonzero()[:, 0]
        weighted = [(0.6, batch.gold), *((0.4 * samples.weights[rows, n], samples.outputs[:, n]) for n in range(5))]
        expected = torch.zeros((), dtype=torch.float64)
        for weight, tokens in weighted:
            target, _ = token.smooth(model, tokens[batch.mask], scores)
            expected = expected + (weight * smoothed_nll(scores, tokens[batch.mask], target)[0]).sum()
    else:
        expected = one_by_one(sequence, batch, lambda alone: loss_of(token, model, alone).total)
    assert_same(model, loss.total, expected)
    assert 0 < metric(loss, "covered") < 1  # ends have no vector
    assert {"moved", "rest"} < loss.metrics.keys()


def test_special_cases_of_equation_14() -> None:
    """α₂ = 0 is the sequence level, α₁ = 0 the token level, both 0 are cross-entropy."""
    model, batch = network("transformer"), sourced()
    token, sequence = TokenSmoothing(tau=0.5, nearest=3), SequenceSmoothing(tau=0.8, mix=0.5, samples=3)
    pairs = [
        (TokenSequenceSmoothing(TokenSmoothing(mix=0.0), sequence), sequence),
        (TokenSequenceSmoothing(token, SequenceSmoothing(mix=0.0)), token),
        (TokenSequenceSmoothing(TokenSmoothing(tau=0.0), SequenceSmoothing(tau=0.0)), CrossEntropy()),
    ]
    for both, one in pairs:
        torch.testing.assert_close(*(loss_of(fit(o), model, batch).total for o in (both, one)))


@pytest.mark.parametrize("tau", [0.0, 1e-3])
@pytest.mark.parametrize(
    "fields",
    [
        {"mix": 0.3, "samples": 3},
        {"lazy": True, "samples": 2},
        {"lazy": True, "samples": None, "vocabulary": "batch", "mix": 0.7},
        {"reward": "edit", "proposal": "edit", "samples": 3},
        {"reward": "bleu", "samples": 3, "mix": 0.9, "proposal_tau": 0.01},
    ],
    ids=str,
)
def test_tau_towards_zero_is_cross_entropy(fields: Any, tau: float) -> None:
    for name, batch in (("lstm", sourced()), ("transformer", sourced())):
        batch = replace(batch, prefix=batch.prefix.index_fill(1, torch.tensor([0]), 7))  # another first input
        model = network(name)
        objective = fit(SequenceSmoothing(**{**fields, "tau": tau}))
        loss, plain = (loss_of(o, model, batch) for o in (objective, CrossEntropy()))
        assert_same(model, loss.total, plain.total, rtol=1e-9, atol=1e-12)
        assert tau > 0 or torch.equal(loss.total, plain.total)


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [({}, 3, 3), ({"lazy": True, "samples": 9}, 3, 3), ({"samples": 40, "mix": 0.5}, 4, 70)],
)
def test_equal_outputs_are_fed_once_and_sources_encoded_once(fields: Any, least: int, most: int) -> None:
    model, batch = network("lstm"), sourced()
    starts: list[int] = []
    fed: list[int] = []
    start, advance = model.start, model.advance
    model.start = lambda batch: starts.append(len(batch)) or start(batch)
    model.advance = lambda state, inputs: fed.append(len(inputs)) or advance(state, inputs)
    loss_of(fit(SequenceSmoothing(tau=2.0, **fields)), model, batch)
    assert (starts, len(fed)) == ([3], 1)
    assert least <= fed[0] <= most


def test_many_samples_are_projected_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = network("transformer"), sourced()
    objective = fit(
        TokenSequenceSmoothing(TokenSmoothing(tau=0.5, nearest=3), SequenceSmoothing(tau=2.0, mix=0.5, samples=20))
    )
    expected, sizes, score = loss_of(objective, model, batch), [], model.score
    for module in (teacher_forcing, sequence_smoothing):
        monkeypatch.setattr(module, "CHUNK", 5)
    model.score = lambda features: sizes.append(len(features)) or score(features)
    loss = loss_of(objective, model, batch)
    assert max(sizes) == 5
    assert_same(model, loss.total, expected.total)
    torch.testing.assert_close(loss.metrics, expected.metrics)


# Samples


@pytest.mark.parametrize("proposal", ["hamming", "edit"])
def test_only_words_of_the_pool_replace_others(proposal: Any) -> None:
    """Never the unknown word 3, padding, start or end symbols."""
    batch = batch_of([[4, 3, 5, 2], [5, 2], [3, 4, 2]], references=torch.tensor([[4, 3, 0], [2, 7, 6], [3, 4, 1]]))
    words = codec(names=("<pad>", "<bos>", "<eos>", "<unk>", *"abcde"))
    pools = {"all": [{4, 5, 6, 7, 8}] * 3, "batch": [{4, 5}] * 3, "references": [{4}, {7, 6}, {4}]}
    for vocabulary, allowed in pools.items():
        fields: Any = {"vocabulary": vocabulary, "proposal": proposal, "reward": "edit", "samples": 60}
        outputs = drawn(fit(SequenceSmoothing(tau=50.0, **fields), words), batch).outputs
        for rows, gold, pool in zip(outputs, batch.gold.tolist(), allowed):
            lists = as_lists(rows)
            assert all(output[-1] == 2 for output in lists)
            seen = set(itertools.chain(*lists))
            assert pool <= seen <= pool | set(gold) - {0}


def test_special_tokens_of_the_target_keep_their_places() -> None:
    """As a language code does; rewards leave it out."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", "de", "a", "b", "c")
    words = codec(names=names, special_ids=frozenset({4}), unknown_id=3)
    batch = batch_of([[4, 5, 3, 4, 6, 2]])
    outputs = drawn(fit(SequenceSmoothing(tau=20.0, samples=40), words), batch).outputs[0]
    assert set(outputs[:, 0].tolist()) == set(outputs[:, 3].tolist()) == {4}
    for place in (1, 2, 4):
        assert {5, 6, 7} <= set(outputs[:, place].tolist())
        assert 4 not in outputs[:, place]
    edits = fit(SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=0.05), words)
    with pytest.raises(InputError, match="without special tokens"):
        loss_of(edits, toy(), batch)
    fields: dict[str, Any] = {"reward": "bleu", "tau": 0.3, "proposal_tau": 2.0, "samples": 6}
    objective, bare = fit(SequenceSmoothing(**fields), words), batch_of([[5, 6, 7, 2]])
    samples = drawn(objective, batch_of([[4, 5, 6, 7, 2]]))
    without = samples.outputs[..., 1:]
    d = distances("bleu", without, bare.gold, 2)
    expected = (-d / 0.3 - objective.proposal_of(bare).log_prob(without)).softmax(dim=1)
    torch.testing.assert_close(samples.weights, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"samples": 30},
        {"samples": 30, "lazy": True},
        {"samples": None, "lazy": True},
        {"samples": None, "lazy": True, "vocabulary": "references"},
        {"samples": 30, "reward": "edit", "proposal": "edit", "proposal_tau": 0.7},
    ],
    ids=str,
)
def test_unused_ids_are_not_learned(fields: Any) -> None:
    """Neither padding nor ids that the model has beyond the vocabulary."""
    batch = batch_of([[3, 4, 5, 2], [6, 2]], references=torch.tensor([[3, 4, 5], [6, 0, 0]]))
    for objective in (SequenceSmoothing(tau=20.0, **fields), LabelSmoothing(0.3)):
        model = toy(9)
        loss = loss_of(fit(objective, codec(7)), model, batch)
        (gradient,) = torch.autograd.grad(loss.total, model.table)
        unused = gradient[:, [0, 1, 7, 8]]
        assert (unused >= 0).all()
        assert (unused > 0).any()


def test_longest_bounds_edited_outputs() -> None:
    """Longer samples weigh nothing; if all are too long, the target replaces them. Metrics are those of all draws."""
    fields: dict[str, Any] = {"reward": "edit", "proposal": "edit", "tau": 0.35}
    batch = batch_of([[3, 4, 5, 2], [6, 7, 3, 4, 5, 2]])
    free, bound = (drawn(fit(SequenceSmoothing(samples=200, longest=n, **fields)), batch) for n in (None, 5))
    fits = (free.outputs != END).sum(dim=2) <= torch.tensor([[5], [6]])  # an output may be as long as its target
    assert 0.05 < float(fits.double().mean()) < 0.95
    assert torch.equal(bound.weights > 0, fits)
    torch.testing.assert_close(bound.weights, free.weights * fits / (free.weights * fits).sum(dim=1, keepdim=True))
    assert bound.metrics["drawn_distance"] == free.metrics["drawn_distance"]
    assert bound.metrics["changed"] == free.metrics["changed"]
    assert bound.metrics["too_long"] == ((~fits).sum(), 400)
    one = drawn(fit(SequenceSmoothing(samples=2, longest=1, **fields)), batch_of([[3, 2]] * 200))
    assert int((one.outputs[one.weights > 0] != END).sum(dim=1).max()) == 2
    torch.testing.assert_close(one.weights.sum(dim=1), torch.ones(200, dtype=torch.float64))


@pytest.mark.parametrize("mix", [1.0, 0.6])
def test_statistics_of_tokens_are_weighted_as_the_loss(mix: float) -> None:
    """Fed or only scored: the same outputs have the same statistics."""
    found = []
    for lazy in (False, True):
        token = TokenSmoothing(tau=0.3, vectors="co-occurrence", mix=0.5)
        both = fit(TokenSequenceSmoothing(token, SequenceSmoothing(tau=1.0, samples=3, lazy=lazy, mix=mix)))
        loss = loss_of(both, toy(), batch_of([[3, 4, 5, 2], [4, 2]]))
        found.append([metric(loss, name) for name in ("moved", "covered", "rest")])
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] > 0


# Training


def test_training_keeps_mass_for_neighbours() -> None:
    torch.manual_seed(0)
    model = LSTM(hidden=24, embedding=12, dropout=0.0).build(Sizes(target=7, source=7))
    source = torch.tensor([[3, 4, 0], [5, 3, 0], [4, 4, 5], [5, 6, 0]])
    golds = [[3, 4, 2], [5, 3, 2], [4, 4, 5, 2], [5, 6, 2]]
    batch = batch_of(golds, source=source, source_mask=source > 0)
    objective = fit(SequenceSmoothing(tau=0.5), codec(7))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(120):
        loss = loss_of(objective, model, batch, seed=step)
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    plain = loss_of(CrossEntropy(), model, batch)
    best = 9 * math.log(1 + 3 * math.exp(-2)) / 13  # nine of thirteen tokens change with odds 3 e^(−1/τ)
    assert metric(plain, "nll") == pytest.approx(best, abs=0.12)
    assert metric(plain, "accuracy") > 0.9


# Options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 1, "reward": "edit"}, "samples must be at least 2 here"),
        ({"samples": 1, "proposal_tau": 0.2}, "samples must be at least 2 here"),
        ({"samples": None}, "samples can be none only with lazy"),
        ({"samples": 3, "reward": "bleu"}, "reward bleu needs a proposal_tau"),
        ({"proposal": "edit"}, "choose another reward"),
        (
            {"proposal": "edit", "reward": "edit", "samples": 4, "lazy": True},
            "lazy needs outputs of the target's length",
        ),
        ({"longest": 5}, 'longest is for proposal "edit"'),
    ],
)
def test_contradicting_fields(fields: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SequenceSmoothing(**fields)


def test_errors() -> None:
    edits = SequenceSmoothing(reward="edit", proposal="edit", samples=2)
    with pytest.raises(InputError, match="changes lengths, which are fixed in this data"):
        loss_of(fit(edits, codec(symbols=FIXED)), network("tagger"), sourced(FIXED))
    for objective in (SequenceSmoothing(), TokenSequenceSmoothing(), SequenceSmoothing(lazy=True, samples=None)):
        with pytest.raises(InputError, match="sequence_smoothing is not fitted"):
            loss_of(objective, toy(), batch_of([[3, 2]]))
    with pytest.raises(InputError, match="none were given"):
        fit(SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5), examples=())
    with pytest.raises(InputError, match="references besides the target"):
        fit(SequenceSmoothing(vocabulary="references"), examples=[EXAMPLES[0]._replace(references=())])
    with pytest.raises(InputError, match=r"set sequence\.samples"):
        TokenSequenceSmoothing(sequence=SequenceSmoothing(lazy=True, samples=None))
