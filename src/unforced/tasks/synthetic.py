"""Strings drawn from distributions whose log-probabilities and entropy are known exactly.

Strings are letters of the alphabet a, b, c …, all of one length, without a source and without an end symbol. A letter's id
is its number, so that arrays of ids serve models and the true distribution alike.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import Measure, check_measures, measured
from unforced.metrics.protocol import LikelihoodMetric
from unforced.tasks.collate import collate
from unforced.tasks.protocol import Split
from unforced.types import Batch, Encoded, Example, Examples, Sizes, Symbols

LETTERS = string.ascii_lowercase
MOST_SEQUENCES = 2**22  # more than these are not enumerated


@dataclass
class Letters:
    """The codec of fixed-length strings: ids 0..V−1 are letters, then the start symbol and padding, both banned.

    >>> codec = Letters(alphabet=5, length=5)
    >>> codec.encode(Example(None, "abcba"))
    Encoded(source=None, target=[0, 1, 2, 1, 0], references=())
    >>> codec.decode([4, 0, 0, 0, 4])
    'eaaae'
    >>> codec.symbols
    Symbols(pad=6, bos=5, eos=None, banned=(5, 6))
    """

    alphabet: int
    length: int
    symbols: Symbols = field(init=False, repr=False)
    sizes: Sizes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        v = self.alphabet
        self.symbols = Symbols(pad=v + 1, bos=v, eos=None, banned=(v, v + 1))
        self.sizes = Sizes(target=v + 2)

    def encode(self, example: Example) -> Encoded:
        if example.target is None:
            return Encoded(None, [])
        ids = [LETTERS.find(letter) for letter in example.target]
        wrong = [letter for letter, i in zip(example.target, ids) if not 0 <= i < self.alphabet]
        if wrong:
            raise InputError(
                f"{wrong[0]!r} is not one of the letters {LETTERS[0]} to {LETTERS[self.alphabet - 1]}."
            )
        if len(ids) != self.length:
            raise InputError(f"{example.target!r} has {len(ids)} letters where {self.length} are wanted.")
        return Encoded(None, ids)

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, length=self.length)

    def decode(self, ids: Sequence[int]) -> str:
        if any(not 0 <= i < self.alphabet for i in ids):
            raise InputError(f"The ids {list(ids)} are not all letters.")
        return "".join(LETTERS[i] for i in ids)

    def parse(self, line: str) -> None:
        """Strings have no source: a blank line asks for one."""
        if line.strip():
            raise InputError("These strings have no source: give a blank line for each output wanted.")

    def show(self, output: str | None) -> str:
        return "" if output is None else output

    def token_names(self) -> tuple[str, ...]:
        return (*LETTERS[: self.alphabet], "<bos>", "<pad>")

    def to_json(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet, "length": self.length}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Letters:
        try:
            return cls(int(data["alphabet"]), int(data["length"]))
        except (KeyError, TypeError, ValueError):
            raise InputError("A codec of strings needs the numbers 'alphabet' and 'length'.") from None


@dataclass(frozen=True)
class Synthetic(ABC):
    """A distribution over strings as a task: three independent samples of it.

    ``size`` training strings and ``held_out`` strings each for development and test, drawn with ``seed``. Another ``draw``
    gives other training strings, independent of those before, and the same for development and test. Compare a model's
    negative log-likelihood per sequence with ``entropy()``, which it can't fall below.
    """

    alphabet: int = 5
    length: int = 5
    size: int = 1000
    held_out: int = 1000
    seed: int = 1
    draw: int = 0  # which training sample
    measures: tuple[Measure, ...] = ("nll",)  # how models are judged; the first picks the checkpoint

    def __post_init__(self) -> None:
        if not 2 <= self.alphabet <= len(LETTERS):
            raise InputError(f"alphabet must lie between 2 and {len(LETTERS)}, not {self.alphabet}")
        for name in ("length", "size", "held_out"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("seed", "draw"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, but is {getattr(self, name)}")
        check_measures(self.measures)

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """[n,T] ids drawn from the distribution."""

    @abstractmethod
    def log_prob(self, sequences: np.ndarray) -> np.ndarray:
        """[...,T] ids -> [...] exact log-probabilities in nats."""

    @abstractmethod
    def entropy(self) -> float:
        """−Σ_y p(y) log p(y) in nats: the negative log-likelihood that no model can beat on average."""

    def read(self, split: Split) -> Examples:
        codec = self._codec
        return Examples(Example(None, codec.decode(row)) for row in self._strings(split).tolist())

    def fit(self, train: Sequence[Example]) -> Letters:
        return self._codec

    def codec(self, data: dict[str, Any]) -> Letters:
        return Letters.from_json(data)

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return measured(self.measures)

    def remarks(self) -> tuple[str, ...]:
        """What the distribution that the strings come from has itself: no model is better, but for luck."""
        nll = f"sequence_nll of the true distribution: {self.surprise('test'):.4f} on the test split"
        known = self.alphabet**self.length <= MOST_SEQUENCES
        return (f"{nll}, {self.entropy():.4f} in expectation (its entropy)." if known else f"{nll}.",)

    def surprise(self, split: Split) -> float:
        """The mean of −log p(y) over the strings of a split: what the distribution itself would score there."""
        return float(-self.log_prob(self._strings(split)).mean())

    def _strings(self, split: Split) -> np.ndarray:
        """[N,T] ids of a split."""
        number = ("train", "dev", "test").index(split)
        again = split == "train" and self.draw > 0
        rng = np.random.default_rng((self.seed, number, self.draw) if again else (self.seed, number))
        return self.sample(self.size if split == "train" else self.held_out, rng)

    @property
    def _codec(self) -> Letters:
        return Letters(self.alphabet, self.length)


def all_sequences(alphabet: int, length: int) -> np.ndarray:
    """[V^T,T] ids: every string, in alphabetical order.

    >>> all_sequences(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if alphabet**length > MOST_SEQUENCES:
        raise InputError(f"{alphabet}^{length} strings are too many to enumerate (at most {MOST_SEQUENCES}).")
    return np.array(list(product(range(alphabet), repeat=length)))
