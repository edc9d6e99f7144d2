"""What a model must offer so that every method of the library can train, decode or sample it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.types import Batch, DecoderState, Encoded, Example, Examples, Hypotheses, Loss, Progress, Sizes, Symbols


@runtime_checkable
class StepDecoder(Protocol):
    """A decoder that can be advanced over any number of positions, by tokens or by mixtures of tokens.

    ``advance`` over T positions equals T single advances; ``embed_mix(one_hot(ids))`` equals ``embed(ids)``.
    ``advance`` and ``score`` are apart because the projection to the vocabulary is the dear part.
    """

    def start(self, batch: Batch) -> DecoderState:
        """Encode the sources once; the state has one row for each example and has seen no input."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """[R,T] token ids -> [R,T,E]."""
        ...

    def embed_mix(self, weights: Tensor) -> Tensor:
        """[R,T,V] weights that sum to one over V -> [R,T,E], the expected embedding."""
        ...

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        """[R,T,E] inputs -> [R,T,H] features for predicting the token behind each, and the state after them."""
        ...

    def score(self, features: Tensor) -> Tensor:
        """[...,H] features -> [...,V] unnormalised scores."""
        ...


@runtime_checkable
class MaskedModel(Protocol):
    """A bidirectional model that scores tokens at masked positions."""

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,V] unnormalised scores, with the masked tokens hidden."""
        ...


@runtime_checkable
class ModelSpec(Protocol):
    """A frozen dataclass whose fields are a model's hyper-parameters; the catalogue lists these."""

    def build(self, sizes: Sizes) -> nn.Module:
        """The network for data of these sizes, freshly initialised from torch's global generator.

        Raises ``InputError`` where the model can't take such data (say, images into a text-only model).
        """
        ...


def stepping(model: Any) -> AbstractContextManager[None]:
    """Around passes with gradient that go step by step: the model's own ``stepping()``, if it has such a thing.

    A model may offer it to save work that is the same at every step; results are the same with and without. Entered
    within itself it changes nothing.
    """
    own: AbstractContextManager[None] = getattr(model, "stepping", nullcontext)()
    return own


def advance_at(model: Any, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
    """The features [N,H] that ``advance`` finds at the N positions which ``where`` [R,T] marks, in their order.

    A model may offer ``advance_at(state, inputs, where)`` to save the others' share of its last layer.
    """
    own = getattr(model, "advance_at", None)
    if own is None:
        return model.advance(state, inputs)[0][where]
    found: Tensor = own(state, inputs, where)
    return found


def require(model: Any, method: str, *names: str) -> None:
    """Raise ``InputError`` if the model lacks a function that ``method`` calls.

    >>> require(object(), "scheduled_sampling", "start")
    Traceback (most recent call last):
    unforced.errors.InputError: scheduled_sampling needs a model with start, which object doesn't have
    """
    missing = [name for name in names if not callable(getattr(model, name, None))]
    if missing:
        masked = callable(getattr(model, "scores", None)) and "scores" not in missing
        raise InputError(
            f"{method} needs a model with {' and '.join(missing)}, which {type(model).__name__} doesn't have"
            + (": it is a masked model, as masked_lm trains and mask_predict decodes them" if masked else "")
        )


# What a training method is: one callable from a model and a batch to a loss.


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass; its fields are the method's hyper-parameters.

    All randomness comes from ``rng`` (dropout apart), so that a resumed run repeats it bit for bit. The loop hands every
    part of an update a generator in the same state: draw numbers for each example by ``unforced.ops.random_streams``, not from
    ``rng`` itself, and micro-batches and processes add up to exactly what one big batch would give.

    An objective, or a part of it, that reads files names their paths by ``files``: a run is not resumed with other content.
    """

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss: ...


def fitted(objective: Objective, codec: Any, examples: Sequence[Encoded] = ()) -> Objective:
    """The objective, knowing the data: what its own ``fitted(codec, examples)`` gives, if it has such a thing.

    ``codec`` knows the vocabulary, ``examples`` are all that it is trained on.
    """
    own = getattr(objective, "fitted", None)
    return objective if own is None else own(codec, examples)


# What a decoder is: one callable from a model and a batch to hypotheses.


@runtime_checkable
class Decoder(Protocol):
    """A frozen dataclass whose fields are a decoder's options; the catalogue lists these.

    Evaluation hides the answers from it, unless it has a class variable ``reads_gold`` that is true.
    """

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses: ...


# What a metric is: per-example statistics that add up, and a score of their sum.

LikelihoodRow = tuple[float, int, float, float]  # −log p(gold), tokens, Σ_t log Z_t, Σ_t (log Z_t)²


@runtime_checkable
class Metric(Protocol):
    name: str
    higher_is_better: bool

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        """[N,D] float64: row i describes output i against its acceptable answers. Raises on unequal numbers."""
        ...

    def score(self, sums: np.ndarray) -> np.ndarray:
        """[...,D] sums of rows -> [...] scores."""
        ...

    def signature(self) -> str:
        """How the figure was computed, for a table's foot."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """A metric that is not for all data."""

    def doubts(self, answers: Sequence[Sequence[Any]]) -> str | None:
        """Why these answers are little use to it, as a clause; None where all is well."""
        ...


@runtime_checkable
class LikelihoodMetric(Protocol):
    """A metric of the model and not of its outputs: it is given what the model makes of the gold answers.

    A metric of masked models may have an attribute ``of`` that says what stands for −log p(gold): "exact" likelihood, which
    is meant where there is none, or that of "masked" tokens, each given all others, by the model's softmax or by the
    "pseudo"-conditionals of its energy. One with a true attribute ``final`` is too dear for anything but test scores.
    """

    name: str
    higher_is_better: bool

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        """A row (−log p(gold), tokens, Σ_t log Z_t, Σ_t (log Z_t)²) for each example -> [N,D] float64.

        log Z_t is the log of the sum over the vocabulary of exp(score), with gold tokens fed.
        """
        ...

    def score(self, sums: np.ndarray) -> np.ndarray: ...

    def signature(self) -> str: ...


# What a task must offer: raw examples, a codec learnt from the training part, and metrics.

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
    def from_json(cls, data: dict[str, Any]) -> "Codec": ...


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
