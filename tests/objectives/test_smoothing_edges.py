"""Loss smoothing at its edges: rows with several ends, scores of −inf, odd files of vectors, ids that mean nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.models.toy import Toy
from unforced.objectives._nearest import near_words
from unforced.objectives._outputs import END, first_equal
from unforced.objectives._rewards import distances
from unforced.objectives._smoothed import Target, smoothed_nll
from unforced.objectives._vectors import read_vectors, spellings, unused
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Batch, Encoded, Example, Loss, Progress, Sizes, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
SIZE = 8


def rows(*golds: list[int]) -> Batch:
    width = max(map(len, golds))
    gold = torch.tensor([[*g, *[0] * (width - len(g))] for g in golds])
    mask = torch.arange(width) < torch.tensor([[len(g)] for g in golds])
    return Batch.of_gold(gold, mask, SYMBOLS, ids=torch.arange(len(golds)))


def model() -> Any:
    torch.manual_seed(1)
    made = Toy().build(Sizes(target=SIZE))
    with torch.no_grad():
        made.table.normal_()
    return made.double()


def loss_of(objective: Any, network: Any, batch: Batch) -> Loss:
    return objective(network, batch, progress=Progress(0, 0.0, 1), rng=torch.Generator().manual_seed(1))


def codec(names: tuple[str, ...] = ("<pad>", "<bos>", "<eos>", "a", "b", "c", "d", "e")) -> Any:
    return SimpleNamespace(symbols=SYMBOLS, sizes=Sizes(target=len(names)), token_names=lambda: names)


# ---- rows with several ends ----


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


def test_edit_proposals_refuse_several_ends_and_crowds() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=0.05)
    with pytest.raises(InputError, match="no end symbol, no other special token"):
        loss_of(objective, model(), rows([5, 2, 6, 2]))
    assert loss_of(objective, model(), rows([5, 6, 2], [4, 2])).total.isfinite()
    crowded = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=2.0)
    with pytest.raises(
        InputError, match=r"5 tokens would be mostly insertions: take a smaller proposal_tau \(at 0\.250"
    ):
        crowded.fitted(codec())
    assert SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=2.0, proposal_tau=0.6).fitted(
        codec()
    )


@pytest.mark.parametrize("vocabulary", ["batch", "references"])
def test_edit_proposals_from_many_tokens_of_a_batch_warn(vocabulary: Any) -> None:
    fields: dict[str, Any] = {"reward": "edit", "proposal": "edit", "samples": 2, "vocabulary": vocabulary}
    batch = replace(rows([5, 6, 3, 2]), references=torch.tensor([[5, 6, 3]]))
    for tau in (2.0, 0.6):  # with three tokens one more insertion weighs 1.8 and 0.57
        with pytest.warns(UserWarning, match=r"mostly insertions at this temperature"):
            loss_of(SequenceSmoothing(**fields, tau=tau), model(), batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loss_of(SequenceSmoothing(**fields, tau=0.5), model(), batch).total.isfinite()


def test_temperatures_at_which_nothing_or_nearly_all_changes_are_told_of() -> None:
    """The one that is named instead changes one token in ten."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(2000)))
    for fields in (
        {"tau": 0.05},
        {"tau": 0.2},
        {"tau": 0.01, "reward": "bleu", "proposal_tau": 0.2, "samples": 3},
    ):
        with pytest.warns(
            UserWarning, match=r"tau 0\.\d+ \S+ of the tokens change to others of 2000; .* at 0\.102"
        ):
            SequenceSmoothing(**fields).fitted(codec(names))  # type: ignore[arg-type]
    around = SequenceSmoothing(tau=0.102).fitted(codec(names)).drawing.around(rows([5, 2]), 2004)
    assert around.log_odds.sigmoid()[0, 0] == pytest.approx(0.1, rel=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields in (
            {"tau": 0.102},
            {"tau": 0.0},
            {"tau": 9.0, "mix": 0.0},
            {"tau": 9.0, "vocabulary": "batch"},
        ):
            SequenceSmoothing(**fields).fitted(codec(names))  # type: ignore[arg-type]


def test_references_that_are_not_there_are_told_of() -> None:
    """Not replaced by the gold's own tokens."""
    objective = SequenceSmoothing(tau=0.5, vocabulary="references")
    with pytest.raises(InputError, match="is for batches that have references"):
        loss_of(objective, model(), rows([5, 6, 2]))
    for examples in ((), [Encoded(None, [5, 6, 2])]):
        with pytest.raises(InputError, match="no training example has references"):
            objective.fitted(codec(), examples)


def test_cider_needs_targets_that_differ() -> None:
    objective = SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5)
    for number in (1, 9):
        with pytest.raises(InputError, match="CIDEr weighs n-grams by how few of the training targets"):
            objective.fitted(codec(), [Encoded(None, [5, 6, 2])] * number)


