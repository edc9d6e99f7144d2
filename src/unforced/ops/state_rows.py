"""Row operations on decoder states: repeat, keep, reorder and mix the hypotheses of a batch.

Rows come first in every leaf, and the K rows of an example are adjacent: row b·K + k is hypothesis k of example b.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unforced.types import DecoderState, Tree


def map_rows(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply ``change`` to every leaf that has rows; what belongs to all rows passes through.

    >>> map_rows(lambda leaf: leaf + 1, {"h": torch.zeros(2, 1), "step": 3})
    {'h': tensor([[1.],
            [1.]]), 'step': 3}
    """
    if isinstance(tree, Tensor):
        return change(tree) if tree.dim() else tree
    if isinstance(tree, dict):
        return {key: map_rows(change, leaf) for key, leaf in tree.items()}
    if isinstance(tree, tuple | list):
        leaves = [map_rows(change, leaf) for leaf in tree]
        return type(tree)(*leaves) if hasattr(tree, "_fields") else type(tree)(leaves)
    return tree


def repeat(state: DecoderState, k: int) -> DecoderState:
    """Give each example k adjacent rows."""
    if k == 1:
        return state
    return map_rows(lambda leaf: leaf.repeat_interleave(k, dim=0), state)


def keep(state: DecoderState, rows: Tensor) -> DecoderState:
    """Keep some rows of everything: examples leave the batch."""
    return map_rows(lambda leaf: leaf.index_select(0, rows), state)


def reorder(state: DecoderState, rows: Tensor) -> DecoderState:
    """Let row r continue hypothesis ``rows[r]`` *of the same example*: only what differs between them moves."""
    return state._replace(carry=map_rows(lambda leaf: leaf.index_select(0, rows), state.carry))


def mix(state: DecoderState, weights: Tensor) -> DecoderState:
    """Let hypothesis i of example b continue the mixture Σ_j weights[b,i,j] · (hypothesis j): CRB Algorithm 1.

    ``weights`` is [B,K,K'] for a state of B·K' rows; one-hot weights are ``reorder``.

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
