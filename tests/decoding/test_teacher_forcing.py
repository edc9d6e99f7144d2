"""Scores of given outputs equal those of enumeration, and do not depend on how outputs are grouped."""

import pytest
import torch
from small_models import BUILDERS, SOURCES, make_batch

from unforced.decoding import enumerate_sequences, teacher_forcing
from unforced.decoding.teacher_forcing import score_outputs
from unforced.models.modes import evaluation_mode


@BUILDERS
def test_scores_of_outputs_equal_enumeration(build, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = build(3), make_batch(SOURCES[:2])
    listed = [enumerate_sequences(model, batch.select(torch.tensor([row])), 3) for row in range(2)]
    order = torch.randperm(2 * listed[0].tokens.shape[1], generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([each.tokens[0] for each in listed])[order]
    lengths = torch.cat([each.lengths[0] for each in listed])[order]
    examples = torch.arange(2).repeat_interleave(len(order) // 2)[order]
    expected = torch.cat([each.log_probs[0] for each in listed])[order]
    with evaluation_mode(model):
        torch.testing.assert_close(score_outputs(model, batch, tokens, lengths, examples), expected)
        monkeypatch.setattr(teacher_forcing, "CHUNK", 7)
        torch.testing.assert_close(score_outputs(model, batch, tokens, lengths, examples, model.start(batch)), expected)


@BUILDERS
def test_adjacent_rows_belong_to_one_example(build) -> None:
    model, batch = build(4), make_batch(SOURCES[:2])
    tokens, lengths = torch.tensor([[3, 2], [4, 2], [2, 9], [4, 4]]), torch.tensor([2, 2, 1, 2])
    with evaluation_mode(model):
        found = score_outputs(model, batch, tokens, lengths)
        same = score_outputs(model, batch, tokens, lengths, torch.tensor([0, 0, 1, 1]))
    assert torch.equal(found, same)
