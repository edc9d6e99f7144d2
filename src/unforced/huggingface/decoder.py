"""A cache of keys and values as a plain tree of tensors with rows first, and back.

The library's caches are objects that a forward pass changes. Here the tensors are taken out of a cache, and what is left of it,
the layout, is never changed: each forward pass gets a new object around the tensors of the state it starts from.
"""

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.parts import (
    arguments,
    find,
    is_encoder_decoder,
    named,
    output_child,
    scores_of,
    within_positions,
)
from unforced.ops.kernels import Deferred
from unforced.types import Batch, DecoderState, Symbols, Tree


class Split(NamedTuple):
    """A cache in parts: what differs between hypotheses, what all those of an example share, and the object around."""

    own: Tree  # the tensors of each layer, by name
    cross: Tree  # those of the attention to an encoder, or None
    layout: Any


def split(cache: Any, rows: int) -> Split:
    """Take the tensors out of a cache that a pass over ``rows`` rows has filled."""
    if hasattr(cache, "cross_attention_cache"):
        layout = _copied(cache)
        layout.self_attention_cache, own = _emptied(cache.self_attention_cache, rows)
        layout.cross_attention_cache, cross = _emptied(cache.cross_attention_cache, rows)
        return Split(own, cross, layout)
    layout, own = _emptied(cache, rows)
    return Split(own, None, layout)


def join(parts: Split) -> Any:
    """A new cache around the tensors; nothing that happens to it is seen in ``parts``."""
    own, cross, layout = parts
    if hasattr(layout, "cross_attention_cache"):
        cache = _copied(layout)
        cache.self_attention_cache = _filled(layout.self_attention_cache, own)
        cache.cross_attention_cache = _filled(layout.cross_attention_cache, cross)
        return cache
    return _filled(layout, own)


def _emptied(cache: Any, rows: int) -> tuple[Any, Tree]:
    if not isinstance(getattr(cache, "layers", None), list):
        raise InputError(f"a cache of the class {type(cache).__name__} has no layers that could be mixed and reordered")
    layout, found = _copied(cache), []
    layout.layers = [_copied(layer) for layer in cache.layers]
    for layer in layout.layers:
        tensors = {name: part for name, value in vars(layer).items() if (part := _tensors(value)) is not None}
        for name, part in tensors.items():
            if isinstance(part, dict):
                vars(layer)[name].update(dict.fromkeys(part))
            else:
                vars(layer)[name] = None
        for leaf in _leaves(tensors):
            if leaf.shape[0] != rows:
                raise InputError(
                    f"a cache layer of the class {type(layer).__name__} holds a tensor without rows in front: "
                    f"{tuple(leaf.shape)} for {rows} rows"
                )
        found.append(tensors)
    return layout, tuple(found)


def _filled(layout: Any, tensors: Tree) -> Any:
    cache = _copied(layout)
    cache.layers = [_copied(layer) for layer in layout.layers]
    for layer, parts in zip(cache.layers, tensors):
        for name, part in parts.items():
            if isinstance(part, dict):  # states that a layer overwrites: it gets copies of its own
                vars(layer)[name].update({key: leaf.clone() for key, leaf in part.items()})
            else:
                vars(layer)[name] = part
        if hasattr(layer, "update_recurrent_state"):
            kind: Any = type(layer)
            layer.__class__ = _functional(kind)
    return cache


def _copied(thing: Any) -> Any:
    """A copy that shares no mutable container with the original."""
    other = copy.copy(thing)
    for name, value in vars(other).items():
        if isinstance(value, dict | list):
            vars(other)[name] = copy.copy(value)
    return other


def _tensors(value: Any) -> Tree:
    """The tensors with rows in an attribute: one, a dict of some, or None."""
    if isinstance(value, Tensor):
        return value if value.dim() and value.numel() else None
    if isinstance(value, dict):
        return {key: leaf for key, leaf in value.items() if isinstance(leaf, Tensor)} or None
    return None


def _leaves(tensors: dict[str, Tree]) -> list[Tensor]:
    return [leaf for part in tensors.values() for leaf in (part.values() if isinstance(part, dict) else [part])]