@pytest.mark.parametrize("lazy", [False, True])
def test_both_levels_tell_what_tokens_give_away(lazy: bool) -> None:
    token = TokenSmoothing(vectors="uniform", tau=0.5, mix=0.4)
    batch = rows([3, 4, 5, 6, 2], [7, 6, 5, 2])
    alone = loss_of(token, model(), batch).metrics["moved"]
    both = TokenSequenceSmoothing(token, SequenceSmoothing(tau=0.5, lazy=lazy, samples=3, mix=0.5))
    together = loss_of(both, model(), batch).metrics["moved"]
    torch.testing.assert_close(
        together[0] / together[1], alone[0] / alone[1]
    )  # of uniform ones all give as much
    assert "moved" not in loss_of(SequenceSmoothing(tau=0.5, lazy=lazy), model(), batch).metrics


def test_references_must_be_there_somewhere() -> None:
    objective = SequenceSmoothing(vocabulary="references")
    with pytest.raises(InputError, match="no training example has references beside its target"):
        objective.fitted(codec(), [Encoded(None, [3, 2])])
    assert objective.fitted(codec(), [Encoded(None, [3, 2]), Encoded(None, [4, 2], (4, 5))])


def test_the_distance_of_samples_as_they_are_drawn_is_told() -> None:
    batch = rows([3, 4, 5, 6, 2], [7, 6, 5, 2])
    for tau, near in ((0.02, True), (5.0, False)):  # too large a τ prefers what is far
        objective = SequenceSmoothing(reward="bleu", tau=tau, proposal_tau=0.4, samples=40)
        metrics = loss_of(objective, model(), batch).metrics
        assert (metrics["distance"][0] < metrics["drawn_distance"][0]) == near


def test_equal_outputs_among_many() -> None:
    outputs = torch.randint(0, 2, (3, 40, 4), generator=torch.Generator().manual_seed(1))
    found = first_equal(outputs)
    for b in range(3):
        lists = outputs[b].tolist()
        assert found[b].tolist() == [lists.index(row) for row in lists]


# ---- scores of −inf, and temperatures that are next to nothing ----


class Certain:
    """A model that rules out what can't be emitted."""

    def __init__(self, inner: Any, score: float = -torch.inf) -> None:
        self.inner, self.lowest = inner, score

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def score(self, features: Tensor) -> Tensor:
        scores: Tensor = self.inner.score(features)
        return scores.index_fill(-1, torch.tensor(SYMBOLS.banned), self.lowest)


@pytest.mark.parametrize(
    "objective",
    [
        CrossEntropy(),
        LabelSmoothing(),
        TokenSmoothing(vectors="uniform", tau=0.5),
        TokenSmoothing(vectors="model", tau=0.5, nearest=2),
        SequenceSmoothing(lazy=True, samples=None, tau=0.5),
        SequenceSmoothing(tau=0.5, samples=3),
    ],
)
def test_what_is_ruled_out_has_no_part_in_a_loss(objective: Any) -> None:
    network, batch = model(), rows([3, 4, 5, 2], [6, 2])
    found = loss_of(objective, Certain(network), batch)
    with torch.no_grad():
        low = network.table.detach().clone()
        low[:, list(SYMBOLS.banned)] = -1e4
    (gradient,) = torch.autograd.grad(found.total, network.table)
    assert gradient.isfinite().all()
    network.table.data.copy_(low)
    wanted = loss_of(objective, network, batch).total
    if objective != TokenSmoothing(vectors="model", tau=0.5, nearest=2):  # whose vectors are the table's
        assert found.total.item() == pytest.approx(wanted.item(), rel=1e-9)


