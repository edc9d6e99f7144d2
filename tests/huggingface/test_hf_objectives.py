"""Every objective that trains a decoder, on a tiny T5 and a tiny GPT-2.

Each of them learns, and by all parameters.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hf_cases import DECODERS, batch_for, fast
from trainer_cases import DECODER_OBJECTIVES

import unforced
from unforced.decoding import search
from unforced.huggingface.wrap import wrap
from unforced.protocols import Objective
from unforced.types import Loss, Progress

CONFIGURATIONS: dict[str, list[dict[str, Any]]] = {
    "cross_entropy": [{}],
    "label_smoothing": [{"smoothing": 0.1}],
    "self_normalized": [{"strength": 0.1}],
    "scheduled_sampling": [
        {"feed": "argmax", "mixing": 0.5},
        {"feed": "sample", "mixing": 0.5},
        {"feed": "soft_argmax", "mixing": 0.5, "alpha": 2.0},
        {"feed": "soft_sample", "mixing": 0.5, "alpha": 2.0},
    ],
    "parallel_scheduled_sampling": [{"p": 0.5, "passes": 2}],
    "soft_beam": [
        {"beam": 2, "alpha": 2.0},
        {"beam": 3, "alpha": 1.0, "loss": "hinge", "scores": "global", "keep": 4},
        {"beam": 2, "alpha": 2.0, "checkpoint": True},
    ],
    "beam_search_optimization": [{"beam": 2}, {"beam": 2, "scores": "local", "beyond": 1}],
    "token_smoothing": [{"tau": 0.3, "mix": 0.6, "nearest": 3}],
    "sequence_smoothing": [{"tau": 0.7}, {"tau": 0.7, "lazy": True, "mix": 0.6, "samples": 2}],
    "minimum_risk": [{"samples": 4, "alpha": 0.5, "max_length": 5}],
}
Row = tuple[str, dict[str, Any]]
ROWS: list[Row] = [  # others are tried with their defaults
    (name, fields) for name in DECODER_OBJECTIVES for fields in CONFIGURATIONS.get(name, [{}])
]
SOFT, HARD = ("soft_beam", {"beam": 2, "alpha": 2.0}), ("minimum_risk", CONFIGURATIONS["minimum_risk"][0])
FEW = pytest.mark.parametrize("row", fast(ROWS, SOFT, HARD))
NAMES = ["t5", "gpt2"]


@pytest.fixture(autouse=True)
def short_searches_are_made_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENDING", 0)


def objective(name: str, fields: dict[str, Any]) -> Objective:
    return unforced.objective(name, **fields)


def loss_of(made: Objective, model: Any, data: Any, seed: int = 3) -> Loss:
    return unforced.fitted(made, model)(model, data, progress=Progress(step=1), rng=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", NAMES)
@FEW
def test_it_learns_a_batch(name: str, row: Row) -> None:
    model = DECODERS[name].wrapped().float().train()
    data, made = batch_for(name, model), objective(*row)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, reached = [], set()
    for _ in range(6):
        optimizer.zero_grad()
        loss = loss_of(made, model, data)
        loss.mean.backward()
        losses.append(float(loss.mean.detach()))
        reached |= {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        assert torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    assert all(value < float("inf") for value in losses)
    assert min(losses[-3:]) < 0.97 * losses[0]
    assert {n for n, p in model.named_parameters() if p.requires_grad} - reached == set()


@pytest.mark.parametrize("name", fast(DECODERS))
def test_making_steps_again_changes_no_gradient(name: str) -> None:
    """Of any kind of model, in the forward pass one step after another, in the backward pass in stretches."""
    model = DECODERS[name].wrapped()
    data, advance = batch_for(name, model), model.advance
    found, calls = [], []
    for again in (False, True):
        model.zero_grad()
        calls.append(0)

        def counted(*given: Any) -> Any:
            calls[-1] += 1
            return advance(*given)

        model.advance = counted
        loss_of(objective("soft_beam", {"alpha": 2.0, "checkpoint": again}), model, data).total.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert calls[1] > calls[0]
    assert found[0].keys() == found[1].keys()
    for key in found[0]:
        scale = found[0][key].abs().max().clamp(min=1)
        torch.testing.assert_close(found[1][key] / scale, found[0][key] / scale, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
@FEW
def test_prompts_in_one_batch_or_alone(name: str, row: Row) -> None:
    """Micro-batches of one example, each without padding, add up to the whole."""
    model = DECODERS[name].wrapped()
    data, made = batch_for(name, model), objective(*row)
    data = replace(data, ids=torch.arange(len(data)))
    whole = loss_of(made, model, data)
    parts = []
    for b in range(len(data)):
        alone = data.select(torch.tensor([b]))
        length = max(1, int(alone.mask.sum()))
        assert alone.source is not None
        assert alone.source_mask is not None
        alone = replace(
            alone,
            prefix=alone.prefix[:, :length],
            gold=alone.gold[:, :length],
            mask=alone.mask[:, :length],
            source=alone.source[alone.source_mask].unsqueeze(0),
            source_mask=None,
        )
        parts.append(loss_of(made, model, alone))
    near = 1e-4 if DECODERS[name].near > 1e-6 else 1e-7
    torch.testing.assert_close(sum(p.total for p in parts), whole.total, rtol=near, atol=near)
    assert sum(float(p.count) for p in parts) == float(whole.count)


@pytest.mark.parametrize("row", fast([row for row in ROWS if row[0] != "soft_beam"], HARD))
def test_padding_may_be_the_end_symbol(row: Row) -> None:
    """As GPT-2 has it. (A soft beam tells what has ended by its padding, and needs another.)"""
    hf = DECODERS["gpt2"].model()
    usual, same = wrap(hf, pad=0), wrap(hf, pad=2, banned=(0,))
    assert same.symbols.pad == same.symbols.eos
    losses = [loss_of(objective(*row), model, batch_for("gpt2", model)) for model in (usual, same)]
    torch.testing.assert_close(losses[0].total, losses[1].total)
