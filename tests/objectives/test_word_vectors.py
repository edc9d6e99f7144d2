"""Word vectors from files and from co-occurrence, and the words nearest to each, against brute force."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from unforced.errors import InputError
from unforced.objectives.smoothing import targets as smoothing_targets
from unforced.objectives.smoothing.targets import near_table, near_target, near_words
from unforced.objectives.smoothing.word_vectors import WINDOW, co_occurrence, read_vectors, special, spellings
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.tasks.text import PairCodec
from unforced.tasks.tokenization import TextCoder
from unforced.types import Symbols

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
    path.write_text("4 3\n" + LINES.replace("\n", " \n"))  # a blank behind each line, as word2vec has it
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


def npz_beside_names(folder: Path) -> Path:
    path = folder / "vectors.npz"
    np.savez(path, vec=np.array(list(VECTORS.values())))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in VECTORS))
    return path


@pytest.mark.parametrize("write", [glove, word2vec, gzipped, npz, npz_beside_names])
def test_files_of_all_formats_give_unit_vectors(write: Callable[[Path], Path], tmp_path: Path) -> None:
    vectors, there = read_vectors(write(tmp_path), NAMES, SPECIAL)
    assert there.tolist() == [False, False, False, False, True, True, True, False]
    expected = torch.zeros(8, 3)
    expected[4], expected[5] = (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.6, 0.8]))  # Cat is looked up as cat
    expected[6] = torch.tensor([0.5**0.5, 0.5**0.5, 0.0])
    torch.testing.assert_close(vectors, expected)


def test_the_path_may_have_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFORCED_DATA", str(tmp_path))
    glove(tmp_path)
    assert read_vectors("$UNFORCED_DATA/glove.txt", NAMES, SPECIAL)[1].sum() == 3
    monkeypatch.delenv("UNFORCED_DATA")
    with pytest.raises(InputError, match="the environment variable UNFORCED_DATA is not set"):
        read_vectors("$UNFORCED_DATA/glove.txt", NAMES, SPECIAL)


def test_words_beside_an_archive_are_among_its_files(tmp_path: Path) -> None:
    """A run that is resumed must find both as they were."""
    path = npz_beside_names(tmp_path)
    assert TokenSmoothing(vectors=str(path)).files == (path, tmp_path / "vocab.txt")
    assert TokenSmoothing(vectors=str(glove(tmp_path))).files == (tmp_path / "glove.txt",)


def test_a_vector_belongs_to_one_token(tmp_path: Path) -> None:
    path = glove(tmp_path)
    _, there = read_vectors(path, ["The", "the", "CAT", "Cat", "sat"])
    assert there.tolist() == [False, True, True, False, True]


def test_words_with_blanks_doubled_words_and_broken_ones(tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(b"the 1 0\n. . . 5 5\nthe 0 1\n\xff\xfe 1 1\n\nsat 0 0\n")
    vectors, there = read_vectors(path, ["the", "sat", ". . ."])
    assert vectors[0].tolist() == [1, 0]  # the first one counts
    assert there.tolist() == [True, False, True]  # zeros have no direction


def test_zeros_are_no_vector(tmp_path: Path) -> None:
    """Another spelling, or a later line, has one."""
    path = tmp_path / "vectors.txt"
    path.write_text("The 0 0\nthe 1 0\na 0 0\na 0 2\n")
    vectors, there = read_vectors(path, ["The", "a", "b"])
    assert there.tolist() == [True, True, False]
    assert vectors.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"the 1 0\ncat 1\n", r"odd.txt:2: a word and 2 numbers wanted, with blanks between them, 2 cells found"),
        (b"the,1,0\n", "odd.txt:1: a word and 1 number wanted, with blanks between them, 1 cells found"),
        (gzip.compress(b"the 1 0\n", mtime=0), "odd.txt: is no UTF-8 text; gzipped files end in .gz"),
        ("the 1 0\n".encode("utf-16"), "odd.txt: is no UTF-8 text"),
        (b"the 1 x\n", r"odd.txt:1: the vector of 'the' isn't made of numbers"),
        (b"the 1 nan\n", "the vector of 'the' has a number that isn't finite"),
        (b"the 1e200 1e200\n", "the vector of 'the' has a number that isn't finite, or is too large"),
        (b"dog 1 0\n", "none of the 2 tokens of the data has a vector"),
        (b"", "none of the 2 tokens"),
    ],
)
def test_bad_text_files_are_refused(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=word):
        read_vectors(path, ["the", "cat"])


def test_bad_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; vectors names a file"):
        read_vectors(tmp_path, ["the", "cat"])
    path = tmp_path / "odd.npz"
    for arrays, word in (
        ({"x": np.array(["a", {}], dtype=object)}, "not a sound .npz of plain arrays"),  # nothing is unpickled
        ({"x": np.zeros((2, 3))}, "has no array of strings, and there is no vocab.txt beside it"),
        ({"w": np.array(["a", "b"]), "x": np.zeros((3, 3))}, "no matrix of numbers with a row for each of the 2"),
    ):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=word):
            read_vectors(path, ["a"])
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match="not a sound"):
        read_vectors(path, ["a"])
    broken = tmp_path / "odd.gz"
    broken.write_bytes(gzip.compress(b"a 1 2\n" * 99)[:20])
    with pytest.raises(InputError, match="damaged or cut off"):
        read_vectors(broken, ["a"])
    with pytest.raises(InputError, match='no such file; vectors names one, or is "model"'):
        read_vectors(tmp_path / "nowhere.txt", ["a"])


def test_pieces_are_looked_up_where_they_begin_a_word() -> None:
    texts = ["the größer lower lower lower lowest the the größer größer"] * 3
    coder = TextCoder.learn(texts, "bpe", size=300)
    codec = PairCodec(None, coder)
    names = codec.token_names()
    found = {name: forms for name, forms in zip(names, spellings(names, special(codec))) if forms}
    assert found["Ġthe"] == ("the",)
    assert found["ĠgrÃ¶ÃŁer"] == ("größer",)
    assert not {name for name in found if not name.startswith("Ġ")}
    assert spellings(["▁The", "re"]) == [("The", "the"), ()]
    assert spellings(["The", "re"]) == [("The", "the"), ("re",)]


def test_special_tokens_are_known_by_their_place() -> None:
    def codec(names: tuple[str, ...], **more: Any) -> Any:
        return SimpleNamespace(symbols=Symbols(0, 1, **more), token_names=lambda: names)

    assert special(codec(("<pad>", "<bos>", "<unk>", "a"), eos=None, banned=(0, 1, 2))) == {0, 1, 2}
    assert special(codec(("<pad>", "<bos>", "<eos>", "!", "<unk>"), eos=2)) == {0, 1, 2}
    assert special(codec(("a", "b", "c", "d", "e", "f"), eos=5, banned=(4,))) == {0, 1, 4, 5}


def test_co_occurrence_against_counting_by_hand() -> None:
    generator, size, without = np.random.default_rng(0), 9, {2, 7}
    sequences = [generator.integers(0, 9, generator.integers(0, 12)).tolist() for _ in range(40)]
    counts = np.zeros((size, size))
    for ids in sequences:
        for i, a in enumerate(ids):
            for j, b in enumerate(ids):
                if 0 < abs(i - j) <= WINDOW and not {a, b} & without:
                    counts[a, b] += 1
    n = counts.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        table = np.nan_to_num(np.maximum(0, np.log(counts * counts.sum() / np.outer(n, n))))
    values, directions = np.linalg.eigh(table)
    expected = directions * np.sqrt(np.abs(values))  # U √S of a symmetric matrix
    expected /= np.maximum(1e-12, np.linalg.norm(expected, axis=1, keepdims=True))
    vectors, there = co_occurrence(sequences, size, without)
    assert there.tolist() == [i not in without for i in range(size)]
    kept = there.nonzero().squeeze(1)
    cosines = vectors[kept] @ vectors[kept].T
    torch.testing.assert_close(
        cosines.double(), torch.from_numpy(expected @ expected.T)[kept][:, kept], atol=1e-5, rtol=0
    )


def test_co_occurrence_of_a_large_vocabulary_is_reduced_and_repeats_itself() -> None:
    generator = np.random.default_rng(0)
    topics = generator.integers(0, 10, 400)
    sequences = [generator.permutation(40)[:8] + 40 * topic for topic in topics]  # ten sets of 40 words
    (vectors, there), (again, _) = (co_occurrence(sequences, 500) for _ in range(2))
    assert torch.equal(vectors, again)
    assert vectors.shape == (500, 100)
    assert there.sum() == len(set(np.concatenate(sequences).tolist()))
    cosines = vectors[:400] @ vectors[:400].T
    same = torch.arange(400) // 40
    inside = same.unsqueeze(1) == same
    assert cosines[inside].mean() > 0.3 > 0.05 > cosines[~inside].abs().mean()


def test_words_that_the_largest_singular_values_pass_over_have_no_vector() -> None:
    """Of a hundred pairs that stand together and nowhere else and one group, the group comes last: what is left of it is rounding."""
    pairs = [[10 + 2 * i, 11 + 2 * i] for i in range(100)]
    group = [[a, b] for a in (3, 4, 5) for b in (6, 7, 8, 9)] * 40
    vectors, there = co_occurrence(pairs + group, 210)
    assert not there[:10].any()
    assert not vectors[:10].any()
    assert there[10:].all()
    torch.testing.assert_close(vectors[10:].norm(dim=1), torch.ones(200))
    alone, there = co_occurrence(group, 210)
    assert there[3:10].all()
    alike = alone[3:10] @ alone[3:10].T
    assert alike[:3, :3].min() > 0.999  # 3, 4 and 5 keep the same company
    assert alike[:3, 3:].abs().max() < 1e-5


def test_co_occurrence_needs_company() -> None:
    with pytest.raises(InputError, match="none were given"):
        co_occurrence([], 5)
    with pytest.raises(InputError, match="prefers any company"):
        co_occurrence([[3], [4]], 5)


def some_vectors(size: int = 30, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    vectors = torch.randn(size, 4, dtype=torch.float64)
    there = torch.rand(size) < 0.8
    vectors[~there] = 0
    return torch.nn.functional.normalize(vectors, dim=1), there


def dense(vectors: torch.Tensor, there: torch.Tensor, tau: float) -> torch.Tensor:
    """r(w | y) [V,V] by the formula."""
    logits = (-(1 - vectors @ vectors.T) / tau).masked_fill(~(there & there.unsqueeze(1)), -torch.inf)
    logits.fill_diagonal_(0.0)
    return logits.softmax(dim=1)


@pytest.mark.parametrize("count", [1, 3, 20, 30, 100, None])
@pytest.mark.parametrize("tau", [0.01, 0.3, 2.0, float("inf")])
def test_near_words_and_their_weights_are_those_of_the_whole_table(
    count: int | None, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing_targets, "CELLS", 100)  # a few words at a time
    vectors, there = some_vectors()
    table = dense(vectors, there, tau)
    words = torch.tensor([5, 3, 3, 29, 0])
    near = near_words(vectors, there, words, tau, count)
    assert near.tokens.shape == (5, 30 if count is None else min(count, 30))
    assert torch.equal(near.tokens[:, 0].long(), words)
    torch.testing.assert_close(near.weights, table[words].gather(1, near.tokens.long()) * (near.weights > 0))
    worst = near.weights.amin(dim=1, keepdim=True)
    listed = torch.zeros_like(table[words], dtype=torch.bool).scatter(1, near.tokens.long(), True)
    assert ((table[words] <= worst + 1e-12) | listed).all()  # nobody nearer is left out


@pytest.mark.parametrize("count", [1, 4, 100])
def test_the_table_of_all_words_is_that_of_each(count: int) -> None:
    vectors, there = some_vectors()
    table = near_table(vectors, there, 0.5, count)
    each = near_words(vectors, there, torch.arange(30), 0.5, count)
    width = min(count, int(there.sum()))
    assert table.tokens.shape == table.weights.shape == (30, width)
    assert torch.equal(table.tokens, each.tokens[:, :width])
    torch.testing.assert_close(table.weights, each.weights[:, :width])
    assert not each.weights[:, width:].any()


@pytest.mark.parametrize("count", [1, 3, 20, None])
def test_the_sparse_target_is_the_dense_one_within_the_rest(count: int | None) -> None:
    vectors, there = some_vectors()
    table, words = dense(vectors, there, 0.5), torch.arange(30)
    near = near_words(vectors, there, words, 0.5, count)
    found, rest, entropy = near_target(near, there, torch.float64)
    made = torch.zeros(30, 30, dtype=torch.float64).scatter_add(1, found.tokens, found.weights)
    if found.rest is not None:
        assert found.share is not None
        made = made + found.rest.unsqueeze(1) * found.share
    torch.testing.assert_close(made.sum(dim=1), torch.ones(30, dtype=torch.float64))
    listed = torch.zeros_like(made, dtype=torch.bool).scatter(1, found.tokens, True)
    torch.testing.assert_close(made[listed], table[listed])
    torch.testing.assert_close(rest, (table * ~listed).sum(dim=1), atol=1e-12, rtol=1e-9)
    apart = (made - table).abs().sum(dim=1) / 2  # total variation
    assert (apart <= rest + 1e-12).all()
    assert (made >= -1e-15).all()
    assert not made[:, ~there][there].any()
    torch.testing.assert_close(entropy, -torch.special.xlogy(made, made).sum(dim=1))
    if count is None:
        torch.testing.assert_close(made, table)
    else:
        assert apart.max() > 1e-4


def test_a_vocabulary_of_32000_needs_little_memory() -> None:
    """By the allocator, while the near words of some are found; and the table of all."""
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(32_000, 100), dim=1)
    there = torch.ones(32_000, dtype=torch.bool)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        near = near_words(vectors, there, torch.arange(600), 0.05, 100)
    held = most = 0
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    table = (near.tokens.nbytes + near.weights.nbytes) * 32_000 // 600
    assert most + table + vectors.nbytes < 200e6
    assert table < 30e6


@pytest.mark.slow
@pytest.mark.skipif("UNFORCED_DATA" not in os.environ, reason="needs data sets under UNFORCED_DATA")
def test_staged_glove_knows_what_is_alike() -> None:
    names = ("<pad>", "<bos>", "<eos>", "<unk>", "Dog", "cat", "house", "man", "woman", "xyzzyx", ".")
    path = "$UNFORCED_DATA/glove_en_20k/glove_top20k.npz"
    vectors, there = read_vectors(path, names, SPECIAL)
    assert vectors.shape == (11, 100)
    assert there.tolist() == [False] * 4 + [True] * 5 + [False, True]
    near = near_words(vectors, there, torch.tensor([4, 7]), 0.1, 2)
    assert near.tokens[:, 1].tolist() == [5, 8]  # dog: cat; man: woman


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    rng = np.random.default_rng(0)
    np.savez_compressed(path, words=np.array([f"w{i}" for i in range(500)]), vectors=rng.random((500, 20)))
    whole = path.read_bytes()
    for place in range(2000, len(whole) - 2000, 7000):
        path.write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
        with pytest.raises(InputError, match=r"not a sound \.npz"):
            read_vectors(path, ["w1", "w2"])
