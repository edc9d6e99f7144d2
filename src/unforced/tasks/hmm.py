"""Strings from hidden Markov models with low- or high-entropy emissions (Goyal 2021, section 6.2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.tasks.synthetic import Synthetic, all_sequences

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

    states: int = 4
    emissions: Literal["low", "high"] = "low"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states < 1:
            raise InputError(f"states must be at least 1, not {self.states}")
        if self.emissions not in EMISSION:
            raise InputError(f"emissions must be 'low' or 'high', not {self.emissions!r}")

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