def test_parallel_vectors_at_next_to_no_temperature() -> None:
    units = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    near = near_words(units, units.any(dim=1), torch.arange(3), tau=1e-50, count=2)
    assert near.weights.tolist() == [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]
    torch.manual_seed(0)
    for _ in range(20):  # whose products with themselves are one and a rounding error, up or down
        one = torch.nn.functional.normalize(torch.randn(1, 40), dim=1)
        near = near_words(
            one.expand(2, -1), torch.ones(2, dtype=torch.bool), torch.arange(2), tau=1e-9, count=2
        )
        assert (near.weights.amax(dim=1) >= 0.5).all()
        torch.testing.assert_close(near.weights.sum(dim=1), torch.ones(2))


# ---- vectors ----


def test_a_word_that_begins_with_a_mark_makes_no_pieces() -> None:
    names = ["woman", "man", "Ġunju", *(f"word{i}" for i in range(20))]
    assert spellings(names)[:3] == [("woman",), ("man",), ("Ġunju", "ġunju")]
    assert spellings(["Ġ", "an", "Ġman", *(f"b{i}" for i in range(40))])[:3] == [(), (), ("man",)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("man 0.9 0.1\nwoman 0.9 0.1 0.4\n", ":2: a word and 2 numbers wanted, 4 cells found"),
        ("300 2\nman 0.9 0.1\n", "is cut off: its first line promises 300 words, and it has 1"),
        ("men 1 0\n", "none of the 2 tokens of the data has a vector"),
        (
            "man 0 0\nwoman 1 0\n",
            "only one of the 2 tokens of the data has a vector",
        ),
    ],
)
def test_odd_texts_are_refused(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=complaint):
        read_vectors(path, ["man", "woman"])


def test_marks_blanks_and_large_and_small_numbers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"\xef\xbb\xbfman  1e38 1e38\nwoman 3e-30  4e-30\nnew york 1 0\n")
    vectors, there = read_vectors(path, ["man", "woman", "new york"])
    assert there.all()
    torch.testing.assert_close(vectors, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8], [1.0, 0.0]]))


def test_blank_lines_blank_words_and_lost_bytes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"\nman 3 4\n\t 5 6\n\xc3 7 8\nwoman 1 0\n")
    vectors, there = read_vectors(path, ["man", "\ufffd", "Ġ", "woman"])
    assert there.tolist() == [True, False, False, True]
    torch.testing.assert_close(vectors[0], torch.tensor([0.6, 0.8]))


def test_odd_archives(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(["man", "woman"]), matrix=np.array([[3, 4], [0, 2]]))
    vectors, _ = read_vectors(path, ["man", "woman"])
    torch.testing.assert_close(vectors, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    np.savez(path, words=np.array(["man"]), matrix=np.zeros((1, 0)))
    with pytest.raises(InputError, match="has a vector"):
        read_vectors(path, ["man"])
    with open(path, "wb") as handle:
        np.save(handle, np.zeros((1, 2)))
    with pytest.raises(InputError, match="not a zip archive"):
        read_vectors(path, ["man"])
    np.savez(path, words=np.array(["man"], dtype=object), matrix=np.zeros((1, 2)))
    with pytest.raises(InputError, match="an array of objects") as refused:
        read_vectors(path, ["man"])
    assert "allow_pickle" not in str(refused.value)


# ---- ids that mean nothing ----


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
        assert bool((dense[:, 2] > 0).all()) == (
            vectors == "uniform"
        )  # the end symbol shares in label smoothing alone
    pool = SequenceSmoothing().fitted(known).drawing.pool(rows([3, 2]), SIZE)
    assert pool.ids.tolist() == [3, 4, 5]
    plain, same = LabelSmoothing(0.2), TokenSmoothing(vectors="uniform", tau=torch.inf, mix=0.2)
    losses = [loss_of(each.fitted(known), model(), rows([3, 4, 2])).total for each in (plain, same)]
    torch.testing.assert_close(*losses)
    unfitted = loss_of(plain, model(), rows([3, 4, 2])).total
    assert not torch.allclose(losses[0], unfitted)


def test_a_vocabulary_other_than_the_models_is_refused() -> None:
    """A smaller one: what a model has beyond the vocabulary is nobody's."""
    larger, many = codec(tuple(f"w{i}" for i in range(20))), rows([3, 4, 5, 6, 7, 2])
    for fields in ({"lazy": True}, {"lazy": True, "samples": None}, {"vocabulary": "batch"}, {"tau": 5.0}):
        objective = SequenceSmoothing(**{"tau": 0.01, **fields}).fitted(larger)
        with pytest.raises(InputError, match="knows 20 tokens, but the model scores 8"):
            loss_of(objective, model(), many)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):  # another fault keeps its own words
        loss_of(SequenceSmoothing().fitted(codec()), model(), rows([3, 9, 4, 2]))
    nameless = codec(("",) * 8), SimpleNamespace(symbols=SYMBOLS, sizes=Sizes(8))
    for each in nameless:
        with pytest.raises(InputError, match="looked up by name, and these tokens have none"):
            TokenSmoothing(vectors="vectors.txt").fitted(each)
    with pytest.raises(InputError, match="sequence must be a SequenceSmoothing, not"):
        TokenSequenceSmoothing(sequence={"samples": 2})


