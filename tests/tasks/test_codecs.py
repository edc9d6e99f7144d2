"""Batches: padding, masks, prefixes, the four kinds of source and fixed lengths; invalid examples of each codec."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.tasks.codecs import (
    BaseCodec,
    PairCodec,
    Picture,
    PictureCodec,
    PixelCodec,
    StringCodec,
    TagCodec,
    collate,
)
from unforced.tasks.tokenization import TextCoder, Vocabulary
from unforced.types import Encoded, Example, Symbols

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


@pytest.mark.parametrize(
    ("encoded", "options", "message"),
    [
        ([], {}, "got 0 examples and 0 ids"),
        ([Encoded([4], [2]), Encoded([], [2])], {}, "source of example 1 is empty"),
        ([Encoded([4], [2]), Encoded(None, [2])], {}, "others have none"),
        ([Encoded([4, 5], [6])], {"length": [2]}, "has 1 target tokens, but must have 2"),
    ],
)
def test_invalid_batches(encoded: list[Encoded], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        collate(encoded, list(range(len(encoded))), SYMBOLS, **options)


def test_references_are_padded_and_go_with_their_rows() -> None:
    encoded = [Encoded([4], [6, 2], (6, 7, 8)), Encoded([5], [9, 9, 2]), Encoded([4], [2], (3,))]
    batch = collate(encoded, [0, 1, 2], SYMBOLS)
    assert batch.references is not None
    assert batch.references.tolist() == [[6, 7, 8], [9, 9, 2], [3, 0, 0]]  # one that has none is its own
    some = batch.select(torch.tensor([2, 0])).to("cpu").references
    assert some is not None
    assert some.tolist() == [[3, 0, 0], [6, 7, 8]]
    assert collate([Encoded([4], [6, 2])], [0], SYMBOLS).references is None


WORDS, NAMES = Vocabulary.learn([["a", "b"]], eos=False), Vocabulary.learn([["X"]], eos=False)
CODECS: list[BaseCodec] = [
    PairCodec(TextCoder.learn(["a"], "words"), TextCoder.learn(["b"], "words")),
    TagCodec(WORDS, NAMES),
    PixelCodec((2, 2), levels=4, classes=3),
    PictureCodec((4, 6, 3), TextCoder.learn(["a"], "words")),
    StringCodec(5, 5),
]
IMAGE = np.zeros((2, 2), int)


@pytest.mark.parametrize(
    ("codec", "example", "message"),
    [
        (CODECS[1], Example(("a", "b"), ("X",)), "2 words, but 1 tags"),
        (CODECS[1], Example(("a", "b"), ("X", "Z")), "the tag 'Z' of 'a b' is not in the training data"),
        (CODECS[2], Example(0, np.zeros((3, 2), int)), r"must have the shape \(2, 2\)"),
        (CODECS[2], Example(3, IMAGE), "from 0 to 2, got 3"),
        (CODECS[3], Example(Picture("odd", np.zeros((4, 4, 3), np.uint8)), "a"), r"must be uint8 \(4, 6, 3\)"),
        (CODECS[4], Example(None, "abcd"), "must have 5 letters from a to e, got 'abcd'"),
    ],
)
def test_invalid_examples(codec: Any, example: Example, message: str) -> None:
    with pytest.raises(InputError, match=message):
        codec.encode(example)


@pytest.mark.parametrize(
    ("codec", "line", "message"),
    [
        (CODECS[0], " \n", "the line is blank"),
        (CODECS[1], "\n", "the line is blank"),
        (CODECS[2], "3", "a class from 0 to 2, got '3'"),
        (PixelCodec((2, 2), 4), "1", "reads no input"),
        (CODECS[3], "nothing.png", "cannot be read as a picture"),
        (CODECS[4], "abcba", "reads no input"),
    ],
)
def test_invalid_lines(codec: Any, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        codec.parse(line)


def test_lines_of_input_and_output() -> None:
    pixels, strings = PixelCodec((2, 2), levels=4, classes=3), StringCodec(5, 5)
    assert pixels.encode(Example(pixels.parse(" 2\n"), None)) == Encoded(2, [])
    assert PixelCodec((2, 2), levels=4).parse("\n") is None
    assert pixels.show(pixels.decode([0, 1, 2, 3])) == "[[0,1],[2,3]]"
    assert strings.parse("\n") is None
    assert strings.show("abcba") == "abcba"
    names = [codec.token_names() for codec in (pixels, strings, TagCodec(WORDS, NAMES))]
    assert [(len(each), each[-1]) for each in names] == [(6, "<pad>"), (7, "<pad>"), (4, "X")]
