"""The codec of captioning: a picture in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.tasks.collate import collate
from unforced.tasks.segment import TextCoder
from unforced.types import Batch, Encoded, Example, Sizes


class Picture(str):
    """A picture's name, which tables show, with the pixels [H,W] or [H,W,C] uint8 that models see.

    >>> Picture("heart", np.zeros((2, 2), dtype=np.uint8)).pixels.shape
    (2, 2)
    """

    pixels: np.ndarray

    def __new__(cls, name: str, pixels: np.ndarray) -> Picture:
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
    def from_json(cls, data: dict[str, Any]) -> PictureCodec:
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
