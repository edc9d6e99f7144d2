"""Sequence-level smoothing against enumeration, closed forms, and outputs that are scored one by one."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sacrebleu.metrics import BLEU
from torch import Tensor

from unforced.errors import InputError
from unforced.metrics.text import Cider, _counts
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Causal, Transformer
from unforced.objectives import sequence_smoothing
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.sequence_smoothing import Draws, SequenceSmoothing
from unforced.objectives.smoothing import drawing
from unforced.objectives.smoothing import targets as smoothing_targets
from unforced.objectives.smoothing.outputs import END, as_lists
from unforced.objectives.smoothing.rewards import Documents, cider_cost, distances
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.ops import random_streams
from unforced.protocols import fitted
from unforced.recipes.fields import build, to_mapping
from unforced.tasks.text import PairCodec
from unforced.tasks.tokenization import TextCoder
from unforced.types import Batch, Encoded, Example, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
FIXED = SYMBOLS._replace(eos=None)
SPECS = {
    "lstm": LSTM(hidden=6, embedding=5, dropout=0.0),
    "fed": LSTM(hidden=6, embedding=5, dropout=0.0, input_feeding=True),
    "tagger": LSTM(hidden=6, embedding=5, dropout=0.0, attention="fixed"),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, dropout=0.0),
}


def batch_of(golds: Sequence[Sequence[int]], symbols: Symbols = SYMBOLS, **rest: Any) -> Batch:
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    lengths = torch.tensor([len(g) for g in golds])
    if symbols.eos is None:
        rest["length"] = lengths
    mask = torch.arange(width) < lengths.unsqueeze(1)
    return Batch.of_gold(gold, mask, symbols, ids=torch.arange(len(golds)) + 10, **rest)


def sourced(symbols: Symbols = SYMBOLS) -> Batch:
    golds = [[3, 4, 5], [4], [5, 5]]
    golds = golds if symbols.eos is None else [[*gold, 2] for gold in golds]
    source = torch.tensor([[1, 2, 3], [4, 0, 0], [2, 2, 0]])
    return batch_of(golds, symbols, source=source, source_mask=source > 0)


def toy(size: int = 5, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Toy(order=2).build(Sizes(target=size)).double()


def network(name: str) -> Any:
    torch.manual_seed(0)
    return SPECS[name].build(Sizes(target=6, source=5)).double()


def codec_of(size: int, unknown: int | None = None) -> Any:
    names = ["<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, size))]
    if unknown is not None:
        names[unknown] = "<unk>"
    return SimpleNamespace(symbols=SYMBOLS, sizes=Sizes(size), token_names=lambda: tuple(names))


def loss_of(objective: Any, model: Any, batch: Batch, seed: int = 0) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(seed))


def drawn(objective: SequenceSmoothing, model: Any, batch: Batch, seed: int = 0) -> Draws:
    """The outputs that ``loss_of`` learns from."""
    rng = torch.Generator().manual_seed(seed)
    size = objective.size(model, batch, model.start(batch))
    return objective.drawing.draws(batch, size, random_streams.keys(batch, rng))


def metric(loss: Loss, name: str) -> float:
    total, count = loss.metrics[name]
    return float(total / count)


def table_log_probs(table: Tensor, fed: Sequence[int], scored: Sequence[int]) -> Tensor:
    """log p of each token of ``scored`` behind the prefixes of ``fed``, under a second-order table."""
    size, before, last, found = table.shape[1], 1, 1, []
    for inside, token in zip([*fed, 0], scored):
        found.append(table[before * size + last].log_softmax(-1)[token])
        before, last = last, inside
    return torch.stack(found)


# ---- rewards ----


def edit(a: Sequence[int], b: Sequence[int]) -> float:
    if not a or not b:
        return float(len(a) + len(b))
    return min(edit(a[:-1], b[:-1]) + (a[-1] != b[-1]), edit(a[:-1], b) + 1, edit(a, b[:-1]) + 1)


def hamming(a: Sequence[int], b: Sequence[int]) -> float:
    return float(sum(x != y for x, y in itertools.zip_longest(a, b)))


def unlike_bleu(output: Sequence[int], gold: Sequence[int]) -> float:
    """1 − sacreBLEU's own sentence BLEU."""
    if not output or not gold:
        return float(list(output) != list(gold))
    judge = BLEU(effective_order=True, tokenize="none", force=True)
    return 1 - judge.sentence_score(" ".join(map(str, output)), [" ".join(map(str, gold))]).score / 100


