"""Vectors of the tokens of a vocabulary: read from a file, or from co-occurrence in the training data.

Both return a matrix [V,E] of unit vectors, and a mask [V] of the tokens that have one. Other rows are zero.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.tasks.files import read_lines, read_npz

PIECE_MARKS = ("Ġ", "▁")  # the blank before the first piece of a word, in subword vocabularies
WORD_END = "</w>"  # after the last piece of a word, in others
WORDS_FILE = "vocab.txt"  # words of an .npz file without an array of words
WINDOW = 2  # neighbours on either side; wider windows find words of a topic, not similar words
WIDTH = 100  # of vectors from co-occurrence
ROUNDING = 1e-6  # shorter vectors, relative to the longest one, have no direction

# Names of tokens


def spellings(names: Sequence[str], excluded: Collection[int] = ()) -> list[tuple[str, ...]]:
    """Return how each token may be spelled in a file of vectors: as it is, then in lower case.

    Of subwords, only pieces that begin a word are looked up, without their mark. If ends of words are marked instead,
    pieces that end a word are. Other pieces and excluded ids have no spelling.

    >>> spellings(["<eos>", "House", "a"], excluded=[0])
    [(), ('House', 'house'), ('a',)]
    >>> spellings(["<eos>", "ĠHouse", "a", "ĠgrÃ¶ÃŁer"], excluded=[0])
    [(), ('House', 'house'), (), ('größer',)]
    >>> spellings(["<eos>", "House</w>", "a", "a</w>"], excluded=[0])
    [(), ('House', 'house'), (), ('a',)]
    """
    first = sum(name.startswith(PIECE_MARKS) and len(name) > 1 for name in names)
    last = sum(name.endswith(WORD_END) and name != WORD_END for name in names)
    word_of: Callable[[str], str] = str
    # ordinary words may begin with a mark, too: pieces are many, or have the mark alone among them
    if first > 0 and (any(mark in names for mark in PIECE_MARKS) or first * 10 >= len(names)):
        word_of = _begun_word
    elif last * 10 >= len(names) > 0:
        word_of = _ended_word
    words = ["" if id in excluded else word_of(name) for id, name in enumerate(names)]
    return [tuple(dict.fromkeys(form for form in (word, word.lower()) if form)) for word in words]


def _ended_word(piece: str) -> str:
    return piece.removesuffix(WORD_END) if piece.endswith(WORD_END) else ""


def _begun_word(piece: str) -> str:
    if piece.startswith("Ġ"):  # byte-level pieces write each byte as a letter
        from tokenizers import decoders

        return decoders.ByteLevel().decode([piece])[1:]
    return piece[1:] if piece.startswith("▁") else ""


# Files


def read_vectors(path: str | Path, names: Sequence[str], excluded: Collection[int] = ()) -> tuple[Tensor, Tensor]:
    """Read vectors of the tokens with these names. Formats:

    - text, perhaps with ``.gz``: a word and its numbers on a line; the first line may be a header (count and width);
    - ``.npz``: an array of strings and a matrix with a row for each. Without the strings, a file ``vocab.txt`` next to
      it has a word on each line. The widest of several matrices is read.

    ``~`` and ``$VARIABLE`` in the path are replaced. Vectors of zeros do not count; the first of several vectors of a
    word does. Two tokens never share a vector: it belongs to the one spelled exactly so, else to the first.
    """
    if not any(names):
        raise InputError("word vectors are looked up by name, but these tokens have no names: pass a tokenizer")
    place, wanted = locate(str(path)), spellings(names, excluded)
    known = {form for forms in wanted for form in forms}
    found: dict[str, np.ndarray] = {}
    for word, vector in _npz_rows(place) if place.suffix == ".npz" else _text_rows(place, known):
        if word in known and word not in found and np.any(vector):
            found[word] = vector
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    for rank in range(2):  # exact spellings first: "The" has the vector of "the" only if the data has no "the"
        for id, forms in enumerate(wanted):
            if id not in chosen and rank < len(forms) and forms[rank] in found and forms[rank] not in taken:
                chosen[id] = forms[rank]
                taken.add(forms[rank])
    if len(chosen) < 2:
        raise InputError(f"{place}: {len(chosen)} of the {len(names)} tokens of the data have a vector, not at least 2")
    matrix = np.stack([np.asarray(found[word], dtype=np.float64) for word in chosen.values()])
    with np.errstate(over="ignore"):
        finite = np.isfinite(np.linalg.norm(matrix, axis=1))
    if not finite.all():
        word = list(chosen.values())[int(finite.argmin())]
        raise InputError(f"{place}: the vector of {word!r} is not finite or too large")
    vectors = torch.zeros(len(names), matrix.shape[1])
    vectors[list(chosen)] = unit_rows(torch.from_numpy(matrix))[0].float()
    return vectors, vectors.any(dim=1)


def vector_files(path: str) -> tuple[Path, ...]:
    """Return the files from which vectors and their words are read."""
    place = locate(path)
    words = place.with_name(WORDS_FILE)
    return (place, words) if place.suffix == ".npz" and words.is_file() else (place,)


def locate(path: str) -> Path:
    """Return the file of a path with ``~`` and ``$VARIABLE``."""
    full = os.path.expanduser(os.path.expandvars(path))
    if not os.path.isfile(full):
        why = "no such file; vectors must be a file, model, co-occurrence or uniform"
        raise InputError(f"{full}: {'an environment variable is not set' if '$' in full else why}")
    return Path(full)


def _text_rows(path: Path, known: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the known words of a text file with their vectors."""
    width = 0
    for number, line in read_lines(path):
        line = line.replace("\t", " ").rstrip(" ")
        if number == 1:
            cells = line.split(" ")
            header = len(cells) == 2 and all(cell.isdecimal() for cell in cells)
            width = int(cells[1]) if header else max(1, len(cells) - 1)
            if header:
                continue
        word, *cells = line.rsplit(" ", width)  # a word may contain blanks
        if line and len(cells) != width:
            raise InputError(f"{path}:{number}: expected a word and {width} numbers, separated by blanks")
        if word.strip(" ") in known:
            try:
                yield word.strip(" "), np.array(cells, dtype=np.float64)
            except ValueError:
                raise InputError(f"{path}:{number}: the vector of {word!r} has a cell that is no number") from None


