"""Strings drawn from distributions whose log-probabilities and entropy are known exactly.

Strings are letters of the alphabet a, b, c …, all of one length, without a source and without an end symbol. A letter's id
is its number, so that arrays of ids serve models and the true distribution alike.
"""

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.metrics.likelihood import Measures, check_measures, likelihood_metrics
from unforced.options import Above, AtLeast, Below, Between, Count, Natural, Options
from unforced.protocols import LikelihoodMetric, Split
from unforced.tasks.codecs import collate
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
            raise InputError(f"{wrong[0]!r} is not one of the letters {LETTERS[0]} to {LETTERS[self.alphabet - 1]}.")
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
    def from_json(cls, data: dict[str, Any]) -> "Letters":
        try:
            return cls(int(data["alphabet"]), int(data["length"]))
        except (KeyError, TypeError, ValueError):
            raise InputError("A codec of strings needs the numbers 'alphabet' and 'length'.") from None


@dataclass(frozen=True)
class Synthetic(Options, ABC):
    """A distribution over strings as a task: three independent samples of it.

    ``size`` training strings and ``held_out`` strings each for development and test, drawn with ``seed``. Another ``draw``
    gives other training strings, independent of those before, and the same for development and test. Compare a model's
    negative log-likelihood per sequence with ``entropy()``, which it can't fall below.
    """

    alphabet: Annotated[int, Between(2, len(LETTERS))] = 5
    length: Count = 5
    size: Count = 1000
    held_out: Count = 1000
    seed: Natural = 1
    draw: Natural = 0  # which training sample
    measures: Measures = ("nll",)  # how models are judged; the first picks the checkpoint

    def check(self) -> None:
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
        return likelihood_metrics(self.measures)

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


# Strings from hidden Markov models with low- or high-entropy emissions (Goyal 2021, section 6.2.3).

TRANSITION = 0.25
EMISSION = {"low": 0.05, "high": 0.22}


class Parameters(NamedTuple):
    """Rows sum to one: the first state [S], transitions [S,S], emissions [S,V]."""

    first: np.ndarray
    transitions: np.ndarray
    emissions: np.ndarray


@dataclass(frozen=True)
class HMM(Synthetic):
    """A hidden Markov model with ``states`` states; ``emissions`` says how peaked a state's letters are.

    State s prefers state s + 1 and letter s; each further one around the circle is less likely by a constant factor:
    p(s' | s) ∝ 0.25^((s' − s − 1) mod S), p(v | s) ∝ r^((v − s) mod V) with r = 0.05 (low) or 0.22 (high). The thesis
    gives 4 states and 5 letters but not its parameters; these have entropies near the 4.97 and 6.45 it reports.

    >>> round(HMM(emissions="low").entropy(), 2), round(HMM(emissions="high").entropy(), 2)
    (4.97, 6.41)
    """

    states: Count = 4
    emissions: Literal["low", "high"] = "low"

    def parameters(self) -> Parameters:
        """The model's tables."""
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
        """The forward algorithm, normalised at each step: log p(y) = Σ_t log p(y_t | y_<t)."""
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
        """By enumeration of the V^T strings."""
        log_probs = self.log_prob(all_sequences(self.alphabet, self.length))
        return float(-(np.exp(log_probs) * log_probs).sum())


def _rows_to_one(table: np.ndarray) -> np.ndarray:
    return table / table.sum(axis=-1, keepdims=True)


def _draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N,C] rows that sum to one -> [N] categories, by inverse CDF."""
    above = rng.random((len(weights), 1)) >= weights.cumsum(axis=-1)
    return above.sum(axis=-1).clip(max=weights.shape[-1] - 1)


# Palindromes with probability p, other strings otherwise (Goyal 2021, section 6.2.3).


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

    length: Annotated[int, AtLeast(2)] = 5  # every single letter is a palindrome
    probability: Annotated[float, Above(0), Below(1)] = 0.8

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
        return np.where(is_palindrome(sequences), np.log(p) - np.log(palindromes), np.log1p(-p) - np.log(others))

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
