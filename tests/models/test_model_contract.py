"""The contract of ``StepDecoder``, for every network."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import CASES, Case, batch_for, features, leaves, padded, untouched

from unforced.decoding.teacher_forcing import advance_at
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.ops import state_rows
from unforced.protocols import ModelSpec, StepDecoder
from unforced.types import Batch, Progress

pytestmark = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def loss(model: Any, batch: Batch) -> torch.Tensor:
    return CrossEntropy()(model, batch, progress=Progress(), rng=torch.Generator()).mean


def single(batch: Batch) -> Batch:
    """The batch with float32 images, for models in float32."""
    if batch.source is None or not batch.source.is_floating_point():
        return batch
    return replace(batch, source=batch.source.float())


def without_dropout(case: Case) -> Case:
    return case._replace(spec=replace(case.spec, dropout=0.0)) if hasattr(case.spec, "dropout") else case


def test_specs_are_values_and_weights_load_back(case: Case) -> None:
    assert isinstance(case.spec, ModelSpec)
    copied = copy.deepcopy(case.spec)
    assert (copied, hash(copied)) == (case.spec, hash(case.spec))
    model, again, other, batch = case.model(3), case.model(3), case.model(4), batch_for(case.sizes)
    assert isinstance(model, StepDecoder)
    weights = model.state_dict()
    assert len({tensor.data_ptr() for tensor in weights.values()}) == len(weights)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    other.load_state_dict(weights)
    assert torch.equal(features(other, batch), features(model, batch))


@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 1, 3), (4, 2), (1, 5)])
def test_advance_over_many_equals_advances_over_few(case: Case, sizes: tuple[int, ...]) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    inputs = model.embed(batch.prefix)
    whole, end = model.advance(model.start(batch), inputs)
    state, parts = model.start(batch), []
    for chunk in inputs.split(list(sizes), dim=1):
        part, state = model.advance(state, chunk)
        parts.append(part)
    close(torch.cat(parts, dim=1), whole)
    assert len(leaves(state)) == len(leaves(end))
    for a, b in zip(leaves(state), leaves(end)):
        close(a, b)


@pytest.mark.parametrize("past", [0, 2])
def test_features_at_some_positions_equal_those_of_all(case: Case, past: int) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    inputs, state = model.embed(batch.prefix), model.start(batch)
    if past:
        _, state = model.advance(state, inputs[:, :past])
    inputs = inputs[:, past:]
    where = torch.rand(inputs.shape[:2], generator=torch.Generator().manual_seed(3)) < 0.4
    where[1] = False
    assert where.any()
    close(advance_at(model, state, inputs, where), model.advance(state, inputs)[0][where])


def test_a_one_hot_mixture_is_a_token(case: Case) -> None:
    model = case.model()
    ids = torch.arange(9).view(3, 3)
    close(model.embed_mix(F.one_hot(ids, 9).double()), model.embed(ids))
    half = (model.embed(ids[:1]) + model.embed(ids[1:2])) / 2
    close(model.embed_mix((F.one_hot(ids[:1], 9) + F.one_hot(ids[1:2], 9)).double() / 2), half)


def test_padding_changes_nothing(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    wider = padded(batch)
    close(features(model, wider)[wider.mask], features(model, batch)[batch.mask])
    close(loss(model, wider), loss(model, batch))
    for b in range(len(batch)):  # each example by itself, without its padding
        alone = batch.select(torch.tensor([b]))
        if batch.source_mask is not None:
            assert alone.source is not None
            assert alone.source_mask is not None
            length = int(alone.source_mask.sum())
            alone = replace(alone, source=alone.source[:, :length], source_mask=None)
        close(features(model, alone)[alone.mask], features(model, batch)[b][batch.mask[b]])


def test_rows_follow_their_hypotheses(case: Case) -> None:
    """After repeat, reorder and keep, outputs are those of the histories in the rows."""
    model, batch, k = case.model(), batch_for(case.sizes), 3
    ids = torch.randint(2, 9, (len(batch) * k, 3), generator=torch.Generator().manual_seed(5))
    fresh = state_rows.repeat(model.start(batch), k)
    first, state = model.advance(fresh, model.embed(ids))
    each = model.start(batch.select(torch.arange(len(batch)).repeat_interleave(k)))
    close(first, model.advance(each, model.embed(ids))[0])

    inside = torch.tensor([[2, 0, 0], [1, 1, 2], [0, 1, 2], [2, 1, 0]])
    order = (inside + k * torch.arange(len(batch)).unsqueeze(1)).flatten()
    more = model.embed(ids.flip(0)[:, :2])
    moved, after = model.advance(state_rows.reorder(state, order), more)
    expected = model.advance(fresh, torch.cat([model.embed(ids[order]), more], dim=1))[0]
    close(moved, expected[:, 3:])

    mixed, _ = model.advance(state_rows.mix(state, F.one_hot(inside, k).double()), more)
    close(mixed, moved)

    kept = torch.tensor([0, 1, 2, 9, 10, 11])  # examples 0 and 3
    close(model.advance(state_rows.keep(after, kept), more[kept])[0], model.advance(after, more)[0][kept])


def test_mixtures_pass_gradients_through_the_state(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    state = state_rows.repeat(model.start(batch), 2)
    _, state = model.advance(state, model.embed(torch.tensor([[3, 5], [4, 6]]).repeat(len(batch), 1)))
    weights = torch.full((len(batch), 2, 2), 0.5, dtype=torch.float64, requires_grad=True)
    scores = model.score(model.advance(state_rows.mix(state, weights), model.embed(torch.full((8, 1), 7)))[0])
    if state.carry is None:
        assert not leaves(state.carry)  # a first-order table has no memory to mix
        return
    (grad,) = torch.autograd.grad(scores.square().sum(), weights)
    assert grad.isfinite().all()
    assert grad.abs().sum() > 0


def test_gradients_reach_every_parameter(case: Case) -> None:
    model, batch = case.model().train(), batch_for(case.sizes)
    loss(model, batch).backward()
    assert untouched(model) == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_advance_leaves_the_state_alone(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    state = model.start(batch)
    for ids in (batch.prefix[:, :2], batch.prefix[:, 2:3], batch.prefix[:, 3:]):
        before = [(leaf, leaf.clone(), leaf._version) for leaf in leaves(state)]
        inputs = model.embed(ids)
        once, following = model.advance(state, inputs)
        for leaf, copied, version in before:
            assert torch.equal(leaf, copied)
            assert leaf._version == version
        close(model.advance(state, inputs)[0], once)
        state = following


@pytest.mark.parametrize("at", [0, 2, 5])
def test_features_never_see_later_inputs(case: Case, at: int) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    changed = batch.prefix.clone()
    changed[:, at:] = 8
    state = model.start(batch)
    first, _ = model.advance(state, model.embed(batch.prefix))
    second, _ = model.advance(state, model.embed(changed))
    close(second[:, :at], first[:, :at])
    assert not torch.allclose(second[:, at:], first[:, at:])


def test_dropout_is_for_training_only(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    assert torch.equal(features(model, batch), features(model, batch))
    quiet = without_dropout(case).model()
    close(features(quiet.train(), batch), features(model, batch))
    if hasattr(case.spec, "dropout"):
        model.train()
        assert not torch.allclose(features(model, batch), features(model, batch))


def test_bfloat16_autocast_stays_close_and_trains(case: Case) -> None:
    model, batch = without_dropout(case).model().float(), single(batch_for(case.sizes))
    exact = loss(model, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = loss(model, batch)
        state = model.start(batch)
        _, state = model.advance(state, model.embed(batch.prefix[:, :2]))
        step, _ = model.advance(state, model.embed_mix(F.one_hot(batch.prefix[:, 2:3], 9).float()))
    near.backward()
    assert untouched(model) == []
    torch.testing.assert_close(near, exact, rtol=0.05, atol=0.05)
    whole = features(model, batch)[:, 2:3]
    torch.testing.assert_close(step.float(), whole.float(), rtol=0.1, atol=0.1)
