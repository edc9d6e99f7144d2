"""What models, objectives, decoders, samplers, metrics, tasks and codecs must offer, and what they may offer.

A class does not inherit from these protocols: it defines their members. A protocol that is *optional for* another names
members that a class may define in addition. The library checks ``isinstance(x, Protocol)`` before it uses them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.types import (
    Batch,
    DecoderState,
    Encoded,
    Example,
    Examples,
    Hypotheses,
    Kernel,
    Loss,
    Progress,
    Sizes,
    Symbols,
)

# Models that predict the next token


@runtime_checkable
class StepDecoder(Protocol):
    """A decoder that advances over any number of positions, fed with tokens or with mixtures of tokens.

    One call of ``advance`` over T positions equals T calls over one position, and ``embed_mix(one_hot(ids))`` equals
    ``embed(ids)``. ``advance`` and ``score`` are separate because the projection to the vocabulary is the most
    expensive operation: callers score only the positions they need. ``embed_mix`` is needed only by methods that feed
    mixtures of tokens.
    """

    def start(self, batch: Batch) -> DecoderState:
        """Encode the sources. The state has one row per example and has not read any input."""

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids: [R,T] -> [R,T,E]."""

    def embed_mix(self, weights: Tensor) -> Tensor:
        """Return the expected embedding [R,T,E] under weights [R,T,V] that sum to one over V."""

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        """Read inputs [R,T,E]; return the features [R,T,H] that predict each next token, and the new state."""

    def score(self, features: Tensor) -> Tensor:
        """Project features [...,H] to unnormalised scores [...,V]."""


@runtime_checkable
class SupportsAdvanceAt(Protocol):
    """Optional for a `StepDecoder`: features at a few positions, at less cost than `advance`."""

    def advance_at(self, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
        """Return the features [N,H] of ``advance`` at the N positions where the mask ``where`` [R,T] is true."""


# Models that predict masked tokens

Side = Literal["left", "right"]  # of a position


@runtime_checkable
class MaskedModel(Protocol):
    """A bidirectional model that scores tokens at masked positions.

    R is a multiple of the batch size B: the rows of an example are adjacent.
    """

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """Score tokens [R,T] with the positions ``masked`` [R,T] (bool) hidden: unnormalised scores [R,T,V]."""


@runtime_checkable
class SupportsFeatures(Protocol):
    """Optional for a `MaskedModel`: ``scores = score(features)``, so that few positions are projected."""

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """Return [R,T,H], what ``score`` projects to the vocabulary."""

    def score(self, features: Tensor) -> Tensor:
        """Project features [...,H] to unnormalised scores [...,V]."""


@runtime_checkable
class SupportsFeaturesAt(Protocol):
    """Optional for a `MaskedModel`: features of some positions only."""

    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor) -> Tensor:
        """Return the features [R,P,H] at positions [R,P]."""

    def score(self, features: Tensor) -> Tensor:
        """Project features [...,H] to unnormalised scores [...,V]."""


@runtime_checkable
class SupportsEncoding(Protocol):
    """Optional for a `MaskedModel` with sources: encode them once for many calls of ``scores``."""

    def encoded(self, batch: Batch) -> Batch:
        """Return a batch with encoded sources, which every other method of the model accepts."""


@runtime_checkable
class SupportsConditionals(Protocol):
    """Optional for a `MaskedModel`: all conditionals p(y_t | y_<t, y_>t) in one pass."""

    def conditional_scores(self, batch: Batch, tokens: Tensor) -> Tensor:
        """Score every position [R,T] as if it alone were masked: [R,T,V]."""


@runtime_checkable
class SupportsLengths(Protocol):
    """Optional for a `MaskedModel`: a distribution over output lengths."""

    def length_scores(self, batch: Batch) -> Tensor | None:
        """Score the output lengths 1, 2, … (without the end symbol): [B,longest]; None if not configured."""