def test_how_many_tokens_have_a_vector_is_told(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 0\nb 0.8 0.6\n")
    objective = TokenSmoothing(vectors=str(path), tau=0.5).fitted(codec())
    total, count = loss_of(objective, model(), rows([3, 4, 5, 2])).metrics["covered"]
    assert float(total / count) == 0.5


# ---- precision, and the first input ----


def test_targets_and_losses_keep_their_precision_under_autocast() -> None:
    torch.manual_seed(0)
    network, tokens = Toy().build(Sizes(target=SIZE)), torch.tensor([3, 4, 5, 7])
    with torch.no_grad():
        network.table.normal_()
    scores = 5 * torch.randn(4, SIZE)
    exact = TokenSmoothing(tau=0.5, nearest=3).smoothed(network, SYMBOLS, tokens, scores).target
    half = TokenSmoothing(tau=0.5, nearest=3).smoothed(network, SYMBOLS, tokens, scores.bfloat16()).target
    assert torch.equal(half.weights, exact.weights)  # scores in half precision are no reason for such targets
    for vectors, tau in (("model", 0.01), ("model", 1e-5), ("uniform", 0.5)):
        objective, found = TokenSmoothing(vectors=vectors, tau=tau, nearest=3), []
        for on in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                target = objective.smoothed(network, SYMBOLS, tokens, scores).target
                found.append((target.weights, *smoothed_nll(scores, tokens, target)))
        for exact, same in zip(*found):
            assert torch.equal(exact, same)


@pytest.mark.parametrize("floor", [-1e4, -1e9, -torch.inf])
def test_what_a_model_gives_to_banned_tokens_does_not_matter(floor: float) -> None:
    networks = [Certain(model().float(), score) for score in (-50.0, floor)]
    losses = [loss_of(LabelSmoothing(0.1), network, rows([3, 4, 2])).total for network in networks]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("fields", [{}, {"mix": 0.5}, {"lazy": True}, {"samples": 3}])
def test_samples_are_fed_behind_the_first_input_of_their_example(fields: dict[str, Any]) -> None:
    batch = rows([3, 4, 2], [5, 2])
    first = torch.tensor([[6], [7]])
    batch = replace(batch, prefix=torch.cat([first, batch.prefix[:, 1:]], dim=1))
    losses = [
        loss_of(each, model(), batch).total
        for each in (CrossEntropy(), SequenceSmoothing(tau=1e-3, **fields))
    ]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)


# ---- gaps, special tokens, more ids than words, longest outputs ----


def gapped(fill: int) -> Batch:
    """Rows with a prompt in them, which is fed and not scored."""
    gold = torch.tensor([[fill, fill, 5, 6, 3, 2], [fill, 7, 4, 3, 2, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]], dtype=torch.bool)
    prefix = torch.cat([torch.ones(2, 1, dtype=torch.long), gold[:, :-1]], dim=1)
    return Batch(prefix, gold, mask, SYMBOLS, ids=torch.arange(2))


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
        torch.testing.assert_close(
            loss_of(objective, model(), gapped(fill)).total, wanted, rtol=1e-12, atol=0
        )
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