CORPUS = [[3, 4, 5, 2], [3, 3, 4, 2], [5, 4, 2], [4, 4, 3, 5, 3, 2], [5, 2], [3, 4, 2]]
DOCUMENTS = Documents.of(CORPUS, end=2)


def unlike_cider(output: Sequence[int], gold: Sequence[int]) -> float:
    """1 − CIDEr-D / 10 as the metric counts it, with the document frequencies of the corpus."""
    frequency = Counter(gram for ids in CORPUS for gram in set(grams([str(id) for id in ids[:-1]])))
    made, right = (_counts([str(id) for id in ids]) for ids in (output, gold))
    return 1 - Cider()._similarity(made, right, frequency, len(CORPUS)) / 10


def grams(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1)]


DISTANCES = {"hamming": hamming, "edit": edit, "bleu": unlike_bleu, "cider": unlike_cider}


@pytest.mark.parametrize("reward", DISTANCES)
def test_distances_against_other_implementations(reward: Any) -> None:
    """By hand, by sacreBLEU, and by the metric CIDEr-D, which is checked against coco-caption's."""
    rng = random.Random(0)
    golds = [[rng.randint(3, 5) for _ in range(rng.randint(1, 7))] for _ in range(30)]
    outputs = [[[rng.randint(3, 5) for _ in range(rng.randint(0, 7))] for _ in range(4)] for _ in golds]
    for gold, own in zip(golds, outputs):
        own.append(list(gold))
        own.append(list(own[0]))
    padded = torch.tensor([[[*y, 2, *[END] * (8 - len(y))] for y in own] for own in outputs])
    gold = torch.tensor([[*g, 2, *[END] * (8 - len(g))] for g in golds])
    found = distances(reward, padded, gold, 2, DOCUMENTS)
    wanted = [[DISTANCES[reward](y, g) for y in own] for g, own in zip(golds, outputs)]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_cider_against_the_coco_caption_scorer() -> None:
    """The captions and scores of tests/metrics/test_cider.py, which pycocoevalcap 1.2 gave."""
    corpus = [
        ("a man riding a brown horse on the beach", ["a man rides a brown horse along the beach", "someone riding a horse near the sea"], 2.1299722331120967),
        ("two dogs dogs dogs play", ["two dogs play in the snow", "dogs playing outside in winter snow", "two brown dogs play"], 1.3271368702378907),
        ("a red heart", ["a red heart"], 7.5),
        ("the the the the", ["a cat on the mat", "the cat is on the mat"], 0.27995089776666604),
        ("nothing in common here at all", ["woman with light skin tone"], 0.0),
        ("horse", ["a horse", "horse"], 2.4065070845000394),
    ]  # fmt: skip
    ids: dict[str, int] = {}

    def numbers(text: str) -> list[int]:
        return [ids.setdefault(word, len(ids) + 3) for word in text.split()]

    frequency = Counter(
        gram
        for _, references, _ in corpus
        for gram in {gram for reference in references for gram in grams(numbers(reference))}  # type: ignore[arg-type]
    )
    documents = Documents(len(corpus), {gram: n for gram, n in frequency.items() if n > 1})  # type: ignore[misc]
    for output, references, wanted in corpus:
        scores = [10 * (1 - cider_cost(numbers(reference), documents)(numbers(output))) for reference in references]
        assert sum(scores) / len(scores) == pytest.approx(wanted, abs=1e-9)


OF_ONE_LENGTH = (
    {"samples": 1},
    {"samples": 6, "mix": 0.4},
    {"samples": 5, "reward": "bleu", "tau": 0.3, "proposal_tau": 1.0},
)


def test_documents_are_counted_once_each() -> None:
    every = Counter(
        gram
        for document in CORPUS
        for gram in {
            tuple(document[i : i + n])
            for n in range(1, 5)
            for i in range(len(document) - n)
            if 2 not in document[i : i + n]
        }
    )
    assert Documents.of(CORPUS, end=2) == (6, {gram: n for gram, n in every.items() if n > 1})
    assert Documents.of([[2]], end=2) == (1, {})
    within = Documents.of([[5, 2, 6, 2], [7, 2, 6, 2]], end=2)  # as the costs have it, only the last end is left out
    assert within == (2, {(2,): 2, (6,): 2, (2, 6): 2})


# ---- expectations ----


