"""Odd inputs either work as documented or raise one clear sentence."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import CASES, IMAGE, NOTHING, SYMBOLS, TOKENS, batch_for, features, untouched

from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.models.toy import Toy
from unforced.models.transformer import Causal, Transformer
from unforced.types import Batch

TOKEN_CASES = [name for name, case in CASES.items() if case.sizes.source is not None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LSTM(attention="fixed", input_feeding=True), "remove input_feeding"),
        (lambda: LSTM(attention="fixed").build(IMAGE), "this data has none"),
        (lambda: LSTM(input_feeding=True).build(NOTHING), "this data has neither"),
        (lambda: Transformer(width=10, heads=4), "width must be a multiple of heads, got 10 for 4 heads"),
        (lambda: Transformer().build(NOTHING), "use causal"),
        (lambda: Transformer(share_source=True).build(TOKENS), "source has 7 tokens and the target 9"),
        (lambda: Causal().build(TOKENS), "sources of token ids: use lstm or transformer"),
        (lambda: Causal().build(IMAGE), "sources of images: use lstm or transformer"),
        (lambda: Toy().build(IMAGE), "cannot read images"),
    ],
)
def test_impossible_specifications_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("lstm", None, "token ids [B,S], but the batch has no source"),
        ("transformer", torch.zeros(4, dtype=torch.long), "has torch.int64 sources of shape (4,)"),
        ("transformer-image", torch.zeros(4, 2, 5, 6), "images of 2×6×5 (channels, height, width)"),
        ("lstm-image", None, "no source"),
        ("lstm-class", torch.zeros(4, 2, dtype=torch.long), "class labels [B]"),
        ("causal", torch.zeros(4, dtype=torch.long), "built without a source"),
    ],
)
def test_sources_of_another_kind_are_refused(name: str, source: Any, message: str) -> None:
    case = CASES[name]
    batch = replace(batch_for(case.sizes), source=source, source_mask=None)
    with pytest.raises(InputError, match=re.escape(message)):
        case.model().start(batch)


@pytest.mark.parametrize("name", TOKEN_CASES)
def test_empty_and_short_sources_work(name: str) -> None:
    """An empty source gives the same features alone and among others; gradients are finite."""
    case = CASES[name]
    model, batch = case.model(), batch_for(case.sizes)
    assert batch.source is not None
    assert batch.source_mask is not None
    mask = batch.source_mask.clone()
    mask[0] = False
    among = features(model, replace(batch, source_mask=mask))
    alone = batch.select(torch.tensor([0]))
    none = torch.zeros(1, 0, dtype=torch.long)
    by_itself = features(model, replace(alone, source=none, source_mask=none.bool()))
    torch.testing.assert_close(among[:1], by_itself, rtol=0, atol=1e-10)
    whole = features(model, batch)
    torch.testing.assert_close(among[1:], whole[1:], rtol=0, atol=1e-10)
    assert not torch.allclose(among[0], whole[0])
    model.score(among).square().sum().backward()
    assert untouched(model) == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_one_example_of_one_token_works(name: str) -> None:
    case = CASES[name]
    batch = batch_for(case.sizes, examples=3).select(torch.tensor([2]))
    one = Batch.of_gold(batch.gold[:, :1], batch.mask[:, :1], SYMBOLS, source=batch.source)
    if batch.source is not None and batch.source_mask is not None:
        one = replace(one, source=batch.source[:, :1], source_mask=batch.source_mask[:, :1])
    assert case.model().score(features(case.model(), one)).shape == (1, 1, 9)


def test_fixed_attention_sees_one_position_at_a_time() -> None:
    """With a unidirectional encoder, features at i depend on the source up to i and on nothing after it."""
    case = CASES["lstm-fixed-uni"]
    model, batch = case.model(), batch_for(case.sizes)
    assert batch.source is not None
    full = replace(batch, source_mask=None)
    before = features(model, full)
    for at in range(5):
        changed = batch.source.clone()
        changed[:, at] = (changed[:, at] + 1) % 7
        after = features(model, replace(full, source=changed))
        torch.testing.assert_close(after[:, :at], before[:, :at], rtol=0, atol=1e-10)
        assert not torch.allclose(after[:, at], before[:, at])


def test_fixed_attention_starts_from_zeros_and_sees_zeros_after_the_source() -> None:
    case = CASES["lstm-fixed"]
    model, batch = case.model(), batch_for(case.sizes)
    state = model.start(batch)
    assert all(not leaf.any() for leaf in state.carry)
    assert not any(step[1].any() for step in state.shared.memory[1:])  # example 1 has one token
    ids = torch.full((4, 9), 4)
    whole, end = model.advance(state, model.embed(ids))
    assert whole.isfinite().all()
    assert end.shared.position == 9
    assert batch.source is not None
    assert batch.source_mask is not None
    longer = replace(batch, source=F.pad(batch.source, (0, 4)), source_mask=F.pad(batch.source_mask, (0, 4)))
    torch.testing.assert_close(model.advance(model.start(longer), model.embed(ids))[0], whole, rtol=0, atol=1e-10)
