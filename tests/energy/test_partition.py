"""Exact log Z: shared contexts against enumeration, in parts, and with gradients."""

from itertools import product
from typing import Any

import pytest
import torch
from energy_cases import ended
from torch import Tensor

from unforced.energy import energies, factored, partition
from unforced.energy.factored import shares_contexts
from unforced.energy.partition import energies_in_parts, log_partition, log_partition_with_gradient, true_conditionals
from unforced.errors import InputError
from unforced.models.field import Field, FieldModel
from unforced.models.masked import ConditionalMasked, Masked
from unforced.types import Batch, Sizes, Symbols

ENDED = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
KINDS: tuple[Any, ...] = ("raw", "local")


def field(letters: int, seed: int = 0) -> FieldModel:
    """A field of large weights in float64, over ids of which the first three are special."""
    torch.manual_seed(seed)
    model = Field(hidden=6, embedding=5).build(Sizes(target=letters + 3)).double()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.bias.data.normal_()
    return model


def strings(*lengths: int) -> Batch:
    """Strings of the first letter with these lengths."""
    return ended([[3] * length for length in lengths])


def brute(model: Any, batch: Batch, kind: Any, letters: int) -> list[float]:
    """Return log Z of each example from the energies of all strings, one by one."""
    found = []
    for b in range(len(batch)):
        one = batch.select(torch.tensor([b]))
        length = int(energies.variables(one).sum())
        values = []
        for string in product(range(3, 3 + letters), repeat=length):
            tokens = one.gold.clone()
            tokens[0, :length] = torch.tensor(string)
            values.append(-energies.energy(model, one, tokens, kind))
        found.append(float(torch.logsumexp(torch.cat(values).detach(), dim=0)))
    return found


