"""Loss smoothing of rows that are not just words and an end: gaps, special tokens, ids that mean nothing, bounds of length."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from smoothing_toy import SIZE, SYMBOLS, codec, gapped, loss_of, model, rows

from unforced.errors import InputError
from unforced.models.toy import Toy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.smoothing.outputs import END, first_equal
from unforced.objectives.smoothing.rewards import distances
from unforced.objectives.smoothing.targets import smoothed_nll
from unforced.objectives.smoothing.word_vectors import unused
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Encoded, Sizes


def test_only_the_last_end_is_left_out_of_rewards() -> None:
    gold = torch.tensor([[5, 2, 6, 7, 4, 2]])
    other = torch.tensor([[[5, 2, 6, 7, 5, 2], [5, 2, 6, 7, 4, 2]]])
    assert distances("hamming", other, gold, end=2).tolist() == [[1.0, 0.0]]
    assert distances("edit", other, gold, end=2).tolist() == [[1.0, 0.0]]
    bleu = distances("bleu", other, gold, end=2)[0].tolist()
    assert bleu[0] > 0.1
    assert bleu[1] == 0.0
    short = torch.tensor([[[5, 2, END, END, END, END]]])
    assert distances("edit", short, gold, end=2).item() == 4


def test_equal_outputs_among_many() -> None:
    outputs = torch.randint(0, 2, (3, 40, 4), generator=torch.Generator().manual_seed(1))
    found = first_equal(outputs)
    for b in range(3):
        lists = outputs[b].tolist()
        assert found[b].tolist() == [lists.index(row) for row in lists]


@pytest.mark.parametrize("fields", [{}, {"mix": 0.5}, {"lazy": True}, {"samples": 3}])
def test_samples_are_fed_behind_the_first_input_of_their_example(fields: dict[str, Any]) -> None:
    batch = rows([3, 4, 2], [5, 2])
    first = torch.tensor([[6], [7]])
    batch = replace(batch, prefix=torch.cat([first, batch.prefix[:, 1:]], dim=1))
    losses = [loss_of(each, model(), batch).total for each in (CrossEntropy(), SequenceSmoothing(tau=1e-3, **fields))]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mix": 0.5, "samples": 3},
        {"reward": "bleu", "samples": 3, "proposal_tau": 0.5},
        {"reward": "bleu", "samples": 3, "lazy": True, "proposal_tau": 0.5},
        {"lazy": True},
        {"lazy": True, "samples": None},
    ],
    ids=str,
)
def test_what_is_not_scored_in_front_of_the_gold_is_fed_as_it_is(fields: dict[str, Any]) -> None:
    losses = []
    for fill in (6, 7):
        wanted = loss_of(CrossEntropy(), model(), gapped(fill)).total
        objective = SequenceSmoothing(**{"tau": 1e-3, **fields})
        torch.testing.assert_close(loss_of(objective, model(), gapped(fill)).total, wanted, rtol=1e-12, atol=0)
        losses.append(wanted)
    assert abs(losses[0] - losses[1]) > 0.01  # so the prompt does matter


def test_rewards_look_at_what_is_scored() -> None:
    gold = torch.tensor([[END, END, 5, 6, 3, 7, 2]])
    outputs = torch.stack([gold, torch.tensor([[END, END, 5, 6, 3, 4, 2]])], dim=1)
    plain = distances("bleu", outputs[..., 2:], gold[:, 2:], end=2)
    assert torch.equal(distances("bleu", outputs, gold, end=2), plain)
    assert float(plain[0, 0]) == 0.0
    assert float(plain[0, 1]) > 0.1


@pytest.mark.parametrize("reward", ["bleu", "cider"])
def test_rewards_leave_out_special_tokens_of_the_gold(reward: Any) -> None:
    """A start or a language code, which samples have where the gold has it, is no word that they get right."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", "de", "a", "b", "c", "d")
    known = SimpleNamespace(
        symbols=SYMBOLS, sizes=Sizes(target=9), token_names=lambda: names, special_ids=frozenset({4})
    )
    texts = [[5, 6, 7, 8, 5], [5, 7, 8, 6], [8, 7, 6, 5, 5]]

    def drawn(start: list[int]) -> Any:
        examples = [Encoded(None, [*start, *ids, 2]) for ids in texts]
        objective = SequenceSmoothing(reward=reward, tau=0.3, proposal_tau=2.0, samples=6)
        batch = rows([*start, *texts[0], 2])
        return objective.fitted(known, examples), batch

    (objective, batch), (plain, bare) = drawn([4]), drawn([])
    found = objective.drawing.draws(batch, SIZE, torch.tensor([7]))
    without = found.outputs[..., 1:]
    assert set(found.outputs[..., 0].flatten().tolist()) == {4}
    assert len(without.unique(dim=1)[0]) > 3
    assert plain.known is not None
    d = distances(reward, without, bare.gold, 2, plain.known.documents)
    logs = -d / 0.3 - plain.drawing.around(bare, 9).log_prob(without)
    torch.testing.assert_close(found.weights, logs.softmax(dim=1), rtol=1e-12, atol=0)


