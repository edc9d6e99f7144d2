"""Options of a run of Markov chains; importable without torch, for the command line."""

from dataclasses import dataclass
from typing import Literal

from unforced.errors import InputError
from unforced.options import Count, Natural, Options


@dataclass(frozen=True, kw_only=True)
class ChainOptions(Options):
    """How many chains to run, for how long, from where, and for which examples."""

    chains: Count = 4
    """Chains per example."""

    sweeps: Count = 100
    """Number of times that each position is visited. With resume it may exceed the previous number."""

    burn_in: Natural | None = None
    """First sweeps that the report leaves out. By default a fifth of the sweeps, and at least all forced sweeps."""

    start: Literal["random", "greedy", "data"] = "greedy"
    """Start from random tokens, the most probable tokens (greedy), or the data. R-hat is most reliable with random."""

    seed: Natural = 1
    """Seed of all random numbers."""

    keep_every: Count = 1
    """Keep the sequences of every n-th sweep."""

    save_every: Count = 10
    """Save a checkpoint every n sweeps."""

    patience: Count = 5
    """Report a chain as stuck if it did not move in this many last sweeps."""

    split: Literal["train", "dev", "test"] = "test"
    """Split of the run's data, if there are no lines of input."""

    examples: Count | None = None
    """Number of examples to use, from the first on. Default: 1, or all lines of the input."""

    length: Count | None = None
    """Tokens of an output, if the data does not set it. Default: the most probable length under the model."""

    banned: tuple[str, ...] = ()
    """Tokens that are never sampled: names, or regular expressions that match whole names. May be repeated."""

    def check(self) -> None:
        if self.burn_in is not None and self.burn_in >= self.sweeps:
            raise InputError(f"burn_in must be below sweeps, {self.sweeps}, got {self.burn_in}")
        if self.length is not None and self.start == "data":
            raise InputError("start=data uses the lengths of the data: remove length, or choose another start")

    def burn_in_for(self, forced: int) -> int:
        """Return the sweeps that the report leaves out for a sampler with ``forced`` sweeps."""
        if self.burn_in is not None:
            return self.burn_in
        return min(max(self.sweeps // 5, forced), self.sweeps - 1)
