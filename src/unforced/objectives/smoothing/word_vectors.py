"""Vectors for the tokens of a vocabulary: read from a file, or made from how tokens keep company in the training data.

Both give a matrix [V,E] of unit vectors and which tokens have one [V]; the others have a row of zeros.
"""

import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError

UNKNOWN = "<unk>"
RESERVED = ("<pad>", "<bos>", "<eos>", UNKNOWN)  # the names that a vocabulary's first ids may have
BLANKS = ("Ġ", "▁")  # what stands for the blank before a word's first piece, in subword vocabularies
CLOSED = "</w>"  # what stands behind a word's last piece, in others
BINARY = (".bin", ".bin.gz", ".npy", ".pt", ".pkl", ".model", ".kv")  # what word vectors are often kept in
BESIDE = "vocab.txt"  # where the words of a .npz file are that has none in it
LOST = "\ufffd"  # what bytes come to that are no UTF-8
WINDOW = 2  # tokens on either side that keep company with one: a wider one finds words that go together, not ones alike
WIDTH = 100  # of vectors made from co-occurrence
ROUNDING = 1e-6  # of the longest of these: what is shorter has no direction


def special(codec: Any) -> frozenset[int]:
    """The ids that stand for no word: banned ones, the end symbol, and reserved names at the front (the unknown word).

    A codec whose tokenizer has names of its own for them says which they are by ``special_ids``.

    >>> from types import SimpleNamespace
    >>> from unforced.types import Symbols
    >>> names = ("<pad>", "<bos>", "<eos>", "<unk>", "<eos>", "a")  # the second <eos> is a word of the data
    >>> codec = SimpleNamespace(symbols=Symbols(0, 1, 2, (0, 1)), token_names=lambda: names)
    >>> sorted(special(codec))
    [0, 1, 2, 3]
    """
    symbols = codec.symbols
    found = {*symbols.banned, symbols.pad, symbols.bos, *getattr(codec, "special_ids", ())} | ({symbols.eos} - {None})
    return frozenset(found) | reserved(codec).keys() | unused(codec)


def reserved(codec: Any) -> dict[int, str]:
    """The ids at the front of a vocabulary that have reserved names, each of these once, and the names."""
    found: dict[int, str] = {}
    names = codec.token_names()[: len(RESERVED)] if hasattr(codec, "token_names") else ()
    for id, name in enumerate(names):
        if name not in RESERVED or name in found.values():
            break
        found[id] = name
    return found


def wordless(codec: Any) -> frozenset[int]:
    """The ids that hold no word's place: ``special`` ones but the unknown word, which stands for some word. A codec whose tokenizer
    has a name of its own for that says by ``unknown_id`` which it is; where it also pads, starts or ends outputs, it is no word.

    >>> from types import SimpleNamespace
    >>> from unforced.types import Symbols
    >>> names = ("<pad>", "<bos>", "<eos>", "<unk>", "a")
    >>> codec = SimpleNamespace(symbols=Symbols(0, 1, 2, (0, 1)), token_names=lambda: names)
    >>> sorted(wordless(codec))
    [0, 1, 2]
    """
    symbols = codec.symbols
    unknown = {id for id, name in reserved(codec).items() if name == UNKNOWN}
    return special(codec) - ((unknown | {getattr(codec, "unknown_id", None)}) - {symbols.pad, symbols.bos, symbols.eos})


def unused(codec: Any) -> frozenset[int]:
    """The ids that no output has: banned ones, padding, the start symbol unless it ends outputs too, and those without a name.

    >>> from types import SimpleNamespace
    >>> from unforced.types import Symbols
    >>> codec = SimpleNamespace(symbols=Symbols(0, 1, 2, (0, 1)), token_names=lambda: ("<pad>", "<bos>", "<eos>", "a", ""))
    >>> sorted(unused(codec))
    [0, 1, 4]
    """
    symbols = codec.symbols
    found = set(symbols.banned) | ({symbols.pad, symbols.bos} - {symbols.eos})
    names = codec.token_names() if hasattr(codec, "token_names") else ()
    nameless = {id for id, name in enumerate(names) if not name} if any(names) else set()  # or names aren't known
    return frozenset(found | nameless)