@functools.cache
def _functional(kind: type) -> type:
    """The class of layer with a recurrent state that is replaced, and not overwritten while a backward pass needs it."""
    if "_unforced" in vars(kind):
        return kind

    def update_recurrent_state(self: Any, recurrent_states: Tensor, state_idx: int = 0, **options: Any) -> Tensor:
        if self.is_recurrent_states_initialized[state_idx]:
            self.recurrent_states[state_idx] = torch.empty_like(recurrent_states)
        updated: Tensor = kind.update_recurrent_state(self, recurrent_states, state_idx, **options)  # type: ignore[attr-defined]
        return updated

    members = {"update_recurrent_state": update_recurrent_state, "_layer_type": None, "_unforced": True}
    return type(kind.__name__, (kind,), members)


# Tokens going into a Hugging Face model, hard or soft, by its own embedding.


class WrappedModel(nn.Module):
    """What all wrappers are: ``model`` is the Hugging Face model, whose parameters these are, ``symbols`` its special tokens;
    ``tokenizer`` is what the user named."""

    tokenizer: Any = None

    def __init__(self, model: nn.Module, symbols: Symbols) -> None:
        super().__init__()
        self.model = model
        self.symbols = symbols
        self.training = model.training
        self._inputs: Deferred | None = None  # the embedding's weight, while stepping

    @property
    def embedding(self) -> Any:
        """The embedding of the tokens that are fed."""
        return self.model.get_input_embeddings()  # type: ignore[operator]

    @property
    def tokens(self) -> int | None:
        """How many tokens have embeddings, where that can be seen."""
        weight = getattr(self.embedding, "weight", None)
        return len(weight) if isinstance(weight, Tensor) else None

    @cached_property
    def scale(self) -> float | None:
        """What the embedding multiplies its weight by; see ``embedding_scale``."""
        return embedding_scale(self.embedding)

    def embed(self, ids: Tensor) -> Tensor:
        if self._inputs is not None and self.scale is not None:
            vectors = self._inputs.rows(ids)
            padding = getattr(self.embedding, "padding_idx", None)
            if padding is not None:  # whose vector is not learnt
                vectors = torch.where((ids == padding).unsqueeze(-1), vectors.detach(), vectors)
            return vectors if self.scale == 1 else vectors * self.scale
        made: Tensor = self.embedding(ids)
        return made

    def embed_mix(self, weights: Tensor) -> Tensor:
        size = weights.shape[-1]
        if self.scale is None:
            table = self.embedding(torch.arange(size, device=weights.device))
            return (weights.to(table.dtype) @ table).to(table.dtype)
        table = self.embedding.weight
        if len(table) < size:
            raise InputError(f"mixtures of {size} tokens can't be fed where only {len(table)} have embeddings")
        weights = weights.to(table.dtype)
        if self._inputs is not None and len(table) == size:
            mixed = self._inputs.mix(weights)
        else:  # a model may have embeddings that no score belongs to
            mixed = weights @ (table if len(table) == size else table[:size])
        mixed = mixed.to(table.dtype)  # under autocast the product comes in low precision
        return mixed if self.scale == 1 else mixed * self.scale


def embedding_scale(embedding: nn.Module) -> float | None:
    """The factor c of an embedding c · weight[ids]; None where it is something else, or can't be seen from its weights."""
    if type(embedding).forward is nn.Embedding.forward:
        return 1.0
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.is_meta:
        return None
    with torch.no_grad():
        ids = weight[:64].double().norm(dim=1).argsort(descending=True)[:8]
        plain, made = weight[ids].double(), embedding(ids)
        if not isinstance(made, Tensor) or made.shape != plain.shape or not plain.any():
            return None
        made = made.double()
        scale = float((plain * made).sum() / plain.square().sum())
        told = getattr(embedding, "embed_scale", None)
        if told is not None and abs(float(told) - scale) <= 1e-2 * abs(scale):
            scale = float(told)  # without the rounding of the weights
        near = torch.finfo(weight.dtype).eps * 4
        return scale if torch.allclose(plain * scale, made, rtol=near, atol=0) else None


# Encoder-decoder and causal models as ``StepDecoder``: soft inputs, functional states, scores apart from features.


