"""Token-level smoothing against the formula, against label smoothing, and on real vocabularies."""

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.smoothing import targets as smoothing_targets
from unforced.objectives.smoothing.targets import Target, one_hot, priced, smoothed_nll
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.protocols import fitted
from unforced.recipes.fields import build, to_mapping
from unforced.tasks.text import PairCodec
from unforced.tasks.tokenization import TextCoder
from unforced.training.run_identity import _describe
from unforced.types import Batch, Encoded, Example, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
OPEN = SYMBOLS._replace(pad=2, bos=2, banned=())  # all can be emitted: what pads and begins is the end symbol
NAMES = ("<pad>", "<bos>", "<eos>", "<unk>", "cat", "dog", "house", "nameless", "tree")
SIZE = len(NAMES)
WORDS = [4, 5, 6, 8]  # those with a vector
SPECS = {
    "lstm": LSTM(hidden=6, embedding=5, dropout=0.0),
    "transformer": Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=8, dropout=0.0),
}


def batch_of(symbols: Symbols = SYMBOLS) -> Batch:
    """Golds with words that have vectors, one that has none, the unknown word and the end symbol."""
    gold = torch.tensor([[4, 5, 3, 2], [7, 8, 2, 0], [6, 2, 0, 0]])
    source = torch.tensor([[1, 2, 3], [4, 1, 0], [2, 0, 0]])
    return Batch.of_gold(gold, gold != 0, symbols, source=source, source_mask=source != 0)


