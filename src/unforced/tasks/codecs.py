"""Codecs: text, tags, pixels, pictures and letters to token ids and back, and padding into batches."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.tasks.files import from_home
from unforced.tasks.tokenization import Characters, Pattern, TextCoder, Vocabulary
from unforced.types import Batch, Encoded, Example, Sizes, Symbols

# Batches


def collate(
    encoded: Sequence[Encoded],
    ids: Sequence[int],
    symbols: Symbols,
    *,
    length: int | Sequence[int] | None = None,
    source_pad: int = 0,
) -> Batch:
    """Pad encoded examples to a batch.

    The first example decides which kind of source the batch has. Without targets (decoding), the gold tokens are one
    column that the mask excludes. If any example has references, one without is its own reference.

    Args:
        ids: numbers of the examples in their split
        length: number of tokens of all outputs, or of each, if the task fixes it
        source_pad: token id that pads sources

    >>> batch = collate([Encoded([4, 5], [6, 2]), Encoded([4], [2])], [0, 1], Symbols(0, 1, 2))
    >>> batch.source
    tensor([[4, 5],
            [4, 0]])
    >>> batch.prefix
    tensor([[1, 6],
            [1, 2]])
    """
    if not encoded or len(encoded) != len(ids):
        raise InputError(f"a batch needs examples and an id for each, got {len(encoded)} examples and {len(ids)} ids")
    gold, mask = _pad([example.target for example in encoded], symbols.pad)
    source, source_mask = _pad_sources([example.source for example in encoded], ids, source_pad)
    lengths = None
    if length is not None:
        lengths = torch.as_tensor(length).expand(len(encoded)).clone()
        for example, number, expected in zip(encoded, ids, lengths.tolist()):
            if len(example.target) not in (0, expected):
                raise InputError(f"example {number} has {len(example.target)} target tokens, but must have {expected}")
    references = None
    if any(len(example.references) for example in encoded):
        references, _ = _pad([example.references or example.target for example in encoded], symbols.pad)
    numbers = torch.as_tensor(ids, dtype=torch.long)
    rest = {"source_mask": source_mask, "length": lengths, "ids": numbers, "references": references}
    return Batch.of_gold(gold, mask, symbols, source=source, **rest)


def _pad(sequences: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ragged ids -> ids [B,T] and mask [B,T], with T at least one."""
    lengths = np.array([len(sequence) for sequence in sequences])
    mask = np.arange(max(1, lengths.max())) < lengths[:, None]
    padded = np.full(mask.shape, pad, dtype=np.int64)
    padded[mask] = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    return torch.from_numpy(padded), torch.from_numpy(mask)


def _pad_sources(sources: Sequence[Any], ids: Sequence[int], pad: int) -> tuple[Tensor | None, Tensor | None]:
    """Sources of one kind -> tensor and, for tokens, mask."""
    first = sources[0]
    if any((source is None) != (first is None) for source in sources):
        raise InputError("some examples of the batch have a source and others have none")
    if first is None:
        return None, None
    if isinstance(first, Integral):
        return torch.tensor([int(source) for source in sources]), None
    if np.ndim(first) == 3:
        return torch.from_numpy(np.stack(sources).astype(np.float32, copy=False)), None
    padded, mask = _pad(sources, pad)
    if not bool(mask.any(dim=1).all()):
        raise InputError(f"the source of example {ids[int(mask.any(dim=1).int().argmin())]} is empty")
    return padded, mask


# The base


class BaseCodec:
    """Members that most codecs share, for outputs without a source. Subclasses set ``symbols`` and ``sizes``."""

    symbols: Symbols
    sizes: Sizes

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols)

    def parse(self, line: str) -> Any:
        """Accept only a blank line."""
        if line.strip():
            raise InputError("this model reads no input: enter a blank line for each output")

    def show(self, output: Any) -> str:
        return "" if output is None else str(output)


# Text