def spellings(names: Sequence[str], without: Collection[int] = ()) -> list[tuple[str, ...]]:
    """How each token may be spelt in a file of word vectors, the best spelling first; nothing for the ids ``without``.

    A word is looked up as it is, then in lower case. In a vocabulary of subwords only pieces that begin a word are looked
    up, without the mark of their blank: a piece from within a word means nothing on its own, whatever it looks like. Where
    words' ends are marked instead, those that end one are, since nothing tells a whole word from an ending. ("hou@@" and
    "##se" are no words, and no file has them.)

    >>> spellings(["<eos>", "House", "a"], without=[0])
    [(), ('House', 'house'), ('a',)]
    >>> spellings(["<eos>", "ĠHouse", "a", "ĠgrÃ¶ÃŁer"], without=[0])
    [(), ('House', 'house'), (), ('größer',)]
    >>> spellings(["<eos>", "House</w>", "a", "a</w>"], without=[0])
    [(), ('House', 'house'), (), ('a',)]
    """
    begun = sum(name.startswith(BLANKS) and len(name) > 1 for name in names)
    closed = sum(name.endswith(CLOSED) and name != CLOSED for name in names)
    word_of: Callable[[str], str] = str
    # a word may begin with such a letter, too; but none is the mark alone, and not many do
    if begun > 0 and (any(mark in names for mark in BLANKS) or begun * 10 >= len(names)):
        word_of = _begun
    elif closed * 10 >= len(names) > 0:
        word_of = _closed
    found = []
    for id, name in enumerate(names):
        word = "" if id in without else word_of(name)
        found.append(tuple(dict.fromkeys(form for form in (word, word.lower()) if form)))
    return found


def _closed(piece: str) -> str:
    """The word that a piece ends, or nothing."""
    return piece.removesuffix(CLOSED) if piece.endswith(CLOSED) else ""


def _begun(piece: str) -> str:
    """The word that a piece begins, or nothing."""
    if piece.startswith("Ġ"):  # pieces of bytes, each written as a letter
        from tokenizers import decoders

        return decoders.ByteLevel().decode([piece])[1:]
    return piece[1:] if piece.startswith("▁") else ""


def read_vectors(path: str | Path, names: Sequence[str], without: Collection[int] = ()) -> tuple[Tensor, Tensor]:
    """Vectors of the tokens with these names, from a file in one of the usual formats:

    - text, perhaps with ``.gz``: a word and its numbers a line, with (word2vec) or without (GloVe) a first line of the
      number of words and of their width;
    - ``.npz``: an array of strings and a matrix with a row for each; without the strings, a file ``vocab.txt`` beside it
      has a word a line. Of several matrices the widest is taken.

    ``~`` and ``$VARIABLE`` in the path are replaced. Only vectors of tokens that occur are kept in memory. A vector of
    zeros is none, and of several for one word the first counts. No two tokens get the same one, or no temperature could tell
    them apart: it belongs to the one that is spelt so, else to the first. Raises ``InputError`` if fewer than two tokens have one.
    """
    place = located(str(path))
    wanted = spellings(names, without)
    known = {form for forms in wanted for form in forms}
    rows = _from_npz(place) if place.suffix == ".npz" else _from_text(place, known)
    found: dict[str, np.ndarray] = {}
    taken: set[str] = set()
    for word, vector in rows:
        if word in known and word not in found and LOST not in word and np.any(vector):
            found[word] = vector
    chosen: dict[int, str] = {}
    for rank in range(2):  # spelt alike first: "The" has the vector of "the" only if the data has no "the"
        for id, forms in enumerate(wanted):
            if id not in chosen and rank < len(forms) and forms[rank] in found and forms[rank] not in taken:
                chosen[id] = forms[rank]
                taken.add(forms[rank])
    if not chosen:
        raise InputError(f"{place}: none of the {len(names)} tokens of the data has a vector in this file.")
    matrix = np.stack([np.asarray(found[match], dtype=np.float64) for match in chosen.values()])
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(matrix, axis=1)
    for match, length in zip(chosen.values(), lengths):
        if not np.isfinite(length):
            raise InputError(f"{place}: the vector of {match!r} has a number that isn't finite, or is too large.")
    if len(chosen) < 2:
        raise InputError(
            f"{place}: only one of the {len(names)} tokens of the data has a vector in this file, and nearness takes two."
        )
    vectors = torch.zeros(len(names), matrix.shape[1])
    vectors[list(chosen)] = units(torch.from_numpy(matrix))[0].float()
    return vectors, vectors.any(dim=1)


