"""Energies in micro-batches against one forward pass for each masked position."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from energy_cases import (
    MODELS,
    SOURCES,
    InParts,
    TableModel,
    WithFeatures,
    WithFeaturesAt,
    alone,
    ended,
    letters,
    model_and_batch,
    plain_energy,
    plain_scores,
    plain_terms,
)
from torch import Tensor, nn

from unforced.energy import energies, masked_copies
from unforced.errors import InputError
from unforced.types import Batch, Symbols

KINDS = pytest.mark.parametrize("kind", ["raw", "local"])
ROWS = [[4, 3, 5], [5], [3, 4, 4, 5], [4, 4]]


def rows_of(batch: Batch, k: int, size: int, seed: int = 3) -> Tensor:
    """K random sequences of each example."""
    kept = energies.allowed(batch.symbols, size).nonzero().squeeze(1)
    rng = torch.Generator().manual_seed(seed)
    drawn = kept[torch.randint(len(kept), (len(batch) * k, batch.gold.shape[1]), generator=rng)]
    free, gold = (leaf.repeat_interleave(k, dim=0) for leaf in (energies.variables(batch), batch.gold))
    return torch.where(free, drawn, gold)


EACH_MODEL = pytest.mark.parametrize("name", MODELS)


def test_variables() -> None:
    batch = ended([[4, 3, 5], []])
    assert energies.variables(batch).tolist() == [[True, True, True, False], [False] * 4]
    assert energies.variables(letters(3, [2, 3])).tolist() == [[True, True, False], [True] * 3]
    special = replace(batch, symbols=Symbols(pad=0, bos=1, eos=2, banned=(0, 1, 3)))
    assert energies.variables(special)[0].tolist() == [True, False, True, False]


def test_canvas() -> None:
    batch = energies.canvas(ended([[4], [4]], [[1], [2]]), torch.tensor([3, 0]))
    assert batch.gold.tolist() == [[3, 3, 3, 2], [2, 0, 0, 0]]
    assert batch.prefix.tolist() == [[1, 3, 3, 3], [1, 2, 0, 0]]
    assert batch.mask.tolist() == [[True] * 4, [True, False, False, False]]
    assert batch.source is not None
    assert batch.source.tolist() == [[1], [2]]


@EACH_MODEL
@KINDS
def test_terms_equal_one_forward_pass_each(name: str, kind: Any) -> None:
    model, batch = model_and_batch(name, ROWS)
    tokens = rows_of(batch, 3, 6)
    found = energies.terms(model, batch, tokens, kind, rows=5)
    energy = energies.energy(model, batch, tokens, kind).tolist()
    for row, sequence in enumerate(tokens.tolist()):
        one = alone(batch, row // 3)
        expected = plain_terms(model, one, sequence[: one.gold.shape[1]], kind)
        for t, value in enumerate(found[row].tolist()):
            assert value == pytest.approx(expected.get(t, 0.0), abs=1e-10)
        assert energy[row] == pytest.approx(plain_energy(model, one, sequence[: one.gold.shape[1]], kind), abs=1e-10)


def test_micro_batches_are_bounded_and_have_little_padding() -> None:
    batch = ended([[4] * n for n in (9, 2, 9, 2, 2)])
    model = TableModel(6)
    energies.terms(model, batch, rows_of(batch, 2, 6), "local", rows=8)
    assert all(rows <= 8 for rows, _ in model.seen)
    assert sum(rows for rows, _ in model.seen) == 2 * (9 + 2 + 9 + 2 + 2)
    assert {width for _, width in model.seen[-1:]} == {3}  # two tokens and the end, without padding
    assert max(width for _, width in model.seen) == 10


def test_scores_at_blocks() -> None:
    model, batch = model_and_batch("table", ROWS)
    tokens = rows_of(batch, 1, 6)
    positions = torch.tensor([[2, 0], [0, 3], [1, 3]])
    valid = torch.tensor([[True, True], [True, False], [True, True]])
    found = masked_copies.scores_at(model, batch, tokens, torch.tensor([0, 1, 2]), positions, valid)
    for n, hidden in enumerate(([2, 0], [0], [1, 3])):
        one = alone(batch, n)
        scores = plain_scores(model, one, tokens[n, : one.gold.shape[1]].tolist(), hidden)
        for p, t in enumerate(hidden):
            torch.testing.assert_close(found[n, p], scores[t])


@pytest.mark.parametrize("model", [WithFeatures(6), WithFeaturesAt(6)])
def test_features_save_projections(model: InParts) -> None:
    batch = ended(ROWS, SOURCES)
    tokens = rows_of(batch, 2, 6)
    expected = energies.terms(TableModel(6), batch, tokens)
    torch.testing.assert_close(energies.terms(model, batch, tokens), expected, rtol=0, atol=1e-12)
    assert model.scored == int((expected != 0).sum())
    assert model.whole == 0


class Counting(nn.Module):
    """A conditional model that counts how many sources it encodes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.sources = model, 0

    def encoded(self, batch: Batch) -> Batch:
        if batch.source is not None and not batch.source.is_floating_point():
            self.sources += len(batch)
        return self.model.encoded(batch)

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.model.scores(self.encoded(batch), tokens, masked)


