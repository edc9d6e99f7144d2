"""Palindromes with probability p, other strings otherwise (Goyal 2021, section 6.2.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unforced.errors import InputError
from unforced.tasks.synthetic import Synthetic


@dataclass(frozen=True)
class Palindromes(Synthetic):
    """With ``probability`` p a uniform palindrome, else a uniform string that is none.

    With P palindromes among N strings, H = −p log p − (1−p) log(1−p) + p log P + (1−p) log(N − P). The thesis has
    N = 5⁵, P = 5³ and p = 0.8, hence 5.964 nats (its Table 6.1 prints 5.32 to 5.35).

    >>> task = Palindromes()
    >>> round(task.entropy(), 3)
    5.964
    >>> np.exp(task.log_prob(np.array([[0, 1, 2, 1, 0], [0, 1, 2, 3, 4]]))).round(6)
    array([6.4e-03, 6.7e-05])
    """

    probability: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.probability < 1:
            raise InputError(f"probability must lie between 0 and 1, not {self.probability}")
        if self.length < 2:
            raise InputError("length must be at least 2: every single letter is a palindrome")

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        drawn = rng.integers(self.alphabet, size=(n, self.length))
        half = self.length // 2
        mirrored = rng.random(n) < self.probability
        drawn[mirrored, self.length - half :] = drawn[mirrored, :half][:, ::-1]
        while (again := ~mirrored & is_palindrome(drawn)).any():
            drawn[again] = rng.integers(self.alphabet, size=(int(again.sum()), self.length))
        return drawn

    def log_prob(self, sequences: np.ndarray) -> np.ndarray:
        palindromes, others = self._counts()
        p = self.probability
        return np.where(
            is_palindrome(sequences), np.log(p) - np.log(palindromes), np.log1p(-p) - np.log(others)
        )

    def entropy(self) -> float:
        palindromes, others = self._counts()
        p = self.probability
        return float(-p * (np.log(p) - np.log(palindromes)) - (1 - p) * (np.log1p(-p) - np.log(others)))

    def _counts(self) -> tuple[float, float]:
        """How many strings are palindromes, and how many are not."""
        palindromes = self.alphabet ** ((self.length + 1) // 2)
        return float(palindromes), float(self.alphabet**self.length - palindromes)


def is_palindrome(sequences: np.ndarray) -> np.ndarray:
    """[...,T] ids -> [...] bool."""
    sequences = np.asarray(sequences)
    return (sequences == sequences[..., ::-1]).all(axis=-1)
