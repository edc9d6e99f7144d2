"""Captions of pictures: emoji and their names, or your own pictures."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np

from unforced.errors import InputError
from unforced.metrics.text import Bleu, Cider, ShortBleu
from unforced.options import Count
from unforced.protocols import Metric, Split
from unforced.tasks.codecs import Picture, PictureCodec
from unforced.tasks.datasets import find
from unforced.tasks.files import from_home, read_jsonl, read_npz, texts
from unforced.tasks.splits import ELSEWHERE, LimitedTask
from unforced.tasks.tokenization import TextCoder
from unforced.types import Example, Examples


class _Source(NamedTuple):
    """Where pictures and captions are."""

    images: Path
    captions: Path
    caption_key: str
    name_keys: tuple[str, ...] = ()  # keys of a picture's name
    tags_key: str | None = None  # key of words that are a further reference in training


@dataclass(frozen=True, kw_only=True)
class Captions(LimitedTask):
    """Pictures to captions in lower-cased words, judged by CIDEr-D, BLEU-4 and BLEU-1.

    The default data are 24×24 emoji in two drawing styles, with their names. In training each caption is an example,
    otherwise each picture. All captions of a picture are its references. English emoji have their tags as a further
    reference in training, so that smoothing finds words to substitute.

    >>> [metric.name for metric in Captions().metrics()]
    ['cider', 'bleu', 'bleu_1']
    """

    codec_class: ClassVar[type[PictureCodec]] = PictureCodec

    language: Literal["en", "de"] = "en"  # of the names of emoji
    images: str | None = None  # your own pictures: an .npz file with x [N,H,W] or [N,H,W,C] uint8
    # their captions: a .jsonl file whose i-th object describes x[i]; its key "split" is train, dev or test
    captions: str | None = None
    caption_key: str = "caption"  # key of a caption, or of a list of captions, in your file
    min_count: Count = 1  # rarer words of the training data are unknown
    size: Count | None = None  # largest vocabulary
    longest: Count | None = None  # leave out training captions with more words

    def check(self) -> None:
        if (self.images is None) != (self.captions is None):
            raise InputError("your own pictures need both files, images and captions")

    def _source(self) -> _Source:
        if self.images is not None and self.captions is not None:
            return _Source(from_home(self.images), from_home(self.captions), self.caption_key)
        files = find("emoji_captions", "images_24x24_rgb.npz"), find("emoji_captions", "captions.jsonl.gz")
        tags = "tags_en" if self.language == "en" else None
        return _Source(*files, f"caption_{self.language}", ("hex", "vendor"), tags)

    def read(self, split: Split) -> Examples:
        source = self._source()
        pixels = read_npz(source.images, ("x",))["x"]
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
            raise InputError(
                f"{source.images}: x must be uint8 [N,H,W] or [N,H,W,C], got {pixels.dtype} {list(pixels.shape)}"
            )
        records = list(read_jsonl(source.captions, ("split", source.caption_key, *source.name_keys)))
        if len(records) != len(pixels):
            raise InputError(
                f"{source.captions} has {len(records)} captions, but {source.images} has {len(pixels)} pictures"
            )
        dropped: Counter[str] = Counter()
        examples: list[Example] = []
        for index, (line, record) in enumerate(records):
            if record["split"] not in get_args(Split):
                raise InputError(f"{source.captions}:{line}: split must be train, dev or test, got {record['split']!r}")
            if record["split"] != split:
                dropped[ELSEWHERE] += 1
                continue
            raw = texts(record[source.caption_key], f"{source.captions}:{line}: {source.caption_key}")
            captions = [caption for caption in map(tokenize, raw) if caption]
            name = " ".join(str(record[key]) for key in source.name_keys) or f"picture {index}"
            tags = record.get(source.tags_key) if source.tags_key and split == "train" else None
            further = tokenize(" ".join(map(str, tags or ())))
            examples.extend(self._examples(split, Picture(name, pixels[index]), captions, further, dropped))
        return self.limited(split, examples, dropped, source.captions)

    def _examples(
        self, split: Split, picture: Picture, captions: Sequence[str], further: str, dropped: Counter[str]
    ) -> list[Example]:
        """The examples of a picture; ``further`` is one more reference if it is not empty."""
        if not captions:
            dropped["empty caption"] += 1
            return []
        if split != "train":
            return [Example(picture, captions[0], tuple(captions))]
        references = (*captions, further) if further else tuple(captions)
        short = [caption for caption in captions if self.longest is None or len(caption.split()) <= self.longest]
        dropped += Counter({"too long": len(captions) - len(short)})
        return [Example(picture, caption, references) for caption in short]

    def fit(self, train: Sequence[Example]) -> PictureCodec:
        captions = (example.target for example in train)
        coder = TextCoder.learn(captions, "words", size=self.size, min_count=self.min_count)
        return PictureCodec(train[0].source.pixels.shape, coder)

    def metrics(self) -> tuple[Metric, ...]:
        references = 1 if self.images is None else None
        return (
            Cider(),
            Bleu(tokenize="none", references=references),
            ShortBleu(tokenize="none", references=references),
        )


def tokenize(caption: str) -> str:
    """Lower-case a caption and separate words and punctuation by spaces.

    >>> tokenize("Woman: light skin tone")
    'woman : light skin tone'
    """
    return " ".join(re.findall(r"\w+|[^\w\s]", caption.lower()))
