"""Tokens predicted after the target, against a plain loop and against greedy search."""

from dataclasses import replace

import pytest
import torch
from small_models import BUILDERS, ENDED, FIXED, SOURCES, make_batch, toy

from unforced.decoding.gold_history import GoldHistory
from unforced.decoding.greedy import Greedy
from unforced.errors import InputError
from unforced.types import Batch


def with_gold(batch: Batch, rows: list[list[int]]) -> Batch:
    width = max(map(len, rows))
    gold = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    made = Batch.of_gold(gold, gold > 0, batch.symbols)
    return replace(batch, gold=gold, mask=made.mask, prefix=made.prefix)


@BUILDERS
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
def test_a_model_repeats_its_output_after_its_own_history(build, symbols):
    model, batch = build(3), make_batch(SOURCES, symbols)
    greedy = Greedy() if symbols.eos is None else Greedy(max_length=6)
    own = greedy(model, batch)
    rows = [row[:n] for row, n in zip(own.tokens[:, 0].tolist(), own.lengths[:, 0].tolist())]
    found = GoldHistory()(model, with_gold(batch, rows))
    assert [row[:n] for row, n in zip(found.tokens[:, 0].tolist(), found.lengths[:, 0].tolist())] == rows
    torch.testing.assert_close(found.log_probs.double(), own.log_probs.double(), rtol=1e-5, atol=1e-5)


def test_missing_answers_raise():
    with pytest.raises(InputError, match="this batch has none"):
        GoldHistory()(toy(1), make_batch(SOURCES))


@BUILDERS
def test_each_token_is_the_best_one_after_the_target(build):
    rows = [[3, 4, 3, 2], [4, 2], [4, 4, 4, 4, 2], [2]]
    model, batch = build(5).eval(), with_gold(make_batch(SOURCES), rows)
    found = GoldHistory()(model, batch)
    for number, gold in enumerate(rows):
        one = batch.select(torch.tensor([number]))
        state, expected = model.start(one), []
        for token in [1, *gold[:-1]]:
            features, state = model.advance(state, model.embed(torch.tensor([[token]])))
            scores = model.score(features)[0, 0].log_softmax(dim=0)
            scores[[0, 1]] = -torch.inf
            expected.append(int(scores.argmax()))
        if 2 in expected:
            expected = expected[: expected.index(2) + 1]
        assert found.tokens[number, 0, : len(expected)].tolist() == expected
        assert int(found.lengths[number, 0]) == len(expected)
        assert not found.tokens[number, 0, len(expected) :].any()
