"""The codec of captioning: a picture in, text out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from unforced.errors import InputError
from unforced.metrics.text import Bleu, Cider, ShortBleu
from unforced.options import Count, Options
from unforced.protocols import Metric, Split
from unforced.tasks.codecs import collate
from unforced.tasks.datasets import find
from unforced.tasks.files import count, limited, read_jsonl, read_npz
from unforced.tasks.tokenization import TextCoder
from unforced.types import Batch, Encoded, Example, Examples, Sizes


class Picture(str):
    """A picture's name, which tables show, with the pixels [H,W] or [H,W,C] uint8 that models see.

    >>> Picture("heart", np.zeros((2, 2), dtype=np.uint8)).pixels.shape
    (2, 2)
    """

    pixels: np.ndarray

    def __new__(cls, name: str, pixels: np.ndarray) -> "Picture":
        picture = super().__new__(cls, name)
        picture.pixels = pixels
        return picture


class PictureCodec:
    """Pictures of one shape to captions; a source is a ``Picture`` or its array, a target is text.

    >>> codec = PictureCodec((2, 2, 3), TextCoder.learn(["a red heart"], "words"))
    >>> encoded = codec.encode(Example(np.full((2, 2, 3), 255, dtype=np.uint8), "red heart"))
    >>> encoded.source.shape, float(encoded.source.max()), encoded.target
    ((3, 2, 2), 1.0, [6, 5, 2])
    >>> codec.sizes
    Sizes(target=7, source=None, image=(3, 2, 2), classes=None)
    """

    def __init__(self, shape: tuple[int, ...], target: TextCoder) -> None:
        self.shape = shape
        self.target = target
        self.symbols = target.vocabulary.symbols
        height, width, channels = (*shape, 1)[:3]
        self.sizes = Sizes(target=len(target.vocabulary), image=(channels, height, width))

    def encode(self, example: Example) -> Encoded:
        source = example.source
        if isinstance(source, str) and not isinstance(source, Picture):
            raise InputError(f"{source[:80]!r} is text where a picture is wanted.")
        pixels = np.asarray(source.pixels if isinstance(source, Picture) else source)
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise InputError(
                f"A picture of {pixels.dtype} with the shape {pixels.shape} was given where uint8 {self.shape} is wanted."
            )
        planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        target = [] if example.target is None else self.target.encode(example.target, eos=True)
        return Encoded(np.divide(planes, 255, dtype=np.float32), target, self.target.references(example))

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols)

    def decode(self, ids: Sequence[int]) -> str:
        return self.target.decode(ids)

    def parse(self, line: str) -> Picture:
        """The path of a picture: an ``.npy`` array, or a file that Pillow opens, shrunk or stretched to size."""
        path = Path(line.strip()).expanduser()
        if not path.is_file():
            raise InputError(f"{line.strip()!r} is not the path of a picture.")
        return Picture(path.name, _npy(path) if path.suffix == ".npy" else _open(path, self.shape))

    def show(self, output: Any) -> str:
        """A caption as it is; a picture by its name."""
        return "" if output is None else str(output)

    def token_names(self) -> tuple[str, ...]:
        return self.target.vocabulary.tokens

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "target": self.target.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PictureCodec":
        try:
            shape, target = tuple(int(n) for n in data["shape"]), data["target"]
        except (KeyError, TypeError, ValueError):
            raise InputError("A codec of captions needs 'shape' and 'target'.") from None
        return cls(shape, TextCoder.from_json(target))


def _npy(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: the file is not a sound .npy array ({error}).") from None


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A picture file as uint8 of the wanted shape, on white where it is transparent."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            picture = file.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: the picture can't be opened ({error}).") from None
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB" if len(shape) == 3 else "L")
    return np.asarray(flat.resize((shape[1], shape[0]), Image.Resampling.BOX))


# Captions for pictures: emoji with their names, or pictures of one's own.

EMOJI = "emoji_captions"


def tokenize(caption: str) -> str:
    """Lower-cased, with a space between words and marks.

    >>> tokenize("Woman: light skin tone")
    'woman : light skin tone'
    """
    return " ".join(re.findall(r"\w+|[^\w\s]", caption.lower()))


@dataclass(frozen=True, kw_only=True)
class Captions(Options):
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
    min_count: Count = 1  # rarer words of the training data are unknown
    size: Count | None = None  # the most words of the vocabulary
    longest: Count | None = None  # training captions of more words are left out
    train_limit: Count | None = None
    dev_limit: Count | None = None
    test_limit: Count | None = None

    def check(self) -> None:
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
            raise InputError(f"{caption_path} describes {index + 1} of {len(pixels)} pictures in {image_path}.")
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
