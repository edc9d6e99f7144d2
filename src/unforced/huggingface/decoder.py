"""Encoder-decoder and causal models of transformers as ``StepDecoder``."""

import copy
import functools
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.parts import (
    base_model,
    class_name,
    decoder_options,
    find_parts,
    is_encoder_decoder,
    position_limit,
    score_features,
    submodule_path,
)
from unforced.huggingface.vocabulary import ModelVocabulary
from unforced.types import Batch, DecoderState, Tree

# ---- Caches ----
#
# The caches of transformers are objects that a forward pass changes. A state holds only the tensors of a cache, with
# rows first, and the layout, which is never changed: each forward pass gets a new cache object.


class CacheParts(NamedTuple):
    """A cache without its object."""

    own: Tree  # the tensors of each layer that differ between hypotheses
    cross: Tree  # those of the attention to an encoder, or None
    layout: Any  # the object without its tensors


def split_cache(cache: Any, rows: int) -> CacheParts:
    """Take the tensors out of a cache that a pass over ``rows`` rows has filled."""
    if hasattr(cache, "cross_attention_cache"):
        layout = _copy(cache)
        layout.self_attention_cache, own = _emptied(cache.self_attention_cache, rows)
        layout.cross_attention_cache, cross = _emptied(cache.cross_attention_cache, rows)
        return CacheParts(own, cross, layout)
    layout, own = _emptied(cache, rows)
    return CacheParts(own, None, layout)


def join_cache(parts: CacheParts) -> Any:
    """Return a new cache around the tensors; changes to it do not reach ``parts``."""
    own, cross, layout = parts
    if hasattr(layout, "cross_attention_cache"):
        cache = _copy(layout)
        cache.self_attention_cache = _filled(layout.self_attention_cache, own)
        cache.cross_attention_cache = _filled(layout.cross_attention_cache, cross)
        return cache
    return _filled(layout, own)


def _emptied(cache: Any, rows: int) -> tuple[Any, Tree]:
    if not isinstance(getattr(cache, "layers", None), list):
        raise InputError(f"a cache ({type(cache).__name__}) without layers that can be mixed and reordered")
    if any(_holds_tensors(value) for name, value in vars(cache).items() if name != "layers"):
        raise InputError(f"a cache ({type(cache).__name__}) that holds tensors outside of its layers")
    layout, found = _copy(cache), []
    layout.layers = [_copy(layer) for layer in cache.layers]
    for layer in layout.layers:
        tensors = _tensors(layer)
        if any(leaf.shape[0] != rows for leaf in tensors.values()):
            raise InputError(f"a cache layer ({type(layer).__name__}) that holds tensors without rows")
        for slot in tensors:
            _put(layer, slot, None)
        found.append(tensors)
    return layout, tuple(found)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, list) and any(map(_holds_tensors, value)))


def _filled(layout: Any, tensors: Tree) -> Any:
    cache = _copy(layout)
    cache.layers = [_copy(layer) for layer in layout.layers]
    for layer, parts in zip(cache.layers, tensors):
        for slot, leaf in parts.items():
            _put(layer, slot, leaf if slot[1] is None else leaf.clone())  # layers overwrite states in a dict
        if hasattr(layer, "update_recurrent_state"):
            kind: Any = type(layer)
            layer.__class__ = _functional(kind)
    return cache


def _copy(thing: Any) -> Any:
    """Return a copy that shares no mutable container with the original."""
    other = copy.copy(thing)
    for name, value in vars(other).items():
        if isinstance(value, dict | list):
            vars(other)[name] = copy.copy(value)
    return other


Slot = tuple[str, Any]  # an attribute of a cache layer, and a key if it is a dict


def _tensors(layer: Any) -> dict[Slot, Tensor]:
    """Return the tensors with rows that a layer holds."""
    return {
        (name, key): leaf
        for name, value in vars(layer).items()
        for key, leaf in (value.items() if isinstance(value, dict) else [(None, value)])
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.numel()
    }