def target(
    objective: SequenceSmoothing, gold: list[int], pool: Sequence[int], limit: int
) -> dict[tuple[int, ...], float]:
    """r(y | y*) over all outputs that the proposal may draw, without their end symbols."""
    lengths = [len(gold)] if objective.proposal == "hamming" else range(limit + 1)
    d = DISTANCES[objective.reward]
    weights = {y: math.exp(-d(y, gold) / objective.tau) for n in lengths for y in itertools.product(pool, repeat=n)}
    z = sum(weights.values())
    return {y: w / z for y, w in weights.items()}


@pytest.mark.parametrize(
    "fields",
    [
        {"reward": "hamming", "tau": 0.7},
        {"reward": "hamming", "tau": 0.7, "proposal_tau": 1.5},
        {"reward": "bleu", "tau": 0.3, "proposal_tau": 1.5},
        {"reward": "cider", "tau": 0.2, "proposal_tau": 1.5},
        {"reward": "edit", "tau": 0.7},
        {"reward": "edit", "tau": 0.7, "proposal": "edit"},
        {"reward": "bleu", "tau": 0.3, "proposal": "edit", "proposal_tau": 1.0},
        {"reward": "cider", "tau": 0.2, "proposal": "edit", "proposal_tau": 1.0},
        {"reward": "bleu", "tau": 0.3, "proposal_tau": 1.5, "lazy": True},
    ],
    ids=str,
)
def test_weighed_samples_converge_to_the_enumerated_expectation(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """−Σ_y r(y) log p(y) over all outputs, two tokens (3 and 4) and a gold of three (two for edits)."""
    monkeypatch.setattr(drawing, "INSERTIONS", 1)  # so that outputs have at most 2T + 1 tokens
    gold = [3, 4] if fields.get("proposal") == "edit" else [3, 4, 4]
    model, batch = toy(5), batch_of([[*gold, 2]])
    objective = SequenceSmoothing(samples=3000, **fields).fitted(codec_of(5), [Encoded(None, d) for d in CORPUS])
    chances = target(objective, gold, [3, 4], 2 * len(gold) + 1)
    table = model.table.detach()
    costs = {y: -table_log_probs(table, gold if objective.lazy else y, [*y, 2]).sum().item() for y in chances}
    expected = sum(p * costs[y] for y, p in chances.items())
    draws = drawn(objective, model, batch)
    outputs = [tuple(y[:-1]) for y in as_lists(draws.outputs[0])]
    weights, values = draws.weights[0], torch.tensor([costs[y] for y in outputs], dtype=torch.float64)
    estimate = (weights * values).sum()
    error = (weights * (values - estimate)).square().sum().sqrt()  # of a self-normalised estimate
    assert abs(estimate.item() - expected) < 4 * error.item()
    assert error.item() < 0.04 * expected
    loss = loss_of(objective, model, batch)
    torch.testing.assert_close(loss.total, estimate)
    assert metric(loss, "ess") == pytest.approx(1 / weights.square().sum().item(), rel=1e-5)
    assert 0.1 * 3000 < metric(loss, "ess") <= 3000 * (1 + 1e-6)
    if objective.drawing.weighed:
        mean = sum(p * DISTANCES[objective.reward](y, gold) for y, p in chances.items())
        assert metric(loss, "distance") == pytest.approx(mean, rel=0.1)
    frequency = Counter(outputs)
    for y, p in sorted(chances.items(), key=lambda item: -item[1])[:4]:  # the weights are right, output by output
        mass = weights[[i for i, output in enumerate(outputs) if output == y]].sum().item()
        assert mass == pytest.approx(p, rel=0.25), (y, frequency[y])


def test_an_edit_proposal_for_an_edit_reward_wastes_few_samples() -> None:
    model, batch = toy(9), batch_of([[3, 4, 5, 6, 7, 2]])
    for tau, least in ((0.15, 390), (0.25, 350)):
        objective = SequenceSmoothing(tau=tau, reward="edit", proposal="edit", samples=400)
        loss = loss_of(objective, model, batch)
        assert least < metric(loss, "ess") < 400
        assert metric(loss, "changed") > 0.005


def lazy_expectation(objective: SequenceSmoothing, table: Tensor, gold: list[int], pool: list[int]) -> Tensor:
    """Σ_y r(y) · −log p(y | y*) over V_sub^T, where gold tokens outside of V_sub may also stay."""
    e, total = math.exp(-1 / objective.tau), table.new_zeros(())
    spaces = [sorted({*pool, token}) for token in gold]
    weights = {y: e ** hamming(y, gold) for y in itertools.product(*spaces)}
    for y, weight in weights.items():
        total = total - weight / sum(weights.values()) * table_log_probs(table, gold, [*y, 2]).sum()
    return total


@pytest.mark.parametrize("vocabulary", ["all", "batch", "references"])
@pytest.mark.parametrize("mix", [1.0, 0.3])
def test_lazy_hamming_in_closed_form(vocabulary: Any, mix: float) -> None:
    """Against enumeration, loss and gradient, and against the mean of many lazy samples."""
    golds = [[3, 4, 3], [6, 3], [4]]
    references = torch.tensor([[3, 5, 5], [5, 6, 4], [4, 0, 0]])  # the gold of the first has 4, which isn't in it
    pools = {"all": [[3, 4, 5, 6]] * 3, "batch": [[3, 4, 6]] * 3, "references": [[3, 5], [4, 5, 6], [4]]}
    model, batch = toy(7), batch_of([[*gold, 2] for gold in golds], references=references)
    exact = SequenceSmoothing(tau=0.8, mix=mix, vocabulary=vocabulary, lazy=True, samples=None)
    loss = loss_of(exact, model, batch)
    table = model.table.detach().clone().requires_grad_()
    expected = sum(
        (
            mix * lazy_expectation(exact, table, gold, pool)
            - (1 - mix) * table_log_probs(table, gold, [*gold, 2]).sum()
            for gold, pool in zip(golds, pools[vocabulary])
        ),
        start=table.new_zeros(()),
    )
    torch.testing.assert_close(loss.total, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(loss.total, model.table)[0], torch.autograd.grad(expected, table)[0], rtol=1e-5, atol=1e-6
    )
    many = SequenceSmoothing(tau=0.8, mix=mix, vocabulary=vocabulary, lazy=True, samples=20_000)
    sampled = loss_of(many, model, batch)
    assert sampled.total.item() == pytest.approx(loss.total.item(), rel=5e-3)
    assert metric(sampled, "changed") == pytest.approx(metric(loss, "changed"), rel=0.03)
    assert metric(sampled, "ess") == pytest.approx(20_000)
    plain = loss_of(CrossEntropy(), model, batch)
    for found in (loss, sampled):
        torch.testing.assert_close(found.metrics["nll"], plain.metrics["nll"])
        torch.testing.assert_close(found.metrics["accuracy"], plain.metrics["accuracy"])
        assert found.count == plain.count


def test_a_hundred_tokens_of_a_large_vocabulary_are_finite() -> None:
    torch.manual_seed(0)
    model = LSTM(hidden=4, embedding=4).build(Sizes(target=32_000))
    gold = torch.arange(3, 103).unsqueeze(0)
    batch = Batch.of_gold(gold, gold > 0, SYMBOLS)
    for tau in (0.01, 0.1, math.inf):
        for fields in ({"lazy": True, "samples": None}, {}):
            loss = loss_of(SequenceSmoothing(tau=tau, **fields), model, batch)  # type: ignore[arg-type]
            loss.total.backward()
            assert torch.isfinite(loss.total)
            assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


# ---- whole networks ----


def one_by_one(objective: SequenceSmoothing, model: Any, batch: Batch, draws: Draws, score: Any) -> Tensor:
    """α Σ_l ω_l ℓ(y_l) + (1 − α) ℓ(y*), each output alone and its source encoded anew; ``score(batch of one)`` is ℓ."""
    total = torch.zeros((), dtype=torch.float64)
    for example in range(len(batch)):
        gold = batch.gold[example][batch.mask[example]].tolist()
        outputs = [(1 - objective.mix, gold)]
        outputs += [(objective.mix * w, y) for w, y in zip(draws.weights[example], as_lists(draws.outputs[example]))]
        for weight, output in outputs:
            tokens = torch.tensor([output])
            alone = Batch.of_gold(
                tokens,
                torch.ones_like(tokens, dtype=torch.bool),
                batch.symbols,
                source=batch.source[[example]],  # type: ignore[index]
                source_mask=batch.source_mask[[example]],  # type: ignore[index]
            )
            total = total + weight * score(alone)
    return total


def assert_same(model: Any, loss: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    parameters = list(model.parameters())
    for (key, _), mine, wanted in zip(
        model.named_parameters(), torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)
    ):
        torch.testing.assert_close(mine, wanted, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("symbols", "fields"),
    [
        *((symbols, fields) for symbols in (SYMBOLS, FIXED) for fields in OF_ONE_LENGTH),
        (SYMBOLS, {"samples": 5, "reward": "edit", "proposal": "edit", "mix": 0.5}),
    ],
    ids=str,
)
def test_loss_and_gradients_are_those_of_outputs_one_by_one(name: str, symbols: Symbols, fields: Any) -> None:
    model, batch = network(name), sourced(symbols)
    objective = SequenceSmoothing(**{"tau": 0.9, **fields})
    loss = loss_of(objective, model, batch)
    expected = one_by_one(
        objective,
        model,
        batch,
        drawn(objective, model, batch),
        lambda alone: loss_of(CrossEntropy(), model, alone).total,
    )
    assert_same(model, loss.total, expected)
    assert loss.count == batch.mask.sum()
    plain = loss_of(CrossEntropy(), model, batch)
    if objective.mix < 1:
        torch.testing.assert_close(loss.metrics["nll"], plain.metrics["nll"])
        torch.testing.assert_close(loss.metrics["accuracy"], plain.metrics["accuracy"])
        mixed = objective.mix * metric(loss, "sampled") + (1 - objective.mix) * metric(loss, "nll")
        assert mixed == pytest.approx(loss.mean.item())
    else:
        assert "nll" not in loss.metrics
        assert metric(loss, "sampled") == pytest.approx(loss.mean.item())


@pytest.mark.parametrize("name", ["lstm", "transformer"])
@pytest.mark.parametrize("lazy", [False, True])
def test_equation_14(name: str, lazy: bool) -> None:
    """Tokens of every output smoothed, and the gold's: losses of outputs one by one, or of the gold's prefixes."""
    model, batch = network(name), sourced()
    token = TokenSmoothing(tau=0.6, mix=0.7, nearest=2)
    sequence = SequenceSmoothing(tau=0.9, mix=0.4, samples=5, lazy=lazy, reward="bleu", proposal_tau=0.9)
    loss = loss_of(TokenSequenceSmoothing(token, sequence), model, batch)
    draws = drawn(sequence, model, batch)
    if lazy:
        features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
        expected = torch.zeros((), dtype=torch.float64)
        for number, weight in [
            (None, torch.full((3,), 0.6, dtype=torch.float64)),
            *((n, 0.4 * draws.weights[:, n]) for n in range(5)),
        ]:
            tokens = batch.gold if number is None else draws.outputs[:, number]
            for row in range(3):
                here = batch.mask[row]
                scores = model.score(features[row][here])
                wanted, _ = token.target(model, SYMBOLS, tokens[row][here], scores)
                losses, _ = smoothing_targets.smoothed_nll(scores, tokens[row][here], wanted)
                expected = expected + weight[row] * losses.sum()
    else:
        expected = one_by_one(sequence, model, batch, draws, lambda alone: loss_of(token, model, alone).total)
    assert_same(model, loss.total, expected)
    there, of = loss.metrics["covered"]
    assert 0 < there < of  # ends have no vector
    assert {"moved", "rest"} < loss.metrics.keys()


def test_parts_of_equation_14() -> None:
    """α₂ = 0 is the sequence level, α₁ = 0 the token level, both 0 are cross-entropy, and so is τ = 0."""
    model, batch = network("transformer"), sourced()
    token, sequence = TokenSmoothing(tau=0.5, nearest=3), SequenceSmoothing(tau=0.8, mix=0.5, samples=3)
    without = TokenSequenceSmoothing(TokenSmoothing(mix=0.0), sequence)
    torch.testing.assert_close(loss_of(without, model, batch).total, loss_of(sequence, model, batch).total)
    for off in (SequenceSmoothing(mix=0.0), SequenceSmoothing(tau=0.0)):
        alone = loss_of(TokenSequenceSmoothing(token, off), model, batch)
        assert torch.equal(alone.total, loss_of(token, model, batch).total)
        nothing = loss_of(TokenSequenceSmoothing(TokenSmoothing(tau=0.0), off), model, batch)
        assert torch.equal(nothing.total, loss_of(CrossEntropy(), model, batch).total)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mix": 0.3, "samples": 3},
        {"lazy": True, "samples": 2},
        {"lazy": True, "samples": None},
        {"lazy": True, "samples": None, "vocabulary": "batch", "mix": 0.7},
        {"reward": "edit", "proposal": "edit", "samples": 3},
        {"reward": "bleu", "samples": 3, "mix": 0.9, "proposal_tau": 0.01},
    ],
    ids=str,
)
def test_tau_towards_zero_is_cross_entropy(fields: Any) -> None:
    for name in ("lstm", "transformer"):
        model, batch = network(name), sourced()
        for tau in (0.0, 1e-3):
            loss, plain = (
                loss_of(o, model, batch) for o in (SequenceSmoothing(**{**fields, "tau": tau}), CrossEntropy())
            )
            torch.testing.assert_close(loss.total, plain.total, rtol=1e-12, atol=1e-12)
            if tau == 0:
                assert torch.equal(loss.total, plain.total)
            for a, b in zip(*(torch.autograd.grad(x.total, list(model.parameters())) for x in (loss, plain))):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [({}, 3, 3), ({"lazy": True, "samples": 9}, 3, 3), ({"samples": 40, "mix": 0.5}, 4, 3 + 27 + 3 + 9)],
)
def test_with_full_weight_the_gold_is_not_fed(fields: Any, least: int, most: int) -> None:
    """As many rows as examples, else as many as there are different outputs; and the sources encoded once."""
    model, batch = network("lstm"), sourced()
    starts: list[int] = []
    fed: list[int] = []
    start, advance = model.start, model.advance
    model.start = lambda batch: starts.append(len(batch)) or start(batch)
    model.advance = lambda state, inputs: fed.append(len(inputs)) or advance(state, inputs)
    loss_of(SequenceSmoothing(tau=2.0, **fields).fitted(codec_of(6)), model, batch)
    assert starts == [3]
    assert len(fed) == 1
    assert least <= fed[0] <= most


