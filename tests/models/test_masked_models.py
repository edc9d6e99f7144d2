"""The contract of ``MaskedModel``, for every masked network."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import NOTHING, SAME, SYMBOLS, TOKENS, Case, padded, sources, untouched
from torch import Tensor

from unforced.energy import masked_copies
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.models.masked import ConditionalMasked, Masked
from unforced.objectives.masked_lm import MaskedLM
from unforced.ops.masks import length_mask
from unforced.protocols import MaskedModel
from unforced.types import Batch, Progress, Sizes

SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "feedforward": 12}

CASES = {
    "field": Case(Field(hidden=8, embedding=6, dropout=0.3), NOTHING),
    "masked": Case(Masked(**SHAPE, layers=2), NOTHING),
    "masked-learned": Case(Masked(**SHAPE, layers=1, positions="learned", longest=10, tie=False), NOTHING),
    "conditional": Case(ConditionalMasked(**SHAPE, longest=12), TOKENS),
    "conditional-shared": Case(
        ConditionalMasked(**SHAPE, encoder_layers=1, decoder_layers=2, share_source=True, longest=7), SAME
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def batch_for(sizes: Sizes, seed: int = 0) -> Batch:
    """Targets of 6, 2, 1 and 4 positions, the last of them the end symbol."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([6, 2, 1, 4])
    mask = length_mask(lengths, 6)
    gold = torch.randint(3, sizes.target, (4, 6), generator=rng)
    gold.scatter_(1, lengths.unsqueeze(1) - 1, 2)
    return Batch.of_gold(gold.masked_fill(~mask, 0), mask, SYMBOLS, **sources(sizes, 4, rng))


def some_hidden(batch: Batch) -> Tensor:
    rng = torch.Generator().manual_seed(3)
    return batch.mask & (torch.rand(batch.mask.shape, generator=rng) < 0.4)