def _put(layer: Any, slot: Slot, leaf: Tensor | None) -> None:
    name, key = slot
    if key is None:
        vars(layer)[name] = leaf
    else:
        vars(layer)[name][key] = leaf


@functools.cache
def _functional(kind: type) -> type:
    """Return a cache layer's class whose recurrent state is replaced, because a backward pass may need the old one."""
    if "_unforced" in vars(kind):
        return kind

    def update_recurrent_state(self: Any, recurrent_states: Tensor, state_idx: int = 0, **options: Any) -> Tensor:
        if self.is_recurrent_states_initialized[state_idx]:
            self.recurrent_states[state_idx] = torch.empty_like(recurrent_states)
        update: Any = kind.update_recurrent_state  # type: ignore[attr-defined]
        updated: Tensor = update(self, recurrent_states, state_idx, **options)
        return updated

    members = {"update_recurrent_state": update_recurrent_state, "_layer_type": None, "_unforced": True}
    return type(kind.__name__, (kind,), members)


# ---- Inputs ----


class WrappedModel(nn.Module):
    """Base of all wrappers: a transformers ``model``, whose parameters are shared, and its ``vocabulary``."""

    def __init__(self, model: nn.Module, vocabulary: ModelVocabulary) -> None:
        super().__init__()
        self.model = model
        self.vocabulary = vocabulary
        self.symbols = vocabulary.symbols
        self.training = model.training
        self.takes_mixtures = True  # whether inputs may be mixtures of embeddings

    @property
    def embedding(self) -> Any:
        """The embedding of the tokens that are fed."""
        return self.model.get_input_embeddings()  # type: ignore[operator]

    @cached_property
    def scale(self) -> float | None:
        """The factor c of an embedding c · weight[ids]; None if it is something else or its weights are not there."""
        embedding = self.embedding
        weight = getattr(embedding, "weight", None)
        if type(embedding).forward is nn.Embedding.forward:
            return 1.0
        if not isinstance(weight, Tensor) or weight.is_meta or not hasattr(embedding, "embed_scale"):
            return None
        scale, ids = float(embedding.embed_scale), weight.detach().norm(dim=1).argmax().unsqueeze(0)
        return scale if torch.allclose(embedding(ids), weight[ids] * scale, rtol=1e-2) else None

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(ids)
        return embedded

    def embed_mix(self, weights: Tensor) -> Tensor:
        if not self.takes_mixtures:
            raise InputError(
                f"{class_name(self.model)} takes only the embeddings of single tokens, not mixtures: use a method that "
                "feeds tokens"
            )
        size = weights.shape[-1]
        if self.scale is None:
            table = self.embedding(torch.arange(size, device=weights.device))
            mixed: Tensor = weights.to(table.dtype) @ table
            return mixed.to(table.dtype)
        table = self.embedding.weight
        if len(table) < size:
            raise InputError(f"cannot mix the embeddings of {size} tokens: the model has only {len(table)}")
        weights = weights.to(table.dtype)
        mixed = weights @ (table if len(table) == size else table[:size])  # some embeddings may have no score
        mixed = mixed.to(table.dtype)  # under autocast the product has low precision
        return mixed if self.scale == 1 else mixed * self.scale


# ---- Decoders ----

ONE_PASS = "cross_entropy, label_smoothing or parallel_scheduled_sampling"


class SharedState(NamedTuple):
    """What all hypotheses of an example share."""

    memory: Tensor | None = None  # [R,S,H] the encoder's output
    memory_mask: Tensor | None = None  # [R,S] long; None without padding
    cross: Tree = None  # keys and values of the memory, after the first step
    pads: Tensor | None = None  # [R] number of padding columns at the left; None without padding
    pending: Tensor | None = None  # [R,P,E] inputs still to be fed; the last one replaces the start symbol
    seen: int = 0  # columns fed so far
    layout: Any = None  # the cache without its tensors
    lost: str = ""  # why the last pass kept no cache