def test_edit_proposals_from_too_many_tokens_are_refused_unfitted_as_well() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=1.0)
    with pytest.raises(InputError, match="would be mostly insertions"):
        loss_of(objective, model(), rows([5, 6, 2]))


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


def test_fitting_needs_encoded_examples() -> None:
    """Not those that a task reads."""
    examples: Any = [Example("a", "b c")]
    for objective in (
        TokenSmoothing(vectors="co-occurrence"),
        SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5),
    ):
        with pytest.raises(InputError, match="fitted to encoded examples"):
            objective.fitted(codec(), examples)


def test_crowds_of_a_batch_are_told_of_once() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=1.0, vocabulary="batch")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for batch in (rows([3, 4, 5, 2]), rows([3, 4, 5, 6, 2]), rows([3, 4, 5, 6, 7, 2])):
            loss_of(objective, model(), batch)
    assert [str(each.message)[:35] for each in told] == ["edit proposals are mostly insertions"[:35]]


def test_a_proposal_of_its_own_temperature_needs_samples() -> None:
    with pytest.raises(InputError, match="with a proposal_tau of its own samples are weighed"):
        SequenceSmoothing(proposal_tau=0.2)


def test_edit_proposals_refuse_gaps() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=0.05)
    with pytest.raises(InputError, match="no other special token and no gap but at their ends"):
        loss_of(objective, model(), gapped(6))


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


@pytest.mark.parametrize("vectors", ["uniform", "model", "co-occurrence"])
@pytest.mark.parametrize("nearest", [2, None])
def test_ids_that_a_model_has_beyond_the_vocabulary_get_no_mass(vectors: str, nearest: int | None) -> None:
    words, batch = codec(("<pad>", "<bos>", "<eos>", "a", "b", "c")), rows([3, 4, 5, 2])
    examples = [Encoded(None, [3, 4, 5, 2]), Encoded(None, [3, 5, 4, 2]), Encoded(None, [4, 3, 2])]
    objective = TokenSmoothing(vectors=vectors, tau=0.5, nearest=nearest).fitted(words, examples)
    scores = torch.zeros(4, SIZE, dtype=torch.float64, requires_grad=True)
    losses, _ = smoothed_nll(
        scores, batch.gold[0], objective.target(model(), SYMBOLS, batch.gold[0], scores)[0]
    )
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
    torch.testing.assert_close(
        loss_of(objective, network, batch).total, loss_of(objective, fewer, batch).total
    )
    smoothed = LabelSmoothing(0.3).fitted(words)
    torch.testing.assert_close(loss_of(smoothed, network, batch).total, loss_of(smoothed, fewer, batch).total)


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


@pytest.mark.parametrize("longest", [None, 5])
def test_a_tau_next_to_nothing_takes_the_best_sample(longest: int | None) -> None:
    """All weight is on those nearest to the gold, by 1 / q where several are; too long ones are none of them."""
    proposal = "hamming" if longest is None else "edit"
    objective = SequenceSmoothing(
        reward="edit", tau=1e-310, proposal=proposal, proposal_tau=0.4, samples=6, longest=longest
    )
    batch = rows([3, 4, 5, 6, 2], [7, 2])
    torch.set_flush_denormal(True)  # as in training: such a τ is then divided by as if it were zero
    drawn = objective.drawing.draws(batch, SIZE, torch.tensor([7, 8]))
    torch.set_flush_denormal(False)
    d = distances("edit", drawn.outputs, batch.gold.masked_fill(~batch.mask, END), end=2)
    fits = (drawn.outputs != END).sum(dim=2) <= (6 if longest is None else 5)
    assert (d.masked_fill(~fits, torch.inf).amin(dim=1) < d.amax(dim=1)).any()
    best = fits & (d == d.masked_fill(~fits, torch.inf).amin(dim=1, keepdim=True))
    assert torch.equal(drawn.weights > 0, best)
    torch.testing.assert_close(drawn.weights.sum(dim=1), torch.ones(2, dtype=torch.float64))