def _npz_rows(path: Path) -> Iterable[tuple[str, np.ndarray]]:
    arrays = read_npz(path).values()
    words = next((array.tolist() for array in arrays if array.ndim == 1 and array.dtype.kind == "U"), None)
    if words is None:
        words = [line.strip(" ") for _, line in read_lines(path.with_name(WORDS_FILE))]
    matrices = [array for array in arrays if array.ndim == 2 and len(array) == len(words) and array.dtype.kind in "fiu"]
    if not matrices:
        raise InputError(f"{path}: no matrix of numbers has a row for each of the {len(words)} words")
    return zip(words, max(matrices, key=lambda matrix: matrix.shape[1]))


def unit_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows scaled to length 1, and a mask of those that are not zero.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]), tensor([ True, False]))
    """
    lengths = matrix.norm(dim=1, keepdim=True)
    return matrix / torch.where(lengths > 0, lengths, 1.0), lengths.squeeze(1) > 0


# Co-occurrence


def co_occurrence(targets: Iterable[Sequence[int]], size: int, excluded: Collection[int] = ()) -> tuple[Tensor, Tensor]:
    """Build vectors of ``size`` tokens from how often they are neighbours in the targets (Levy and Goldberg 2014).

    With n(v, w) the number of times that v and w are at most `WINDOW` places apart, the matrix of
    max(0, log n(v, w) n / (n(v) n(w))) is reduced to its `WIDTH` largest singular values: rows of U √S. Excluded ids
    are not counted. They have no vector, nor have tokens that do not occur or vanish in the reduction.

    >>> targets = [[0, 2, 1], [0, 3, 1], [1, 2, 0], [1, 3, 0], [4, 5], [5, 4]]  # 2 and 3 have equal contexts
    >>> vectors, _ = co_occurrence(targets, 6)
    >>> bool(vectors[2] @ vectors[3] > 0.99), bool(vectors[2] @ vectors[4] < 0.01)
    (True, True)
    """
    from scipy.sparse import coo_matrix, diags_array

    lists = [np.asarray(target, dtype=np.int64) for target in targets]
    if not any(map(len, lists)):
        raise InputError('vectors "co-occurrence" are counted in training examples, and none were given')
    row = np.concatenate([np.pad(ids, (0, WINDOW), constant_values=-1) for ids in lists])  # a gap after each target
    row[np.isin(row, list(excluded))] = -1
    counts = coo_matrix((size, size)).tocsr()
    for apart in range(1, WINDOW + 1):
        left, right = row[:-apart], row[apart:]
        both = (left >= 0) & (right >= 0)
        ones = np.ones(int(both.sum()))
        counts = counts + coo_matrix((ones, (left[both], right[both])), shape=(size, size)).tocsr()
    counts = counts + counts.T
    sums = np.asarray(counts.sum(axis=1)).ravel()
    inverse = diags_array(np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0))
    table = (inverse @ counts @ inverse).tocsr()
    table.data = np.maximum(0.0, np.log(table.data * sums.sum()))
    table.eliminate_zeros()
    if not table.nnz:
        raise InputError('vectors "co-occurrence" need tokens that prefer some neighbours: these targets have none')
    vectors = _reduce(table, min(WIDTH, size))
    lengths = np.linalg.norm(vectors, axis=1)
    vectors[lengths <= ROUNDING * lengths.max()] = 0.0
    return unit_rows(torch.from_numpy(vectors).float())


def _reduce(table: Any, width: int) -> np.ndarray:
    """Return U √S of the largest singular values of a sparse matrix."""
    if width >= min(table.shape) // 2:
        u, s, _ = np.linalg.svd(table.toarray())
    else:
        from scipy.sparse.linalg import svds

        u, s, _ = svds(table, k=width, v0=np.ones(table.shape[0]))
    keep = s > 1e-9 * s.max() if s.max() > 0 else s > 0
    return np.asarray((u * np.sqrt(s))[:, keep][:, :width])
