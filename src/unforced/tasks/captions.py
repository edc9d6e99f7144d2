"""Captions for pictures: emoji with their names, or pictures of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from unforced.errors import InputError
from unforced.metrics.bleu import Bleu, ShortBleu
from unforced.metrics.cider import Cider
from unforced.metrics.protocol import Metric
from unforced.tasks.arrays import read_npz
from unforced.tasks.files import count, read_jsonl
from unforced.tasks.locate import find
from unforced.tasks.pictures import Picture, PictureCodec
from unforced.tasks.protocol import Split
from unforced.tasks.segment import TextCoder
from unforced.tasks.splits import limited
from unforced.types import Example, Examples

EMOJI = "emoji_captions"


def tokenize(caption: str) -> str:
    """Lower-cased, with a space between words and marks.

    >>> tokenize("Woman: light skin tone")
    'woman : light skin tone'
    """
    return " ".join(re.findall(r"\w+|[^\w\s]", caption.lower()))


@dataclass(frozen=True, kw_only=True)
class Captions:
    """Pictures to captions, judged by CIDEr-D, which picks the checkpoint, BLEU-4 and BLEU-1, on lower-cased words.

    Without further options these are 24×24 emoji in two drawing styles, and their names in ``language``. ``images`` names an
    ``.npz`` of one's own instead, with an array x [N,H,W] or [N,H,W,C] of uint8, and ``captions`` a JSON-lines file whose
    i-th object describes x[i]: "split" is "train", "dev" or "test" and ``caption_key`` holds a caption or a list of them.
    For training each caption is an example; else each picture is one. All captions of a picture are its references; in the training
    part English emoji have their tags as one more, so that there are words to put in the place of others.

    >>> [metric.name for metric in Captions().metrics()]
    ['cider', 'bleu', 'bleu_1']
    """

    language: Literal["en", "de"] = "en"
    images: str | None = None
    captions: str | None = None
    caption_key: str = "caption"
    min_count: int = 1  # rarer words of the training data are unknown
    size: int | None = None  # the most words of the vocabulary
    longest: int | None = None  # training captions of more words are left out
    train_limit: int | None = None
    dev_limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_count", "size", "longest", "train_limit", "dev_limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}.")
        if self.language not in ("en", "de"):
            raise InputError(f"language must be 'en' or 'de', not {self.language!r}.")
        if (self.images is None) != (self.captions is None):
            raise InputError("Pictures of your own need both files: images and captions.")

    def read(self, split: Split) -> Examples:
        """The examples of a split; an ``InputError`` if there is none."""
        names: tuple[str, ...] = ()
        if self.images is None or self.captions is None:
            image_path, caption_path = find(EMOJI, "images_24x24_rgb.npz"), find(EMOJI, "captions.jsonl.gz")
            key, names = f"caption_{self.language}", ("hex", "vendor")
            tags = "tags_en" if self.language == "en" else None
        else:
            image_path, caption_path = Path(self.images).expanduser(), Path(self.captions).expanduser()
            key, tags = self.caption_key, None
        pixels = _pixels(image_path)
        dropped: dict[str, int] = {}
        examples: list[Example] = []
        index = -1
        for index, (line, record) in enumerate(read_jsonl(caption_path, ("split", key, *names))):
            where = f"{caption_path}:{line}"
            texts = _texts(record[key], key, where)
            if record["split"] not in get_args(Split):
                raise InputError(f"{where}: the split must be train, dev or test, not {record['split']!r}.")
            if index >= len(pixels):
                raise InputError(f"{where}: {image_path} has only {len(pixels)} pictures.")
            if record["split"] != split:
                count(dropped, "in another split")
                continue
            name = " ".join(str(record[n]) for n in names) or f"picture {index}"
            beside = " ".join(map(str, record.get(tags) or ())) if tags and split == "train" else ""
            examples.extend(self._examples(split, Picture(name, pixels[index]), texts, dropped, beside))
        if index + 1 < len(pixels):
            raise InputError(
                f"{caption_path} describes {index + 1} of {len(pixels)} pictures in {image_path}."
            )
        if not examples:
            raise InputError(f"{caption_path} has no usable picture for {split}.")
        return limited(examples, dropped, getattr(self, f"{split}_limit"))

    def _examples(
        self, split: Split, picture: Picture, texts: Sequence[str], dropped: dict[str, int], beside: str = ""
    ) -> list[Example]:
        """What one picture gives: an example for each caption in training, else one with all of them.

        The words ``beside`` the captions are a reference as well.
        """
        tokenized = [text for text in map(tokenize, texts) if text]
        if not tokenized:
            count(dropped, "empty caption")
            return []
        if split != "train":
            return [Example(picture, tokenized[0], tuple(tokenized))]
        short = [text for text in tokenized if self.longest is None or len(text.split()) <= self.longest]
        for _ in range(len(tokenized) - len(short)):
            count(dropped, "too long")
        references = (*tokenized, tokenize(beside)) if tokenize(beside) else tuple(tokenized)
        return [Example(picture, text, references) for text in short]

    def fit(self, train: Sequence[Example]) -> PictureCodec:
        if not train:
            raise InputError("There are no training captions.")
        captions = (example.target for example in train)
        coder = TextCoder.learn(captions, "words", size=self.size, min_count=self.min_count)
        return PictureCodec(train[0].source.pixels.shape, coder)

    def codec(self, data: dict[str, Any]) -> PictureCodec:
        return PictureCodec.from_json(data)

    def metrics(self) -> tuple[Metric, ...]:
        references = 1 if self.images is None else None
        of_words = (kind(tokenize="none", references=references) for kind in (Bleu, ShortBleu))
        return (Cider(), *of_words)


def _pixels(path: Path) -> np.ndarray:
    pixels = read_npz(path, ("x",))["x"]
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or not pixels.size:
        raise InputError(f"{path}: x must be uint8 of 3 or 4 dimensions, not {pixels.dtype} {pixels.shape}.")
    return pixels


def _texts(value: Any, key: str, where: str) -> list[str]:
    """A caption or a list of captions."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{where}: {key!r} must be a caption or a list of captions.")
    return texts
