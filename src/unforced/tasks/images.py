"""Images as sequences of pixel levels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.options import AtLeast, Count, Options
from unforced.protocols import Metric, Split
from unforced.tasks.codecs import collate
from unforced.tasks.datasets import find
from unforced.tasks.files import limited, read_npz
from unforced.types import Batch, Encoded, Example, Examples, Sizes, Symbols


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
    def from_json(cls, data: dict[str, Any]) -> "Pixels":
        try:
            classes = data["classes"]
            return cls(
                tuple(int(n) for n in data["shape"]), int(data["levels"]), None if classes is None else int(classes)
            )
        except (KeyError, TypeError, ValueError):
            raise InputError("A codec of images needs 'shape', 'levels' and 'classes'.") from None


# Image generation, pixel by pixel: scikit-learn's digits, MNIST, CIFAR-10 and images of one's own.

STAGED = {"mnist": ("mnist", "mnist.npz"), "cifar10": ("cifar10_small", "cifar10_8x8_rgb.npz")}
MOST_DEV = 5000
CLASSES = 10  # of each built-in data set


class Labelled(NamedTuple):
    """Images [N,H,W] or [N,H,W,C] uint8 with levels 0..levels−1, and their labels [N]."""

    images: np.ndarray
    labels: np.ndarray
    levels: int


@dataclass(frozen=True)
class Images(Options):
    """Generate images as sequences of pixel levels, of a given class if ``conditional``.

    ``dataset`` is "digits" (8×8, 17 levels, comes with scikit-learn), "mnist" or "cifar10" (8×8 RGB); ``path`` names an
    ``.npz`` of one's own instead, with uint8 arrays x_train [N,H,W] or [N,H,W,C], y_train [N], x_test, y_test and perhaps
    x_dev, y_dev. ``side`` shrinks square images by averaging blocks, ``levels`` merges neighbouring levels.

    Digits are split class by class: of every ten images seven are for training, one for development and two for test.
    Elsewhere the last tenth of the training part, at most 5,000 images, is for development if there is no x_dev.

    Outputs are judged in the features of a small classifier trained on the same training split (all of it, whatever
    ``train_limit`` says), shrunk and quantised alike: the figures compare models of one such data set, and are neither FID
    nor the Inception score.

    >>> task = Images(train_limit=100)
    >>> [len(task.read(split)) for split in ("train", "dev", "test")]
    [100, 178, 353]
    >>> task.fit(task.read("train")).sizes
    Sizes(target=19, source=None, image=None, classes=None)
    >>> [metric.name for metric in task.metrics()]
    ['digits_classifier_frechet_distance', 'digits_classifier_inception_style_score']
    """

    dataset: Literal["digits", "mnist", "cifar10"] = "digits"
    path: str | None = None
    conditional: bool = False
    side: Count | None = None
    levels: Annotated[int, AtLeast(2)] | None = None
    train_limit: Count | None = None
    dev_limit: Count | None = 500
    test_limit: Count | None = 2000

    def read(self, split: Split) -> Examples:
        part = self.arrays(split)
        labels = part.labels.tolist() if self.conditional else [None] * len(part.labels)
        examples = [Example(label, image) for label, image in zip(labels, part.images)]
        return limited(examples, {}, getattr(self, f"{split}_limit"))

    def arrays(self, split: Split) -> Labelled:
        """The whole split, shrunk and quantised, with its labels."""
        raw = _digits(split) if self.path is None and self.dataset == "digits" else self._from_file(split)
        return _quantise(raw, self.side, self.levels)

    def _from_file(self, split: Split) -> Labelled:
        path = Path(self.path) if self.path is not None else find(*STAGED[self.dataset])
        wanted = [f"{array}_{part}" for part in ("train", "test") for array in "xy"]
        arrays = read_npz(path, wanted, ("x_dev", "y_dev"))
        _check(arrays, path)
        if "x_dev" not in arrays:
            n = len(arrays["x_train"])
            cut = n - min(MOST_DEV, n // 10)
            for array in "xy":
                whole = arrays[f"{array}_train"]
                arrays[f"{array}_train"], arrays[f"{array}_dev"] = whole[:cut], whole[cut:]
        return Labelled(arrays[f"x_{split}"], arrays[f"y_{split}"].astype(np.int64), 256)

    def fit(self, train: Sequence[Example]) -> Pixels:
        if not train:
            raise InputError("There are no training images.")
        classes = None
        if self.conditional:
            seen = 1 + max(example.source for example in train)
            classes = seen if self.path is not None else max(seen, CLASSES)
        levels = self.levels or (17 if self.path is None and self.dataset == "digits" else 256)
        return Pixels(np.shape(train[0].target), levels, classes)

    def codec(self, data: dict[str, Any]) -> Pixels:
        return Pixels.from_json(data)

    def metrics(self) -> tuple[Metric, ...]:
        from unforced.metrics.images import FrechetDistance, InceptionStyleScore

        name = self.dataset if self.path is None else Path(self.path).stem
        same = replace(self, conditional=False, train_limit=None, dev_limit=None, test_limit=None)
        judge = partial(_classifier, same, name)
        return (
            FrechetDistance(f"{name}_classifier_frechet_distance", judge),
            InceptionStyleScore(f"{name}_classifier_inception_style_score", judge),
        )


@lru_cache(maxsize=4)
def _classifier(task: Images, name: str) -> Any:
    """The classifier that judges a task's outputs, trained when it is first asked for."""
    from unforced.metrics.images import Classifier

    images, labels, levels = task.arrays("train")
    return Classifier.fit(name, images, labels, levels=levels, classes=int(labels.max()) + 1)


