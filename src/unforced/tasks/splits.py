"""Splits of data: a base class for tasks with limits, and hold-out from a training file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from unforced.errors import InputError
from unforced.options import Above, Below, Count, Options
from unforced.protocols import Codec, Split
from unforced.tasks.files import user_file
from unforced.types import Example, Examples

ELSEWHERE = "in another split"
Texts = str | tuple[str, ...]  # a text, or several
Data = str | tuple[str | tuple[Texts, ...], ...]  # a file, or a list of texts or of examples
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LimitedTask(Options):
    """Base of tasks that may use only a part of each split."""

    codec_class: ClassVar[Any]
    reads_text: ClassVar[bool] = False  # whether sources are text

    train_limit: Count | None = None  # use only this many training examples
    dev_limit: Count | None = None  # the same for development
    test_limit: Count | None = None  # the same for test

    def codec(self, data: dict[str, Any]) -> Codec:
        """Return the codec that ``to_json`` described."""
        codec: Codec = self.codec_class.from_json(data)
        return codec

    def limited(self, split: Split, examples: Sequence[Example], dropped: Mapping[str, int], origin: Any) -> Examples:
        """Return the first examples, up to the limit of the split; raise `InputError` if there is none.

        ``dropped`` counts the examples left out, for each reason. ``origin`` is where they come from.
        """
        if not examples:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in dropped.items()) or "it is empty"
            raise InputError(f"{origin} has no usable example for {split} ({reasons})")
        limit = {"train": self.train_limit, "dev": self.dev_limit, "test": self.test_limit}[split]
        rest = 0 if limit is None else max(0, len(examples) - limit)
        return Examples(examples[:limit], {**dropped, "beyond the limit": rest} if rest else {**dropped})


@dataclass(frozen=True, kw_only=True)
class FileSplits(Options):
    """Base of tasks on a user's data: a file or a list for each split, or parts of the training data."""

    train: Data  # the training file, or a list of examples
    dev: Data | None = None  # the same for development; default: a part of the training data
    test: Data | None = None  # the same for test; default: a part of the training data
    # share of the training data that replaces an absent dev or test file
    hold_out: Annotated[float, Above(0), Below(0.5)] = 0.05

    def owner(self, split: Split) -> Split:
        """Return the split whose data holds ``split``: itself, or the training split if it has no data of its own."""
        return "train" if (split, None) in (("dev", self.dev), ("test", self.test)) else split

    def data(self, split: Split) -> Path | tuple[Any, ...]:
        """Return the file, or the list, that holds a split."""
        owner = self.owner(split)
        data = {"train": self.train, "dev": self.dev, "test": self.test}[owner]
        return data if isinstance(data, tuple) else user_file(data or "", owner)

    def origin(self, split: Split) -> str:
        """Return the name of the data that holds a split, for messages."""
        data = self.data(split)
        return f"task.{self.owner(split)}" if isinstance(data, tuple) else str(data)

    def is_part(self, split: Split) -> bool:
        """Return whether a split is only a part of the training data."""
        return self.owner(split) == "train" and None in (self.dev, self.test)

    def part(self, split: Split, examples: Sequence[T], key: Callable[[T], str], dropped: Counter[str]) -> list[T]:
        """Return the examples of the training data that belong to a split, which depends on their keys alone."""
        keys = list(map(key, examples))
        ranked = sorted({key for key in keys if key}, key=fraction)
        if len(ranked) < 3:
            raise InputError(
                f"{self.origin('train')} has only {len(ranked)} different examples, too few to hold some out: "
                "set dev and test"
            )
        share = max(1, round(self.hold_out * len(ranked)))
        dev: list[str] = ranked[:share] if self.dev is None else []
        test: list[str] = ranked[-share:] if self.test is None else []
        splits = dict.fromkeys(dev, "dev") | dict.fromkeys(test, "test")
        kept = [example for example, key in zip(examples, keys) if splits.get(key, "train") == split]
        dropped[ELSEWHERE] += len(examples) - len(kept)
        return kept


def fraction(key: str, seed: int = 0) -> float:
    """Return a number in [0, 1), uniform over keys, the same on every machine.

    >>> fraction("word") == fraction("word"), fraction("word") == fraction("word", seed=1)
    (True, False)
    """
    digest = blake2b(f"{seed}\t{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53