@pytest.mark.parametrize("chunk", [10_000, 5])
def test_many_samples_are_projected_a_part_at_a_time(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing_targets, "CHUNK", chunk)
    monkeypatch.setattr(sequence_smoothing, "CHUNK", chunk)
    model, batch = network("transformer"), sourced()
    most = []
    score = model.score
    model.score = lambda features: most.append(len(features)) or score(features)
    token = TokenSmoothing(tau=0.5, nearest=3)
    objective = TokenSequenceSmoothing(token, SequenceSmoothing(tau=2.0, mix=0.5, samples=20).fitted(codec_of(6)))
    loss = loss_of(objective, model, batch)
    draws = drawn(objective.sequence, model, batch)
    assert max(most) > 60 if chunk > 5 else max(most) == 5
    expected = one_by_one(objective.sequence, model, batch, draws, lambda alone: loss_of(token, model, alone).total)
    assert_same(model, loss.total, expected)


# ---- which tokens stand in ----


@pytest.mark.parametrize("proposal", ["hamming", "edit"])
def test_only_words_stand_in_for_others(proposal: Any) -> None:
    """Not the unknown word, once the objective knows it, and never padding, start or end symbols."""
    batch = batch_of([[4, 3, 5, 2], [5, 2], [3, 4, 2]], references=torch.tensor([[4, 3, 0], [2, 7, 6], [3, 4, 1]]))
    model = toy(9)
    for vocabulary, known, unknown in (("all", {4, 5, 6, 7, 8}, {3, 4, 5, 6, 7, 8}), ("batch", {4, 5}, {3, 4, 5})):
        plain = SequenceSmoothing(
            tau=50.0 if proposal == "hamming" else 0.55,  # more would be refused: it makes nothing but insertions
            reward="edit",
            samples=60,
            vocabulary=vocabulary,
            proposal=proposal,  # type: ignore[arg-type]
        )
        for objective, allowed in ((plain, unknown), (plain.fitted(codec_of(9, unknown=3)), known)):
            for rows, gold in zip(drawn(objective, model, batch).outputs, batch.gold):
                for output in as_lists(rows):
                    assert output[-1] == 2
                    assert set(output[:-1]) <= allowed | set(gold.tolist()) - {0, 2}
                seen = set(itertools.chain(*as_lists(rows)))
                assert allowed <= seen
    own = SequenceSmoothing(tau=50.0, reward="edit", samples=60, vocabulary="references", proposal=proposal)
    seen = [set(itertools.chain(*as_lists(rows))) for rows in drawn(own, model, batch).outputs]
    assert seen == [{4, 3, 5, 2}, {5, 7, 6, 2}, {3, 4, 2}]


