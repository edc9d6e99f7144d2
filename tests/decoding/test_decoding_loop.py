"""The parts of the search loop: moves, the trace that is read back, and the first input."""

from dataclasses import replace

import pytest
import torch
from small_models import SOURCES, lstm, make_batch

from unforced.decoding import Beam, Greedy
from unforced.decoding.search import HardMove, Nodes, SearchResult, follow
from unforced.types import DecoderState


def test_a_move_that_keeps_the_order_copies_nothing():
    state = DecoderState(torch.arange(6.0).unsqueeze(1), None)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    same = HardMove(tokens, torch.tensor([[0, 1, 2], [0, 1, 2]]), 3)
    assert same.follow(state).carry is state.carry
    moved = HardMove(tokens, torch.tensor([[2, 0, 0], [1, 1, 2]]), 3).follow(state)
    assert moved.carry.flatten().tolist() == [2, 0, 0, 4, 4, 5]
    wider = HardMove(tokens, torch.zeros(2, 3, dtype=torch.long), 1).follow(
        DecoderState(torch.tensor([[7.0], [8.0]]), None)
    )
    assert wider.carry.flatten().tolist() == [7, 7, 7, 8, 8, 8]


def test_following_a_trace_by_hand():
    everyone, second = torch.tensor([0, 1]), torch.tensor([1])
    trace = [
        (everyone, Nodes(torch.tensor([[10, 11], [12, 13]]), torch.tensor([[0, 0], [0, 0]]))),
        (everyone, Nodes(torch.tensor([[20, 21], [22, 23]]), torch.tensor([[1, 0], [1, 1]]))),
        (second, Nodes(torch.tensor([[30, 31]]), torch.tensor([[1, 0]]))),
    ]
    found = SearchResult(None, trace, 2, 1)
    ends, nodes = torch.tensor([[1, 0, -1], [2, 2, 1]]), torch.tensor([[0, 1, 0], [0, 1, 0]])
    assert follow(found, ends, nodes, 0).tolist() == [
        [[11, 20, 0], [11, 0, 0], [0, 0, 0]],
        [[13, 23, 30], [13, 22, 31], [13, 22, 0]],
    ]


@pytest.mark.parametrize("decoder", [Greedy(min_length=6, max_length=6), Beam(beam=1, min_length=6, max_length=6)])
def test_the_first_input_of_an_example_is_the_first_of_its_prefix(decoder):
    """Compare with feeding the whole prefix at every step."""
    differ = 0
    for seed in range(6):
        model, usual = lstm(seed).eval(), make_batch(SOURCES)
        first = torch.tensor([[3], [4], [1], [3]])
        batch = replace(usual, prefix=torch.cat([first, usual.prefix[:, 1:]], dim=1))
        expected = first
        for _ in range(6):
            features, _ = model.advance(model.start(batch), model.embed(expected))
            scores = model.score(features[:, -1]).index_fill(1, torch.tensor([0, 1, 2]), -torch.inf)
            expected = torch.cat([expected, scores.argmax(dim=1, keepdim=True)], dim=1)
        assert torch.equal(decoder(model, batch).tokens[:, 0], expected[:, 1:])
        differ += not torch.equal(expected[:, 1:], decoder(model, usual).tokens[:, 0])
    assert differ > 0
