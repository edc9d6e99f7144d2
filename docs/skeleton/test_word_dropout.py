"""Word dropout: limits, the replacement rate, and independence from padding."""

import torch
from word_dropout import WordDropout

import unforced
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.ops import random_streams
from unforced.types import Batch, Loss, Progress, Sizes, Symbols


def small_batch(examples: int, length: int = 6) -> Batch:
    gold = torch.randint(3, 9, (examples, length), generator=torch.Generator().manual_seed(1))
    gold[:, -1] = 2
    return Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))


def loss_of(objective: unforced.Objective, batch: Batch) -> Loss:
    torch.manual_seed(0)
    model = unforced.models.LSTM(hidden=8, embedding=4).build(Sizes(target=9)).eval()
    return objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(3))


def test_rate_zero_is_cross_entropy() -> None:
    batch = small_batch(3)
    assert torch.equal(loss_of(WordDropout(rate=0.0), batch).total, loss_of(CrossEntropy(), batch).total)


def test_share_of_replaced_tokens() -> None:
    total, count = loss_of(WordDropout(rate=0.3), small_batch(400)).metrics["replaced"]
    assert count == 400 * 5
    assert abs(total / count - 0.3) < 4 * (0.3 * 0.7 / count) ** 0.5  # four standard errors


def test_noise_comes_from_the_same_target() -> None:
    batch = small_batch(50)
    keys = random_streams.keys(batch, torch.Generator().manual_seed(3))
    prefix, replaced = WordDropout(rate=1.0).add_noise(batch, keys)
    assert replaced.all()
    assert (prefix[:, 0] == 1).all()
    assert all(set(row[1:].tolist()) <= set(gold[:-1].tolist()) for row, gold in zip(prefix, batch.gold))