class WrappedDecoder(WrappedModel, ABC):
    """A transformers model that generates, as a ``StepDecoder``.

    The first input of an example is always ``batch.prefix[:, 0]``. If that is not the start symbol, such as the last
    token of a causal model's prompt, it replaces the start symbol that a search feeds.
    """

    def __init__(self, model: nn.Module, vocabulary: ModelVocabulary) -> None:
        super().__init__(model, vocabulary)
        self.parts = find_parts(model)
        self.takes_strides = True  # whether a state can be advanced over several positions at once
        self.takes_left_padding = True  # whether prompts of several lengths can share a batch
        self.first_position: int | None = None  # given to models that do not count positions on from their cache
        self.stepless = ""  # why the model cannot go step by step, if it cannot
        self.steps_have_gradients = True  # whether a state that was advanced several times has gradients

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
        scores = score_features(self.owner, self.parts.path, features.reshape(1, -1, features.shape[-1]))
        return scores.reshape(*features.shape[:-1], scores.shape[-1])

    @abstractmethod
    def start(self, batch: Batch) -> DecoderState:
        """Encode the sources, or read the prompts, once."""

    def _begin(self, batch: Batch, shared: SharedState, ids: Tensor | None) -> DecoderState:
        """Return the state before the first input, after feeding ``ids`` [B,P]; further inputs are pending."""
        first = batch.prefix[:, :1]
        own = bool((first != batch.symbols.bos).any())
        if ids is None or not ids.shape[1]:
            return DecoderState(None, shared._replace(pending=self.embed(first) if own else None))
        if self.no_cache_reason() or not self.takes_strides:
            return DecoderState(None, shared._replace(pending=self.embed(torch.cat([ids, first], dim=1))))
        _, state = self.advance(DecoderState(None, shared), self.embed(ids))
        return state._replace(shared=state.shared._replace(pending=self.embed(first) if own else None))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        shared: SharedState = state.shared
        if shared.lost:
            raise InputError(f"this method goes step by step, but {class_name(self.model)} {shared.lost}")
        wanted = inputs.shape[1]
        if wanted > 1 and not self.takes_strides and shared.layout is not None:
            parts = []
            for step in torch.split(inputs, 1, dim=1):
                part, state = self.advance(state, step)
                parts.append(part)
            return torch.cat(parts, dim=1), state
        if shared.pending is not None:
            inputs = torch.cat([shared.pending.to(inputs.dtype), inputs[:, 1:]], dim=1)
        total, lost = shared.seen + inputs.shape[1], self.no_cache_reason()
        options: dict[str, Any] = {"inputs_embeds": inputs, "return_dict": True}
        if "use_cache" in self.parts.accepts:
            options["use_cache"] = not lost
        if shared.layout is not None:
            options[self.parts.cache] = join_cache(CacheParts(state.carry, shared.cross, shared.layout))
        elif shared.memory is not None and not lost:
            options[self.parts.cache] = self.empty_cache()
        columns = torch.arange(total, device=inputs.device).unsqueeze(0)
        positions = columns[:, shared.seen :] + (self.first_position or 0)
        if shared.pads is not None:
            pads = shared.pads.unsqueeze(1)
            options["attention_mask"] = (columns >= pads).long()
            positions = (positions - pads).clamp(min=self.first_position or 0)
        if "position_ids" in self.parts.accepts and (shared.pads is not None or self.first_position is not None):
            options["position_ids"] = positions
        if shared.memory is not None:
            options["encoder_hidden_states"] = shared.memory
            if "encoder_attention_mask" in self.parts.accepts:
                options["encoder_attention_mask"] = shared.memory_mask
        with position_limit(self.body, total, class_name(self.model)):
            output = self.body(**options)
        features: Tensor = output[0][:, -wanted:]
        shared = shared._replace(pending=None, seen=total)
        if lost:
            return features, DecoderState(None, shared._replace(lost=lost))
        cache = getattr(output, self.parts.cache, None)
        if cache is None:
            return features, DecoderState(None, shared._replace(lost=f"returns no {self.parts.cache}"))
        try:
            carry, cross, layout = split_cache(cache, len(inputs))
        except InputError as error:
            return features, DecoderState(None, shared._replace(lost=f"has {error}"))
        return features, DecoderState(carry, shared._replace(cross=cross, layout=layout))

    def empty_cache(self) -> Any:
        """Return the cache before the first step; some encoder-decoders make none themselves in training."""
        from transformers import DynamicCache, EncoderDecoderCache

        return EncoderDecoderCache(DynamicCache(config=self.body.config), DynamicCache())

    def no_cache_reason(self) -> str:
        """Return why passes keep no usable cache, and what to do; "" if they do."""
        if self.stepless:
            return f"{self.stepless}: use a method of whole passes, such as {ONE_PASS}"
        if not self.steps_have_gradients and torch.is_grad_enabled():
            return f"overwrites its state, so that steps have no gradients: use scheduled_sampling, {ONE_PASS}"
        if not self.model.training:
            return ""
        if getattr(self.body, "layerdrop", 0):
            names = [name for name in ("layerdrop", "decoder_layerdrop") if getattr(self.body.config, name, 0)]
            settings = " and ".join(f"{name}=0.0" for name in names)
            return f"drops layers at random while training: load it with {settings}"
        if any(getattr(module, "gradient_checkpointing", False) for module in self.body.modules()):
            return "keeps no cache while training with gradient checkpointing: turn gradient_checkpointing off"
        return ""


