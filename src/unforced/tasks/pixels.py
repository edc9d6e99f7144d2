"""Images as sequences of pixel levels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.tasks.collate import collate
from unforced.types import Batch, Encoded, Example, Sizes, Symbols


@dataclass
class Pixels:
    """The codec of images [H,W] or [H,W,C]: row by row, a pixel's colours adjacent, an id for each level.

    Ids 0..levels−1 are levels, then come the start symbol and padding, both banned. ``classes`` is the number of
    labels that outputs are conditioned on, None where they are not.

    >>> codec = Pixels(shape=(2, 2), levels=17, classes=10)
    >>> codec.encode(Example(3, np.array([[0, 16], [8, 0]])))
    Encoded(source=3, target=[0, 16, 8, 0], references=())
    >>> codec.show(codec.decode([0, 16, 8, 0])), codec.parse("7")
    ('[[0,16],[8,0]]', 7)
    >>> codec.sizes
    Sizes(target=19, source=None, image=None, classes=10)
    """

    shape: tuple[int, ...]
    levels: int
    classes: int | None = None
    symbols: Symbols = field(init=False, repr=False)
    sizes: Sizes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bos, pad = self.levels, self.levels + 1
        self.symbols = Symbols(pad=pad, bos=bos, eos=None, banned=(bos, pad))
        self.sizes = Sizes(target=self.levels + 2, classes=self.classes)

    def encode(self, example: Example) -> Encoded:
        source = None if self.classes is None else self._label(example.source)
        if example.target is None:
            return Encoded(source, [])
        image = np.asarray(example.target)
        if image.shape != self.shape:
            raise InputError(f"An image has the shape {image.shape} where {self.shape} is wanted.")
        if not np.issubdtype(image.dtype, np.integer) or image.min() < 0 or image.max() >= self.levels:
            raise InputError(f"An image's levels must be whole numbers from 0 to {self.levels - 1}.")
        return Encoded(source, image.reshape(-1).tolist())

    def _label(self, source: Any) -> int:
        assert self.classes is not None
        whole = isinstance(source, int | np.integer) and not isinstance(source, bool)
        if not whole or not 0 <= source < self.classes:
            raise InputError(f"A class must be a whole number from 0 to {self.classes - 1}, not {source!r}.")
        return int(source)

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, length=prod(self.shape))

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        if len(ids) != prod(self.shape) or any(not 0 <= i < self.levels for i in ids):
            raise InputError(f"{len(ids)} ids don't make an image of the shape {self.shape}.")
        return np.array(ids, dtype=np.uint8).reshape(self.shape)

    def parse(self, line: str) -> int | None:
        """A class number; a blank line where images have no class."""
        if self.classes is None:
            if line.strip():
                raise InputError("These images have no source: give a blank line for each image wanted.")
            return None
        try:
            return self._label(int(line))
        except ValueError:
            raise InputError(f"{line.strip()!r} is not the number of a class.") from None

    def show(self, output: Any) -> str:
        """Rows of levels as JSON; a class as its number."""
        return "" if output is None else json.dumps(np.asarray(output).tolist(), separators=(",", ":"))

    def token_names(self) -> tuple[str, ...]:
        return (*map(str, range(self.levels)), "<bos>", "<pad>")

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "levels": self.levels, "classes": self.classes}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Pixels:
        try:
            classes = data["classes"]
            return cls(
                tuple(int(n) for n in data["shape"]),
                int(data["levels"]),
                None if classes is None else int(classes),
            )
        except (KeyError, TypeError, ValueError):
            raise InputError("A codec of images needs 'shape', 'levels' and 'classes'.") from None