class Shared(NamedTuple):
    """What all hypotheses of an example share."""

    memory: Tensor | None = None  # [R,S,H] the encoder's output
    memory_mask: Tensor | None = None  # [R,S] long, or None where nothing is padded
    cross: Tree = None  # keys and values of the memory, once a step has made them
    pads: Tensor | None = None  # [R] how many of the first columns are padding; None where none are
    pending: Tensor | None = None  # [R,P,E] inputs still to be fed; the last takes the start symbol's place
    seen: int = 0  # columns fed so far
    layout: Any = None  # the cache without its tensors
    lost: str = ""  # why there is no cache, where a pass was made that keeps none


class WrappedDecoder(WrappedModel, ABC):
    """A Hugging Face model that generates, as a ``StepDecoder``.

    An example's first input is always ``batch.prefix[:, 0]``: where that isn't the start symbol, as behind the prompt of a
    causal model, it takes the place of the start symbol that a search feeds.
    """

    def __init__(self, model: nn.Module, symbols: Symbols, prompt: tuple[int, ...] = ()) -> None:
        super().__init__(model, symbols)
        self.parts = find(model)
        self.prompt = prompt  # fed before the start symbol to every output of an encoder-decoder
        self.strides = True  # whether it can go on from a state over several positions at once
        self.pads_left = True  # whether prompts of several lengths can share a batch
        self._outputs: Deferred | None = None  # the output layer's weight, while stepping

    @property
    def owner(self) -> Any:
        return self.model.get_submodule(self.parts.owner)

    @property
    def body(self) -> Any:
        return self.owner.get_submodule(self.parts.body)

    @property
    def embedding(self) -> Any:
        return (self.body if is_encoder_decoder(self.model) else self.owner).get_input_embeddings()

    def score(self, features: Tensor) -> Tensor:
        flat, others = features.reshape(1, -1, features.shape[-1]), {}
        if self._outputs is not None:
            others = {output_child(self.owner): self._project}
        scores = scores_of(self.owner, self.parts.path, flat, others)
        return scores.reshape(*features.shape[:-1], scores.shape[-1])

    def _project(self, features: Tensor) -> Tensor:
        """The output layer, while stepping."""
        assert self._outputs is not None
        scores, bias = self._outputs.linear(features), self.owner.get_output_embeddings().bias
        return scores if bias is None else scores + bias

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """For passes with gradient that go step by step: gradients of the vocabulary's matrices are made once.

        Under autocast, whose casts belong to the usual operators, nothing changes; nor within another such pass.
        """
        device = next(self.parameters()).device
        plain = not torch.is_grad_enabled() or torch.is_autocast_enabled(device.type)
        if plain or self._inputs is not None or self._outputs is not None:
            yield
            return
        if self.scale is not None and self.embedding.weight.requires_grad:
            self._inputs = Deferred(self.embedding.weight)
        child = output_child(self.owner)
        if child and self.owner.get_submodule(child).weight.requires_grad:
            self._outputs = Deferred(self.owner.get_submodule(child).weight)
        try:
            yield
        finally:
            self._inputs = self._outputs = None

    @abstractmethod
    def start(self, batch: Batch) -> DecoderState:
        """Encode the sources, or read the prompts, once."""

    def begin(self, batch: Batch, shared: Shared, ids: Tensor | None) -> DecoderState:
        """The state before the first input: ``ids`` [B,P] are fed, what comes behind them is pending."""
        first = batch.prefix[:, :1]
        own = bool((first != batch.symbols.bos).any())
        if ids is None or not ids.shape[1]:
            return DecoderState(None, shared._replace(pending=self.embed(first) if own else None))
        if self.without_cache() or not self.strides:
            return DecoderState(None, shared._replace(pending=self.embed(torch.cat([ids, first], dim=1))))
        _, state = self.advance(DecoderState(None, shared), self.embed(ids))
        return state._replace(shared=state.shared._replace(pending=self.embed(first) if own else None))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        shared: Shared = state.shared
        if shared.lost:
            raise InputError(
                f"{named(self.model)} keeps no cache while it trains with {shared.lost}: "
                "turn that off for methods that go step by step"
            )
        wanted = inputs.shape[1]
        if wanted > 1 and not self.strides and shared.layout is not None:
            parts = []
            for step in inputs.split(1, dim=1):
                part, state = self.advance(state, step)
                parts.append(part)
            return torch.cat(parts, dim=1), state
        if shared.pending is not None:
            inputs = torch.cat([shared.pending.to(inputs.dtype), inputs[:, 1:]], dim=1)
        total, lost = shared.seen + inputs.shape[1], self.without_cache()
        options: dict[str, Any] = {"inputs_embeds": inputs, "use_cache": not lost, "return_dict": True}
        if shared.layout is not None:
            options[self.parts.cache] = join(Split(state.carry, shared.cross, shared.layout))
        if shared.pads is not None:
            columns, pads = torch.arange(total, device=inputs.device), shared.pads.unsqueeze(1)
            options["attention_mask"] = (columns >= pads).long()
            if "position_ids" in self.parts.accepts:
                options["position_ids"] = (columns[shared.seen :] - pads).clamp(min=0)
        if shared.memory is not None:
            options["encoder_hidden_states"] = shared.memory
            options["encoder_attention_mask"] = shared.memory_mask
        output = self.run(options, total)
        features: Tensor = output[0][:, -wanted:]
        shared = shared._replace(pending=None, seen=total)
        if lost:
            return features, DecoderState(None, shared._replace(lost=lost))
        cache = getattr(output, self.parts.cache, None)
        if cache is None:
            raise InputError(f"{named(self.model)} returns no {self.parts.cache}, so it can't go on from a state")
        carry, cross, layout = split(cache, len(inputs))
        return features, DecoderState(carry, shared._replace(cross=cross, layout=layout))

    def run(self, options: dict[str, Any], total: int) -> Any:
        """The body's output."""
        with within_positions(self.body, total, named(self.model)):
            return self.body(**options)

    def without_cache(self) -> str:
        """Why passes leave no cache behind that could be used, or nothing."""
        if not self.model.training:
            return ""
        if getattr(self.body, "layerdrop", 0):
            return "layers dropped at random (layerdrop)"
        checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in self.body.modules())
        return "gradient checkpointing" if checkpointing else ""