def test_nothing_is_learnt_of_padding() -> None:
    """No loss, however it is made, raises the probability of what can't be emitted."""
    model, batch = toy(7), batch_of([[3, 4, 5, 2], [6, 2]], references=torch.tensor([[3, 4, 5], [6, 0, 0]]))
    for fields in (
        {"samples": 30},
        {"samples": 30, "lazy": True},
        {"samples": None, "lazy": True},
        {"samples": None, "lazy": True, "vocabulary": "batch"},
        {"samples": None, "lazy": True, "vocabulary": "references"},
        {"samples": 30, "reward": "edit", "proposal": "edit", "proposal_tau": 0.7},
    ):
        loss = loss_of(SequenceSmoothing(tau=20.0, **fields), model, batch)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(loss.total, model.table)
        assert (gradient[:, :2] >= 0).all()
        assert (gradient[:, :2] > 0).any()


def test_samples_belong_to_their_examples() -> None:
    model, batch = network("lstm"), sourced()
    objective = SequenceSmoothing(tau=2.0, samples=8)
    whole = [as_lists(rows) for rows in drawn(objective, model, batch).outputs]
    part = drawn(objective, model, batch.select(torch.tensor([2, 0]))).outputs
    assert [as_lists(rows) for rows in part] == [whole[2], whole[0]]
    assert whole != [as_lists(rows) for rows in drawn(objective, model, batch, seed=1).outputs]