class Plain:
    """A model without optional methods."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.most = 0

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        self.most = max(self.most, len(tokens))
        return self.model.scores(batch, tokens, masked)


@pytest.mark.parametrize("kind", KINDS)
def test_log_partition_equals_enumeration(kind: Any) -> None:
    """Shared contexts, constant memory, and one string at a time."""
    model, batch = field(4), strings(4)
    assert shares_contexts(model, batch)
    fast = log_partition(model, batch, kind)
    assert fast.dtype == torch.float64
    plain = Plain(model)
    slow = log_partition(plain, batch, kind, rows=100)
    assert plain.most <= 100
    assert float(fast) == pytest.approx(float(slow), abs=1e-9)
    assert float(fast) == pytest.approx(brute(model, batch, kind, 4)[0], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [7, 10**6])
def test_results_do_not_depend_on_blocks_and_slabs(kind: Any, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = field(3, seed=1), strings(4, 1, 2, 3)
    whole = log_partition(model, batch, kind)
    assert whole.tolist() == pytest.approx(brute(model, batch, kind, 3), abs=1e-9)
    for pairs, slab in ((1, 1), (5, 4), (7, 1000)):
        monkeypatch.setattr(factored, "PAIRS", pairs)
        monkeypatch.setattr(factored, "SLAB", slab)
        assert log_partition(model, batch, kind, cells=cells).tolist() == pytest.approx(whole.tolist(), abs=1e-9)


def test_sequences_without_end_symbol() -> None:
    """Strings as the synthetic tasks have them, and a special token in the middle that stays where it is."""
    torch.manual_seed(0)
    model = Field(hidden=6, embedding=5).build(Sizes(target=5)).double()
    symbols = Symbols(pad=4, bos=3, eos=None, banned=(3, 4))
    gold = torch.tensor([[0, 3, 2, 1], [1, 1, 0, 4]])
    batch = Batch.of_gold(gold, gold != 4, symbols)
    fast = log_partition(model, batch)
    slow = log_partition(Plain(model), batch)
    assert fast.tolist() == pytest.approx(slow.tolist(), abs=1e-9)
    assert int(energies.variables(batch).sum()) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_log_partition_of_transformers(kind: Any) -> None:
    torch.manual_seed(0)
    shape: Any = {"width": 8, "heads": 2, "feedforward": 8, "dropout": 0.5}
    batch = strings(3, 2)
    model = Masked(**shape, layers=1).build(Sizes(target=6)).double()
    assert log_partition(model, batch, kind, rows=5).tolist() == pytest.approx(
        brute(model.eval(), batch, kind, 3), abs=1e-9
    )
    source = torch.tensor([[1, 2, 3], [4, 0, 0]])
    sourced = Batch.of_gold(
        batch.gold, batch.mask, ENDED, source=source, source_mask=torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    )
    conditional = ConditionalMasked(**shape, encoder_layers=1, decoder_layers=1).build(Sizes(target=6, source=5))
    conditional = conditional.double().eval()
    found = log_partition(conditional, sourced, kind)
    assert found.tolist() == pytest.approx(brute(conditional, sourced, kind, 3), abs=1e-9)


def test_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = partition.factored_terms

    def counted(model: Any, space: Any, *rest: Any) -> Any:
        sizes.append(space.size)
        return original(model, space, *rest)

    monkeypatch.setattr(partition, "factored_terms", counted)
    model, batch, cache = field(3), strings(2, 3, 2, 2), {}
    first, second = (log_partition(model, batch, cache=cache) for _ in range(2))
    assert sorted(sizes) == [9, 27]
    assert torch.equal(first, second)


@pytest.mark.parametrize("rows", [7, 1000])
def test_energies_in_parts(rows: int) -> None:
    """Values and gradients are those of one big pass, and no pass is larger than ``rows``, backward included."""
    inner, batch = field(3, seed=4), strings(3, 2)
    rng = torch.Generator().manual_seed(0)
    example = torch.randint(2, (25,), generator=rng)
    tokens = torch.randint(3, 6, (25, 4), generator=rng)
    weights = torch.rand(25, generator=rng, dtype=torch.float64)
    whole = energies.energy(inner, batch.select(example), tokens, "raw")
    expected = torch.autograd.grad((whole * weights).sum(), list(inner.parameters()), allow_unused=True)
    model = Plain(inner)
    found = energies_in_parts(model, batch, 25, lambda a, b: (example[a:b], tokens[a:b]), "raw", rows)
    torch.testing.assert_close(found, whole)
    gradients = torch.autograd.grad((found * weights).sum(), list(inner.parameters()), allow_unused=True)
    for a, b, (name, _) in zip(gradients, expected, inner.named_parameters()):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b)
    assert model.most <= max(rows, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_log_partition(kind: Any) -> None:
    model, batch = field(3, seed=5), strings(3, 1, 3)
    found = log_partition_with_gradient(model, batch, kind, rows=10)
    assert found.tolist() == pytest.approx(log_partition(model, batch, kind).tolist(), abs=1e-9)
    one_by_one = log_partition_with_gradient(Plain(model), batch, kind, rows=10)
    torch.testing.assert_close(found, one_by_one)
    (gradient,) = torch.autograd.grad(found.sum(), model.join_left.weight)
    direction = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step, values = 1e-5, []
    for sign in (1, -1):
        model.join_left.weight.data.add_(direction, alpha=sign * step)
        values.append(float(log_partition(model, batch, kind).sum()))
        model.join_left.weight.data.add_(direction, alpha=-sign * step)
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-6)


def test_invalid_input() -> None:
    model = Plain(field(4))
    with pytest.raises(InputError, match="1024 sequences are too many to enumerate"):
        log_partition(model, strings(5), most=1000)
    with pytest.raises(InputError, match="1024 sequences"):
        log_partition_with_gradient(model, strings(5), most=1000)
    with pytest.raises(InputError, match="kind must be one of raw, local"):
        log_partition(model, strings(2), "hot")  # type: ignore[arg-type]
    empty = Batch.of_gold(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.bool), ENDED)
    with pytest.raises(InputError, match="an example has no positions"):
        log_partition(model, empty)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [True, False])
def test_true_conditionals(kind: Any, plain: bool) -> None:
    """One by one, and looked up among the energies of all strings."""
    model, batch = field(3, seed=6), strings(3, 2)
    where = torch.tensor([[True, False, True, False], [True, True, False, False]])
    found, ids = true_conditionals(Plain(model) if plain else model, batch, where, kind, 7)
    assert ids.tolist() == [3, 4, 5]
    for row, (b, t) in zip(found, where.nonzero().tolist()):
        tokens = batch.gold[b].repeat(3, 1)
        tokens[:, t] = ids
        energy = energies.energy(model, batch.select(torch.tensor([b])), tokens, kind)
        torch.testing.assert_close(row, (-energy).log_softmax(0))