class WrappedCausal(WrappedDecoder):
    """A causal model: ``batch.source`` is what stands before an output's first input, the prompt but for its last token."""

    def start(self, batch: Batch) -> DecoderState:
        ids, mask = batch.source, batch.source_mask
        if ids is None or (mask is not None and not bool(mask.any())):
            return self.begin(batch, Shared(), None)
        if ids.dim() != 2 or ids.is_floating_point():
            raise InputError(
                f"a causal model reads prompts of token ids [B,S], but the batch has sources of shape {tuple(ids.shape)}"
            )
        pads = None
        if mask is not None and not bool(mask.all()):
            order = mask.byte().argsort(dim=1, stable=True)  # padding goes to the left, holes close
            pads = (~mask).sum(dim=1)
            spare = int(pads.min())
            ids, pads = ids.gather(1, order)[:, spare:], pads - spare
            if not bool(pads.any()):
                pads = None
            elif not self.pads_left:
                raise InputError(
                    f"{named(self.model)} can't take prompts of several lengths in one batch: it has no positions "
                    "or masks to skip padding by"
                )
        return self.begin(batch, Shared(pads=pads), ids)


class WrappedEncoderDecoder(WrappedDecoder):
    """An encoder-decoder model: the source goes through its encoder once."""

    def start(self, batch: Batch) -> DecoderState:
        encoder = self.model.get_encoder()  # type: ignore[operator]
        name = getattr(encoder, "main_input_name", "input_ids")
        if batch.source is None or (name == "input_ids") == batch.source.is_floating_point():
            found = "no source" if batch.source is None else f"{batch.source.dtype} sources"
            raise InputError(f"{named(self.model)} reads sources as {name}, but the batch has {found}")
        mask = batch.source_mask
        mask = None if mask is None or bool(mask.all()) else mask.long()
        options = {name: batch.source, "return_dict": True}
        if mask is not None and "attention_mask" in arguments(encoder):
            options["attention_mask"] = mask
        with within_positions(encoder, batch.source.shape[1], named(self.model)):
            memory = encoder(**options)[0]
        if mask is not None and mask.shape[1] != memory.shape[1]:
            mask = None  # the encoder has its own idea of length
        before = torch.tensor(self.prompt, dtype=torch.long, device=memory.device).expand(len(memory), -1)
        return self.begin(batch, Shared(memory=memory, memory_mask=mask), before)
