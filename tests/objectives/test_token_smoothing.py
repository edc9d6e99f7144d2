"""Token-level smoothing against the formula, label smoothing and dense targets."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from objective_cases import ENDED, EXAMPLES, SIZE, assert_same, batch_of, codec, fit, loss_of, metric, network, toy
from torch import Tensor

from unforced.errors import InputError
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.smoothing.targets import Target, smoothed_nll
from unforced.objectives.smoothing.token_roles import TokenRoles
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.protocols import fitted
from unforced.types import Batch, Encoded, Symbols

NAMES = ("<pad>", "<bos>", "<eos>", "<unk>", "cat", "dog", "nameless", "tree")
WORDS = [4, 5, 7]  # those with a vector
CODEC = codec(names=NAMES)
KINDS = ["file", "model", "uniform", "co-occurrence"]


def batch(symbols: Symbols = ENDED) -> Batch:
    """Words with a vector, one without, the unknown word, and end symbols."""
    source = torch.tensor([[1, 2, 3], [4, 1, 0], [2, 0, 0]])
    return batch_of([[4, 5, 3, 2], [6, 7, 2], [7, 2]], symbols, source=source, source_mask=source != 0)


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    path = tmp_path / "vectors.npz"
    matrix = np.random.default_rng(0).normal(size=(3, 4))
    np.savez(path, words=np.array([NAMES[i] for i in WORDS]), vectors=matrix)
    return str(path)


def smoothing(kind: str, vectors: str, **fields: Any) -> TokenSmoothing:
    objective = TokenSmoothing(vectors=vectors if kind == "file" else kind, **fields)
    return objective.fitted(CODEC, [Encoded(None, [4, 5, 2]), Encoded(None, [7, 6, 6, 2]), Encoded(None, [5, 7])])


def formula(matrix: Tensor, words: list[int], tau: float) -> Tensor:
    """r(w | y) [V,V], word by word."""
    table = torch.eye(len(matrix), dtype=torch.float64)
    for y in words:
        d = {w: 0.0 if w == y else 1 - F.cosine_similarity(matrix[w], matrix[y], dim=0).item() for w in words}
        z = sum(math.exp(-x / tau) for x in d.values())
        for w in words:
            table[y, w] = math.exp(-d[w] / tau) / z
    return table


def of_file(path: str, tau: float) -> Tensor:
    matrix = torch.zeros(SIZE, 4, dtype=torch.float64)
    matrix[WORDS] = torch.from_numpy(np.load(path)["vectors"])
    return formula(matrix, WORDS, tau)


def gold_log_probs(model: Any, data: Batch) -> Tensor:
    features, _ = model.advance(model.start(data), model.embed(data.prefix))
    log_probs: Tensor = model.score(features[data.mask]).log_softmax(dim=-1)
    return log_probs


def targets(objective: Any, data: Batch, size: int = SIZE) -> Tensor:
    """The targets [N,V]: the gradient with respect to a score is probability − target."""
    model = copy.deepcopy(toy(size))
    scores = torch.randn(int(data.mask.sum()), size, dtype=torch.float64, requires_grad=True)
    model.score = lambda features: scores
    (gradient,) = torch.autograd.grad(loss_of(objective, model, data).total, scores)
    return (torch.softmax(scores, dim=-1) - gradient).detach()


@pytest.mark.parametrize("nearest", [None, 3, 100])
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_loss_is_the_divergence_of_the_formula(vectors: str, name: str, nearest: int | None) -> None:
    model, data = network(name), batch()
    gold = data.gold[data.mask]
    r, log_probs = of_file(vectors, 0.4)[gold], gold_log_probs(model, data)
    loss = loss_of(smoothing("file", vectors, tau=0.4, nearest=nearest), model, data)
    assert_same(model, loss.total, -(r * log_probs).sum(), rtol=1e-5, atol=1e-6)
    assert metric(loss, "kl") == pytest.approx(F.kl_div(log_probs, r, reduction="sum").item() / 9, rel=1e-5)
    assert metric(loss, "moved") == pytest.approx(float((1 - r[torch.arange(9), gold]).mean()))
    assert metric(loss, "rest") == pytest.approx(0.0, abs=1e-6)
    assert metric(loss, "covered") == pytest.approx(4 / 9)
    plain = loss_of(CrossEntropy(), model, data)
    for key in ("nll", "accuracy"):
        torch.testing.assert_close(loss.metrics[key], plain.metrics[key])


@pytest.mark.parametrize("nearest", [3, None])
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_vectors_of_the_model_are_those_of_this_update(name: str, nearest: int | None) -> None:
    model, data = network(name), batch()
    objective = fit(TokenSmoothing(tau=0.5, nearest=nearest), CODEC)
    for _ in range(2):
        r = formula(model.embedding.detach(), [4, 5, 6, 7], 0.5)[data.gold[data.mask]]
        loss = loss_of(objective, model, data)
        if nearest is None:
            assert_same(model, loss.total, -(r * gold_log_probs(model, data)).sum())
        else:
            assert metric(loss, "rest") > 0.01
        with torch.no_grad():
            model.embedding.copy_(torch.randn_like(model.embedding))


@pytest.mark.parametrize("kind", KINDS)
def test_mixing_with_cross_entropy(vectors: str, kind: str) -> None:
    """Equation 13."""
    model = network("lstm")
    pure, mixed = (smoothing(kind, vectors, tau=0.5, nearest=3, mix=mix) for mix in (1.0, 0.3))
    plain, smoothed, part = (loss_of(o, model, batch()) for o in (CrossEntropy(), pure, mixed))
    torch.testing.assert_close(part.total, 0.3 * smoothed.total + 0.7 * plain.total, rtol=1e-9, atol=1e-9)
    for key in ("kl", "moved", "rest"):
        assert metric(part, key) == pytest.approx(metric(smoothed, key), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [0.0, 1e-5])
def test_tau_towards_zero_is_cross_entropy(vectors: str, kind: str, tau: float) -> None:
    model = network("transformer")
    loss, plain = (loss_of(o, model, batch()) for o in (smoothing(kind, vectors, tau=tau), CrossEntropy()))
    assert_same(model, loss.total, plain.total, rtol=1e-10, atol=1e-12)
    assert tau > 0 or torch.equal(loss.total, plain.total)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_moved_to_tokens_that_are_not_words(vectors: str, kind: str) -> None:
    """Neither to ids that are not emitted, nor to ids that the model has beyond the vocabulary."""
    for size in (SIZE, SIZE + 3):
        found = targets(smoothing(kind, vectors, tau=2.0, nearest=2), batch(), size)
        gold = batch().gold[batch().mask]
        assert (found > -1e-9).all()
        torch.testing.assert_close(found.sum(dim=1), torch.ones(9, dtype=torch.float64))
        excluded = [0, 1, *range(SIZE, size), *([] if kind == "uniform" else [2, 3])]
        moved = found.scatter(1, gold.unsqueeze(1), 0.0)
        assert moved[:, excluded].abs().max() < 1e-9
        assert 0.05 < 1 - found[0, 4] < 1


def test_ids_without_a_name_are_not_used() -> None:
    unnamed = codec(names=("<pad>", "<bos>", "<eos>", "a", "b", "c", "", ""))
    assert TokenRoles.of(unnamed).unused == {0, 1, 6, 7}
    assert TokenRoles.of(codec(names=("",) * 8)).unused == {0, 1}  # a model without a tokenizer
    data = batch_of([[3, 4, 2]])
    for kind in ("uniform", "model"):
        found = targets(fit(TokenSmoothing(vectors=kind, tau=5.0), unnamed), data)
        assert found[:, [0, 1, 6, 7]].abs().max() < 1e-9
        assert found[:2, 3:6].min() > 0.1
    plain = LabelSmoothing(0.2)
    uniform = fit(TokenSmoothing(vectors="uniform", tau=math.inf, mix=0.2), unnamed)
    torch.testing.assert_close(*(loss_of(o, toy(), data).total for o in (fit(plain, unnamed), uniform)))
    assert not torch.allclose(loss_of(plain, toy(), data).total, loss_of(uniform, toy(), data).total)


def test_roles_of_special_tokens() -> None:
    def roles(names: tuple[str, ...], **symbols: Any) -> TokenRoles:
        return TokenRoles.of(codec(names=names, symbols=Symbols(0, 1, **symbols)))

    assert roles(("<pad>", "<bos>", "<unk>", "a"), eos=None, banned=(0, 1, 2)).special == {0, 1, 2}
    assert roles(("<pad>", "<bos>", "<eos>", "!", "<unk>"), eos=2).special == {0, 1, 2}
    assert roles(("a", "b", "c", "d", "e", "f"), eos=5, banned=(4,)).special == {0, 1, 4, 5}
    found = TokenRoles.of(codec(names=NAMES, special_ids=frozenset({5}), unknown_id=6))
    assert (found.special, found.fixed) == ({0, 1, 2, 3, 5}, {0, 1, 2, 5})


# Label smoothing


def test_uniform_distances_at_an_infinite_temperature_are_label_smoothing() -> None:
    model = network("transformer")
    found = loss_of(fit(TokenSmoothing(tau=math.inf, mix=0.3, vectors="uniform"), CODEC), model, batch())
    for objective in (LabelSmoothing(0.3), fit(LabelSmoothing(0.3), CODEC)):
        torch.testing.assert_close(found.total, loss_of(objective, model, batch()).total)
    assert found.metrics["rest"] == found.metrics["moved"]


# Numbers


def test_sparse_cross_entropy_is_the_dense_one() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[1, 2, 1], [0, 3, 4], [6, 6, 6], [1, 2, 3], [5, 0, 1]])  # some are listed twice
    weights = torch.rand(5, 3, dtype=torch.float64)
    share = torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25, 0.0, 0.0])
    weights, rest = weights / (weights.sum(dim=1, keepdim=True) + 1), 1 / (weights.sum(dim=1) + 1)
    target = Target(tokens, weights, rest, share)
    dense = torch.zeros(5, 7, dtype=torch.float64).scatter_add(1, tokens, weights) + rest.unsqueeze(1) * share
    losses, nll = smoothed_nll(scores, tokens[:, 1], target)
    torch.testing.assert_close(losses, -(dense * scores.log_softmax(dim=-1)).sum(dim=1))
    torch.testing.assert_close(nll, F.cross_entropy(scores, tokens[:, 1], reduction="none").detach())
    assert not nll.requires_grad
    assert torch.autograd.gradcheck(lambda s: smoothed_nll(s, tokens[:, 1], target)[0], (scores,))
    assert smoothed_nll(scores.detach().bfloat16(), tokens[:, 1], target)[0].dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_of_minus_infinity_without_mass_does_not_count(vectors: str, kind: str) -> None:
    losses = []
    for lowest in (-50.0, -1e9, -math.inf):
        model = toy()
        score = model.score
        model.score = lambda f, low=lowest, score=score: score(f).index_fill(-1, torch.tensor([0, 1]), low)
        loss = loss_of(smoothing(kind, vectors, tau=0.5, nearest=2), model, batch())
        (gradient,) = torch.autograd.grad(loss.total, model.table)
        assert gradient.isfinite().all()
        losses.append(loss.total)
    torch.testing.assert_close(losses[1:], [losses[0]] * 2)


@pytest.mark.parametrize("nearest", [3, None])
def test_targets_of_half_precision_are_computed_in_full(nearest: int | None) -> None:
    objective, tokens = fit(TokenSmoothing(tau=0.02, nearest=nearest)), torch.tensor([3, 4, 5, 7])
    half, full = toy().bfloat16(), toy().bfloat16().float()
    scores = torch.randn(4, SIZE)
    expected, _ = objective.smooth(full, tokens, scores)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for model, values in ((half, scores.bfloat16()), (full, scores)):
            target, _ = objective.smooth(model, tokens, values)
            assert torch.equal(target.tokens, expected.tokens)
            torch.testing.assert_close(target.weights, expected.weights)


# Options


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token_smoothing is not fitted"):
        loss_of(TokenSmoothing(), toy(), batch())
    with pytest.raises(InputError, match="fitted to 20 tokens, the model has 8"):
        loss_of(fit(TokenSmoothing(), codec(20)), toy(), batch())
    with pytest.raises(InputError, match="looked up by name"):
        fitted(TokenSmoothing(vectors="vectors.txt"), codec(names=("",) * 8), EXAMPLES)
    with pytest.raises(InputError, match=r"nowhere\.txt: no such file"):
        fit(TokenSmoothing(vectors=str(tmp_path / "nowhere.txt")))