@runtime_checkable
class SupportsLogZ(Protocol):
    """Optional for a `MaskedModel`: a learned log normaliser of its energy."""

    def log_z(self, batch: Batch) -> Tensor:
        """Return log Z of each example: [B]."""


@runtime_checkable
class SupportsContexts(Protocol):
    """Optional for a `MaskedModel`: score(y_t = w) = P_w · g(l(y_<t) + r(y_>t)) + bias_w.

    Sums over all sequences then share the contexts l of prefixes and r of suffixes. Contexts of N strings are a tree of
    tensors with N rows (``unforced.ops.state_rows``).
    """

    def contexts_are_exact(self) -> bool:
        """Return whether contexts give the result of ``scores``, which is false with dropout."""

    def empty_context(self) -> Any:
        """Return the context of the empty string, in one row."""

    def extend_contexts(self, side: Side, contexts: Any, ids: Tensor) -> Any:
        """Extend N strings by each of n tokens, at the end (left) or the start (right): N·n in lexicographic order."""

    def prepare_contexts(self, side: Side, contexts: Any) -> Any:
        """Return contexts with precomputed values that make it faster to extend them several times."""

    def project_contexts(self, side: Side, contexts: Any) -> Tensor:
        """Return l or r of N contexts: [N,J]."""

    def activate(self, x: Tensor) -> Tensor:
        """Return g(x); may overwrite x."""

    def output_weights(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return P [n,J] and bias [n] of n tokens."""


@runtime_checkable
class ModelSpec(Protocol):
    """A frozen dataclass whose fields are a model's hyper-parameters."""

    def build(self, sizes: Sizes) -> nn.Module:
        """Return a new network for data of these sizes, initialised from torch's global generator.

        Raise `InputError` if the model cannot read such data, for example images in a text-only model.
        """


@runtime_checkable
class SupportsReading(Protocol):
    """Optional for a `ModelSpec`: the model has its own tokenizer."""

    def reading(self, task: Any) -> "Task":
        """Return the task with its text read by the model's tokenizer."""


# Objectives, schedules and costs


@runtime_checkable
class Objective(Protocol):
    """A training method: a frozen dataclass whose fields are its hyper-parameters.

    Except for dropout, all randomness comes from ``rng``. Draw random numbers per example with
    `unforced.ops.random_streams`, not from ``rng`` itself: results then do not depend on micro-batches or processes.
    """

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        """Return the summed loss of a batch and the count to divide it by."""


@runtime_checkable
class SupportsModels(Protocol):
    """Optional for an `Objective`: fields that name run folders of models that are not trained."""

    def with_models(self, load: "Callable[[str], nn.Module]") -> Objective:
        """Return the objective with these models loaded; ``load`` returns the model of a run folder."""


@runtime_checkable
class SupportsFitting(Protocol):
    """Optional for an `Objective` or a `Cost`: it depends on the vocabulary or on the training data."""

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> Any:
        """Return a copy for this codec and these training examples. A cost is fitted without examples."""


@runtime_checkable
class SupportsSchedules(Protocol):
    """Optional for an `Objective`: values that change during training."""

    def schedules(self) -> "Mapping[str, float | Schedule]":
        """Return the schedules by name; numbers are constants."""


@runtime_checkable
class ReadsFiles(Protocol):
    """Optional for an `Objective` or an object in one of its fields: its data files. A run cannot resume if they
    changed.
    """

    @property
    def files(self) -> Sequence[Path]: ...


@runtime_checkable
class Stepwise(Protocol):
    """Optional for an `Objective`: whether it runs the decoder one step at a time, which excludes gradient
    checkpointing.
    """

    stepwise: bool


@runtime_checkable
class Schedule(Protocol):
    """A number that depends on the progress of training."""

    def __call__(self, progress: Progress) -> float: ...


@runtime_checkable
class HasUnit(Protocol):
    """Optional for a `Schedule`: its unit of time."""

    unit: Literal["epoch", "step", "fraction"]


@runtime_checkable
class Cost(Protocol):
    """A task cost that is a sum over steps: Δ(y*, y) = Σ_t d_t(y_t)."""

    def prepare(self, batch: Batch, steps: int) -> Tensor:
        """Return what the costs of each example and step depend on: [B,steps,…]."""

    def __call__(self, now: Tensor, tokens: Tensor) -> Tensor:
        """Return the costs [B,M] of tokens [B,M] at one step, given that step's slice [B,…] of `prepare`."""


def fitted(objective: Objective, codec: Any, examples: Sequence[Encoded] = ()) -> Objective:
    """Fit an objective to a codec and to encoded training examples if it supports this, else return it unchanged."""
    if not isinstance(objective, SupportsFitting):
        return objective
    result: Objective = objective.fitted(codec, examples)
    return result


# Decoders and samplers


@runtime_checkable
class Decoder(Protocol):
    """A frozen dataclass whose fields are a decoder's options."""

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        """Decode every example of a batch. The targets in the batch are empty unless the decoder reads them."""


@runtime_checkable
class ReadsGold(Protocol):
    """Optional for a `Decoder`: whether it receives the targets (for analysis only)."""

    reads_gold: bool


@runtime_checkable
class Sampler(Protocol):
    """A frozen dataclass whose fields are the options of a Markov chain over sequences."""

    def kernel(self, model: Any, batch: Batch) -> Kernel:
        """Return the kernel for a model and the examples of a batch; targets set the lengths."""


@runtime_checkable
class HasEnergy(Protocol):
    """Optional for a `Sampler`: the energy it computes, None if it does not compute any."""

    energy: Any


@runtime_checkable
class Annealed(Protocol):
    """Optional for a `Sampler`: its first sweeps do not have the final target."""

    forced: int  # number of first sweeps in which every proposal is accepted
    anneal: float  # by how much the temperature falls after each sweep


# Metrics


class Scoring(Protocol):
    """What both kinds of metrics offer: a score of the sum of statistics of each example."""

    name: str
    higher_is_better: bool

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Turn sums of rows [...,D] into scores [...]."""

    def signature(self) -> str:
        """Describe how the figure was computed."""


@runtime_checkable
class Metric(Scoring, Protocol):
    """A metric of outputs."""

    def statistics(self, outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> np.ndarray:
        """Return [N,D] float64: row i compares output i with its references. Raise if the numbers differ."""


class LikelihoodRow(NamedTuple):
    """The likelihood of the target of one example, with target tokens as input."""

    nll: float  # −log p(target)
    tokens: int
    log_z: float  # Σ_t log Z_t, where log Z_t is the log of the sum over the vocabulary of exp(score)
    log_z_squared: float  # Σ_t (log Z_t)²


@runtime_checkable
class LikelihoodMetric(Scoring, Protocol):
    """A metric of the model's likelihood of the targets, not of its outputs."""

    def likelihood_statistics(self, likelihoods: Sequence[LikelihoodRow]) -> np.ndarray:
        """Return [N,D] float64, a row for each example."""


@runtime_checkable
class LikelihoodOf(Protocol):
    """Optional for a `LikelihoodMetric` of masked models: what stands for −log p(target); "exact" by default.

    "masked" sums −log p of each token given all others by the model's softmax, "pseudo" by the conditionals of its
    energy.
    """

    of: str


@runtime_checkable
class HasRange(Protocol):
    """Optional for a metric: its lowest and highest possible score, which bound the intervals."""

    @property
    def score_range(self) -> tuple[float, float]: ...


@runtime_checkable
class FinalOnly(Protocol):
    """Optional for a `LikelihoodMetric`: whether it is too expensive for anything but test scores."""

    final: bool


# Tasks and codecs

Split = Literal["train", "dev", "test"]


@runtime_checkable
class Codec(Protocol):
    """The conversion between raw examples and tensors; fitted to training data and saved as JSON with a run.

    ``parse`` and ``show`` serve the command line: one line of standard input is one source, one line out one output.
    """

    symbols: Symbols
    sizes: Sizes

    def encode(self, example: Example) -> Encoded:
        """Encode an example. ``example.target`` may be None (decoding): the encoded target is then empty."""

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        """Pad encoded examples into a batch; ``ids`` are their numbers in the split."""

    def decode(self, ids: Sequence[int]) -> Any:
        """Turn token ids without end symbol and padding into the raw output that metrics compare."""

    def parse(self, line: str) -> Any:
        """Turn a line of text into a raw source; raise `InputError` if that is impossible."""

    def show(self, output: Any) -> str:
        """Return a raw output as one line of text."""

    def token_names(self) -> tuple[str, ...]:
        """Return the name of each target id, as the data spells it; empty if unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Codec":
        """Return the codec that `to_json` described."""


@runtime_checkable
class TokenizerIds(Protocol):
    """Optional for a `Codec`: special tokens that a tokenizer defines."""

    @property
    def special_ids(self) -> Collection[int]:
        """Ids that stand for no text."""

    @property
    def unknown_id(self) -> int | None:
        """The id of unknown words."""


@runtime_checkable
class Task(Protocol):
    """A frozen dataclass whose fields are the options of a data set."""

    def read(self, split: Split) -> Examples:
        """Return the raw examples of a split, always in the same order."""

    def fit(self, train: Sequence[Example]) -> Codec:
        """Learn vocabularies from the training examples, and from nothing else."""

    def codec(self, data: dict[str, Any]) -> Codec:
        """Return the codec that ``to_json`` described."""

    def metrics(self) -> tuple[Metric | LikelihoodMetric, ...]:
        """Return the metrics of the task; the first selects checkpoints."""


@runtime_checkable
class SupportsRemarks(Protocol):
    """Optional for a `Task`: notes on the scores of its data, such as the score of the best possible model."""

    def remarks(self) -> tuple[str, ...]:
        """Return sentences to print below a table of scores."""


@runtime_checkable
class ReadsText(Protocol):
    """Optional for a `Task`: whether its sources are text that a report can show."""

    @property
    def reads_text(self) -> bool: ...


@runtime_checkable
class WrapsTask(Protocol):
    """Optional for a `Task`: it reads the examples of another task, for example with a model's tokenizer."""

    inner: Any


@dataclass(frozen=True)
class FittedTask:
    """A task and its codec: what a trained model needs to read data and write outputs."""

    task: Task
    codec: Codec

    def batch(
        self, examples: Sequence[Example], ids: Sequence[int] | None = None, *, device: torch.device | str
    ) -> Batch:
        """Return raw examples as a batch on ``device``; ``ids`` are their numbers in the split, 0, 1, … by default."""
        numbers = list(range(len(examples))) if ids is None else list(ids)
        return self.codec.collate([self.codec.encode(example) for example in examples], numbers).to(device)


@runtime_checkable
class HasCodec(Protocol):
    """Anything that carries a codec: a `FittedTask`, or a network that the library built or loaded."""

    codec: Codec


# Checks


def require(model: Any, method: str, *names: str) -> None:
    """Raise `InputError` if a model lacks a function that a method calls.

    >>> require(object(), "scheduled_sampling", "start")
    Traceback (most recent call last):
    unforced.errors.InputError: scheduled_sampling needs a model with start, but object does not define it
    """
    missing = [name for name in names if not callable(getattr(model, name, None))]
    if missing:
        message = f"{method} needs a model with {' and '.join(missing)}, but {type(model).__name__} does not define "
        message += "it" if len(missing) == 1 else "them"
        if "scores" not in missing and isinstance(model, MaskedModel):
            message += (
                ": it is a masked model; train it with masked_lm and decode it with mask_predict, in a recipe "
                "objective=masked_lm decoding.masks=mask_predict training.validate=masks"
            )
        elif "scores" in missing and isinstance(model, StepDecoder):
            message += (
                ": it predicts the next token; train it with cross_entropy and decode it with beam, or choose a "
                "masked model (masked, conditional_masked, field, or AutoModelForMaskedLM of transformers)"
            )
        raise InputError(message)