class PairCodec(BaseCodec):
    """Text to text, or text alone if ``source`` is None (language models).

    Sources and targets both end with the end symbol. ``cut_source`` keeps only the first words of a source, or the
    first tokens if these are characters or matches of a pattern.

    >>> codec = PairCodec(TextCoder.learn(["ab"], "characters"), TextCoder.learn(["x y"], "words"))
    >>> codec.encode(Example("ba", "y"))
    Encoded(source=array([5, 4, 2]), target=[5, 2], references=())
    >>> codec.decode([5, 4])
    'y x'
    """

    def __init__(self, source: TextCoder | None, target: TextCoder, cut_source: int | None = None) -> None:
        self.source = source
        self.target = target
        self.cut_source = cut_source
        self.symbols = target.vocabulary.symbols
        self.sizes = Sizes(len(target.vocabulary), None if source is None else len(source.vocabulary))

    def encode(self, example: Example) -> Encoded:
        target = [] if example.target is None else self.target.encode(example.target, eos=True)
        references = self.target.references(example)
        if self.source is None:
            return Encoded(None, target, references)
        source = self.source.encode(self._cut(example.source, self.source), eos=True)
        return Encoded(np.asarray(source, dtype=np.int64), target, references)

    def _cut(self, text: str, coder: TextCoder) -> str:
        if self.cut_source is None:
            return text
        if isinstance(coder.segmenter, Characters | Pattern):
            return coder.segmenter.join(coder.segmenter.split(text)[: self.cut_source])
        words = text.split()
        return " ".join(words[: self.cut_source]) if len(words) > self.cut_source else text

    def decode(self, ids: Sequence[int]) -> str:
        return self.target.decode(ids)

    def parse(self, line: str) -> str | None:
        if self.source is None:
            super().parse(line)
            return None
        if not line.strip():
            raise InputError("the line is blank, but each line must hold a source")
        return line.strip()

    def show(self, output: str | None) -> str:
        return "" if output is None else " ".join(output.splitlines())

    def token_names(self) -> tuple[str, ...]:
        return self.target.vocabulary.tokens

    def to_json(self) -> dict[str, Any]:
        joint = self.source is self.target
        source = None if self.source is None or joint else self.source.to_json()
        return {"source": source, "target": self.target.to_json(), "joint": joint, "cut_source": self.cut_source}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        target = TextCoder.from_json(data["target"])
        source = None if data["source"] is None else TextCoder.from_json(data["source"])
        return cls(target if data["joint"] else source, target, data["cut_source"])


# Tags


class TagCodec(BaseCodec):
    """Words to one tag each; ``Batch.length`` is the number of words.

    Rare words share the id of the unknown word. The vocabulary of tags has an unknown tag too, which is never output:
    it stands for tags absent from the training data if ``unseen`` is "wrong".

    >>> words = Vocabulary.learn([["Anna", "schläft"]], eos=False)
    >>> tags = Vocabulary.learn([["B-PER", "O"]], eos=False)
    >>> codec = TagCodec(words, tags)
    >>> codec.encode(Example(("Otto", "schläft"), ("B-PER", "O")))
    Encoded(source=array([2, 4]), target=[3, 4], references=())
    >>> codec.decode([3, 4])
    ('B-PER', 'O')
    """

    def __init__(
        self, words: Vocabulary, tags: Vocabulary, lowercase: bool = False, unseen: Literal["error", "wrong"] = "error"
    ) -> None:
        self.words = words
        self.tags = tags
        self.lowercase = lowercase
        self.unseen = unseen
        self.symbols = tags.symbols._replace(banned=tuple(range(len(tags.reserved))))
        self.sizes = Sizes(target=len(tags), source=len(words))

    def encode(self, example: Example) -> Encoded:
        words = [word.lower() for word in example.source] if self.lowercase else example.source
        source = np.asarray(self.words.encode(words, eos=False), dtype=np.int64)
        if example.target is None:
            return Encoded(source, [])
        if len(example.target) != len(words):
            raise InputError(f"a sentence has {len(words)} words, but {len(example.target)} tags: {_start(words)}")
        unseen = [tag for tag in example.target if tag not in self.tags]
        if unseen and self.unseen == "error":
            raise InputError(
                f"the tag {unseen[0]!r} of {_start(words)} is not in the training data: "
                'correct the data, or set unseen_tags = "wrong" to count it as an error of every model'
            )
        return Encoded(source, self.tags.encode(example.target, eos=False))

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, length=[len(example.source) for example in encoded])

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tags.decode(ids))

    def parse(self, line: str) -> tuple[str, ...]:
        """Split words at white space."""
        if not line.strip():
            raise InputError("the line is blank, but each line must hold a sentence")
        return tuple(line.split())

    def show(self, output: Sequence[str] | None) -> str:
        return "" if output is None else " ".join(output)

    def token_names(self) -> tuple[str, ...]:
        return self.tags.tokens

    def to_json(self) -> dict[str, Any]:
        vocabularies = {"words": self.words.to_json(), "tags": self.tags.to_json()}
        return {**vocabularies, "lowercase": self.lowercase, "unseen": self.unseen}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        words, tags = Vocabulary.from_json(data["words"]), Vocabulary.from_json(data["tags"])
        return cls(words, tags, data["lowercase"], data["unseen"])