def test_special_tokens_of_the_gold_stay_in_their_places() -> None:
    """As a tokenizer's own start of labels, which a model emits; the unknown word gives way to others."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", "de", "a", "b", "c")
    known = SimpleNamespace(
        symbols=SYMBOLS, sizes=Sizes(target=8), token_names=lambda: names, special_ids=frozenset({4})
    )
    objective = SequenceSmoothing(tau=20.0, samples=40).fitted(known)
    batch = rows([4, 5, 3, 4, 6, 2])
    drawn = objective.drawing.draws(batch, SIZE, torch.tensor([7])).outputs[0]
    assert set(drawn[:, 0].tolist()) == set(drawn[:, 3].tolist()) == {4}
    for place in (1, 2, 4):
        assert {5, 6, 7} <= set(drawn[:, place].tolist())
        assert 4 not in drawn[:, place]
    edited = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=0.05).fitted(known)
    with pytest.raises(InputError, match="no other special token"):
        loss_of(edited, model(), batch)


def test_banned_tokens_of_the_gold_stay_without_being_told_of_them() -> None:
    """An objective that isn't fitted knows them from the batch."""
    banned = replace(rows([4, 5, 6, 2]), symbols=SYMBOLS._replace(banned=(0, 1, 4)))
    drawn = SequenceSmoothing(tau=20.0, samples=50).drawing.draws(banned, SIZE, torch.tensor([7]))
    assert set(drawn.outputs[0, :, 0].tolist()) == {4}
    assert len(set(drawn.outputs[0, :, 1].tolist())) > 2


def test_ids_without_a_name_get_no_mass() -> None:
    known = codec(("<pad>", "<bos>", "<eos>", "a", "b", "c", "", ""))
    assert unused(known) == {0, 1, 6, 7}
    assert unused(codec(("",) * 8)) == {0, 1}  # a model without a tokenizer
    tokens, scores = torch.tensor([3, 4]), torch.zeros(2, SIZE, dtype=torch.float64)
    for vectors in ("uniform", "model"):
        objective = TokenSmoothing(vectors=vectors, tau=5.0, nearest=None).fitted(known)
        target = objective.smoothed(model(), SYMBOLS, tokens, scores).target
        dense = torch.zeros_like(scores).scatter_add_(1, target.tokens, target.weights.double())
        if target.rest is not None and target.share is not None:
            dense += target.rest.unsqueeze(1) * target.share
        assert (dense[:, [0, 1, 6, 7]] == 0).all()
        assert (dense[:, [3, 4, 5]] > 0.1).all()
        assert bool((dense[:, 2] > 0).all()) == (vectors == "uniform")  # the end symbol shares in label smoothing alone
    pool = SequenceSmoothing().fitted(known).drawing.pool(rows([3, 2]), SIZE)
    assert pool.ids.tolist() == [3, 4, 5]
    plain, same = LabelSmoothing(0.2), TokenSmoothing(vectors="uniform", tau=torch.inf, mix=0.2)
    losses = [loss_of(each.fitted(known), model(), rows([3, 4, 2])).total for each in (plain, same)]
    torch.testing.assert_close(*losses)
    unfitted = loss_of(plain, model(), rows([3, 4, 2])).total
    assert not torch.allclose(losses[0], unfitted)


