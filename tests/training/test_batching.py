"""Batches, learning rates and the options that set them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.training.batching import epoch_batches, micro_batches, planned_updates
from unforced.training.options import Training, learning_rate

pairs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=200)


@settings(max_examples=40, deadline=None)
@given(pairs, st.integers(40, 300), st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 9), st.integers(0, 9))
def test_batches_hold_every_example_once_within_the_limits(lengths, cap, max_rows, seed, epoch) -> None:
    table, options = np.array(lengths), Training(batch_tokens=cap, max_rows=max_rows)
    batches = epoch_batches(table, options, seed, epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert batch
        assert len(batch) * table[batch].max(axis=0).sum() <= cap
        assert max_rows is None or len(batch) <= max_rows
    np.random.default_rng(0).random(3)  # the global state does not matter
    assert epoch_batches(table.copy(), options, seed, epoch) == batches


def test_epochs_and_seeds_differ_and_padding_is_small() -> None:
    rng, options = np.random.default_rng(0), Training(batch_tokens=1000)
    lengths = rng.integers(3, 30, size=(5000, 1)).repeat(2, axis=1)
    first = epoch_batches(lengths, options, seed=1, epoch=0)
    assert first != epoch_batches(lengths, options, seed=1, epoch=1)
    assert first != epoch_batches(lengths, options, seed=2, epoch=0)
    padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in first)
    assert padded < 1.05 * lengths.sum()
    longest = [lengths[batch].max() for batch in first]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2  # the order is not by length


def test_batches_mix_examples_anew_in_each_epoch() -> None:
    lengths = np.stack([np.arange(1, 4001)] * 2, axis=1)  # no two have the same length
    batches = [epoch_batches(lengths, Training(batch_tokens=40_000), seed=1, epoch=epoch) for epoch in (0, 1)]
    first, second = ({frozenset(batch) for batch in each} for each in batches)
    assert len(first & second) < len(first) / 4


def test_an_example_too_long_for_a_batch_is_named() -> None:
    with pytest.raises(InputError, match="train example 1 has 60 source and target tokens"):
        epoch_batches(np.array([[1, 1], [30, 30]]), Training(batch_tokens=50), seed=1, epoch=0)


@settings(max_examples=40, deadline=None)
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
    options = Training(batch_tokens=20, epochs=epochs, steps=steps)
    assert planned_updates(np.full((10, 2), 5), options, seed=1) == total


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.904508, 0.654508, 0.345492, 0.095492]),
        ("inverse_sqrt", [0.25, 0.5, 0.75, 1, 0.894427, 0.816497, 0.755929, 0.707107]),
    ],
)
def test_learning_rates(schedule, rates) -> None:
    options = Training(learning_rate=2.0, schedule=schedule, warmup=4)
    found = [learning_rate(options, step, total=8) for step in range(1, 9)]
    assert found == pytest.approx([2 * rate for rate in rates], abs=1e-5)
    longer = Training(learning_rate=1.0, schedule=schedule, warmup=10)  # than the training
    assert [learning_rate(longer, step, total=3) for step in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("wrong", "message"), [({"epochs": None}, "epochs or steps"), ({"schedule": "inverse_sqrt"}, "needs a warmup")]
)
def test_options_that_contradict_each_other(wrong, message) -> None:
    with pytest.raises(InputError, match=message):
        Training(**wrong)