def _digits(split: Split) -> Labelled:
    """The split of scikit-learn's digits that an image's rank in its class decides."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise InputError("the digits need the package scikit-learn: pip install 'unforced[digits]'") from None
    images, labels = load_digits(return_X_y=True)
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        rank[labels == label] = np.arange((labels == label).sum())
    mine = np.isin(rank % 10, {"train": range(7), "dev": [7], "test": [8, 9]}[split])
    return Labelled(images[mine].astype(np.uint8).reshape(-1, 8, 8), labels[mine].astype(np.int64), 17)


def _check(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Refuse arrays that are no images with labels."""
    shape = arrays["x_train"].shape[1:]
    for name, images in arrays.items():
        if not name.startswith("x_"):
            continue
        label_name = f"y_{name[2:]}"
        if label_name not in arrays:
            raise InputError(f"{path}: the array {label_name!r} is missing.")
        labels = arrays[label_name]
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise InputError(f"{path}: {name} must be uint8 of 3 or 4 dimensions, not {images.dtype} {images.shape}.")
        if images.shape[1:] != shape or not images.size:
            raise InputError(f"{path}: {name} has the shape {images.shape}, x_train {arrays['x_train'].shape}.")
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise InputError(f"{path}: {label_name} must hold a whole number from 0 for each image of {name}.")


def _quantise(raw: Labelled, side: int | None, levels: int | None) -> Labelled:
    """Average blocks of pixels so that ``side`` rows and columns are left, then merge levels: ⌊v · levels / all⌋."""
    images = raw.images
    n, height, width = images.shape[:3]
    if side is not None and side != height:
        if height != width or height % side:
            raise InputError(f"Images of {height}×{width} pixels can't be shrunk evenly to {side}×{side}.")
        block = height // side
        images = images.reshape(n, side, block, side, block, *images.shape[3:]).mean(axis=(2, 4))
    levels = raw.levels if levels is None else levels
    if images is raw.images and levels == raw.levels:
        return raw
    if levels > raw.levels:
        raise InputError(f"levels must be at most {raw.levels}, which is what the images have, not {levels}.")
    merged = np.floor(images.astype(np.float64) * levels / raw.levels).clip(max=levels - 1).astype(np.uint8)
    return Labelled(merged, raw.labels, levels)
