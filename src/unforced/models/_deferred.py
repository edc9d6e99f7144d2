"""Matrix products of many small steps whose weight gradient is made once, at the end of the backward pass.

A decoder that runs with gradient one step at a time multiplies by its vocabulary matrices at every step. Autograd then makes a
gradient of the whole matrix at every step and adds them up, also where a step touched but a few of its rows. Here a step's
backward only keeps its two factors; when the last of them is done, one product of all the factors gives the same sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class Kept(NamedTuple):
    """What the steps' backward passes left for the end: Σ of leftᵀ right, and of rows to be added at ids."""

    factors: list[tuple[Tensor, Tensor]]  # [n,V] and [n,H]
    rows: list[tuple[Tensor, Tensor]]  # [n] and [n,H]

    def total(self, like: Tensor) -> Tensor:
        """The weight's gradient; nothing is kept any longer."""
        if self.factors:
            left, right = (torch.cat(column) for column in zip(*self.factors))
            total = left.T @ right
        else:
            total = torch.zeros_like(like)
        for ids, values in self.rows:
            total.index_add_(0, ids, values)
        self.factors.clear()
        self.rows.clear()
        return total


class Deferred:
    """The weight of ``x Wᵀ`` (``linear``), ``x W`` (``mix``) and ``W[ids]`` (``rows``), for the steps of one graph.

    >>> weight = torch.randn(7, 3, requires_grad=True)
    >>> x, deferred = torch.randn(2, 3), Deferred(weight)
    >>> sum(deferred.linear(step).square().sum() for step in x.split(1)).backward()
    >>> torch.allclose(weight.grad, 2 * (x @ weight.detach().T).T @ x)
    True
    """

    def __init__(self, weight: Tensor) -> None:
        self.kept = Kept([], [])
        self.weight = _Anchor.apply(weight, self.kept)

    def linear(self, x: Tensor) -> Tensor:
        """[...,H] -> [...,V]."""
        return _Linear.apply(x, self.weight, self.kept)

    def mix(self, weights: Tensor) -> Tensor:
        """[...,V] -> [...,H]."""
        return _Mix.apply(weights, self.weight, self.kept)

    def rows(self, ids: Tensor) -> Tensor:
        """[...] -> [...,H]."""
        return _Rows.apply(ids, self.weight, self.kept)


class _Anchor(torch.autograd.Function):
    """The identity; its backward runs when those of all the steps have run."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, kept: Kept) -> Tensor:
        ctx.weight, ctx.kept = weight, kept
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, direct: Tensor | None) -> tuple[Tensor | None, None]:
        total = ctx.kept.total(ctx.weight)
        return (total if direct is None else total + direct), None


class _Linear(torch.autograd.Function):
    """x Wᵀ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: Kept) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kept = kept
        return x @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.kept.factors.append((grad.flatten(0, -2), x.flatten(0, -2)))
        return grad @ weight, None, None


class _Mix(torch.autograd.Function):
    """x W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kept: Kept) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.kept = kept
        return x @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.kept.factors.append((x.flatten(0, -2), grad.flatten(0, -2)))
        return grad @ weight.T, None, None


class _Rows(torch.autograd.Function):
    """W[ids]."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, kept: Kept) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.kept = kept
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.kept.rows.append((ids.flatten(), grad.flatten(0, -2)))
        return None, None, None
