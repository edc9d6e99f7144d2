"""Wrapped models keep the promises of ``StepDecoder``: the same tests for each architecture."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hf_cases import DECODERS, V, batch_for, collated, fast, features, leaves

from unforced.huggingface.wrap import wrap
from unforced.ops import state_rows
from unforced.protocols import StepDecoder
from unforced.types import Batch

FEW = pytest.mark.parametrize("name", fast(DECODERS))


def close(name: str, a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=DECODERS[name].near)


def made(name: str) -> tuple[Any, Batch]:
    model = DECODERS[name].wrapped()
    return model, batch_for(name, model)


@FEW
def test_it_is_a_step_decoder_around_the_same_parameters(name: str) -> None:
    hf = DECODERS[name].model()
    model = wrap(hf, **DECODERS[name].options)
    assert isinstance(model, StepDecoder)
    assert model.model is hf
    assert {id(p) for p in model.parameters()} == {id(p) for p in hf.parameters()}
    assert model.takes_strides
    assert model.takes_left_padding
    assert not model.training
    model.train()
    assert hf.training
    assert all(module.training for module in hf.modules())


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("sizes", fast([(1, 1, 1, 1, 1), (2, 1, 2), (1, 4), (3, 2)], (2, 1, 2)))
def test_advance_over_many_equals_advances_over_few(name: str, sizes: tuple[int, ...]) -> None:
    model, batch = made(name)
    inputs = model.embed(batch.prefix)
    whole, end = model.advance(model.start(batch), inputs)
    state, parts = model.start(batch), []
    for chunk in inputs.split(list(sizes), dim=1):
        part, state = model.advance(state, chunk)
        parts.append(part)
    close(name, torch.cat(parts, dim=1), whole)
    assert len(leaves(state)) == len(leaves(end))
    for a, b in zip(leaves(state), leaves(end)):
        close(name, a, b)


@FEW
def test_a_one_hot_mixture_is_a_token(name: str) -> None:
    model, _ = made(name)
    ids = torch.arange(V - 1).view(4, 4)
    close(name, model.embed_mix(F.one_hot(ids, V).double()), model.embed(ids))
    half = (model.embed(ids[:1]) + model.embed(ids[1:2])) / 2
    close(name, model.embed_mix((F.one_hot(ids[:1], V) + F.one_hot(ids[1:2], V)) / 2), half)


@FEW
def test_padding_changes_nothing(name: str) -> None:
    """Each example by itself, without its padding, gives what it gives among others; so does more padding."""
    model, batch = made(name)
    found = features(model, batch)
    assert batch.source is not None
    assert batch.source_mask is not None
    wider = replace(
        batch,
        prefix=F.pad(batch.prefix, (0, 2), value=5),
        gold=F.pad(batch.gold, (0, 2), value=5),
        mask=F.pad(batch.mask, (0, 2)),
        source=F.pad(batch.source, (0, 2), value=0),
        source_mask=F.pad(batch.source_mask, (0, 2)),
    )
    close(name, features(model, wider)[wider.mask], found[batch.mask])
    for b in range(len(batch)):
        alone = batch.select(torch.tensor([b]))
        assert alone.source is not None
        assert alone.source_mask is not None
        alone = replace(alone, source=alone.source[alone.source_mask].unsqueeze(0), source_mask=None)
        close(name, features(model, alone)[alone.mask], found[b][batch.mask[b]])


@FEW
def test_rows_follow_their_hypotheses(name: str) -> None:
    """After repeat, reorder, mix and keep, outputs are those of the histories that the rows now stand for."""
    model, batch = made(name)
    k, b = 3, len(batch)
    ids = torch.randint(4, V, (b * k, 3), generator=torch.Generator().manual_seed(5))
    fresh = state_rows.repeat(model.start(batch), k)
    first, state = model.advance(fresh, model.embed(ids))
    each = model.start(batch.select(torch.arange(b).repeat_interleave(k)))
    close(name, first, model.advance(each, model.embed(ids))[0])

    inside = torch.tensor([[2, 0, 0], [1, 1, 2], [0, 1, 2], [2, 1, 0]])
    order = (inside + k * torch.arange(b).unsqueeze(1)).flatten()
    more = model.embed(ids.flip(0)[:, :2])
    moved, after = model.advance(state_rows.reorder(state, order), more)
    expected = model.advance(fresh, torch.cat([model.embed(ids[order]), more], dim=1))[0]
    close(name, moved, expected[:, 3:])

    mixed, _ = model.advance(state_rows.mix(state, F.one_hot(inside, k).double()), more)
    close(name, mixed, moved)

    kept = torch.tensor([0, 1, 2, 9, 10, 11])  # examples 0 and 3
    close(name, model.advance(state_rows.keep(after, kept), more[kept])[0], model.advance(after, more)[0][kept])


@FEW
def test_advance_leaves_the_state_alone(name: str) -> None:
    model, batch = made(name)
    state = model.start(batch)
    for ids in (batch.prefix[:, :2], batch.prefix[:, 2:3], batch.prefix[:, 3:]):
        before = [(leaf, leaf.clone(), leaf._version) for leaf in leaves(state)]
        inputs = model.embed(ids)
        once, following = model.advance(state, inputs)
        for leaf, copied, version in before:
            assert torch.equal(leaf, copied)
            assert leaf._version == version
        close(name, model.advance(state, inputs)[0], once)
        state = following


def relaxed(model: Any, batch: Batch, weights: torch.Tensor) -> torch.Tensor:
    """A few steps of two mixed hypotheses, each fed mixtures of tokens that the scores before make."""
    state = state_rows.repeat(model.start(batch), 2)
    inputs, total = (model.embed(batch.prefix[:, :1]).repeat_interleave(2, dim=0), torch.zeros((), dtype=torch.float64))
    for t in range(4):
        features, state = model.advance(state, inputs)
        scores = model.score(features)
        total = total + scores.log_softmax(-1)[..., 5 + t].square().sum()
        noise = torch.linspace(0, 1, len(scores), dtype=torch.float64)[:, None, None]
        inputs = model.embed_mix((scores * (1 + noise)).softmax(-1))
        if t == 0:
            inputs = inputs + 0.1 * model.embed(torch.tensor([[6], [7]])).repeat(len(batch), 1, 1)
        state = state_rows.mix(state, weights)
    return total


def mixing(batch: Batch) -> torch.Tensor:
    return torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64).repeat(len(batch), 1, 1)


def untouched(model: Any) -> list[str]:
    """Names of the parameters that no gradient reached."""
    return [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]


@FEW
def test_soft_inputs_and_mixed_states_reach_every_parameter(name: str) -> None:
    model, batch = made(name)
    model.train()
    weights = mixing(batch).requires_grad_()
    relaxed(model, batch, weights).backward()
    assert weights.grad is not None
    assert weights.grad.abs().sum() > 0
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    missed = untouched(model)
    model.zero_grad()
    model.model(**collated(name)).loss.backward()
    assert missed == untouched(model)  # a model of two BERTs has a pooling layer that nothing ever uses
    assert all("pooler" in missed_name for missed_name in missed)


@FEW
def test_gradients_through_states_agree_with_finite_differences(name: str) -> None:
    if DECODERS[name].near > 1e-6:
        pytest.skip("computes parts in single precision, too coarse for differences")
    model, batch = made(name)
    weights, step = mixing(batch).requires_grad_(), 1e-6
    (grad,) = torch.autograd.grad(relaxed(model, batch, weights), weights)
    for place in [(0, 0, 1), (1, 1, 0), (3, 0, 0)]:
        with torch.no_grad():
            up, down = weights.detach().clone(), weights.detach().clone()
            up[place] += step
            down[place] -= step
            slope = (relaxed(model, batch, up) - relaxed(model, batch, down)) / (2 * step)
        torch.testing.assert_close(grad[place], slope, rtol=1e-5, atol=1e-4)
