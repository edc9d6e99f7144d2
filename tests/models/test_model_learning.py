"""The networks learn: small tasks that only a working model can solve, in seconds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_cases import SYMBOLS

from unforced.models.lstm import LSTM
from unforced.models.transformer import Causal, Transformer
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.ops.masks import length_mask
from unforced.types import Batch, Progress, Sizes

V = 12


def copy_task(rng: torch.Generator) -> Batch:
    """The target is the source and EOS; lengths 1 to 5, no symbol twice in a source."""
    lengths = torch.randint(1, 6, (32,), generator=rng)
    source = torch.rand(32, V - 3, generator=rng).argsort(dim=1)[:, :5] + 3
    gold = torch.cat([source, torch.zeros(32, 1, dtype=torch.long)], dim=1)
    gold.scatter_(1, lengths.unsqueeze(1), SYMBOLS.eos or 0)
    mask = length_mask(lengths + 1, 6)
    gold = gold.masked_fill(~mask, SYMBOLS.pad)
    return Batch.of_gold(gold, mask, SYMBOLS, source=source, source_mask=length_mask(lengths, 5))


def tagging_task(rng: torch.Generator) -> Batch:
    """Label i is a function of source tokens i and i + 1, so a tagger must look ahead."""
    source = torch.randint(0, 3, (32, 6), generator=rng)
    gold = 3 + 3 * source + source.roll(-1, dims=1)
    mask = torch.ones_like(gold, dtype=torch.bool)
    mask[:, -1] = False
    return Batch.of_gold(gold, mask, SYMBOLS, source=source)


def counting_task(rng: torch.Generator) -> Batch:
    """Count upwards modulo the alphabet from a random start, by the step that the class names."""
    labels = torch.randint(1, 4, (32,), generator=rng)
    start = torch.randint(0, V - 3, (32, 1), generator=rng)
    gold = 3 + (start + labels.unsqueeze(1) * torch.arange(6)) % (V - 3)
    batch = Batch.of_gold(gold, gold > 0, SYMBOLS, source=labels)
    return replace(batch, mask=batch.mask & (torch.arange(6) > 0))  # the start can't be known


SMALL: dict[str, Any] = {"width": 32, "heads": 2, "feedforward": 64, "dropout": 0.0}
TWO: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2}
WORDS = Sizes(target=V, source=V)


@pytest.mark.parametrize(
    ("spec", "sizes", "task"),
    [
        (LSTM(hidden=48, embedding=32, dropout=0.0), WORDS, copy_task),
        (LSTM(hidden=32, embedding=16, dropout=0.0, attention="fixed"), Sizes(target=V, source=3), tagging_task),
        (Transformer(**SMALL, **TWO), WORDS, copy_task),
        (Causal(**SMALL, layers=2), Sizes(target=V, classes=4), counting_task),
    ],
    ids=["lstm", "lstm-fixed", "transformer", "causal-class"],
)
def test_it_learns(spec: Any, sizes: Sizes, task: Callable[[torch.Generator], Batch]) -> None:
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    model = spec.build(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0, fused=True)
    steps = 200
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20) * (1 - step / steps))
    losses = []
    for _ in range(steps):
        loss = CrossEntropy()(model, task(rng), progress=Progress(), rng=rng).mean
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 1.5
    assert sum(losses[-10:]) / 10 < 0.1