def test_the_batchs_own_tokens_are_those_of_the_micro_batch() -> None:
    """So results then do depend on the batch, in its order not."""
    model, batch = network("lstm"), sourced()
    objective = SequenceSmoothing(tau=0.8, vocabulary="batch", lazy=True, samples=None)
    whole = loss_of(objective, model, batch).total
    shuffled = loss_of(objective, model, batch.select(torch.tensor([2, 0, 1]))).total
    torch.testing.assert_close(shuffled, whole)
    parts = sum(loss_of(objective, model, batch.select(torch.tensor([row]))).total for row in range(3))
    assert (parts - whole).abs() > 1e-3


def test_a_replaced_token_is_fed_where_it_stands() -> None:
    """A model that only knows its last input: what it is fed at t + 1 is the sample's token t."""
    model, batch = Toy(order=1).build(Sizes(target=6)).double(), batch_of([[3, 3, 3, 3, 2]])
    objective = SequenceSmoothing(tau=5.0)
    (output,) = as_lists(drawn(objective, model, batch).outputs[0])
    assert output != [3, 3, 3, 3, 2]
    log_probs = model.table.log_softmax(dim=-1)
    expected = -sum(log_probs[before, token] for before, token in zip([1, *output], output))
    torch.testing.assert_close(loss_of(objective, model, batch).total, expected)


