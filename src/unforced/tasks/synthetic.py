"""Strings from distributions with exact log-probabilities and entropy: hidden Markov models, palindromes.

All strings have the same length and consist of the letters a, b, c, … A letter's id is its number.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.options import Above, AtLeast, Below, Between, Count, Natural, Options
from unforced.protocols import LikelihoodMetric, Split
from unforced.tasks.codecs import ALPHABET, StringCodec
from unforced.types import Example, Examples

MAX_SEQUENCES = 2**22  # more are not enumerated


@dataclass(frozen=True)
class Synthetic(Options, ABC):
    """Base of distributions over strings; training, development and test strings are independent samples.

    No model has a negative log-likelihood per sequence below ``entropy()``, except by chance.
    """

    alphabet: Annotated[int, Between(2, len(ALPHABET))] = 5  # number of letters
    length: Count = 5  # of the strings
    size: Count = 1000  # number of training strings
    held_out: Count = 1000  # number of development strings, and of test strings
    seed: Natural = 1  # of all samples
    draw: Natural = 0  # number of the training sample: further ones are independent, with the same dev and test strings
    measures: Measures = ("nll",)  # metrics; the first selects checkpoints

    def check(self) -> None:
        check_measures(self.measures)

    @abstractmethod
    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ids [n,T]."""

    @abstractmethod
    def log_prob(self, sequences: np.ndarray) -> np.ndarray:
        """Return the log-probabilities [...] of ids [...,T] in nats."""

    @abstractmethod
    def entropy(self) -> float:
        """Return −Σ_y p(y) log p(y) in nats."""

    def read(self, split: Split) -> Examples:
        codec = StringCodec(self.alphabet, self.length)
        return Examples(Example(None, codec.decode(row)) for row in self._sample_of(split).tolist())

    def fit(self, train: Sequence[Example]) -> StringCodec:
        return StringCodec(self.alphabet, self.length)

    def codec(self, data: dict[str, Any]) -> StringCodec:
        return StringCodec.from_json(data)

    def metrics(self) -> tuple[LikelihoodMetric, ...]:
        return likelihood_metrics(self.measures)

    def remarks(self) -> tuple[str, ...]:
        """Describe the score of the true distribution."""
        nll = f"sequence_nll of the true distribution: {self.surprise('test'):.4f} on the test split"
        if self.alphabet**self.length > MAX_SEQUENCES:
            return (f"{nll}.",)
        return (f"{nll}, {self.entropy():.4f} in expectation (its entropy).",)

    def surprise(self, split: Split) -> float:
        """Return the mean of −log p(y) over the strings of a split."""
        return float(-self.log_prob(self._sample_of(split)).mean())

    def _sample_of(self, split: Split) -> np.ndarray:
        """The ids [N,T] of a split."""
        number = ("train", "dev", "test").index(split)
        seed = (self.seed, number, self.draw) if split == "train" and self.draw else (self.seed, number)
        return self.sample(self.size if split == "train" else self.held_out, np.random.default_rng(seed))


