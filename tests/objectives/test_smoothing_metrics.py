"""What the metrics of loss smoothing tell: samples as they are drawn, tokens by their weight."""

from pathlib import Path
from typing import Any

import pytest
import torch
from smoothing_toy import SIZE, codec, loss_of, model, rows

from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.smoothing.outputs import END
from unforced.objectives.smoothing.rewards import distances
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.types import Encoded


def test_the_distance_of_samples_as_they_are_drawn_is_told() -> None:
    batch = rows([3, 4, 5, 6, 2], [7, 6, 5, 2])
    for tau, near in ((0.02, True), (5.0, False)):  # too large a τ prefers what is far
        objective = SequenceSmoothing(reward="bleu", tau=tau, proposal_tau=0.4, samples=40)
        metrics = loss_of(objective, model(), batch).metrics
        assert (metrics["distance"][0] < metrics["drawn_distance"][0]) == near


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


@pytest.mark.parametrize("lazy", [False, True])
def test_both_levels_tell_what_tokens_give_away(lazy: bool) -> None:
    token = TokenSmoothing(vectors="uniform", tau=0.5, mix=0.4)
    batch = rows([3, 4, 5, 6, 2], [7, 6, 5, 2])
    alone = loss_of(token, model(), batch).metrics["moved"]
    both = TokenSequenceSmoothing(token, SequenceSmoothing(tau=0.5, lazy=lazy, samples=3, mix=0.5))
    together = loss_of(both, model(), batch).metrics["moved"]
    torch.testing.assert_close(together[0] / together[1], alone[0] / alone[1])  # of uniform ones all give as much
    assert "moved" not in loss_of(SequenceSmoothing(tau=0.5, lazy=lazy), model(), batch).metrics


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


def test_how_many_tokens_have_a_vector_is_told(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 0\nb 0.8 0.6\n")
    objective = TokenSmoothing(vectors=str(path), tau=0.5).fitted(codec())
    total, count = loss_of(objective, model(), rows([3, 4, 5, 2])).metrics["covered"]
    assert float(total / count) == 0.5
