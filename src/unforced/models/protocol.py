"""What a model must offer so that every method of the library can train, decode or sample it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from unforced.errors import InputError
from unforced.types import Batch, DecoderState, Sizes


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