@every_case
def test_hidden_tokens_are_hidden(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    assert isinstance(model, MaskedModel)
    hidden = torch.zeros_like(batch.mask)
    hidden[0, 1], hidden[3, 0] = True, True
    scores = model.scores(batch, batch.gold, hidden)
    assert scores.shape == (4, 6, 9)
    close(model.scores(batch, batch.gold.masked_fill(hidden, 8), hidden), scores)
    close(model.scores(batch, batch.gold.masked_fill(hidden, -1), hidden), scores)
    seen = batch.gold.clone()
    seen[0, 3] = 3 + (int(seen[0, 3]) - 2) % 6
    changed = model.scores(batch, seen, hidden)
    for t in (0, 1, 5):
        assert not torch.allclose(changed[0, t], scores[0, t])
    close(changed[1:], scores[1:])


@every_case
def test_padding_and_other_rows_change_nothing(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    hidden = some_hidden(batch)
    scores = model.scores(batch, batch.gold, hidden)
    wider = padded(batch)
    found = model.scores(wider, wider.gold, F.pad(hidden, (0, 3), value=True))
    close(found[:, :6][batch.mask], scores[batch.mask])
    order = torch.tensor([2, 0, 3, 1])
    moved = model.scores(batch.select(order), batch.gold[order], hidden[order])
    close(moved[batch.mask[order]], scores[order][batch.mask[order]])
    for b in range(4):
        one = torch.tensor([b])
        n = int(batch.mask[b].sum())
        alone = masked_copies.trim(batch.select(one), n)
        close(model.scores(alone, batch.gold[one, :n], hidden[one, :n])[0], scores[b, :n])


@every_case
def test_features_at_some_positions_are_those_of_all(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    if not hasattr(model, "features_at"):
        assert hasattr(model, "conditional_scores")  # which needs no such thing
        return
    hidden, positions = some_hidden(batch), torch.tensor([[0, 3], [0, 0], [2, 1], [1, 0]])
    whole = model.features(batch, batch.gold, hidden)
    some = model.features_at(batch, batch.gold, hidden, positions)
    close(some, whole[torch.arange(4).unsqueeze(1), positions])


@every_case
def test_rows_of_an_example_are_adjacent(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    tokens = torch.randint(3, 9, (12, 6), generator=torch.Generator().manual_seed(1))
    hidden = torch.rand(12, 6, generator=torch.Generator().manual_seed(2)) < 0.3
    together = model.scores(batch, tokens, hidden)
    for k in range(3):
        close(together[k::3][batch.mask], model.scores(batch, tokens[k::3], hidden[k::3])[batch.mask])
    with pytest.raises(InputError, match=r"tokens of shape \(5, 6\)"):
        model.scores(batch, tokens[:5], hidden[:5])


@every_case
def test_prepared_batches_are_the_same(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    ready = masked_copies.encode_sources(model, batch)
    assert masked_copies.encode_sources(model, ready) is ready
    assert (ready is batch) == (batch.source is None)
    hidden, order = some_hidden(batch), torch.tensor([3, 3, 1])
    close(model.scores(ready, batch.gold, hidden), model.scores(batch, batch.gold, hidden))
    close(
        model.scores(ready.select(order), batch.gold[order], hidden[order]),
        model.scores(batch.select(order), batch.gold[order], hidden[order]),
    )


@every_case
def test_gradients_reach_every_parameter(case: Case) -> None:
    model, batch = case.model().train(), batch_for(case.sizes)
    loss = MaskedLM()(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(0))
    loss.mean.backward()
    assert untouched(model) == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_case
def test_dropout_is_for_training_only(case: Case) -> None:
    model, batch = case.model(), batch_for(case.sizes)
    hidden = some_hidden(batch)
    quiet = case._replace(spec=replace(case.spec, dropout=0.0)).model()
    close(quiet.train().scores(batch, batch.gold, hidden), model.scores(batch, batch.gold, hidden))
    model.train()
    first, second = (model.scores(batch, batch.gold, hidden) for _ in range(2))
    assert not torch.allclose(first, second)


@every_case
def test_bfloat16_autocast_stays_close(case: Case) -> None:
    model, batch = case.model().float(), batch_for(case.sizes)
    hidden = some_hidden(batch)
    exact = model.scores(batch, batch.gold, hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = model.scores(batch, batch.gold, hidden)
    torch.testing.assert_close(near.float()[batch.mask], exact[batch.mask], rtol=0.1, atol=0.1)


# ---- the random field ----


def test_conditional_scores_are_those_of_single_masked_copies() -> None:
    case = CASES["field"]
    model, batch = case.model(), batch_for(case.sizes)
    tokens = torch.randint(3, 9, (8, 6), generator=torch.Generator().manual_seed(1))
    together = model.conditional_scores(batch, tokens)
    for t in range(6):
        hidden = torch.zeros(8, 6, dtype=torch.bool)
        hidden[:, t] = True
        alone = model.scores(batch, tokens, hidden)[:, t]
        there = batch.mask.repeat_interleave(2, dim=0)[:, t]
        close(together[there, t], alone[there])


def test_a_field_in_parts_is_the_field() -> None:
    """Contexts that grow token by token, as log Z needs them."""
    model = CASES["field"].model()
    ids = torch.tensor([3, 5, 8])
    gold = torch.tensor([[a, b, c, d] for a in (3, 5, 8) for b in (3, 5, 8) for c in (3, 5, 8) for d in (3, 5, 8)])
    batch = Batch.of_gold(gold, gold > 0, SYMBOLS)
    scores = model.conditional_scores(batch, gold)
    weights, bias = model.output_weights(torch.arange(9))
    left = [model.empty_context()]
    right = [model.empty_context()]
    for _ in range(3):
        left.append(model.extend_contexts("left", left[-1], ids))
        right.append(model.extend_contexts("right", right[-1], ids))
    for t in range(4):
        x = model.project_contexts("left", left[t]).unsqueeze(1) + model.project_contexts(
            "right", right[3 - t]
        )  # [3^t,3^(3-t),H]
        found = model.activate(x) @ weights.T + bias
        found = found.unsqueeze(1).expand(-1, 3, -1, -1).reshape(81, 9)
        close(found, scores[:, t])


# ---- lengths ----


def test_length_scores() -> None:
    """a_T · s + d_(T−S) · s with s the mean over what there is of the source."""
    model, batch = CASES["conditional"].model(), batch_for(TOKENS)
    found = model.length_scores(batch)
    assert found.shape == (4, 12)
    close(found, model.length_scores(masked_copies.encode_sources(model, batch)))
    assert batch.source is not None
    assert batch.source_mask is not None
    for b in range(4):
        n = int(batch.source_mask[b].sum())
        alone = replace(batch.select(torch.tensor([b])), source=batch.source[b : b + 1, :n], source_mask=None)
        mean = model.encoded(alone).source[0, :, :8].mean(dim=0)
        for length in range(1, 13):
            expected = model.by_length.weight[length - 1] @ mean
            expected = expected + model.by_difference.weight[length - n + 12 - 1] @ mean
            close(found[b, length - 1], expected)


# ---- invalid input ----


def test_invalid_input() -> None:
    sourced, plain = batch_for(TOKENS), batch_for(NOTHING)
    for name in ("field", "masked"):
        model = CASES[name].model()
        with pytest.raises(InputError, match="built without a source"):
            model.scores(sourced, sourced.gold, sourced.mask)
        with pytest.raises(InputError, match="use conditional_masked"):
            CASES[name].spec.build(TOKENS)
        with pytest.raises(InputError, match="reads no source"):
            CASES[name].spec.build(Sizes(target=4, classes=3))
        with pytest.raises(InputError, match="no learned log Z"):
            model.log_z(plain)
        learnt = replace(CASES[name].spec, normalizer=4).build(NOTHING)
        with pytest.raises(InputError, match="log Z is learned up to 4 tokens, but a sequence has 5"):
            learnt.log_z(plain)
    with pytest.raises(InputError, match="use masked or field"):
        ConditionalMasked().build(NOTHING)
    with pytest.raises(InputError, match="share_source needs one vocabulary"):
        ConditionalMasked(share_source=True).build(TOKENS)
    model = CASES["conditional"].model()
    with pytest.raises(InputError, match="reads sources of token ids"):
        model.scores(plain, plain.gold, plain.mask)
    short = Masked(**SHAPE, layers=1, positions="learned", longest=5).build(NOTHING)
    with pytest.raises(InputError, match="positions are learned up to 5"):
        short.scores(plain, plain.gold, plain.mask)