def test_the_nearest_sample_may_be_too_long_to_count() -> None:
    """The best of the others has all the weight then, however small τ is."""
    objective = SequenceSmoothing(
        reward="edit", tau=1e-300, proposal="edit", proposal_tau=0.33, samples=4, longest=5
    )
    batch, keys = rows(*[[3, 4, 5, 6, 2]] * 6000), torch.arange(6000)
    drawn = objective.drawing.draws(batch, SIZE, keys)
    d = distances("edit", drawn.outputs, batch.gold, end=2)
    fits = (drawn.outputs != END).sum(dim=2) <= 5
    least = d.masked_fill(~fits, torch.inf).amin(dim=1, keepdim=True)
    best = fits & (d == least)
    assert ((d.amin(dim=1) < least.squeeze(1)) & (best.sum(dim=1) > 1)).any()
    assert torch.equal(drawn.weights > 0, best)
    by_q = -objective.drawing.around(batch, SIZE).log_prob(
        drawn.outputs
    )  # several that are as near weigh 1 / q
    torch.testing.assert_close(drawn.weights, by_q.masked_fill(~best, -torch.inf).softmax(dim=1))


def test_too_few_positions_for_edited_outputs_name_the_remedy() -> None:
    class Short(torch.nn.Module):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network, self.start, self.embed, self.score = (
                network,
                network.start,
                network.embed,
                network.score,
            )

        def advance(self, state: Any, inputs: torch.Tensor) -> Any:
            if inputs.shape[1] > 4:
                raise InputError("there are 4 positions")
            return self.network.advance(state, inputs)

    fields: dict[str, Any] = {"reward": "edit", "proposal": "edit", "tau": 0.45, "samples": 9}
    batch = rows([3, 4, 5, 2])
    with pytest.raises(InputError, match=r"there are 4 positions; edited outputs .* longest bounds them"):
        loss_of(SequenceSmoothing(**fields), Short(model()), batch)
    assert loss_of(SequenceSmoothing(**fields, longest=4), Short(model()), batch).total.isfinite()
    with pytest.raises(InputError, match=r"there are 4 positions$"):  # of the gold's own length
        loss_of(SequenceSmoothing(), Short(model()), rows([3, 4, 5, 6, 2]))


def test_metrics_tell_of_samples_as_they_are_drawn() -> None:
    """Also where they are too long to count: a proposal that is of no use must not look like a perfect one."""
    fields: dict[str, Any] = {"reward": "edit", "proposal": "edit", "tau": 0.45, "samples": 3}
    batch, keys = rows([3, 4, 2], [6, 7, 3, 2]), torch.tensor([3, 4])
    free = SequenceSmoothing(**fields).drawing.draws(batch, SIZE, keys)
    d = distances("edit", free.outputs, batch.gold.masked_fill(~batch.mask, END), end=2)
    mean, words = d.mean(dim=1).sum(), batch.mask.sum() - 2
    for longest in (None, 1):
        found = SequenceSmoothing(**fields, longest=longest).drawing.draws(batch, SIZE, keys).metrics
        assert found["drawn_distance"][0] == pytest.approx(float(mean))
        assert found["drawn_distance"][1] == 2
        assert found["changed"] == (d.sum(), words * 3)
        if longest is not None:
            long = (free.outputs != END).sum(dim=2) > batch.mask.sum(dim=1, keepdim=True)
            assert long.any()
            assert found["too_long"] == (long.sum(), 6)
    fields, many, keys = {**fields, "samples": 2}, rows(*[[3, 2]] * 60), torch.arange(60)
    free = SequenceSmoothing(**fields).drawing.draws(many, SIZE, keys)
    bound = SequenceSmoothing(**fields, longest=1).drawing.draws(many, SIZE, keys)
    long = (free.outputs != END).sum(dim=2) > 2
    assert long.all(dim=1).any()
    worth = bound.weights.square().sum(dim=1).reciprocal()
    worth[long.all(dim=1)] = 1  # without a sample an example is worth its gold, which is one output
    assert bound.metrics["ess"][0] == pytest.approx(float(worth.sum()))