def test_sources_are_encoded_once() -> None:
    model, batch = model_and_batch("conditional", ROWS)
    counting = Counting(model)
    tokens = rows_of(batch, 3, 6)
    found = energies.terms(counting, batch, tokens, rows=4)
    assert counting.sources == len(batch)
    torch.testing.assert_close(found, energies.terms(model, batch, tokens), rtol=0, atol=1e-10)


@EACH_MODEL
@KINDS
def test_gradients_equal_finite_differences(name: str, kind: Any) -> None:
    model, batch = model_and_batch(name, ROWS)
    tokens = rows_of(batch, 2, 6)
    parameters = [p for p in model.parameters() if p.requires_grad]
    energy = energies.energy(model, batch, tokens, kind, rows=5).sum()
    gradients = torch.autograd.grad(energy, parameters, allow_unused=True)
    rng = torch.Generator().manual_seed(2)
    direction = [torch.randn(p.shape, generator=rng, dtype=torch.float64) for p in parameters]
    slope = sum(float((g * w).sum()) for g, w in zip(gradients, direction) if g is not None)

    def moved(step: float) -> float:
        with torch.no_grad():
            for p, w in zip(parameters, direction):
                p.add_(w, alpha=step)
            value = float(energies.energy(model, batch, tokens, kind).sum())
            for p, w in zip(parameters, direction):
                p.add_(w, alpha=-step)
        return value

    assert (moved(1e-5) - moved(-1e-5)) / 2e-5 == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_tokens_that_are_not_allowed() -> None:
    model, batch = model_and_batch("table", ROWS)
    tokens = batch.gold.clone()
    tokens[0, 1] = 1
    for kind in ("raw", "local"):
        assert energies.energy(model, batch, tokens, kind)[0].item() == float("inf")
    # and takes no part in the normalisation
    scores = model.scores(batch, batch.gold, torch.zeros_like(batch.mask))[0, 0]
    chosen = torch.tensor([3, 4, 5])
    found = energies.token_terms(scores.expand(3, -1), chosen, "local", batch.symbols)
    assert found.exp().sum().item() == pytest.approx(1)


def test_invalid_input() -> None:
    batch = ended([[3, 4], [5]])
    with pytest.raises(InputError, match="do not match a batch"):
        energies.terms(TableModel(6), batch, batch.gold[:, :2])
    with pytest.raises(InputError, match="do not match a batch"):
        energies.terms(TableModel(6), batch, batch.gold[[0, 1, 1]])
    with pytest.raises(InputError, match="kind must be one of raw, local"):
        energies.terms(TableModel(6), batch, batch.gold, "norm")  # type: ignore[arg-type]