def _start(words: Sequence[str]) -> str:
    """The first words of a sentence, quoted."""
    return repr(" ".join(words[:8]) + (" …" if len(words) > 8 else ""))


# Images as outputs


@dataclass
class PixelCodec(BaseCodec):
    """Images [H,W] or [H,W,C] as sequences of pixel levels, row by row, with the colours of a pixel adjacent.

    Ids 0..levels−1 are levels. The start symbol and padding follow.

    >>> codec = PixelCodec(shape=(2, 2), levels=17, classes=10)
    >>> codec.encode(Example(3, np.array([[0, 16], [8, 0]])))
    Encoded(source=3, target=[0, 16, 8, 0], references=())
    >>> codec.show(codec.decode([0, 16, 8, 0])), codec.parse("7")
    ('[[0,16],[8,0]]', 7)
    """

    shape: tuple[int, ...]
    levels: int
    classes: int | None = None  # number of class labels; None if images have no class
    symbols: Symbols = field(init=False, repr=False)
    sizes: Sizes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bos, pad = self.levels, self.levels + 1
        self.symbols = Symbols(pad=pad, bos=bos, eos=None, banned=(bos, pad))
        self.sizes = Sizes(target=self.levels + 2, classes=self.classes)

    def encode(self, example: Example) -> Encoded:
        source = None
        if self.classes is not None:
            if not isinstance(example.source, Integral) or not 0 <= int(example.source) < self.classes:
                raise InputError(f"a class must be an integer from 0 to {self.classes - 1}, got {example.source!r}")
            source = int(example.source)
        if example.target is None:
            return Encoded(source, [])
        image = np.asarray(example.target)
        if image.shape != self.shape or image.min() < 0 or image.max() >= self.levels:
            raise InputError(
                f"an image must have the shape {self.shape} and levels from 0 to {self.levels - 1}, "
                f"got the shape {image.shape} and levels from {image.min()} to {image.max()}"
            )
        return Encoded(source, image.reshape(-1).tolist())

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, length=prod(self.shape))

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        return np.array(ids, dtype=np.uint8).reshape(self.shape)

    def parse(self, line: str) -> int | None:
        """Read a class; without classes, a blank line."""
        if self.classes is None:
            super().parse(line)
            return None
        if not line.strip().isdecimal() or int(line) >= self.classes:
            raise InputError(f"each line must hold a class from 0 to {self.classes - 1}, got {line.strip()!r}")
        return int(line)

    def show(self, output: Any) -> str:
        """Write rows of levels as JSON, and a class as its number."""
        return "" if output is None else json.dumps(np.asarray(output).tolist(), separators=(",", ":"))

    def token_names(self) -> tuple[str, ...]:
        return (*map(str, range(self.levels)), "<bos>", "<pad>")

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "levels": self.levels, "classes": self.classes}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["shape"]), data["levels"], data["classes"])