class WrappedCausal(WrappedDecoder):
    """A causal model; ``batch.source`` is the prompt without its last token, which is the first input."""

    def start(self, batch: Batch) -> DecoderState:
        ids, mask = batch.source, batch.source_mask
        if ids is None or (mask is not None and not bool(mask.any())):
            return self._begin(batch, SharedState(), None)
        if ids.dim() != 2 or ids.is_floating_point():
            raise InputError(
                f"a causal model reads prompts of token ids [B,S], but the sources have the shape {tuple(ids.shape)}"
            )
        pads = None
        if mask is not None and not bool(mask.all()):
            order = mask.byte().argsort(dim=1, stable=True)  # padding to the left
            pads = (~mask).sum(dim=1)
            spare = int(pads.min())
            ids, pads = ids.gather(1, order)[:, spare:], pads - spare
            if not bool(pads.any()):
                pads = None
            elif not self.takes_left_padding:
                raise InputError(
                    f"{class_name(self.model)} cannot skip padding: give all prompts of a batch the same length"
                )
        return self._begin(batch, SharedState(pads=pads), ids)


class WrappedEncoderDecoder(WrappedDecoder):
    """An encoder-decoder model."""

    def start(self, batch: Batch) -> DecoderState:
        name = str(base_model(self.model).main_input_name)
        if batch.source is None or (name == "input_ids") == batch.source.is_floating_point():
            found = "no source" if batch.source is None else f"{batch.source.dtype} sources"
            raise InputError(f"{class_name(self.model)} reads sources as {name}, but the batch has {found}")
        mask = batch.source_mask
        inputs = {name: batch.source}
        if mask is not None and not bool(mask.all()):
            inputs["attention_mask"] = mask.long()
        encoder = self.model.get_encoder()  # type: ignore[operator]
        with position_limit(encoder, batch.source.shape[1], class_name(self.model)):
            shared = self.encode(inputs, batch.prefix[:, :1])
        before = batch.prefix.new_tensor(self.vocabulary.prompt).expand(len(batch), -1)
        return self._begin(batch, shared, before)

    def encode(self, inputs: dict[str, Any], first: Tensor) -> SharedState:
        """Run the model's own forward function up to its decoder; ``first`` [R,1] is any input of the decoder."""
        base = base_model(self.model)
        path = self.parts.path if self.owner is base else tuple(submodule_path(base, self.owner).split("."))
        options = decoder_options(base, path, {**inputs, "decoder_input_ids": first})
        return SharedState(memory=options["encoder_hidden_states"], memory_mask=options.get("encoder_attention_mask"))
