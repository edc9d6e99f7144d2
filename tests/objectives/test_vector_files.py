"""Files of word vectors that are odd, or are none, and the names that are looked up in them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from smoothing_toy import codec

from unforced.errors import InputError
from unforced.objectives.smoothing.word_vectors import read_vectors, spellings
from unforced.objectives.token_smoothing import TokenSmoothing


def test_a_word_that_begins_with_a_mark_makes_no_pieces() -> None:
    names = ["woman", "man", "Ġunju", *(f"word{i}" for i in range(20))]
    assert spellings(names)[:3] == [("woman",), ("man",), ("Ġunju", "ġunju")]
    assert spellings(["Ġ", "an", "Ġman", *(f"b{i}" for i in range(40))])[:3] == [(), (), ("man",)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("man 0.9 0.1\nwoman 0.9 0.1 0.4\n", ":2: a word and 2 numbers wanted, 4 cells found"),
        ("300 2\nman 0.9 0.1\n", "is cut off: its first line promises 300 words, and it has 1"),
        ("men 1 0\n", "none of the 2 tokens of the data has a vector"),
        ("man 0 0\nwoman 1 0\n", "only one of the 2 tokens of the data has a vector"),
    ],
)
def test_odd_texts_are_refused(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=complaint):
        read_vectors(path, ["man", "woman"])


def test_marks_blanks_and_large_and_small_numbers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"\xef\xbb\xbfman  1e38 1e38\nwoman 3e-30  4e-30\nnew york 1 0\n")
    vectors, there = read_vectors(path, ["man", "woman", "new york"])
    assert there.all()
    torch.testing.assert_close(vectors, torch.tensor([[0.5**0.5, 0.5**0.5], [0.6, 0.8], [1.0, 0.0]]))


def test_blank_lines_blank_words_and_lost_bytes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"\nman 3 4\n\t 5 6\n\xc3 7 8\nwoman 1 0\n")
    vectors, there = read_vectors(path, ["man", "\ufffd", "Ġ", "woman"])
    assert there.tolist() == [True, False, False, True]
    torch.testing.assert_close(vectors[0], torch.tensor([0.6, 0.8]))


def test_odd_archives(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(["man", "woman"]), matrix=np.array([[3, 4], [0, 2]]))
    vectors, _ = read_vectors(path, ["man", "woman"])
    torch.testing.assert_close(vectors, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    np.savez(path, words=np.array(["man"]), matrix=np.zeros((1, 0)))
    with pytest.raises(InputError, match="has a vector"):
        read_vectors(path, ["man"])
    with open(path, "wb") as handle:
        np.save(handle, np.zeros((1, 2)))
    with pytest.raises(InputError, match="not a zip archive"):
        read_vectors(path, ["man"])
    np.savez(path, words=np.array(["man"], dtype=object), matrix=np.zeros((1, 2)))
    with pytest.raises(InputError, match="an array of objects") as refused:
        read_vectors(path, ["man"])
    assert "allow_pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("vectors.bin", "3 2\n", "binary vectors are read from .npz files alone"),
        ("vectors.txt", "² 3\na 1 0 2\n", "3 cells found|numbers wanted"),
        ("x" * 300, None, "there is no such file"),
    ],
)
def test_vector_files_of_other_kinds_get_a_sentence(tmp_path: Path, name: str, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=why):
        TokenSmoothing(vectors=str(tmp_path / name)).fitted(codec())
    with pytest.raises(InputError, match="nearest must be a whole number"):
        TokenSmoothing(nearest=2.5)  # type: ignore[arg-type]
