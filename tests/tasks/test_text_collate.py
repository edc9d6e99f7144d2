"""Batches: padding, masks, prefixes, the four kinds of source, and lengths that are fixed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.tasks.codecs import collate
from unforced.types import Encoded, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
TAGS = Symbols(pad=0, bos=1, eos=None, banned=(0, 1))
SEQUENCES = st.lists(st.tuples(st.lists(st.integers(3, 9), min_size=1), st.lists(st.integers(3, 9))), min_size=1)


@given(SEQUENCES)
@settings(max_examples=40, deadline=None)
def test_every_token_is_where_it_belongs(pairs: list[tuple[list[int], list[int]]]) -> None:
    ids = list(range(7, 7 + len(pairs)))
    batch = collate([Encoded(np.array(s), [*t, 2]) for s, t in pairs], ids, SYMBOLS, source_pad=5)
    assert batch.ids is not None
    assert batch.ids.tolist() == ids
    assert batch.source is not None
    assert batch.source_mask is not None
    assert batch.length is None
    for i, (source, target) in enumerate(pairs):
        n, m = len(source), len(target) + 1
        assert batch.source[i, :n].tolist() == source
        assert batch.source[i, n:].eq(5).all()
        assert batch.source_mask[i].tolist() == [j < n for j in range(batch.source.shape[1])]
        assert batch.gold[i, :m].tolist() == [*target, 2]
        assert batch.mask[i].tolist() == [j < m for j in range(batch.gold.shape[1])]
        assert batch.prefix[i, :m].tolist() == [1, *target]
        assert batch.gold[i, m:].eq(0).all()


def test_no_target_gives_a_column_that_does_not_count() -> None:
    batch = collate([Encoded([4], []), Encoded([4, 5], [])], [0, 1], SYMBOLS)
    assert batch.gold.tolist() == [[0], [0]]
    assert batch.prefix.tolist() == [[1], [1]]
    assert batch.tokens == 0


def test_kinds_of_sources() -> None:
    images = [np.full((3, 2, 2), i, dtype=np.float64) for i in range(2)]
    batch = collate([Encoded(image, [2]) for image in images], [0, 1], SYMBOLS)
    assert batch.source is not None
    assert batch.source.shape == (2, 3, 2, 2)
    assert batch.source.dtype == torch.float32
    assert batch.source_mask is None
    batch = collate([Encoded(3, [2]), Encoded(np.int64(1), [2])], [0, 1], SYMBOLS)
    assert batch.source is not None
    assert batch.source.tolist() == [3, 1]
    batch = collate([Encoded(None, [4, 2]), Encoded(None, [2])], [0, 1], SYMBOLS)
    assert batch.source is None


def test_fixed_length_is_the_sources_or_else_the_targets() -> None:
    encoded = [Encoded([4, 5], [6, 7]), Encoded([4], [])]
    batch = collate(encoded, [0, 1], TAGS, fixed_length=True)
    assert batch.length is not None
    assert batch.length.tolist() == [2, 1]
    batch = collate([Encoded(0, [6, 7, 8]), Encoded(1, [6, 6, 6])], [0, 1], TAGS, fixed_length=True)
    assert batch.length is not None
    assert batch.length.tolist() == [3, 3]
    batch = collate([Encoded(None, []), Encoded(None, [])], [0, 1], TAGS, length=4)
    assert batch.length is not None
    assert batch.length.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("encoded", "options", "message"),
    [
        ([], {}, "at least one example"),
        ([Encoded([4], [2]), Encoded([], [2])], {}, "source of example 1 is empty"),
        ([Encoded([4], [2]), Encoded(None, [2])], {}, "others have none"),
        ([Encoded(np.zeros((2, 2)), [2])], {}, "2 dimensions"),
        ([Encoded(np.zeros((1, 2, 2)), [2]), Encoded(np.zeros((1, 3, 2)), [2])], {}, "different shapes"),
        ([Encoded([4, 5], [6])], {"fixed_length": True}, "1 target tokens where 2 are wanted"),
        ([Encoded(None, [])], {"fixed_length": True}, "0 target tokens where 0 are wanted"),
    ],
)
def test_what_cannot_be_a_batch_is_refused(encoded: list[Encoded], options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        collate(encoded, list(range(len(encoded))), SYMBOLS, **options)


def test_ids_must_be_as_many_as_examples() -> None:
    with pytest.raises(InputError, match="1 examples but 2 ids"):
        collate([Encoded(None, [2])], [0, 1], SYMBOLS)


def test_references_are_padded_and_go_with_their_rows() -> None:
    encoded = [Encoded([4], [6, 2], (6, 7, 8)), Encoded([5], [9, 9, 2]), Encoded([4], [2], (3,))]
    batch = collate(encoded, [0, 1, 2], SYMBOLS)
    assert batch.references is not None
    assert batch.references.tolist() == [[6, 7, 8], [9, 9, 2], [3, 0, 0]]  # one that has none is its own
    some = batch.select(torch.tensor([2, 0])).to("cpu").references
    assert some is not None
    assert some.tolist() == [[3, 0, 0], [6, 7, 8]]
    assert collate([Encoded([4], [6, 2])], [0], SYMBOLS).references is None