def test_gradients_survive_autocast() -> None:
    for name in ("lstm", "transformer"):
        model = network(name).float()
        token = TokenSmoothing(tau=0.5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(TokenSequenceSmoothing(token, SequenceSmoothing(tau=2.0, mix=0.5)), model, sourced())
        loss.total.backward()
        for key, parameter in model.named_parameters():
            assert parameter.grad is not None, key
            assert torch.isfinite(parameter.grad).all(), key
        assert model.embedding.grad.abs().max() > 0


def test_training_learns_and_keeps_something_for_neighbours() -> None:
    torch.manual_seed(0)
    model = LSTM(hidden=24, embedding=12, dropout=0.0).build(Sizes(target=7, source=7))
    golds = [[3, 4, 2], [5, 3, 2], [4, 4, 5, 2], [5, 6, 2]]
    source = torch.tensor([[3, 4, 0], [5, 3, 0], [4, 4, 5], [5, 6, 0]])
    batch = batch_of(golds, source=source, source_mask=source > 0)
    objective = SequenceSmoothing(tau=0.5, mix=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(150):
        loss = loss_of(objective, model, batch, seed=step)
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    plain = loss_of(CrossEntropy(), model, batch)
    a = 3 * math.exp(-2)
    kept = 1 / (1 + a)  # at each of the tokens before the end: nine of thirteen
    best = (-9 * math.log(kept)) / 13
    assert metric(plain, "nll") == pytest.approx(best, abs=0.12)
    assert metric(plain, "accuracy") > 0.9


@pytest.mark.parametrize("tokens", ["words", "bpe"])
@pytest.mark.parametrize("name", ["lstm", "fed", "transformer", "causal"])
def test_real_vocabularies_and_every_kind_of_model(tokens: Any, name: str) -> None:
    texts = ["the cat sat", "a dog sat on the mat", "größere Hunde", "the dog"]
    target = TextCoder.learn(texts, tokens, size=280 if tokens == "bpe" else None)
    codec = PairCodec(None if name == "causal" else TextCoder.learn(texts, "words"), target)
    examples = [codec.encode(Example(text, text, (text, texts[0]))) for text in texts]
    batch = codec.collate(examples, range(4))
    model = {**SPECS, "causal": Causal(width=8, heads=2, layers=1, feedforward=8)}[name].build(codec.sizes)
    for token, sequence in (
        (TokenSmoothing(tau=0.3, vectors="co-occurrence"), SequenceSmoothing(tau=0.3, mix=0.5)),
        (
            TokenSmoothing(tau=0.0),
            SequenceSmoothing(reward="cider", vocabulary="references", samples=3, proposal_tau=0.5),
        ),
        (TokenSmoothing(tau=0.3), SequenceSmoothing(reward="edit", proposal="edit", samples=2)),
        (TokenSmoothing(tau=0.3), SequenceSmoothing(lazy=True, vocabulary="batch")),
    ):
        objective = fitted(TokenSequenceSmoothing(token, sequence), codec, examples)
        loss = loss_of(objective, model, batch)
        model.zero_grad()
        loss.total.backward()
        assert loss.count == batch.mask.sum()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        assert model.embedding.grad.abs().max() > 0
    own = [
        set(itertools.chain(*as_lists(rows)))
        for rows in drawn(
            SequenceSmoothing(tau=9.0, vocabulary="references", samples=99).fitted(codec, examples), model, batch
        ).outputs
    ]
    for seen, example, row in zip(own, examples, batch.gold):
        assert seen <= {*example.references, *row.tolist()}
    assert set(examples[0].target) - {2} < own[3]  # the other reference's tokens


# ---- fields ----


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (
            {"samples": 1, "reward": "bleu"},
            "samples must be at least 2, got 1: with this reward samples are weighed, and a lone one weighs one",
        ),
        ({"samples": None}, "samples can be none only with lazy"),
        ({"samples": None, "lazy": True, "reward": "bleu"}, "samples can be none only with lazy and a Hamming"),
        ({"samples": 3, "reward": "bleu"}, "with reward bleu a proposal_tau must be given"),
        ({"samples": 3, "reward": "cider"}, "with reward cider a proposal_tau must be given"),
        ({"proposal": "edit"}, "a Hamming reward is for outputs of the gold's length"),
        ({"proposal": "edit", "reward": "edit", "samples": 4, "lazy": True}, "lazy scores samples behind"),
    ],
)
def test_wrong_fields_are_refused(fields: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        SequenceSmoothing(**fields)


def test_what_can_only_be_seen_later_is_refused_later() -> None:
    edits = SequenceSmoothing(reward="edit", proposal="edit", samples=2)
    with pytest.raises(InputError, match="change the length of outputs, which is fixed"):
        loss_of(edits, network("tagger"), sourced(FIXED))
    with pytest.raises(InputError, match="has counted no n-grams for CIDEr yet: call fitted"):
        loss_of(SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5), toy(), batch_of([[3, 2]]))
    with pytest.raises(InputError, match="none were given"):
        SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5).fitted(codec_of(5))
    with pytest.raises(InputError, match=r"set sequence\.samples"):
        TokenSequenceSmoothing(sequence=SequenceSmoothing(lazy=True, samples=None))

    class Headless:
        start = embed = advance = staticmethod(lambda *_: None)

    for objective in (SequenceSmoothing(), TokenSequenceSmoothing(), TokenSmoothing()):
        with pytest.raises(InputError, match="needs a model with score, which Headless"):
            loss_of(objective, Headless(), batch_of([[3, 2]]))


def test_recipes_can_say_all_of_it() -> None:
    found = build(
        TokenSequenceSmoothing,
        {
            "token": {"tau": 0.1, "vectors": "co-occurrence"},
            "sequence": {"reward": "cider", "samples": 5, "proposal_tau": 0.2},
        },
    )
    assert found == TokenSequenceSmoothing(
        TokenSmoothing(tau=0.1, vectors="co-occurrence"), SequenceSmoothing(reward="cider", samples=5, proposal_tau=0.2)
    )
    assert to_mapping(found)["sequence"]["proposal"] == "hamming"
    assert build(TokenSequenceSmoothing, to_mapping(found)) == found
    assert build(SequenceSmoothing, {"samples": "none", "lazy": True}).samples is None