@pytest.mark.parametrize("vectors", ["uniform", "model", "co-occurrence"])
@pytest.mark.parametrize("nearest", [2, None])
def test_ids_that_a_model_has_beyond_the_vocabulary_get_no_mass(vectors: str, nearest: int | None) -> None:
    words, batch = codec(("<pad>", "<bos>", "<eos>", "a", "b", "c")), rows([3, 4, 5, 2])
    examples = [Encoded(None, [3, 4, 5, 2]), Encoded(None, [3, 5, 4, 2]), Encoded(None, [4, 3, 2])]
    objective = TokenSmoothing(vectors=vectors, tau=0.5, nearest=nearest).fitted(words, examples)
    scores = torch.zeros(4, SIZE, dtype=torch.float64, requires_grad=True)
    losses, _ = smoothed_nll(scores, batch.gold[0], objective.target(model(), SYMBOLS, batch.gold[0], scores)[0])
    losses.sum().backward()
    target = 1 / SIZE - scores.grad
    torch.testing.assert_close(target.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert target[:, 6:].abs().max() < 1e-12
    assert target[0, 3:6].min() > 0.01


@pytest.mark.parametrize("fields", [{}, {"lazy": True}, {"lazy": True, "samples": None}], ids=str)
def test_samples_are_words_of_the_vocabulary_though_the_model_has_more_ids(fields: dict[str, Any]) -> None:
    words, batch = codec(("<pad>", "<bos>", "<eos>", "a", "b", "c")), rows([3, 4, 5, 2])
    network, fewer = model(), Toy().build(Sizes(target=6)).double()
    with torch.no_grad():
        network.table[..., 6:] = -1e9  # what a model never emits
        fewer.table.copy_(network.table[:6, :6])
    objective = SequenceSmoothing(tau=2.0, **fields).fitted(words)
    torch.testing.assert_close(loss_of(objective, network, batch).total, loss_of(objective, fewer, batch).total)
    smoothed = LabelSmoothing(0.3).fitted(words)
    torch.testing.assert_close(loss_of(smoothed, network, batch).total, loss_of(smoothed, fewer, batch).total)


@pytest.mark.parametrize("level", ["token", "both"])
def test_a_batch_without_scored_tokens_and_ids_beyond_the_vocabulary(level: str) -> None:
    names = ("<pad>", "<bos>", "<eos>", "a", "b", "c")  # two less than the model scores
    token = TokenSmoothing(tau=0.3, vectors="co-occurrence")
    objective = token if level == "token" else TokenSequenceSmoothing(token, SequenceSmoothing(lazy=True))
    fitted = objective.fitted(codec(names), [Encoded(None, [3, 4, 2]), Encoded(None, [5, 4, 2])])
    batch = rows([3, 4, 2])
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    assert loss_of(fitted, model(), empty).total == 0
    assert loss_of(fitted, model(), batch).total > 0


def test_longest_confines_edited_outputs() -> None:
    """Those that are too long weigh nothing, the others as before; if all are, the gold takes their place."""
    fields: dict[str, Any] = {"reward": "edit", "proposal": "edit", "tau": 0.35, "samples": 200}
    batch = rows([3, 4, 5, 2], [6, 7, 3, 4, 5, 2])
    keys = torch.tensor([3, 4])
    free = SequenceSmoothing(**fields).drawing.draws(batch, SIZE, keys)
    bound = SequenceSmoothing(**fields, longest=5).drawing.draws(batch, SIZE, keys)
    lengths = (free.outputs != END).sum(dim=2)
    fits = lengths <= torch.tensor([[5], [6]])  # an output may be as long as its gold
    assert 0.05 < float(fits.double().mean()) < 0.95
    assert torch.equal(bound.weights > 0, fits)
    wanted = free.weights * fits / (free.weights * fits).sum(dim=1, keepdim=True)
    torch.testing.assert_close(bound.weights, wanted)
    keys = torch.arange(400)
    one = rows(*[[3, 2]] * 400)
    lone = SequenceSmoothing(**{**fields, "samples": 2}, longest=1).drawing.draws(one, SIZE, keys)
    assert bool(lone.weights.isfinite().all())
    torch.testing.assert_close(lone.weights.sum(dim=1), torch.ones(400, dtype=torch.float64))
    fed = lone.outputs[lone.weights > 0]
    assert int((fed != END).sum(dim=1).max()) == 2
    for wrong, why in (({"longest": 0}, "at least 1"), ({"longest": 2.5}, "whole number")):
        with pytest.raises(InputError, match=why):
            SequenceSmoothing(**fields, **wrong)
    with pytest.raises(InputError, match="longest is for edit proposals"):
        SequenceSmoothing(longest=5)