@pytest.mark.parametrize("mix", [1.0, 0.6])
def test_both_levels_tell_of_tokens_by_their_weight(mix: float) -> None:
    """Fed or only scored, of the same outputs the same is told; a gold that weighs nothing is left out."""
    token = TokenSmoothing(tau=0.3, vectors="co-occurrence", mix=0.5)
    examples = [Encoded(None, [3, 4, 2]), Encoded(None, [5, 4, 2]), Encoded(None, [5, 3, 2])]
    batch, found = rows([3, 4, 5, 2], [6, 2]), []
    for lazy in (False, True):
        sequence = SequenceSmoothing(tau=1.0, samples=3, lazy=lazy, mix=mix)
        fitted = TokenSequenceSmoothing(token, sequence).fitted(codec(), examples)
        told = loss_of(fitted, model(), batch).metrics
        found.append([float(told[name][0] / told[name][1]) for name in ("moved", "covered", "rest")])
    assert found[0] == pytest.approx(found[1])
    assert found[0][1] > 0


def test_uniform_smoothing_has_a_rest_without_a_list() -> None:
    fields: dict[str, Any] = {"vectors": "uniform", "tau": 0.7}
    told = loss_of(TokenSmoothing(**fields), model(), rows([3, 4, 2])).metrics
    assert told["rest"] == told["moved"]
    assert told["rest"][0] > 0.1


class Without(torch.nn.Module):
    """A model that never emits one word."""

    def __init__(self, network: Any, never: int) -> None:
        super().__init__()
        self.network, self.never = network, never
        self.start, self.embed, self.advance = network.start, network.embed, network.advance

    def score(self, features: torch.Tensor) -> torch.Tensor:
        scores = self.network.score(features)
        return scores.index_fill(-1, torch.tensor([self.never]), -torch.inf)


@pytest.mark.parametrize(
    "objective",
    [
        TokenSmoothing(vectors="uniform", tau=1e-3),
        TokenSmoothing(vectors="model", tau=1e-3, nearest=2),
        TokenSmoothing(vectors="model", tau=1e-3, nearest=None),
        SequenceSmoothing(tau=1e-3, lazy=True, samples=None),
        SequenceSmoothing(tau=1e-3, lazy=True, samples=None, vocabulary="batch"),
        TokenSequenceSmoothing(TokenSmoothing(vectors="uniform", tau=1e-3), SequenceSmoothing(tau=1e-3)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_words_without_mass_may_be_impossible(objective: Any) -> None:
    network, batch = Without(model(), 7), rows([3, 4, 5, 2], [6, 2])
    loss = loss_of(objective, network, batch)
    torch.testing.assert_close(loss.total, loss_of(CrossEntropy(), network, batch).total, rtol=1e-12, atol=0)
    assert all(bool(total.isfinite()) for total, _ in loss.metrics.values())


def test_a_weight_of_zero_on_an_impossible_word_costs_nothing() -> None:
    scores = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    target = Target(torch.tensor([[1, 2]]), torch.tensor([[1.0, 0.0]]))
    losses, nll = smoothed_nll(scores, torch.tensor([1]), target)
    assert torch.equal(losses, nll)
    losses.sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_banned_tokens_of_the_gold_stay_without_being_told_of_them() -> None:
    """An objective that isn't fitted knows them from the batch."""
    banned = replace(rows([4, 5, 6, 2]), symbols=SYMBOLS._replace(banned=(0, 1, 4)))
    drawn = SequenceSmoothing(tau=20.0, samples=50).drawing.draws(banned, SIZE, torch.tensor([7]))
    assert set(drawn.outputs[0, :, 0].tolist()) == {4}
    assert len(set(drawn.outputs[0, :, 1].tolist())) > 2


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("vectors.bin", "3 2\n", "binary vectors are read from .npz files alone"),
        ("vectors.txt", "² 3\na 1 0 2\n", "3 cells found|numbers wanted"),
        ("x" * 300, None, "there is no such file"),
    ],
)
def test_vector_files_of_other_kinds_get_a_sentence(
    tmp_path: Path, name: str, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=why):
        TokenSmoothing(vectors=str(tmp_path / name)).fitted(codec())
    with pytest.raises(InputError, match="nearest must be a whole number"):
        TokenSmoothing(nearest=2.5)  # type: ignore[arg-type]
