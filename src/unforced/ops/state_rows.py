"""Repeat, select, reorder and mix the rows of decoder states.

Rows are the first dimension of every tensor. Row b·K + k is hypothesis k of example b.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unforced.types import DecoderState, Tree


def map_rows(change: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply ``change`` to every tensor with rows, or to the corresponding tensors of several trees.

    Zero-dimensional tensors and other values stay as they are; of several trees, those of the first are taken.

    >>> map_rows(lambda leaf: leaf + 1, {"h": torch.zeros(2, 1), "step": 3})
    {'h': tensor([[1.],
            [1.]]), 'step': 3}
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return change(*trees) if first.dim() else first
    if isinstance(first, dict):
        return {key: map_rows(change, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple | list):
        leaves = [map_rows(change, *parts) for parts in zip(*trees)]
        return type(first)(*leaves) if hasattr(first, "_fields") else type(first)(leaves)  # a named tuple or not
    return first


def take(tree: Tree, rows: Tensor) -> Tree:
    """Select rows of every tensor with rows."""
    return map_rows(lambda leaf: leaf.index_select(0, rows), tree)


def concatenate(trees: list[Tree]) -> Tree:
    """Concatenate the rows of trees of the same structure."""
    return map_rows(lambda *leaves: torch.cat(leaves), *trees)


def repeat(state: DecoderState, k: int) -> DecoderState:
    """Repeat each row k times."""
    if k == 1:
        return state
    repeated: DecoderState = map_rows(lambda leaf: leaf.repeat_interleave(k, dim=0), state)
    return repeated


def keep(state: DecoderState, rows: Tensor) -> DecoderState:
    """Select rows of the whole state, for example when examples leave the batch."""
    kept: DecoderState = take(state, rows)
    return kept


def reorder(state: DecoderState, rows: Tensor) -> DecoderState:
    """Let row r continue hypothesis ``rows[r]`` *of the same example*: only ``carry`` is reordered."""
    return state._replace(carry=take(state.carry, rows))


def mix(state: DecoderState, weights: Tensor) -> DecoderState:
    """Let hypothesis i of example b continue Σ_j weights[b,i,j] · (hypothesis j): CRB Algorithm 1.

    ``weights`` is [B,K,K'] for a state of B·K' rows; with one-hot weights this is `reorder`.

    >>> state = DecoderState(carry=torch.tensor([[1.0], [3.0]]), shared=None)
    >>> mix(state, torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])).carry
    tensor([[2.],
            [3.]])
    """
    b, k, k_old = weights.shape

    def blend(leaf: Tensor) -> Tensor:
        old = leaf.reshape(b, k_old, -1)
        return torch.bmm(weights.to(old.dtype), old).reshape(b * k, *leaf.shape[1:])

    return state._replace(carry=map_rows(blend, state.carry))
