"""Word vectors from files and from co-occurrence, and nearest words, against brute force."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from unforced.errors import InputError
from unforced.objectives.smoothing import targets as smoothing_targets
from unforced.objectives.smoothing.targets import near_table, near_target, near_words
from unforced.objectives.smoothing.token_roles import TokenRoles
from unforced.objectives.smoothing.word_vectors import WINDOW, co_occurrence, read_vectors, spellings, vector_files
from unforced.tasks.codecs import PairCodec
from unforced.tasks.tokenization import TextCoder

NAMES = ("<pad>", "<bos>", "<eos>", "<unk>", "the", "Cat", "sat", "zzz")
VECTORS = {"the": [1.0, 0.0, 0.0], "cat": [0.0, 3.0, 4.0], "sat": [1.0, 1.0, 0.0], "<unk>": [9.0, 9.0, 9.0]}
SPECIAL = frozenset({0, 1, 2, 3})
LINES = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in VECTORS.items())


def glove(folder: Path) -> Path:
    path = folder / "glove.txt"
    path.write_text(LINES)
    return path


def word2vec(folder: Path) -> Path:
    path = folder / "vectors.vec"
    path.write_text("4 3\n" + LINES.replace("\n", " \n"))  # word2vec writes a blank at the end of each line
    return path


def gzipped(folder: Path) -> Path:
    path = folder / "vectors.txt.gz"
    path.write_bytes(gzip.compress(("4 3\n" + LINES.replace(" ", "\t")).encode()))
    return path


def npz(folder: Path) -> Path:
    path = folder / "vectors.npz"
    matrix = np.array(list(VECTORS.values()), dtype=np.float16)
    np.savez(path, words=np.array(list(VECTORS)), small=matrix[:, :1], vectors=matrix)
    return path


def npz_with_words_file(folder: Path) -> Path:
    path = folder / "vectors.npz"
    np.savez(path, vec=np.array(list(VECTORS.values())))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VECTORS))
    return path


@pytest.mark.parametrize("write", [glove, word2vec, gzipped, npz, npz_with_words_file])
def test_files_of_all_formats_give_unit_vectors(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.setenv("VECTORS", str(tmp_path))
    vectors, covered = read_vectors(f"$VECTORS/{path.name}", NAMES, SPECIAL)
    assert covered.tolist() == [False, False, False, False, True, True, True, False]
    expected = torch.zeros(8, 3)
    expected[4:7] = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.5**0.5, 0.5**0.5, 0.0]])
    torch.testing.assert_close(vectors, expected)
    words = [tmp_path / "vocab.txt"] if write is npz_with_words_file else []
    assert vector_files(str(path)) == (path, *words)


def test_a_vector_belongs_to_one_token(tmp_path: Path) -> None:
    """To the one with the same spelling, else to the first; zero vectors and repeated words do not count."""
    _, covered = read_vectors(glove(tmp_path), ["The", "the", "CAT", "Cat", "sat"])
    assert covered.tolist() == [False, True, True, False, True]
    path = tmp_path / "odd.txt"
    path.write_text("The 0 0\nthe 1 0\na 0 0\na 0 2\na 1 0\nnew york 3 4\n\n")
    vectors, covered = read_vectors(path, ["The", "a", "b", "new york"])
    assert covered.tolist() == [True, True, False, True]
    torch.testing.assert_close(vectors, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.6, 0.8]]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the 1 0\ncat 1\n", "odd.txt:2: expected a word and 2 numbers"),
        (b"the,1,0\n", "odd.txt:1: expected a word and 1 numbers"),
        (b"the 1 x\n", "odd.txt:1: the vector of 'the' has a cell that is no number"),
        (b"the 1 nan\ncat 1 1\n", "the vector of 'the' is not finite or too large"),
        (b"the 1e200 1e200\ncat 1 1\n", "the vector of 'the' is not finite or too large"),
        (b"cat 1 0\n", "1 of the 2 tokens of the data have a vector"),
    ],
)
def test_bad_text_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_vectors(path, ["the", "cat"])


def test_bad_archives(tmp_path: Path) -> None:
    path = tmp_path / "odd.npz"
    for arrays, message in (
        ({"x": np.array(["a", {}], dtype=object)}, "not an .npz file of plain arrays"),  # nothing is unpickled
        ({"w": np.array(["a", "b"]), "x": np.zeros((3, 3))}, "no matrix of numbers has a row for each of the 2 words"),
    ):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            read_vectors(path, ["a"])
    with pytest.raises(InputError, match="an environment variable is not set"):
        read_vectors("$NOT_SET/vectors.txt", ["a"])


def test_spellings_of_pieces() -> None:
    codec = PairCodec(None, TextCoder.learn(["the größer lower lower lowest the größer größer"] * 3, "bpe", size=300))
    names = codec.token_names()
    found = {name: forms for name, forms in zip(names, spellings(names, TokenRoles.of(codec).special)) if forms}
    assert found["Ġthe"] == ("the",)
    assert found["ĠgrÃ¶ÃŁer"] == ("größer",)
    assert not {name for name in found if not name.startswith("Ġ")}
    assert spellings(["▁The", "re"]) == [("The", "the"), ()]
    words = ["woman", "man", "Ġunju", *(f"word{i}" for i in range(20))]  # a word that begins with a mark
    assert spellings(words)[:3] == [("woman",), ("man",), ("Ġunju", "ġunju")]
    assert spellings(["Ġ", "an", "Ġman", *(f"b{i}" for i in range(40))])[:3] == [(), (), ("man",)]


# Co-occurrence


def test_co_occurrence_against_counting_by_hand() -> None:
    generator, size, excluded = np.random.default_rng(0), 9, {2, 7}
    targets = [generator.integers(0, 9, generator.integers(0, 12)).tolist() for _ in range(40)]
    counts = np.zeros((size, size))
    for ids in targets:
        for i, a in enumerate(ids):
            for j, b in enumerate(ids):
                if 0 < abs(i - j) <= WINDOW and not {a, b} & excluded:
                    counts[a, b] += 1
    n = counts.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.nan_to_num(np.maximum(0, np.log(counts * counts.sum() / np.outer(n, n))))
    values, directions = np.linalg.eigh(table)
    expected = directions * np.sqrt(np.abs(values))  # U √S of a symmetric matrix
    expected /= np.maximum(1e-12, np.linalg.norm(expected, axis=1, keepdims=True))
    vectors, covered = co_occurrence(targets, size, excluded)
    assert covered.tolist() == [i not in excluded for i in range(size)]
    cosines = (vectors @ vectors.T)[covered][:, covered].double()
    torch.testing.assert_close(cosines, torch.from_numpy(expected @ expected.T)[covered][:, covered], atol=1e-5, rtol=0)


def test_co_occurrence_of_a_large_vocabulary_is_reduced_and_deterministic() -> None:
    generator = np.random.default_rng(0)
    targets = [generator.permutation(40)[:8] + 40 * topic for topic in generator.integers(0, 10, 400)]
    (vectors, covered), (again, _) = (co_occurrence(targets, 500) for _ in range(2))
    assert torch.equal(vectors, again)
    assert vectors.shape == (500, 100)
    assert covered.sum() == len(set(np.concatenate(targets).tolist()))
    cosines, topic = vectors[:400] @ vectors[:400].T, torch.arange(400) // 40
    inside = topic.unsqueeze(1) == topic
    assert cosines[inside].mean() > 0.3 > 0.05 > cosines[~inside].abs().mean()


def test_words_that_vanish_in_the_reduction_have_no_vector() -> None:
    """A hundred pairs fill the largest singular values, so that a group of seven words is lost."""
    pairs = [[10 + 2 * i, 11 + 2 * i] for i in range(100)]
    group = [[a, b] for a in (3, 4, 5) for b in (6, 7, 8, 9)] * 40
    vectors, covered = co_occurrence(pairs + group, 210)
    assert not covered[:10].any()
    assert not vectors[:10].any()
    assert covered[10:].all()
    alone, covered = co_occurrence(group, 210)
    assert covered[3:10].all()
    assert (alone[3:6] @ alone[3:6].T).min() > 0.999  # words with the same neighbours


def test_co_occurrence_needs_neighbours() -> None:
    with pytest.raises(InputError, match="none were given"):
        co_occurrence([], 5)
    with pytest.raises(InputError, match="prefer some neighbours"):
        co_occurrence([[3], [4]], 5)


# Nearest words


def some_vectors() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    vectors, covered = torch.randn(30, 4, dtype=torch.float64), torch.rand(30) < 0.8
    vectors[~covered] = 0
    return torch.nn.functional.normalize(vectors, dim=1), covered


def dense(vectors: torch.Tensor, covered: torch.Tensor, tau: float) -> torch.Tensor:
    """r(w | y) [V,V] by the formula."""
    logits = (-(1 - vectors @ vectors.T) / tau).masked_fill(~(covered & covered.unsqueeze(1)), -torch.inf)
    logits.fill_diagonal_(0.0)
    return logits.softmax(dim=1)


@pytest.mark.parametrize("count", [1, 3, 30, None])
@pytest.mark.parametrize("tau", [0.01, 0.3, math.inf])
def test_near_words_are_those_of_the_dense_table(
    count: int | None, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing_targets, "CELLS", 100)  # few words at a time
    vectors, covered = some_vectors()
    table, words = dense(vectors, covered, tau), torch.tensor([5, 3, 3, 29, 0])
    near = near_words(vectors, covered, words, tau, count)
    assert near.tokens.shape == (5, 30 if count is None else count)
    assert torch.equal(near.tokens[:, 0].long(), words)
    torch.testing.assert_close(near.weights, table[words].gather(1, near.tokens.long()) * (near.weights > 0))
    listed = torch.zeros_like(table[words], dtype=torch.bool).scatter(1, near.tokens.long(), True)
    assert ((table[words] <= near.weights.amin(dim=1, keepdim=True) + 1e-12) | listed).all()
    if count is not None and tau < math.inf:  # ties are broken in any order
        full = near_table(vectors, covered, tau, count)
        assert torch.equal(full.tokens[words], near.tokens[:, : full.tokens.shape[1]])
        torch.testing.assert_close(full.weights[words], near.weights[:, : full.tokens.shape[1]])


@pytest.mark.parametrize("count", [1, 3, None])
def test_sparse_target_differs_from_the_dense_one_by_the_rest(count: int | None) -> None:
    vectors, covered = some_vectors()
    table, words = dense(vectors, covered, 0.5), torch.arange(30)
    target, rest, entropy = near_target(near_words(vectors, covered, words, 0.5, count), covered, 1.0, torch.float64)
    found = torch.zeros(30, 30, dtype=torch.float64).scatter_add(1, target.tokens, target.weights)
    if target.rest is not None and target.share is not None:
        found = found + target.rest.unsqueeze(1) * target.share
    torch.testing.assert_close(found.sum(dim=1), torch.ones(30, dtype=torch.float64))
    listed = torch.zeros_like(found, dtype=torch.bool).scatter(1, target.tokens, True)
    torch.testing.assert_close(found[listed], table[listed])
    torch.testing.assert_close(rest, (table * ~listed).sum(dim=1), atol=1e-12, rtol=1e-9)
    assert ((found - table).abs().sum(dim=1) / 2 <= rest + 1e-12).all()
    torch.testing.assert_close(entropy, -torch.special.xlogy(found, found).sum(dim=1))
    assert count is not None or torch.allclose(found, table)