# Images as sources


class Picture(str):
    """The name of a picture, with its pixels [H,W] or [H,W,C] uint8."""

    pixels: np.ndarray

    def __new__(cls, name: str, pixels: np.ndarray) -> "Picture":
        picture = super().__new__(cls, name)
        picture.pixels = pixels
        return picture


class PictureCodec(BaseCodec):
    """Pictures of one shape to text; a source is a `Picture` or its array.

    >>> codec = PictureCodec((2, 2, 3), TextCoder.learn(["a red heart"], "words"))
    >>> encoded = codec.encode(Example(np.full((2, 2, 3), 255, dtype=np.uint8), "red heart"))
    >>> encoded.source.shape, float(encoded.source.max()), encoded.target
    ((3, 2, 2), 1.0, [6, 5, 2])
    """

    def __init__(self, shape: tuple[int, ...], target: TextCoder) -> None:
        self.shape = shape
        self.target = target
        self.symbols = target.vocabulary.symbols
        height, width, channels = (*shape, 1)[:3]
        self.sizes = Sizes(target=len(target.vocabulary), image=(channels, height, width))

    def encode(self, example: Example) -> Encoded:
        source = example.source
        pixels = np.asarray(source.pixels if isinstance(source, Picture) else source)
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise InputError(f"a picture must be uint8 {self.shape}, got {pixels.dtype} {pixels.shape}")
        planes = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        target = [] if example.target is None else self.target.encode(example.target, eos=True)
        return Encoded(np.divide(planes, 255, dtype=np.float32), target, self.target.references(example))

    def decode(self, ids: Sequence[int]) -> str:
        return self.target.decode(ids)

    def parse(self, line: str) -> Picture:
        """Read the picture at a path: an ``.npy`` array, or a file that Pillow opens, resized."""
        path = from_home(line.strip())
        try:
            return Picture(path.name, np.load(path) if path.suffix == ".npy" else _open(path, self.shape))
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise InputError(f"{line.strip()!r} cannot be read as a picture ({error})") from None

    def token_names(self) -> tuple[str, ...]:
        return self.target.vocabulary.tokens

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.shape), "target": self.target.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["shape"]), TextCoder.from_json(data["target"]))


def _open(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read an image file as uint8 of a shape; transparent pixels become white."""
    from PIL import Image

    with Image.open(path) as file:
        picture = file.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB" if len(shape) == 3 else "L")
    return np.asarray(flat.resize((shape[1], shape[0]), Image.Resampling.BOX))


# Strings of letters

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class StringCodec(BaseCodec):
    """Strings of one length over the first letters of the alphabet: ids 0..V−1, then the start symbol and padding.

    >>> codec = StringCodec(letters=5, length=5)
    >>> codec.encode(Example(None, "abcba"))
    Encoded(source=None, target=[0, 1, 2, 1, 0], references=())
    >>> codec.decode([4, 0, 0, 0, 4])
    'eaaae'
    """

    letters: int
    length: int
    symbols: Symbols = field(init=False, repr=False)
    sizes: Sizes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bos, pad = self.letters, self.letters + 1
        self.symbols = Symbols(pad=pad, bos=bos, eos=None, banned=(bos, pad))
        self.sizes = Sizes(target=self.letters + 2)

    def encode(self, example: Example) -> Encoded:
        text = example.target or ""
        if not set(text) <= set(ALPHABET[: self.letters]) or len(text) not in (0, self.length):
            last = ALPHABET[self.letters - 1]
            raise InputError(f"a string must have {self.length} letters from a to {last}, got {text!r}")
        return Encoded(None, [ALPHABET.index(letter) for letter in text])

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, length=self.length)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(ALPHABET[: self.letters][i] for i in ids)

    def token_names(self) -> tuple[str, ...]:
        return (*ALPHABET[: self.letters], "<bos>", "<pad>")

    def to_json(self) -> dict[str, Any]:
        return {"alphabet": self.letters, "length": self.length}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["alphabet"], data["length"])