def network(name: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return SPECS[name].build(Sizes(target=SIZE, source=5)).double()


def toy(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Toy(order=2).build(Sizes(target=SIZE)).double()


def codec_of(names: tuple[str, ...] = NAMES, symbols: Symbols = SYMBOLS) -> Any:
    return SimpleNamespace(symbols=symbols, sizes=Sizes(len(names)), token_names=lambda: names)


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    path = tmp_path / "vectors.npz"
    found = np.random.default_rng(0).normal(size=(4, 3))
    np.savez(path, words=np.array([NAMES[i] for i in WORDS]), vectors=found)
    return str(path)


def matrix(path: str) -> Tensor:
    """[V,E] of the file, zeros for words that have none."""
    found = torch.zeros(SIZE, 3, dtype=torch.float64)
    found[WORDS] = torch.from_numpy(np.load(path)["vectors"])
    return found


def formula(vectors: Tensor, there: list[int], tau: float) -> Tensor:
    """r(w | y) [V,V], word by word."""
    found = torch.eye(len(vectors), dtype=torch.float64)
    for y in there:
        d = {w: 1 - F.cosine_similarity(vectors[w], vectors[y], dim=0).item() for w in there}
        weights = {w: math.exp(-(d[w] if w != y else 0.0) / tau) for w in there}
        for w in there:
            found[y, w] = weights[w] / sum(weights.values())
    return found


def loss_of(objective: Any, model: Any, batch: Batch) -> Loss:
    return objective(model, batch, progress=Progress(), rng=torch.Generator())


def targets(objective: Any, model: Any, batch: Batch) -> Tensor:
    """The targets [N,V], read off the gradient: with respect to scores it is probability − target."""
    model = copy.deepcopy(model)
    count = int(batch.mask.sum())
    scores = torch.randn(count, SIZE, dtype=torch.float64, requires_grad=True)
    model.score = lambda features: scores
    (gradient,) = torch.autograd.grad(loss_of(objective, model, batch).total, scores)
    return (torch.softmax(scores, dim=-1) - gradient).detach()


def metric(loss: Loss, name: str) -> float:
    total, count = loss.metrics[name]
    return float(total / count)


# ---- the formula ----


@pytest.mark.parametrize("nearest", [None, 4, 100])
@pytest.mark.parametrize("name", SPECS)
def test_the_loss_is_the_divergence_from_the_formula(vectors: str, name: str, nearest: int | None) -> None:
    model, batch = network(name), batch_of()
    r = formula(matrix(vectors), WORDS, 0.4)[batch.gold[batch.mask]]
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    log_probs = model.score(features[batch.mask]).log_softmax(dim=-1)
    objective = TokenSmoothing(tau=0.4, vectors=vectors, nearest=nearest).fitted(codec_of())
    loss = loss_of(objective, model, batch)
    expected = -(r * log_probs).sum()
    torch.testing.assert_close(loss.total, expected, rtol=1e-6, atol=1e-6)
    for found, wanted in zip(
        torch.autograd.grad(loss.total, list(model.parameters()), retain_graph=True),
        torch.autograd.grad(expected, list(model.parameters())),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
    kl = F.kl_div(log_probs, r, reduction="sum")
    assert metric(loss, "kl") == pytest.approx(float(kl.detach()) / 9, rel=1e-5)
    assert metric(loss, "moved") == pytest.approx(float((1 - r[torch.arange(9), batch.gold[batch.mask]]).mean()))
    assert metric(loss, "rest") == pytest.approx(0.0, abs=1e-6)
    plain = loss_of(CrossEntropy(), model, batch)
    for key in ("nll", "accuracy"):
        torch.testing.assert_close(loss.metrics[key], plain.metrics[key])
    assert loss.count == plain.count


def test_targets_of_words_special_tokens_and_padding(vectors: str) -> None:
    """What has no vector is one-hot, and gets nothing from others."""
    batch = batch_of()
    found = targets(TokenSmoothing(tau=0.4, vectors=vectors).fitted(codec_of()), toy(), batch)
    torch.testing.assert_close(
        found, formula(matrix(vectors), WORDS, 0.4)[batch.gold[batch.mask]], rtol=1e-6, atol=1e-7
    )
    for position, token in enumerate(batch.gold[batch.mask].tolist()):
        if token not in WORDS:
            assert found[position, token].item() == pytest.approx(1.0)
    assert (
        found[:, [0, 1, 2, 3, 7]] * (batch.gold[batch.mask].unsqueeze(1) != torch.tensor([0, 1, 2, 3, 7]))
    ).abs().max() < 1e-12


@pytest.mark.parametrize("nearest", [1, 2, 3])
def test_sparse_targets_are_the_dense_ones_within_the_rest(vectors: str, nearest: int) -> None:
    model, batch = toy(), batch_of()
    sparse, dense = (TokenSmoothing(tau=0.8, vectors=vectors, nearest=n).fitted(codec_of()) for n in (nearest, None))
    few, all_ = targets(sparse, model, batch), targets(dense, model, batch)
    losses = loss_of(sparse, model, batch), loss_of(dense, model, batch)
    rest = losses[0].metrics["rest"][0].item()
    assert rest > 0.05
    torch.testing.assert_close(few.sum(dim=1), torch.ones(9, dtype=torch.float64))
    apart = (few - all_).abs().sum(dim=1) / 2
    assert apart.sum() <= rest + 1e-6
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    log_probs = model.score(features[batch.mask]).log_softmax(dim=-1)
    span = log_probs.amax(dim=1) - log_probs.amin(dim=1)
    assert (losses[0].total - losses[1].total).abs() <= (apart * span).sum() + 1e-6
    own = torch.arange(9), batch.gold[batch.mask]
    torch.testing.assert_close(few[own], all_[own], rtol=1e-6, atol=1e-6)  # a word itself is always listed


@pytest.mark.parametrize("kind", ["file", "model", "uniform"])
def test_mixing_with_cross_entropy(vectors: str, kind: str) -> None:
    """Equation 13."""
    model, batch = network("lstm"), batch_of()
    how: dict[str, Any] = {"tau": 0.5, "vectors": vectors if kind == "file" else kind, "nearest": 3}
    pure, mixed = (TokenSmoothing(mix=mix, **how).fitted(codec_of()) for mix in (1.0, 0.3))
    plain, whole, part = (loss_of(o, model, batch) for o in (CrossEntropy(), pure, mixed))
    torch.testing.assert_close(part.total, 0.3 * whole.total + 0.7 * plain.total, rtol=1e-9, atol=1e-9)
    for key in ("kl", "moved", "rest"):
        assert metric(part, key) == pytest.approx(metric(whole, key), rel=1e-4)


@pytest.mark.parametrize("kind", ["file", "model", "uniform", "co-occurrence"])
def test_tau_towards_zero_is_cross_entropy(vectors: str, kind: str) -> None:
    batch, examples = (batch_of(), [Encoded(None, [4, 5, 2]), Encoded(None, [6, 8, 8, 2]), Encoded(None, [5, 6])])
    for name in SPECS:
        model = network(name)
        plain = loss_of(CrossEntropy(), model, batch)
        for tau in (0.0, 1e-5):
            objective = TokenSmoothing(tau=tau, vectors=vectors if kind == "file" else kind)
            loss = loss_of(objective.fitted(codec_of(), examples), model, batch)
            torch.testing.assert_close(loss.total, plain.total, rtol=1e-12, atol=1e-12)
            if tau == 0:
                assert torch.equal(loss.total, plain.total)
            for a, b in zip(*(torch.autograd.grad(x.total, list(model.parameters())) for x in (loss, plain))):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
            plain = loss_of(CrossEntropy(), model, batch)


# ---- label smoothing ----


@pytest.mark.parametrize("tau", [0.3, 1.0, math.inf])
def test_uniform_distances_are_pytorchs_label_smoothing(tau: float) -> None:
    model, batch = network("lstm"), batch_of(OPEN)
    e = math.exp(-1 / tau)
    epsilon = SIZE * e / (1 + (SIZE - 1) * e)
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    scores, gold = model.score(features[batch.mask]), batch.gold[batch.mask]
    expected = F.cross_entropy(scores, gold, label_smoothing=epsilon, reduction="sum")
    torch.testing.assert_close(loss_of(TokenSmoothing(tau=tau, vectors="uniform"), model, batch).total, expected)


@pytest.mark.parametrize("epsilon", [0.1, 0.6])
def test_uniform_smoothing_at_an_infinite_temperature_is_label_smoothing(epsilon: float) -> None:
    model, batch = network("transformer"), batch_of()
    found = loss_of(TokenSmoothing(tau=math.inf, mix=epsilon, vectors="uniform"), model, batch)
    expected = loss_of(LabelSmoothing(epsilon), model, batch)
    torch.testing.assert_close(found.total, expected.total)
    assert metric(found, "kl") > 0


def test_vectors_that_are_all_equally_far_are_uniform_among_words(tmp_path: Path) -> None:
    """One vector for each axis: what the end symbol, the unknown word and padding are spared apart."""
    path = tmp_path / "axes.npz"
    names = ("<pad>", "<bos>", "<eos>", *"abcdef")
    np.savez(path, words=np.array(names[3:]), vectors=np.eye(6))
    codec = codec_of(names)
    gold = torch.tensor([[3, 8, 5]])
    batch = Batch.of_gold(gold, gold > 0, Symbols(0, 1, 2, (0, 1, 2)))
    model = toy()
    for nearest in (None, 100, 2, 1):
        objective = TokenSmoothing(tau=0.5, vectors=str(path), nearest=nearest).fitted(codec)
        uniform = TokenSmoothing(tau=0.5, vectors="uniform")
        torch.testing.assert_close(
            loss_of(objective, model, batch).total, loss_of(uniform, model, batch).total, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("kind", ["file", "model", "uniform", "co-occurrence"])
def test_nothing_lands_on_what_cannot_be_emitted(vectors: str, kind: str) -> None:
    examples = [Encoded(None, [4, 5, 3, 2]), Encoded(None, [6, 8, 7, 2]), Encoded(None, [4, 6, 5])]
    objective = TokenSmoothing(tau=2.0, nearest=3, vectors=vectors if kind == "file" else kind)
    for fit in (True, False):
        if not fit and kind in ("file", "co-occurrence"):
            continue
        found = targets(objective.fitted(codec_of(), examples) if fit else objective, toy(), batch_of())
        assert found[:, :2].abs().max() < 1e-12  # padding and the start symbol
        assert (found > -1e-9).all()
        torch.testing.assert_close(found.sum(dim=1), torch.ones(9, dtype=torch.float64))
        if kind != "uniform":
            others = batch_of().gold[batch_of().mask] != 2
            assert found[others, 2].abs().max() < 1e-9  # nor on the end symbol
        if fit and kind != "uniform":
            others = batch_of().gold[batch_of().mask] != 3
            assert found[others, 3].abs().max() < 1e-9  # nor on the unknown word
        assert 0.05 < 1 - found[0, 4] < 1


def test_padding_and_the_start_symbol_get_nothing_though_nobody_banned_them() -> None:
    lax = batch_of(SYMBOLS._replace(banned=()))
    found = targets(TokenSmoothing(tau=2.0, vectors="uniform"), toy(), lax)
    assert found[:, :2].abs().max() < 1e-12
    assert found[:, 2:].min() > 0.01
    banned = batch_of(SYMBOLS._replace(banned=(0, 1)))
    losses = [loss_of(LabelSmoothing(0.3), toy(), batch).total for batch in (lax, banned)]
    assert torch.equal(*losses)


# ---- where vectors come from ----


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("nearest", [3, None])
def test_the_models_own_vectors(name: str, nearest: int | None) -> None:
    """They are its target embedding, as it is now, and get no gradient through r."""
    model, batch = network(name), batch_of()
    objective = TokenSmoothing(tau=0.5, nearest=nearest).fitted(codec_of())
    words = [4, 5, 6, 7, 8]
    for _ in range(2):
        r = formula(model.embedding.detach(), words, 0.5)[batch.gold[batch.mask]]
        features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
        log_probs = model.score(features[batch.mask]).log_softmax(dim=-1)
        expected = -(r * log_probs).sum()
        loss = loss_of(objective, model, batch)
        if nearest is None:
            torch.testing.assert_close(loss.total, expected)
            for a, b in zip(*(torch.autograd.grad(x, list(model.parameters())) for x in (loss.total, expected))):
                torch.testing.assert_close(a, b)
        else:
            assert metric(loss, "rest") > 0.01
        with torch.no_grad():
            model.embedding.copy_(torch.randn_like(model.embedding))  # training moves it


def test_co_occurrence_needs_the_training_examples() -> None:
    """Words that are used alike share, others don't."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", "a", "b", "red", "blue", "green", "up", "down")
    texts = ["a red b", "a blue b", "b red a", "b blue a", "up down", "down up", "a green b", "b green a"]
    ids = {name: i for i, name in enumerate(names)}
    examples = [Encoded(None, [*(ids[word] for word in text.split()), 2]) for text in texts]
    objective = TokenSmoothing(tau=0.2, vectors="co-occurrence")
    known = objective.fitted(codec_of(names), examples)
    gold = torch.tensor([[6, 9]])
    batch = Batch.of_gold(gold, gold > 0, SYMBOLS)
    torch.manual_seed(0)
    model = Toy().build(Sizes(len(names))).double()
    scores = torch.zeros(2, len(names), dtype=torch.float64)
    smoothed = known.smoothed(model, SYMBOLS, batch.gold[0], scores)
    r = torch.zeros(2, len(names), dtype=torch.float64).scatter_add(1, smoothed.target.tokens, smoothed.target.weights)
    assert r[0, 7] > 0.2 < r[0, 8]  # red: blue and green
    assert r[0, 9] < 0.02 > r[1, 7]
    with pytest.raises(InputError, match='has not read "co-occurrence" yet: call fitted'):
        loss_of(objective, model, batch)
    with pytest.raises(InputError, match="none were given"):
        objective.fitted(codec_of(names))


def test_pieces_of_a_real_vocabulary(tmp_path: Path) -> None:
    """Byte pair encoding: pieces that begin a word have its vector, others are one-hot; all of them train."""
    texts = ["the cat sat", "the dog sat", "a cat and a dog", "dogs sat on the mats"] * 3
    codec = PairCodec(TextCoder.learn(texts, "words"), TextCoder.learn(texts, "bpe", size=290))
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 0.1\ndog 1 0.2\nthe 0 1\nat 0.5 0.5\ns 0.7 0.1\n")
    names = codec.token_names()
    codec_batch = codec.collate([codec.encode(Example(text, text)) for text in texts[:4]], range(4))
    torch.manual_seed(0)
    model = LSTM(hidden=8, embedding=6).build(codec.sizes)
    for vectors in (str(path), "model", "co-occurrence"):
        objective = fitted(
            TokenSmoothing(tau=0.3, vectors=vectors), codec, [codec.encode(Example(t, t)) for t in texts]
        )
        loss = loss_of(objective, model, codec_batch)
        loss.total.backward()
        assert metric(loss, "moved") > 0.01
    there = TokenSmoothing(tau=0.3, vectors=str(path)).fitted(codec).known.there  # type: ignore[union-attr]
    having = {names[i] for i in there.nonzero().squeeze(1).tolist()}
    assert {"Ġcat", "Ġdog", "Ġthe"} <= having <= {"Ġcat", "Ġdog", "Ġthe", "Ġs", "Ġat"}
    assert "s" in names


def test_a_fitted_objective_is_the_same_to_recipes_and_resumes(vectors: str) -> None:
    objective = TokenSmoothing(tau=0.2, vectors=vectors)
    known = objective.fitted(codec_of())
    assert known == objective
    assert _describe(known) == _describe(objective)
    assert to_mapping(known) == {"tau": 0.2, "mix": 1.0, "vectors": vectors, "nearest": 100}
    assert build(TokenSmoothing, {"nearest": "none", "vectors": "uniform"}).nearest is None


def test_another_vocabulary_than_the_models_is_refused(vectors: str) -> None:
    objective = TokenSmoothing(vectors=vectors).fitted(codec_of(NAMES[:-1]))
    with pytest.raises(InputError, match="knows 8 tokens, but one is number 8"):
        loss_of(objective, toy(), batch_of())
    objective = TokenSmoothing(vectors=vectors).fitted(codec_of((*NAMES, "more")))
    with pytest.raises(InputError, match="knows 10 tokens, but the model scores 9"):
        loss_of(objective, toy(), batch_of())
    with pytest.raises(InputError, match="has not read"):
        loss_of(TokenSmoothing(vectors=vectors), toy(), batch_of())


# ---- the cross-entropy that all of this stands on ----


@pytest.mark.parametrize("block", [1, 7, 10_000])
def test_smoothed_nll_and_its_gradient(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing_targets, "BLOCK", block)
    torch.manual_seed(0)
    scores = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[1, 2, 2], [0, 3, 4], [6, 6, 6], [1, 2, 3], [5, 0, 1]])  # some of them twice
    weights = torch.rand(5, 3, dtype=torch.float64)
    share = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0, 0.0])
    weights, rest = weights / (weights.sum(dim=1, keepdim=True) + 1), 1 / (weights.sum(dim=1) + 1)
    target = Target(tokens, weights, rest, share)
    full = torch.zeros(5, 7, dtype=torch.float64).scatter_add(1, tokens, weights) + rest.unsqueeze(1) * share.double()
    expected = -(full * scores.log_softmax(dim=-1)).sum(dim=1)
    losses, nll = smoothed_nll(scores, tokens[:, 1], target)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(nll, F.cross_entropy(scores, tokens[:, 1], reduction="none").detach())
    assert not nll.requires_grad
    factors = torch.randn(5, dtype=torch.float64)
    for found, wanted in zip(
        torch.autograd.grad((losses * factors).sum(), scores), torch.autograd.grad((expected * factors).sum(), scores)
    ):
        torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(lambda s: smoothed_nll(s, tokens[:, 1], target)[0], (scores,))
    low = smoothed_nll(scores.detach().bfloat16(), tokens[:, 1], target)[0]
    assert low.dtype == torch.float32


def test_projecting_a_part_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing_targets, "CHUNK", 4)
    model = network("lstm")
    features = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, SIZE, (11,))
    found = []
    for most in (4, 11):
        losses, nll, best = priced(model, features, tokens, lambda tokens, scores: one_hot(tokens), most)
        gradients = torch.autograd.grad(losses.sum(), [features, model.projection])
        found.append((losses, nll, best, gradients))
    torch.testing.assert_close(found[0], found[1])
    assert torch.equal(found[0][2], model.score(features).argmax(dim=1) == tokens)
