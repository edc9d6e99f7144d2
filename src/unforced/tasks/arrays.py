"""A strict reader of ``.npz`` files: plain arrays only, nothing pickled, no decompression bombs."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unforced.errors import InputError

MAX_BYTES = 4 * 2**30


def read_npz(path: str | Path, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays ``names`` of a file, and those of ``optional`` that it has.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.npz"
    >>> np.savez(path, x=np.arange(3), y=np.zeros(2))
    >>> read_npz(path, ["x"])
    {'x': array([0, 1, 2])}
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
        missing = [name for name in names if name not in sizes]
        if missing:
            found = ", ".join(sorted(sizes)) or "none"
            raise InputError(f"{path}: the array {missing[0]!r} is missing (arrays found: {found}).")
        wanted = [*names, *(name for name in optional if name in sizes)]
        if sum(sizes[name] for name in wanted) > MAX_BYTES:
            raise InputError(f"{path}: the arrays unpack to more than {MAX_BYTES} bytes.")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in wanted}
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise InputError(f"{path}: the file is not a sound .npz of plain arrays ({error}).") from None
    except OSError as error:
        raise InputError(f"{path}: the file can't be read ({error.strerror or error}).") from None
