"""What loss smoothing refuses or warns of, in sentences that name the remedy."""

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from smoothing_toy import SYMBOLS, codec, gapped, loss_of, model, rows

from unforced.errors import InputError
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Encoded, Example, Sizes


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
    assert SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=2.0, proposal_tau=0.6).fitted(codec())


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


def test_crowds_of_a_batch_are_told_of_once() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=1.0, vocabulary="batch")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for batch in (rows([3, 4, 5, 2]), rows([3, 4, 5, 6, 2]), rows([3, 4, 5, 6, 7, 2])):
            loss_of(objective, model(), batch)
    assert [str(each.message)[:35] for each in told] == ["edit proposals are mostly insertions"[:35]]


def test_edit_proposals_from_too_many_tokens_are_refused_unfitted_as_well() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=1.0)
    with pytest.raises(InputError, match="would be mostly insertions"):
        loss_of(objective, model(), rows([5, 6, 2]))


def test_edit_proposals_refuse_gaps() -> None:
    objective = SequenceSmoothing(reward="edit", proposal="edit", samples=2, tau=0.05)
    with pytest.raises(InputError, match="no other special token and no gap but at their ends"):
        loss_of(objective, model(), gapped(6))


def test_too_few_positions_for_edited_outputs_name_the_remedy() -> None:
    class Short(torch.nn.Module):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network, self.start, self.embed, self.score = (network, network.start, network.embed, network.score)

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


def test_temperatures_at_which_nothing_or_nearly_all_changes_are_told_of() -> None:
    """The one that is named instead changes one token in ten."""
    names = ("<pad>", "<bos>", "<eos>", "<unk>", *(f"w{i}" for i in range(2000)))
    for fields in ({"tau": 0.05}, {"tau": 0.2}, {"tau": 0.01, "reward": "bleu", "proposal_tau": 0.2, "samples": 3}):
        with pytest.warns(UserWarning, match=r"tau 0\.\d+ \S+ of the tokens change to others of 2000; .* at 0\.102"):
            SequenceSmoothing(**fields).fitted(codec(names))  # type: ignore[arg-type]
    around = SequenceSmoothing(tau=0.102).fitted(codec(names)).drawing.around(rows([5, 2]), 2004)
    assert around.log_odds.sigmoid()[0, 0] == pytest.approx(0.1, rel=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields in ({"tau": 0.102}, {"tau": 0.0}, {"tau": 9.0, "mix": 0.0}, {"tau": 9.0, "vocabulary": "batch"}):
            SequenceSmoothing(**fields).fitted(codec(names))  # type: ignore[arg-type]


def test_references_that_are_not_there_are_told_of() -> None:
    """Not replaced by the gold's own tokens."""
    objective = SequenceSmoothing(tau=0.5, vocabulary="references")
    with pytest.raises(InputError, match="is for batches that have references"):
        loss_of(objective, model(), rows([5, 6, 2]))
    for examples in ((), [Encoded(None, [3, 2])]):
        with pytest.raises(InputError, match="no training example has references beside its target"):
            objective.fitted(codec(), examples)
    assert objective.fitted(codec(), [Encoded(None, [3, 2]), Encoded(None, [4, 2], (4, 5))])


def test_cider_needs_targets_that_differ() -> None:
    objective = SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5)
    for number in (1, 9):
        with pytest.raises(InputError, match="CIDEr weighs n-grams by how few of the training targets"):
            objective.fitted(codec(), [Encoded(None, [5, 6, 2])] * number)


def test_fitting_needs_encoded_examples() -> None:
    """Not those that a task reads."""
    examples: Any = [Example("a", "b c")]
    for objective in (
        TokenSmoothing(vectors="co-occurrence"),
        SequenceSmoothing(reward="cider", samples=2, proposal_tau=0.5),
    ):
        with pytest.raises(InputError, match="fitted to encoded examples"):
            objective.fitted(codec(), examples)


def test_a_proposal_of_its_own_temperature_needs_samples() -> None:
    with pytest.raises(InputError, match="with a proposal_tau of its own samples are weighed"):
        SequenceSmoothing(proposal_tau=0.2)


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
    with pytest.raises(InputError, match="sequence must be a SequenceSmoothing, got"):
        TokenSequenceSmoothing(sequence={"samples": 2})
