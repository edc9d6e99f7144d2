"""Dropout that is cheap on a CPU, where drawing the mask costs more than using it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_STEPS = 1 << 16  # a mask entry compares 16 random bits with a threshold


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Set entries of ``x`` to zero with probability ``rate`` and scale the others so that the mean stays.

    On a CPU one 64-bit draw of torch's global generator serves four entries (about a third of the time that
    ``torch.nn.functional.dropout`` takes where its vendor-specific kernel is absent), so the rate is rounded to a
    multiple of 2⁻¹⁶; the scale is that of the rounded rate. Other devices use PyTorch's own.

    >>> dropout(torch.ones(2), 0.5, training=False)
    tensor([1., 1.])
    >>> _ = torch.manual_seed(0)
    >>> sorted(set(dropout(torch.ones(1000), 0.5, training=True).tolist()))
    [0.0, 2.0]
    """
    if not training or rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate, training=True)
    dropped = round(rate * _STEPS)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # uniform over −2¹⁵ … 2¹⁵−1
    noise = (bits >= dropped - _STEPS // 2).to(x.dtype)
    return x * noise.mul_(_STEPS / (_STEPS - dropped))


# Matrix products of many small steps that add to one gradient of their weight.


class Kept:
    """What the steps of one backward pass have added up so far."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None
        self.task = -1  # the pass

    def begin(self) -> None:
        """Forget what another pass has left, one that did not ask for this weight's gradient."""
        task = torch._C._current_graph_task_id()
        if task != self.task:
            self.sum, self.task = None, task

    def add(self, like: Tensor, left: Tensor, right: Tensor) -> None:
        """Add leftᵀ right, of [n,V] and [n,H]."""
        self.begin()
        if self.sum is None:
            self.sum = (left.T @ right).to(like.dtype)
        else:
            self.sum.addmm_(left.T, right)

    def add_rows(self, like: Tensor, ids: Tensor, values: Tensor) -> None:
        """Add values [n,H] to the rows ids [n]."""
        self.begin()
        if self.sum is None:
            self.sum = torch.zeros_like(like)
        self.sum.index_add_(0, ids, values)

    def take(self) -> Tensor | None:
        """The sum, which is forgotten."""
        self.begin()
        found, self.sum = self.sum, None
        return found


class Deferred:
    """The weight of ``x Wᵀ`` (``linear``), ``x W`` (``mix``) and ``W[ids]`` (``rows``), for the steps of one graph.

    >>> weight = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    >>> x, deferred = torch.randn(2, 3, dtype=torch.float64), Deferred(weight)
    >>> sum(deferred.linear(step).square().sum() for step in x.split(1)).backward()
    >>> torch.allclose(weight.grad, 2 * (x @ weight.detach().T).T @ x)
    True
    """

    def __init__(self, weight: Tensor) -> None:
        self.kept = Kept()
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
        ctx.kept = kept
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, direct: Tensor | None) -> tuple[Tensor | None, None]:
        total = ctx.kept.take()
        if total is None or direct is None:
            return direct if total is None else total, None
        return total + direct, None


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
        ctx.kept.add(weight, grad.flatten(0, -2), x.flatten(0, -2))
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
        ctx.kept.add(weight, x.flatten(0, -2), grad.flatten(0, -2))
        return grad @ weight.T, None, None


class _Rows(torch.autograd.Function):
    """W[ids]."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, kept: Kept) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.kept = kept
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ids, weight = ctx.saved_tensors
        ctx.kept.add_rows(weight, ids.flatten(), grad.flatten(0, -2))
        return None, None, None
