"""Image generation, pixel by pixel: handwritten digits, MNIST, CIFAR-10 and your own images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.options import AtLeast, Count
from unforced.protocols import Metric, Split
from unforced.tasks.codecs import PixelCodec
from unforced.tasks.datasets import find
from unforced.tasks.files import read_npz, user_file
from unforced.tasks.splits import LimitedTask
from unforced.types import Example, Examples

FILES = {"mnist": ("mnist", "mnist.npz"), "cifar10": ("cifar10_small", "cifar10_8x8_rgb.npz")}
CLASSES = 10  # of each data set
MAX_DEV = 5000


class Labelled(NamedTuple):
    """Images [N,H,W] or [N,H,W,C] uint8 with levels 0..levels−1, and their labels [N]."""

    images: np.ndarray
    labels: np.ndarray
    levels: int


@dataclass(frozen=True)
class Images(LimitedTask):
    """Images as sequences of pixel levels, optionally of a given class.

    Of every ten digits of a class, seven are for training, one for development and two for test. In other data, the
    last tenth of the training images, at most 5,000, is for development if there is no x_dev.

    Outputs are compared with images in the features of a small classifier, trained on the whole training split of the
    same task. The scores are comparable only within one such task; they are not FID and the Inception score.

    >>> task = Images(train_limit=100)
    >>> [len(task.read(split)) for split in ("train", "dev", "test")]
    [100, 178, 353]
    >>> [metric.name for metric in task.metrics()]
    ['digits_classifier_frechet_distance', 'digits_classifier_inception_style_score']
    """

    codec_class: ClassVar[type[PixelCodec]] = PixelCodec

    # 8×8 digits of scikit-learn with 17 levels, MNIST, or CIFAR-10 shrunk to 8×8 RGB
    dataset: Literal["digits", "mnist", "cifar10"] = "digits"
    # your own .npz instead: uint8 x_train [N,H,W] or [N,H,W,C], y_train [N], x_test, y_test, optionally x_dev, y_dev
    path: str | None = None
    conditional: bool = False  # condition on the class
    side: Count | None = None  # shrink square images to this side by averaging blocks
    levels: Annotated[int, AtLeast(2)] | None = None  # merge neighbouring levels into this number
    dev_limit: Count | None = 500  # use only this many development examples
    test_limit: Count | None = 2000  # the same for test

    def read(self, split: Split) -> Examples:
        part = self.arrays(split)
        labels = part.labels.tolist() if self.conditional else [None] * len(part.labels)
        examples = [Example(label, image) for label, image in zip(labels, part.images)]
        return self.limited(split, examples, {}, self.name)

    @property
    def name(self) -> str:
        return self.dataset if self.path is None else Path(self.path).stem

    def arrays(self, split: Split) -> Labelled:
        """Return all images of a split, shrunk and quantised, with their labels."""
        raw = _digits(split) if self.path is None and self.dataset == "digits" else self._from_file(split)
        return _quantise(raw, self.side, self.levels)

    def _from_file(self, split: Split) -> Labelled:
        path = find(*FILES[self.dataset]) if self.path is None else user_file(self.path, "path")
        arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"), ("x_dev", "y_dev"))
        for part in ("train", "dev", "test"):
            images, labels = arrays.get(f"x_{part}"), arrays.get(f"y_{part}")
            if images is None or labels is None:
                continue
            if images.dtype != np.uint8 or images.ndim not in (3, 4) or labels.shape != images.shape[:1]:
                raise InputError(
                    f"{path}: x_{part} must be uint8 [N,H,W] or [N,H,W,C] and y_{part} [N], "
                    f"got {images.dtype} {list(images.shape)} and {list(labels.shape)}"
                )
        if "x_dev" not in arrays:
            number = len(arrays["x_train"])
            end = number - min(MAX_DEV, number // 10)
            for name in ("x", "y"):
                arrays[f"{name}_dev"] = arrays[f"{name}_train"][end:]
                arrays[f"{name}_train"] = arrays[f"{name}_train"][:end]
        return Labelled(arrays[f"x_{split}"], arrays[f"y_{split}"].astype(np.int64), 256)

    def fit(self, train: Sequence[Example]) -> PixelCodec:
        classes = None
        if self.conditional:
            seen = 1 + max(example.source for example in train)
            classes = max(seen, CLASSES) if self.path is None else seen
        levels = self.levels or (17 if self.path is None and self.dataset == "digits" else 256)
        return PixelCodec(np.shape(train[0].target), levels, classes)

    def metrics(self) -> tuple[Metric, ...]:
        from unforced.metrics.images import FrechetDistance, InceptionStyleScore

        same = replace(self, conditional=False, train_limit=None, dev_limit=None, test_limit=None)
        judge = partial(_classifier, same)
        return (
            FrechetDistance(f"{self.name}_classifier_frechet_distance", judge),
            InceptionStyleScore(f"{self.name}_classifier_inception_style_score", judge),
        )


@lru_cache(maxsize=4)
def _classifier(task: Images) -> Any:
    """The classifier whose features compare images, trained on first use."""
    from unforced.metrics.images import Classifier

    images, labels, levels = task.arrays("train")
    return Classifier.fit(task.name, images, labels, levels=levels, classes=int(labels.max()) + 1)


def _digits(split: Split) -> Labelled:
    """The digits of scikit-learn whose rank within their class belongs to a split."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise InputError("the digits need the package scikit-learn: pip install 'unforced[digits]'") from None
    images, labels = load_digits(return_X_y=True)
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        rank[labels == label] = np.arange((labels == label).sum())
    chosen = np.isin(rank % 10, {"train": range(7), "dev": [7], "test": [8, 9]}[split])
    return Labelled(images[chosen].astype(np.uint8).reshape(-1, 8, 8), labels[chosen].astype(np.int64), 17)


def _quantise(raw: Labelled, side: int | None, levels: int | None) -> Labelled:
    """Average blocks of pixels down to ``side`` rows and columns, then merge levels: ⌊v · levels / all⌋."""
    images = raw.images
    n, height, width = images.shape[:3]
    levels = raw.levels if levels is None else levels
    if levels > raw.levels:
        raise InputError(f"levels must be at most {raw.levels}, the number in the images, got {levels}")
    if side in (None, height) and levels == raw.levels:
        return raw
    if side is not None and side != height:
        if height != width or height % side:
            raise InputError(f"images of {height}×{width} pixels cannot be shrunk to {side}×{side} by averaging blocks")
        block = height // side
        images = images.reshape(n, side, block, side, block, *images.shape[3:]).mean(axis=(2, 4))
    merged = np.floor(images.astype(np.float64) * levels / raw.levels).clip(max=levels - 1).astype(np.uint8)
    return Labelled(merged, raw.labels, levels)
