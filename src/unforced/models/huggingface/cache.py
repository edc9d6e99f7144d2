"""A cache of keys and values as a plain tree of tensors with rows first, and back.

The library's caches are objects that a forward pass changes. Here the tensors are taken out of a cache, and what is left of it,
the layout, is never changed: each forward pass gets a new object around the tensors of the state it starts from.
"""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.types import Tree


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
        raise InputError(
            f"a cache of the class {type(cache).__name__} has no layers that could be mixed and reordered"
        )
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
    return [
        leaf for part in tensors.values() for leaf in (part.values() if isinstance(part, dict) else [part])
    ]


@functools.cache
def _functional(kind: type) -> type:
    """The class of layer with a recurrent state that is replaced, and not overwritten while a backward pass needs it."""
    if "_unforced" in vars(kind):
        return kind

    def update_recurrent_state(
        self: Any, recurrent_states: Tensor, state_idx: int = 0, **options: Any
    ) -> Tensor:
        if self.is_recurrent_states_initialized[state_idx]:
            self.recurrent_states[state_idx] = torch.empty_like(recurrent_states)
        updated: Tensor = kind.update_recurrent_state(self, recurrent_states, state_idx, **options)  # type: ignore[attr-defined]
        return updated

    members = {
        "update_recurrent_state": update_recurrent_state,
        "_layer_type": None,
        "_unforced": True,
    }
    return type(kind.__name__, (kind,), members)