def located(path: str) -> Path:
    """The file of vectors that a path with ``~`` and ``$VARIABLE`` names."""
    full = os.path.expanduser(os.path.expandvars(path))
    if "$" in full and not os.path.isfile(full):
        name = full[full.index("$") + 1 :].split("/")[0].strip("{}")
        raise InputError(f"{path}: the environment variable {name} is not set.")
    if os.path.isdir(full):
        raise InputError(f"{full}: is a folder; vectors names a file of word vectors.")
    if not os.path.isfile(full):
        raise InputError(
            f'{full}: there is no such file; vectors names one, or is "model", "co-occurrence" or "uniform".'
        )
    if full.endswith(BINARY):
        raise InputError(
            f"{full}: binary vectors are read from .npz files alone; write these as text, a word and its numbers a line."
        )
    return Path(full)


def sources(path: str) -> tuple[Path, ...]:
    """The files that vectors and their words are read from."""
    place = located(path)
    beside = place.with_name(BESIDE)
    return (place, beside) if place.suffix == ".npz" and beside.is_file() else (place,)


def _from_text(path: Path, known: Collection[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The words of a text file that are known, with their vectors."""
    width = promised = None
    rows = 0
    for number, line in enumerate(_lines(path), 1):
        cells = [cell for cell in line.split(" ") if cell]  # other blanks may be part of words
        if not cells:
            continue
        if width is None:
            if len(cells) == 2 and cells[0].isdecimal() and cells[1].isdecimal():
                promised, width = int(cells[0]), int(cells[1])
                continue
            width = len(cells) - 1
        rows += 1
        if len(cells) == width and line.startswith(" "):
            continue  # the vector of a blank
        if width < 1 or len(cells) <= width:
            wanted = f"{max(width, 1)} number{'s' * (width > 1)}"
            raise InputError(
                f"{path}:{number}: a word and {wanted} wanted, with blanks between them, {len(cells)} cells found."
            )
        word = " ".join(cells[: len(cells) - width])  # some files have words with blanks in them
        if len(cells) > width + 1 and cells[0] in known and all(map(_is_number, cells[1:])):
            raise InputError(f"{path}:{number}: a word and {width} numbers wanted, {len(cells)} cells found.")
        if word in known:
            try:
                yield word, np.array(cells[-width:], dtype=np.float64)
            except ValueError:
                raise InputError(f"{path}:{number}: the vector of {word!r} isn't made of numbers.") from None
    if promised is not None and rows < promised:
        raise InputError(f"{path}: is cut off: its first line promises {promised} words, and it has {rows}.")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _lines(path: Path) -> Iterator[str]:
    """Lines without their ends. A word that isn't UTF-8 is nobody's."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as handle:
            for number, raw in enumerate(handle):
                if number == 0 and raw.startswith((b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"PK\x03\x04")):
                    raise InputError(
                        f"{path}: is no UTF-8 text; gzipped files end in .gz, and archives of arrays in .npz."
                    )
                text = raw.decode("utf-8", errors="replace")
                yield text.removeprefix("\ufeff").replace("\t", " ").rstrip(" \r\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip data is damaged or cut off ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: the file can't be read ({error.strerror or error}).") from None


def _from_npz(path: Path) -> Iterable[tuple[str, np.ndarray]]:
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip archive")
        with np.load(path, allow_pickle=False) as arrays:
            loaded: list[np.ndarray] = [arrays[name] for name in arrays.files]
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        why = "an array of objects" if "allow_pickle" in str(error) else error
        raise InputError(f"{path}: the file is not a sound .npz of plain arrays ({why}).") from None
    words = next((array.tolist() for array in loaded if array.ndim == 1 and array.dtype.kind in "US"), None)
    beside = path.with_name(BESIDE)
    if words is None and not beside.is_file():
        raise InputError(f"{path}: has no array of strings, and there is no {beside.name} beside it.")
    if words is None:
        words = [line.strip(" ") for line in _lines(beside)]
    words = [word.decode("utf-8", errors="replace") if isinstance(word, bytes) else word for word in words]
    matrices = [array for array in loaded if array.ndim == 2 and array.dtype.kind in "fiu"]
    matrices = [matrix for matrix in matrices if len(matrix) == len(words)]
    if not matrices:
        raise InputError(f"{path}: has no matrix of numbers with a row for each of the {len(words)} words.")
    widest = max(range(len(matrices)), key=lambda number: matrices[number].shape[1])
    return zip(words, matrices[widest])


def units(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The rows at length one, and which of them are not zero.

    >>> units(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    (tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]]), tensor([ True, False]))
    """
    lengths = matrix.norm(dim=1, keepdim=True)
    there = lengths.squeeze(1) > 0
    return matrix / torch.where(lengths > 0, lengths, 1.0), there


def co_occurrence(
    sequences: Iterable[Sequence[int]], size: int, without: Collection[int] = ()
) -> tuple[Tensor, Tensor]:
    """Vectors from how often tokens stand near each other in sequences of ids (Levy & Goldberg 2014).

    With n(v, w) how often v and w are at most ``WINDOW`` places apart, the matrix of max(0, log n(v, w) n / (n(v) n(w)))
    is reduced to its ``WIDTH`` largest singular values: rows of U √S. Ids ``without`` a meaning keep no company and get no
    vector, and neither do tokens that never occur, or of whose company the largest singular values say nothing. Tokens that
    keep the same company exactly have the same vector.

    >>> same = [[0, 2, 1], [0, 3, 1], [1, 2, 0], [1, 3, 0], [4, 5], [5, 4]]  # 2 and 3 are used alike
    >>> vectors, _ = co_occurrence(same, 6)
    >>> bool(vectors[2] @ vectors[3] > 0.99), bool(vectors[2] @ vectors[4] < 0.01)
    (True, True)
    """
    from scipy.sparse import coo_matrix, diags_array

    lists = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    if not any(map(len, lists)):
        raise InputError("co-occurrence is counted in training examples, and none were given.")
    # one long row, with a gap as wide as the window behind every sequence
    row = np.concatenate([np.pad(ids, (0, WINDOW), constant_values=-1) for ids in lists])
    row[np.isin(row, list(without))] = -1
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
        raise InputError("no token of the training examples prefers any company, so co-occurrence says nothing.")
    found = _reduced(table, min(WIDTH, size))
    lengths = np.linalg.norm(found, axis=1)
    found[lengths <= ROUNDING * lengths.max()] = 0.0  # apart from all that the largest values tell of
    return units(torch.from_numpy(found).float())


def _reduced(table: Any, width: int) -> np.ndarray:
    """U √S of the largest singular values of a sparse matrix."""
    if width >= min(table.shape) // 2:
        u, s, _ = np.linalg.svd(table.toarray())
    else:
        from scipy.sparse.linalg import svds

        u, s, _ = svds(table, k=width, v0=np.ones(table.shape[0]))
    keep = s > 1e-9 * s.max() if s.max() > 0 else s > 0
    return (u * np.sqrt(s))[:, keep][:, :width]
