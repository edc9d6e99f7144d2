import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.training.batching import epoch_batches, micro_batches, planned_updates

pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(pairs, st.integers(40, 300), st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 9), st.integers(0, 9))
def test_batches_hold_every_example_once_within_the_cap(lengths, cap, max_rows, seed, epoch) -> None:
    table = np.array(lengths)
    given = {"batch_tokens": cap, "max_rows": max_rows, "seed": seed, "epoch": epoch}
    batches = epoch_batches(table, **given)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert len(batch) * table[batch].max(axis=0).sum() <= cap
        assert max_rows is None or len(batch) <= max_rows
    np.random.default_rng(0).random(3)  # other draws change nothing
    assert epoch_batches(table.copy(), **given) == batches


def test_epochs_and_seeds_differ_and_padding_is_small() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, size=(5000, 1)).repeat(2, axis=1)
    given = {"batch_tokens": 1000, "max_rows": None}
    first = epoch_batches(lengths, **given, seed=1, epoch=0)
    assert first != epoch_batches(lengths, **given, seed=1, epoch=1)
    assert first != epoch_batches(lengths, **given, seed=2, epoch=0)
    padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in first)
    assert padded < 1.05 * lengths.sum()
    longest = [lengths[batch].max() for batch in first]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2  # the order is not by length


def test_a_pool_is_not_the_whole_epoch() -> None:
    """Batch-mates change from epoch to epoch even where lengths do not tie."""
    lengths = np.stack([np.arange(1, 4001)] * 2, axis=1)
    sets = [
        {frozenset(batch) for batch in epoch_batches(lengths, batch_tokens=40_000, max_rows=None, seed=1, epoch=e)}
        for e in (0, 1)
    ]
    assert len(sets[0] & sets[1]) < len(sets[0]) / 4


def test_an_example_too_long_for_any_batch_is_named() -> None:
    with pytest.raises(InputError, match="training example 1 has 60 source and target tokens"):
        epoch_batches(np.array([[1, 1], [30, 30]]), batch_tokens=50, max_rows=None, seed=1, epoch=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=40), st.integers(1, 12))
def test_micro_batches_partition_the_rows_evenly(rows, parts) -> None:
    lengths = np.random.default_rng(0).integers(1, 30, size=(100, 2))
    split = micro_batches(rows, lengths, parts=parts)
    assert len(split) == parts
    assert sorted(row for part in split for row in part) == sorted(rows)
    sizes = [len(part) for part in split]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("epochs", "steps", "total"), [(2, None, 10), (2, 7, 7), (None, 13, 13), (0.5, None, 2), (2.2, None, 11)]
)
def test_planned_updates(epochs, steps, total) -> None:
    lengths = np.full((10, 2), 5)
    limits = {"batch_tokens": 20, "max_rows": None, "seed": 1}
    assert planned_updates(lengths, **limits, epochs=epochs, steps=steps) == total
