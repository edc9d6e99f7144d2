"""What a task must offer: raw examples, a codec learnt from the training part, and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from unforced.metrics.protocol import LikelihoodMetric, Metric
from unforced.types import Batch, Encoded, Example, Examples, Sizes, Symbols

Split = Literal["train", "dev", "test"]


@runtime_checkable
class Codec(Protocol):
    """Turns raw examples into tensors and outputs back; learnt from training data, saved as JSON with a run.

    ``parse`` and ``show`` serve the command line: one line of standard input is one source, one line out one output.
    """

    symbols: Symbols
    sizes: Sizes

    def encode(self, example: Example) -> Encoded:
        """An example in numbers. ``example.target`` may be None (decoding): the target is then empty."""
        ...

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch: ...

    def decode(self, ids: Sequence[int]) -> Any:
        """Token ids (no EOS, no padding) -> the raw output that metrics compare with references."""
        ...

    def parse(self, line: str) -> Any:
        """A line of text -> a raw source; raises InputError where it can't be one."""
        ...

    def show(self, output: Any) -> str:
        """A raw output as one line of text."""
        ...

    def token_names(self) -> tuple[str, ...]:
        """The name of each id that a target may have, as the data spells it."""
        ...

    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Codec: ...


@runtime_checkable
class Task(Protocol):
    """A frozen dataclass whose fields are the task's options; the catalogue lists these."""

    def read(self, split: Split) -> Examples:
        """The raw examples of a split, always in the same order."""
        ...

    def fit(self, train: Sequence[Example]) -> Codec:
        """Learn vocabularies from the training examples, and from nothing else."""
        ...

    def codec(self, data: dict[str, Any]) -> Codec:
        """The codec that ``to_json`` described."""
        ...

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        """How outputs, or the model's likelihoods, are judged; development scores use the first."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A task that has something to say of the scores on its data, such as what the best of all models would have."""

    def remarks(self) -> tuple[str, ...]:
        """Sentences for below a table of scores."""
        ...


@dataclass(frozen=True)
class FittedTask:
    """A task together with its codec: what a trained model needs to read data and write outputs."""

    task: Task
    codec: Codec

    def batch(self, examples: Sequence[Example], ids: Sequence[int] | None = None) -> Batch:
        numbers = list(range(len(examples))) if ids is None else list(ids)
        return self.codec.collate([self.codec.encode(example) for example in examples], numbers)
