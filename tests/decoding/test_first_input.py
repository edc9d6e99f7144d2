"""An example's first input is the first of its prefix, whatever the start symbol is."""

from dataclasses import replace

import pytest
import torch
from small_models import SOURCES, lstm, make_batch
from torch import Tensor

from unforced.decoding import Beam, Greedy
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.minimum_risk import MinimumRisk
from unforced.types import Batch, Progress

FIRST = torch.tensor([3, 4, 1, 3])


def begun(batch: Batch) -> Batch:
    """The batch with other first inputs."""
    return replace(batch, prefix=torch.cat([FIRST.unsqueeze(1), batch.prefix[:, 1:]], dim=1))


def best_by_hand(model, batch: Batch, steps: int) -> Tensor:
    """Greedy outputs [B,steps] without an end, by feeding the whole prefix anew at every step."""
    tokens = batch.prefix[:, :1]
    for _ in range(steps):
        features, _ = model.advance(model.start(batch), model.embed(tokens))
        scores = model.score(features[:, -1]).index_fill(1, torch.tensor([0, 1, 2]), -torch.inf)
        tokens = torch.cat([tokens, scores.argmax(dim=1, keepdim=True)], dim=1)
    return tokens[:, 1:]


@pytest.mark.parametrize("decoder", [Greedy(min_length=6, max_length=6), Beam(beam=1, min_length=6, max_length=6)])
def test_searches_feed_it(decoder: Greedy | Beam) -> None:
    differ = 0
    for seed in range(6):
        model = lstm(seed).eval()
        usual = make_batch(SOURCES)
        batch = begun(usual)
        found = decoder(model, batch).tokens[:, 0]
        assert torch.equal(found, best_by_hand(model, batch, 6))
        differ += not torch.equal(found, decoder(model, usual).tokens[:, 0])
    assert differ > 0


def test_minimum_risk_scores_outputs_behind_it() -> None:
    model, usual = lstm(0).eval(), make_batch(SOURCES)
    gold = torch.tensor([[3, 4, 2], [2, 0, 0], [4, 2, 0], [3, 3, 2]])
    mask = gold > 0
    made = Batch.of_gold(gold, mask, usual.symbols, source=usual.source, source_mask=usual.source_mask, ids=usual.ids)
    losses = []
    for batch in (made, begun(made)):
        rng = torch.Generator().manual_seed(1)
        risk = MinimumRisk(samples=3, max_length=4)(model, batch, progress=Progress(), rng=rng)
        plain = CrossEntropy()(model, batch, progress=Progress(), rng=rng)
        torch.testing.assert_close(risk.metrics["nll"][0], plain.metrics["nll"][0])
        losses.append(float(risk.metrics["nll"][0]))
    assert losses[0] != pytest.approx(losses[1])