def all_sequences(alphabet: int, length: int) -> np.ndarray:
    """Return the ids [V^T,T] of every string, in alphabetical order.

    >>> all_sequences(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if alphabet**length > MAX_SEQUENCES:
        raise InputError(f"{alphabet}^{length} strings are too many to enumerate, at most {MAX_SEQUENCES} are allowed")
    return np.array(list(product(range(alphabet), repeat=length)))


# Hidden Markov models (Goyal 2021, section 6.2.3)

TRANSITION = 0.25
EMISSION = {"low": 0.05, "high": 0.22}


class Parameters(NamedTuple):
    """Probabilities of the first state [S], transitions [S,S] and emissions [S,V]."""

    first: np.ndarray
    transitions: np.ndarray
    emissions: np.ndarray


@dataclass(frozen=True)
class HMM(Synthetic):
    """Strings from a hidden Markov model whose emissions have low or high entropy.

    State s prefers state s + 1 and letter s; each further one around the circle is less likely by a constant factor:
    p(s' | s) ∝ 0.25^((s' − s − 1) mod S), p(v | s) ∝ r^((v − s) mod V) with r = 0.05 (low) or 0.22 (high). The thesis
    has 4 states and 5 letters but does not state its parameters; these have entropies near its 4.97 and 6.45.

    >>> round(HMM(emissions="low").entropy(), 2), round(HMM(emissions="high").entropy(), 2)
    (4.97, 6.41)
    """

    states: Count = 4  # number of hidden states
    emissions: Literal["low", "high"] = "low"  # entropy of the letter given the state

    def parameters(self) -> Parameters:
        """Return the probabilities of the model."""
        s, v = self.states, self.alphabet
        transitions = TRANSITION ** ((np.arange(s) - np.arange(s)[:, None] - 1) % s).astype(float)
        emissions = EMISSION[self.emissions] ** ((np.arange(v) - np.arange(s)[:, None]) % v).astype(float)
        return Parameters(np.full(s, 1 / s), _rows_to_one(transitions), _rows_to_one(emissions))

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        first, transitions, emissions = self.parameters()
        drawn = np.empty((n, self.length), dtype=np.int64)
        state = _draw(np.broadcast_to(first, (n, self.states)), rng)
        for t in range(self.length):
            drawn[:, t] = _draw(emissions[state], rng)
            state = _draw(transitions[state], rng)
        return drawn

    def log_prob(self, sequences: np.ndarray) -> np.ndarray:
        """Run the forward algorithm, normalised at each step: log p(y) = Σ_t log p(y_t | y_<t)."""
        first, transitions, emissions = self.parameters()
        sequences = np.asarray(sequences)
        belief = np.broadcast_to(first, (*sequences.shape[:-1], self.states))  # p(state_t | y_<t), [...,S]
        total = np.zeros(sequences.shape[:-1])
        for t in range(sequences.shape[-1]):
            joint = belief * emissions.T[sequences[..., t]]
            step = joint.sum(axis=-1)
            total = total + np.log(step)
            belief = (joint / step[..., None]) @ transitions
        return total

    def entropy(self) -> float:
        """Enumerate the V^T strings."""
        log_probs = self.log_prob(all_sequences(self.alphabet, self.length))
        return float(-(np.exp(log_probs) * log_probs).sum())


def _rows_to_one(table: np.ndarray) -> np.ndarray:
    return np.asarray(table / table.sum(axis=-1, keepdims=True))


def _draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw categories [N] from rows [N,C] that sum to one, by inverse CDF."""
    above = rng.random((len(weights), 1)) >= weights.cumsum(axis=-1)
    return np.asarray(above.sum(axis=-1).clip(max=weights.shape[-1] - 1))


# Palindromes (Goyal 2021, section 6.2.3)


@dataclass(frozen=True)
class Palindromes(Synthetic):
    """Uniform palindromes with probability p, uniform other strings otherwise.

    With P palindromes among N strings, H = −p log p − (1−p) log(1−p) + p log P + (1−p) log(N − P). The thesis has
    N = 5⁵, P = 5³ and p = 0.8, hence 5.964 nats (its Table 6.1 prints 5.32 to 5.35).

    >>> task = Palindromes()
    >>> round(task.entropy(), 3)
    5.964
    >>> np.exp(task.log_prob(np.array([[0, 1, 2, 1, 0], [0, 1, 2, 3, 4]]))).round(6)
    array([6.4e-03, 6.7e-05])
    """

    length: Annotated[int, AtLeast(2)] = 5  # of the strings
    probability: Annotated[float, Above(0), Below(1)] = 0.8  # p

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
        inside, outside = np.log(p) - np.log(palindromes), np.log1p(-p) - np.log(others)
        return np.asarray(np.where(is_palindrome(sequences), inside, outside))

    def entropy(self) -> float:
        palindromes, others = self._counts()
        p = self.probability
        return float(-p * (np.log(p) - np.log(palindromes)) - (1 - p) * (np.log1p(-p) - np.log(others)))

    def _counts(self) -> tuple[float, float]:
        """The numbers of palindromes and of other strings."""
        palindromes = self.alphabet ** ((self.length + 1) // 2)
        return float(palindromes), float(self.alphabet**self.length - palindromes)


def is_palindrome(sequences: np.ndarray) -> np.ndarray:
    """Return whether ids [...,T] are palindromes [...]."""
    sequences = np.asarray(sequences)
    return np.asarray((sequences == sequences[..., ::-1]).all(axis=-1))
