"""Outputs that are pixel arrays, drawn as small PNG pictures inside the page."""

import base64
import difflib
import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from unforced.experiments.comparison import Measure
from unforced.experiments.summary import best_seed, decoders
from unforced.reports.runs import Run


def read_picture(text: str) -> np.ndarray | None:
    """[H,W] or [H,W,3] numbers, where the text is a JSON array of such a shape (channels may also come first).

    >>> read_picture("[[0, 1], [2, 3]]").shape, read_picture("[1, 2]"), read_picture("K AE T")
    ((2, 2), None, None)
    """
    if not text.startswith("[["):
        return None
    try:
        array = np.asarray(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError):
        return None
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 3)
    return array if fits and array.size and np.isfinite(array).all() else None


def tile(pictures: Sequence[np.ndarray], columns: int, top: float) -> np.ndarray:
    """Pictures of one shape side by side in rows, as bytes; ``top`` is the value of full brightness.

    >>> tile([np.ones((2, 2)), np.zeros((2, 2))], columns=2, top=1.0).tolist()
    [[255, 255, 128, 0, 0], [255, 255, 128, 0, 0]]
    """
    height, width = pictures[0].shape[:2]
    lines = -(-len(pictures) // columns)
    shape = (lines * (height + 1) - 1, columns * (width + 1) - 1, *pictures[0].shape[2:])
    sheet = np.full(shape, 128, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        y, x = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[y : y + height, x : x + width] = np.clip(np.rint(255 * picture / (top or 1.0)), 0, 255)
    return sheet


def png(pixels: np.ndarray) -> bytes:
    """[H,W] or [H,W,3] bytes as a PNG file.

    >>> png(np.zeros((1, 1), dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0  # colour, grey
    lines = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in parts)


def data_uri(pixels: np.ndarray) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


# Example outputs: the same sources under every variant, with what differs from the reference marked.

DIFFERING, RANDOM, PICTURES = 8, 4, 40  # how many are shown
LONGEST = 1200  # characters of a text that are shown


class Piece(NamedTuple):
    """A stretch of an output: as in the reference, not in it, or in it and missing here."""

    text: str
    kind: Literal["same", "wrong", "missing"]


class Output(NamedTuple):
    variant: str
    correct: bool
    pieces: list[Piece]
    glue: str  # what stands between pieces


class Shown(NamedTuple):
    """One example; ``picture`` is its source as a data URI where the source is an image."""

    number: int
    source: str
    picture: str | None
    answers: list[str]
    outputs: list[Output]


class Sheet(NamedTuple):
    """Pictures of one variant (or of the references) as one image."""

    label: str
    image: str


class Gallery(NamedTuple):
    """What one decoder gave: texts or sheets of pictures, and which seed of each variant it is from."""

    decoder: str
    seeds: list[tuple[str, int]]
    texts: list[Shown]
    sheets: list[Sheet]


def galleries(runs: Sequence[Run], variants: Sequence[str], split: str, measure: Measure | None) -> list[Gallery]:
    """A gallery for each decoder, from the best development seed of each variant."""
    if measure is None:
        return []
    shown = []
    for decoder in decoders(runs, split):
        chosen = {}
        for variant in variants:
            scored = [run for run in runs if run.label == variant and (split, decoder) in run.scores]
            if scored:
                chosen[variant] = best_seed(scored, decoder, measure) or scored[0]
        if chosen:
            shown.append(_gallery(decoder, chosen, split))
    return shown


def pick(outputs: Sequence[Sequence[str]], differing: int, extra: int) -> list[int]:
    """The first examples whose outputs differ between variants, and a few others by a fixed seed, in order.

    >>> pick([["a", "a"], ["a", "b"], ["c", "c"], ["d", "e"]], differing=1, extra=1)
    [1, 2]
    """
    first = [i for i, row in enumerate(outputs) if len(set(row)) > 1][:differing]
    rest = sorted(set(range(len(outputs))) - set(first))
    return sorted(first + random.Random(0).sample(rest, min(extra, len(rest))))


def mark(output: str, answers: Sequence[str]) -> list[Piece]:
    """The output against the nearest of its answers, by words (by characters where there are no spaces).

    >>> mark("K AE D", ["K AE T S"])
    [Piece(text='K AE', kind='same'), Piece(text='D', kind='wrong'), Piece(text='T S', kind='missing')]
    """
    glue = glue_of(output, *answers)
    units, *golds = (text.split() if glue else list(text) for text in (output, *answers))
    if not answers:
        return [Piece(output, "same")]
    matchers = [(difflib.SequenceMatcher(None, gold, units, autojunk=False), gold) for gold in golds]
    nearest, gold = max(matchers, key=lambda pair: pair[0].ratio())
    pieces = []
    for tag, a, b, c, d in nearest.get_opcodes():
        if tag == "equal":
            pieces.append(Piece(glue.join(units[c:d]), "same"))
            continue
        if d > c:
            pieces.append(Piece(glue.join(units[c:d]), "wrong"))
        if b > a:
            pieces.append(Piece(glue.join(gold[a:b]), "missing"))
    return pieces


def glue_of(*texts: str) -> str:
    """What joins the units of these texts: a space between words, nothing between characters."""
    return " " if any(" " in text for text in texts) else ""


def _gallery(decoder: str, chosen: dict[str, Run], split: str) -> Gallery:
    predictions = {variant: run.predictions(split, decoder) for variant, run in chosen.items()}
    tables = {variant: {row["id"]: row for row in rows} for variant, rows in predictions.items()}
    first = next(iter(predictions.values()))
    ids = [row["id"] for row in first if all(row["id"] in table for table in tables.values())]
    seeds = [(variant, run.seed) for variant, run in chosen.items()]
    sheets = _sheets(tables, ids)
    if sheets:
        return Gallery(decoder, seeds, [], sheets)
    numbers = pick([[table[i]["output"] for table in tables.values()] for i in ids], DIFFERING, RANDOM)
    return Gallery(decoder, seeds, [_show(ids[n], tables) for n in numbers], [])


def _show(number: int, tables: dict[str, dict[int, dict[str, Any]]]) -> Shown:
    row = next(iter(tables.values()))[number]
    source = str(row["source"] if row["source"] is not None else "")
    picture = read_picture(source)
    answers = [str(answer) for answer in row["answers"]]
    short = [shorten(answer) for answer in answers]
    outputs = []
    for variant, table in tables.items():
        text = table[number]["output"]
        pieces = mark(shorten(text), short)
        outputs.append(Output(variant, text in answers, pieces, glue_of(shorten(text), *short)))
    image = None if picture is None else data_uri(tile([picture], 1, float(picture.max())))
    return Shown(number, shorten(source), image, short, outputs)


def _sheets(tables: dict[str, dict[int, dict[str, Any]]], ids: Sequence[int]) -> list[Sheet]:
    """Sheets of the first outputs, where these are pictures of one shape; else nothing."""
    columns = {variant: [table[i]["output"] for i in ids[:PICTURES]] for variant, table in tables.items()}
    first = next(iter(tables.values()))
    answers = [str(first[i]["answers"][0]) if first[i]["answers"] else "" for i in ids[:PICTURES]]
    drawn = {label: [read_picture(text) for text in texts] for label, texts in columns.items()}
    pictures = [picture for column in drawn.values() for picture in column]
    if not pictures or any(p is None for p in pictures) or len({p.shape for p in pictures if p is not None}) > 1:
        return []
    references = [read_picture(text) for text in answers]
    if all(p is not None and p.shape == pictures[0].shape for p in references):  # type: ignore[union-attr]
        drawn = {"reference": references, **drawn}
    top = max(float(p.max()) for column in drawn.values() for p in column if p is not None)
    return [Sheet(label, data_uri(tile([np.asarray(p) for p in column], 8, top))) for label, column in drawn.items()]


def shorten(text: str) -> str:
    """A text of bearable length.

    >>> len(shorten("x" * 5000)) == LONGEST
    True
    """
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
