"""Example outputs of each variant, as marked text or as images."""

import base64
import difflib
import io
import json
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from unforced.experiments.comparison import Comparison
from unforced.experiments.runs import Run
from unforced.experiments.statistics import best_run, decoders

DIFFERING, RANDOM, IMAGES = 8, 4, 40  # examples shown
LONGEST = 1200  # characters of a text


class Piece(NamedTuple):
    """A part of an output compared with its reference."""

    text: str
    kind: Literal["same", "wrong", "missing"]


class VariantOutput(NamedTuple):
    """The output of one variant."""

    variant: str
    correct: bool
    pieces: list[Piece]
    separator: str  # between pieces


class TextExample(NamedTuple):
    """One example with the outputs of all variants."""

    source: str
    image: str | None  # the source as a data URI if it is an image
    answers: list[str]
    outputs: list[VariantOutput]


class Gallery(NamedTuple):
    """The outputs of one decoder: texts or sheets of images."""

    decoder: str
    seeds: list[tuple[str, int]]  # which run of each variant
    texts: list[TextExample]
    sheets: dict[str, str]  # images as data URIs, by variant or "reference"


def galleries(runs: Sequence[Run], variants: Sequence[str], comparison: Comparison) -> list[Gallery]:
    """Return a gallery for each decoder, from the run of each variant with the best development score."""
    found, split = [], comparison.split
    for decoder in decoders(runs, split):
        chosen = {}
        for variant in variants:
            scored = [run for run in runs if run.label == variant and (split, decoder) in run.scores]
            if scored:
                chosen[variant] = best_run(scored, decoder, comparison.measures[0]) or scored[0]
        found.append(_gallery(decoder, chosen, split))
    return found


def _gallery(decoder: str, chosen: dict[str, Run], split: str) -> Gallery:
    seeds = [(variant, run.seed) for variant, run in chosen.items()]
    predictions = {variant: run.predictions(split, decoder) for variant, run in chosen.items()}
    sources, answers, _ = next(iter(predictions.values()))
    outputs = {variant: each.outputs for variant, each in predictions.items()}
    if sheets := _sheets(outputs, answers):
        return Gallery(decoder, seeds, [], sheets)
    texts = []
    for i in pick_examples(list(zip(*outputs.values())), DIFFERING, RANDOM):
        image = read_image(sources[i])
        uri = None if image is None else data_uri(tile([image], 1, float(image.max())))
        references = [shorten(answer) for answer in answers[i]]
        marked = []
        for variant, column in outputs.items():
            output = shorten(column[i])
            pieces = mark_differences(output, references)
            marked.append(VariantOutput(variant, column[i] in answers[i], pieces, separator(output, *references)))
        texts.append(TextExample(shorten(sources[i]), uri, references, marked))
    return Gallery(decoder, seeds, texts, {})


# Texts


def pick_examples(outputs: Sequence[Sequence[str]], differing: int, extra: int) -> list[int]:
    """Return the first examples with different outputs, and some others at random, in order.

    >>> pick_examples([["a", "a"], ["a", "b"], ["c", "c"], ["d", "e"]], differing=1, extra=1)
    [1, 2]
    """
    first = [i for i, row in enumerate(outputs) if len(set(row)) > 1][:differing]
    rest = sorted(set(range(len(outputs))) - set(first))
    return sorted(first + random.Random(0).sample(rest, min(extra, len(rest))))


def mark_differences(output: str, answers: Sequence[str]) -> list[Piece]:
    """Compare an output with the nearest reference, by words, or by characters if there are no spaces.

    >>> mark_differences("K AE D", ["K AE T S"])
    [Piece(text='K AE', kind='same'), Piece(text='D', kind='wrong'), Piece(text='T S', kind='missing')]
    """
    if not answers:
        return [Piece(output, "same")]
    between = separator(output, *answers)
    units, *references = (text.split() if between else list(text) for text in (output, *answers))
    matchers = [(difflib.SequenceMatcher(None, each, units, autojunk=False), each) for each in references]
    nearest, reference = max(matchers, key=lambda pair: pair[0].ratio())
    pieces = []
    for tag, a, b, c, d in nearest.get_opcodes():
        if d > c:
            pieces.append(Piece(between.join(units[c:d]), "same" if tag == "equal" else "wrong"))
        if b > a and tag != "equal":
            pieces.append(Piece(between.join(reference[a:b]), "missing"))
    return pieces


def separator(*texts: str) -> str:
    """Return what joins the units of these texts: a space between words, nothing between characters."""
    return " " if any(" " in text for text in texts) else ""


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# Images


def read_image(text: str) -> np.ndarray | None:
    """Return [H,W] or [H,W,3] numbers if the text is a JSON array of such a shape; channels may also come first.

    >>> read_image("[[0, 1], [2, 3]]").shape, read_image("[1, 2]"), read_image("[[K AE T")
    ((2, 2), None, None)
    """
    if not text.startswith("[["):
        return None
    try:
        image = np.array(json.loads(text), dtype=np.float64)
    except (ValueError, TypeError):
        return None
    if image.ndim == 3 and len(image) in (1, 3) and image.shape[2] not in (1, 3):
        image = np.moveaxis(image, 0, 2)
    image = image.squeeze(2) if image.shape[2:] == (1,) else image
    return image if image.size and (image.ndim == 2 or image.shape[2:] == (3,)) else None


def tile(images: Sequence[np.ndarray], columns: int, top: float) -> np.ndarray:
    """Return images of one shape in rows, as bytes; ``top`` is the value of full brightness.

    >>> tile([np.ones((2, 2)), np.zeros((2, 2))], columns=2, top=1.0).tolist()
    [[255, 255, 128, 0, 0], [255, 255, 128, 0, 0]]
    """
    height, width = images[0].shape[:2]
    lines = -(-len(images) // columns)
    shape = (lines * (height + 1) - 1, columns * (width + 1) - 1, *images[0].shape[2:])
    sheet = np.full(shape, 128, dtype=np.uint8)
    for i, image in enumerate(images):
        y, x = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[y : y + height, x : x + width] = np.clip(np.rint(255 * image / (top or 1.0)), 0, 255)
    return sheet


def data_uri(pixels: np.ndarray) -> str:
    """Return [H,W] or [H,W,3] bytes as the URI of a PNG image."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _sheets(outputs: dict[str, list[str]], answers: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return a sheet of the references and of the first outputs of each variant; nothing unless these are images."""
    images = {label: [read_image(text) for text in texts[:IMAGES]] for label, texts in outputs.items()}
    shapes = {None if image is None else image.shape for column in images.values() for image in column}
    if None in shapes or len(shapes) != 1:
        return {}
    references = [read_image(each[0]) if each else None for each in answers[:IMAGES]]
    if all(image is not None and {image.shape} == shapes for image in references):
        images = {"reference": references, **images}
    columns = {label: [image for image in column if image is not None] for label, column in images.items()}
    top = max(float(image.max()) for column in columns.values() for image in column)
    return {label: data_uri(tile(column, 8, top)) for label, column in columns.items()}
