"""Mask-Predict against a plain loop, and the initial sequences of chains."""

from typing import Any

import pytest
import torch
from energy_cases import TableModel, alone, ended, free_of, kept_of, letters, plain_scores
from torch import Tensor

from unforced.decoding import Decoder
from unforced.energy import MaskPredict, canvas, random_start
from unforced.energy.mask_predict import fill
from unforced.errors import InputError
from unforced.types import Batch

SOURCES = [[1, 2, 3], [4], [2, 2], [5, 1, 2, 3]]


def plain_fill(model: Any, batch: Batch, b: int, iterations: int) -> tuple[list[int], list[float]]:
    """Fill one sentence: mask the least probable tokens, predict the most probable ones."""
    one = alone(batch, b)
    tokens, free = one.gold[0].tolist(), free_of(batch, b)
    log_probs_of = dict.fromkeys(free, 0.0)
    for t in range(iterations):
        hidden = len(free) if t == 0 else max(1, len(free) * (iterations - t) // iterations)
        worst = sorted(free, key=lambda i: (log_probs_of[i], i))[:hidden]
        scores = plain_scores(model, one, tokens, worst)
        kept = kept_of(batch.symbols, scores.shape[1])
        for i in worst:
            log_probs = scores[i, kept].log_softmax(0)
            best = int(log_probs.argmax())
            tokens[i], log_probs_of[i] = kept[best], float(log_probs[best])
    return tokens, [log_probs_of.get(i, 0.0) for i in range(len(tokens))]


@pytest.mark.parametrize("iterations", [1, 2, 3, 10])
@pytest.mark.parametrize("rows", [256, 2])
def test_mask_predict_equals_a_plain_loop(iterations: int, rows: int) -> None:
    model = TableModel(7)
    batch = ended([[3] * n for n in (5, 1, 7, 0)], SOURCES)
    found = fill(model, batch, iterations, rows)
    for b in range(4):
        tokens, log_probs_of = plain_fill(model, batch, b, iterations)
        width = len(tokens)
        assert found.tokens[b, :width].tolist() == tokens
        assert bool((found.tokens[b, width:] == 0).all())
        torch.testing.assert_close(found.log_probs[b, :width].detach(), torch.tensor(log_probs_of, dtype=torch.float64))
    assert all(n <= rows for n, _ in model.seen)


class Sized(TableModel):
    """A table that also predicts lengths."""

    def length_scores(self, batch: Batch) -> Tensor:
        """The length of the source is the most probable one, then those after it."""
        assert batch.source_mask is not None
        lengths = torch.arange(1, 13)
        return torch.where(lengths < batch.source_mask.sum(dim=1, keepdim=True), -100, -lengths)


def test_the_decoder_tries_the_most_probable_lengths() -> None:
    model, batch = Sized(7), ended([[3]] * 4, SOURCES)
    decoder = MaskPredict(iterations=4, lengths=3)
    assert isinstance(decoder, Decoder)
    found = decoder(model, batch)
    for b in range(4):
        tried = []
        for n in range(len(SOURCES[b]), len(SOURCES[b]) + 3):
            room = canvas(batch.select(torch.tensor([b])), torch.tensor([n]))
            tokens, log_probs_of = plain_fill(model, room, 0, 4)
            tried.append((sum(log_probs_of) / n, sum(log_probs_of), tokens))
        tried.sort(reverse=True)
        for place, (mean, total, tokens) in enumerate(tried):
            assert found.tokens[b, place, : len(tokens)].tolist() == tokens
            assert int(found.lengths[b, place]) == len(tokens)
            assert float(found.scores[b, place]) == pytest.approx(mean)
            assert float(found.log_probs[b, place]) == pytest.approx(total)
        assert found.ids(batch.symbols)[b] == tried[0][2][:-1]


def test_lengths_of_the_batch_without_end_symbol() -> None:
    model, batch = TableModel(5), letters(3, [2, 4])
    empty = batch.select(torch.tensor([0, 1]))
    found = MaskPredict(iterations=3)(model, empty)
    assert found.lengths.tolist() == [[2], [4]]
    for b, n in enumerate([2, 4]):
        assert found.tokens[b, 0, :n].tolist() == plain_fill(model, batch, b, 3)[0]


def test_random_starts() -> None:
    batch = ended([[3] * 5, [4]], SOURCES[:2])
    rng = torch.Generator().manual_seed(1)
    started = random_start(batch, 7, rng, 500)
    assert set(started[:500, :5].flatten().tolist()) == {3, 4, 5, 6}
    assert bool((started[:500, 5] == 2).all())
    assert bool((started[500:, 1] == 2).all())
    assert bool((started[500:, 2:] == 0).all())
    assert len(started[:500].unique(dim=0)) > 300


def test_invalid_input() -> None:
    batch = ended([[3]], [[1]])
    with pytest.raises(InputError, match="needs a model with length_scores"):
        MaskPredict()(TableModel(7), batch)
    with pytest.raises(InputError, match="needs a model with scores"):
        MaskPredict()(object(), batch)
