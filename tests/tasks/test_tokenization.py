"""Vocabularies and segmenters: ids, ties, unknown tokens, reserved names, and texts that come back unchanged."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unforced.errors import InputError
from unforced.tasks.tokenization import Characters, Pieces, TextCoder, Vocabulary, Words

TEXTS = ["the dog runs", "the cat sleeps", "größere Hunde schlafen", "the <eos> <pad> <unk> dog"]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_order_is_by_frequency_then_alphabet() -> None:
    vocabulary = Vocabulary.learn([["b", "c", "a", "d"], ["c", "a"], ["d"]])
    assert vocabulary.tokens == ("<pad>", "<bos>", "<eos>", "<unk>", "a", "c", "d", "b")


def test_without_eos_and_unknown() -> None:
    vocabulary = Vocabulary.learn([["x"]], eos=False, unknown=False)
    assert vocabulary.tokens == ("<pad>", "<bos>", "x")
    assert vocabulary.symbols == (0, 1, None, (0, 1))
    with pytest.raises(InputError, match="'y' is not in the vocabulary"):
        vocabulary.encode(["x", "y"], eos=False)


def test_min_count_and_max_size() -> None:
    sequences = [["a"] * 3 + ["b"] * 2 + ["c"]]
    assert Vocabulary.learn(sequences, min_count=2).data == ("a", "b")
    assert Vocabulary.learn(sequences, max_size=1).data == ("a",)
    assert Vocabulary.learn(sequences, max_size=1).encode(["a", "c"], eos=False) == [4, 3]


@given(st.lists(st.lists(st.sampled_from(["a", "b", "<pad>", "<bos>", "<eos>", "<unk>", ""]))))
@settings(max_examples=60, deadline=None)
def test_reserved_names_never_collide(sequences: list[list[str]]) -> None:
    vocabulary = Vocabulary.learn(sequences)
    for sequence in sequences:
        ids = vocabulary.encode(sequence, eos=True)
        assert ids[-1] == 2
        assert all(i >= 4 for i in ids[:-1])
        assert vocabulary.decode(ids[:-1]) == sequence


@given(ANY_TEXT)
@settings(max_examples=60, deadline=None)
def test_characters_are_lossless(text: str) -> None:
    assert Characters().join(Characters().split(text)) == text


@given(ANY_TEXT)
@settings(max_examples=60, deadline=None)
def test_words_are_lossless_up_to_white_space(text: str) -> None:
    assert Words().join(Words().split(text)) == " ".join(text.split())


PIECES = Pieces.learn(TEXTS, size=300)


@given(ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_bpe_gives_every_text_back(text: str) -> None:
    assert PIECES.join(PIECES.split(text)) == text


@given(ANY_TEXT)
@settings(max_examples=60, deadline=None)
def test_bpe_coder_gives_every_text_back_and_uses_no_reserved_id(text: str) -> None:
    coder = TextCoder(PIECES, Vocabulary(PIECES.tokens, unknown=False))
    ids = coder.encode(text, eos=True)
    assert ids[-1] == 2
    assert all(i >= 3 for i in ids[:-1])
    assert coder.decode(ids[:-1]) == text


def test_bpe_is_deterministic_and_needs_all_bytes() -> None:
    assert Pieces.learn(TEXTS, size=300) == PIECES
    assert 256 < len(PIECES.tokens) <= 300
    with pytest.raises(InputError, match="at least 256 pieces"):
        Pieces.learn(TEXTS, size=100)


@pytest.mark.parametrize("tokens", ["words", "characters", "bpe"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_coders_survive_json(tokens: str, lowercase: bool) -> None:
    coder = TextCoder.learn(TEXTS, tokens, size=280, lowercase=lowercase)  # type: ignore[arg-type]
    again = TextCoder.from_json(json.loads(json.dumps(coder.to_json())))
    assert again.vocabulary == coder.vocabulary
    for text in [*TEXTS, "Unknown Ω words"]:
        ids = coder.encode(text, eos=True)
        assert again.encode(text, eos=True) == ids
        assert again.decode(ids[:-1]) == coder.decode(ids[:-1])
    for text in TEXTS:
        expected = text.lower() if lowercase else text
        assert coder.decode(coder.encode(text, eos=False)) == expected


def test_an_unknown_character_shows_as_one_character() -> None:
    coder = TextCoder.learn(["abc"], "characters")
    assert coder.decode(coder.encode("aΩc", eos=False)) == "a\ufffdc"
